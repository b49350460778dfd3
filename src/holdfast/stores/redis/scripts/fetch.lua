-- Several reads, seen at one moment.
--   ARGV: for each: name, key, number of arguments, arguments; a reply for each

local special = {}
local PAGE = 1000

-- At most `limit` live entries from `start` to before `stop`, -1 for no bound; with `descending` the last ones, newest first.
function special.range(key, start, stop, limit, descending)
  local first = index_of(key, tonumber(start))
  local last = (stop == '-1' and redis.call('LLEN', key) or index_of(key, tonumber(stop))) - 1
  local most = tonumber(limit)
  if most >= 0 and descending == '1' then
    first = math.max(first, last - most + 1)
  elseif most >= 0 then
    last = math.min(last, first + most - 1)
  end
  local found = first <= last and redis.call('LRANGE', key, first, last) or {}
  if descending == '1' then
    for i = 1, math.floor(#found / 2) do
      found[i], found[#found + 1 - i] = found[#found + 1 - i], found[i]
    end
  end
  return found
end

-- How many live entries there are from `start` on.
function special.count(key, start)
  return redis.call('LLEN', key) - index_of(key, tonumber(start))
end

-- Those of some entries that are live, in order, each once.
local function among(key, seqs)
  table.sort(seqs)
  local found = {}
  for i, seq in ipairs(seqs) do
    if seq ~= seqs[i - 1] then
      found[#found + 1] = entry_at(key, seq)
    end
  end
  return found
end

function special.at(key, ...)
  local seqs = {...}
  for i, seq in ipairs(seqs) do
    seqs[i] = tonumber(seq)
  end
  return among(key, seqs)
end

-- A view, its live compaction, the entries that it keeps, and those from its frontier on.
function special.window(key, view, lives, compactions, log)
  local saved = redis.call('HGET', key, view)
  local id = redis.call('HGET', KEYS[tonumber(lives)], view)
  local compaction = id and redis.call('HGET', KEYS[tonumber(compactions)], id)
  local from, kept = 0, {}
  if saved then
    local list
    from, list = string.match(saved, '^(%-?%d+) ([^ \n]*)')
    if list and list ~= '' then
      local fine, seqs = pcall(cjson.decode, list)
      kept = among(KEYS[tonumber(log)], fine and seqs or {})
    end
  end
  return {saved, compaction, kept, special.range(KEYS[tonumber(log)], from or 0, '-1', '-1')}
end

-- Members that have a score, of one session, the last first: found by halves, for those of a score are sorted.
local function of_session(key, score, number, limit)
  local function at(rank)
    local member = redis.call('ZRANGE', key, rank, rank)[1]
    return member, struct.unpack('>I6', member)
  end
  local first = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  local low, high = first, first + redis.call('ZCOUNT', key, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, whose = at(middle)
    if whose <= number then
      low = middle + 1
    else
      high = middle
    end
  end
  local found = {}
  for rank = low - 1, math.max(first, low - tonumber(limit)), -1 do
    local member, whose = at(rank)
    if whose ~= number then
      break
    end
    found[#found + 1] = member
  end
  return found
end

-- The first of some scores that there is, by its place among them, its newest members, and what their sessions are called; in one
-- session, if its head is given. Nothing where there is none.
function special.sighted(key, numbers, limit, head, ...)
  local whose = head ~= '0' and (redis.call('HGET', KEYS[tonumber(head)], 'i') or '')
  if whose and string.byte(whose) ~= 0 then
    return {}
  end
  local number = whose and struct.unpack('>I6', whose)
  for i, score in ipairs({...}) do
    local found
    if number then
      found = of_session(key, score, number, limit)
    else
      found = redis.call('ZREVRANGEBYSCORE', key, score, score, 'LIMIT', 0, limit)
    end
    if #found > 0 then
      local ids = {}
      for at, member in ipairs(found) do
        local given = string.format('%.0f', struct.unpack('>I6', member))
        ids[at] = redis.call('HGET', KEYS[tonumber(numbers)], given)
      end
      return {i, found, ids}
    end
  end
  return {}
end

-- Whether an entry is on the live path, and its first `length` bytes; eight bytes stand before one that is retired.
function special.placed(key, retired, seq, length)
  local found = entry_at(key, tonumber(seq))
  if found then
    return {1, string.sub(found, 1, tonumber(length))}
  end
  found = redis.call('ZRANGEBYSCORE', KEYS[tonumber(retired)], seq, seq)[1]
  return {0, found and string.sub(found, 9, 8 + tonumber(length))}
end

-- Members of `recent` from a rank on, of sessions that count as active or closed: see `_status` in `sessions`. Where to go on, or -1
-- at the end, and the members.
function special.standing(key, idle, owned, expiring, begin, wanted, most, descending, status, now, since)
  local command = descending == '1' and 'ZREVRANGE' or 'ZRANGE'
  local at, found = tonumber(begin), {}
  local last = at + tonumber(most)
  while at < last do
    local members = redis.call(command, key, at, at + PAGE - 1)
    for i, member in ipairs(members) do
      local closed = true
      local accessed = redis.call('ZSCORE', KEYS[tonumber(idle)], member)
      if accessed then
        closed = since ~= '' and tonumber(accessed) <= tonumber(since)
      elseif redis.call('ZSCORE', KEYS[tonumber(owned)], member) then
        local over = redis.call('ZSCORE', KEYS[tonumber(expiring)], member)
        closed = over and now ~= '' and tonumber(over) <= tonumber(now)
      end
      if (closed and 'closed' or 'active') == status then
        found[#found + 1] = member
        if #found >= tonumber(wanted) then
          return {at + i, found}
        end
      end
    end
    if #members < PAGE then
      return {-1, found}
    end
    at = at + PAGE
  end
  return {at, found}
end

local replies, at = {}, 1
while at <= #ARGV do
  local name, key, count = ARGV[at], KEYS[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
  local run = special[name]
  if run then
    replies[#replies + 1] = run(key, unpack(ARGV, at + 3, at + 2 + count))
  else
    replies[#replies + 1] = redis.call(name, key, unpack(ARGV, at + 3, at + 2 + count))
  end
  at = at + 3 + count
end
return replies
