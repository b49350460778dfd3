-- Make several reads of one snapshot and return their replies.
--   ARGV: for each read: name, key, number of arguments, arguments

local special = {}
local PAGE = 1000

-- Return at most `limit` live entries from `start` up to, but not including, `stop`; -1 for no limit or end. With `descending`,
-- return the last ones, newest first.
function special.range(key, start, stop, limit, descending)
  local first = find_index(key, tonumber(start))
  local last = (stop == '-1' and redis.call('LLEN', key) or find_index(key, tonumber(stop))) - 1
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

-- Return at most `limit` notes that are not retired, in the same way. They are stored as retired by their own `seq`.
function special.notes(key, start, stop, limit, descending)
  local command = descending == '1' and 'ZREVRANGEBYSCORE' or 'ZRANGEBYSCORE'
  local low, high = start, stop == '-1' and '+inf' or '(' .. stop
  if descending == '1' then
    low, high = high, low
  end
  local found, at, most = {}, 0, tonumber(limit)
  while true do
    local page = redis.call(command, key, low, high, 'LIMIT', at, PAGE)
    for _, entry in ipairs(page) do
      if most >= 0 and #found >= most then
        return found
      end
      if string.sub(entry, 1, 8) == string.sub(entry, 9, 16) then
        found[#found + 1] = entry
      end
    end
    if #page < PAGE then
      return found
    end
    at = at + PAGE
  end
end

-- For each code of MessagePack: the number of bytes that follow it, or of those that contain the length of the rest.
local FOLLOW = {[0xca] = 4, [0xcb] = 8, [0xcc] = 1, [0xcd] = 2, [0xce] = 4, [0xcf] = 8, [0xd0] = 1, [0xd1] = 2, [0xd2] = 4, [0xd3] = 8}
local PREFIX = {[0xc4] = 1, [0xc5] = 2, [0xc6] = 4, [0xd9] = 1, [0xda] = 2, [0xdb] = 4}

-- Return the place after the number, text or bytes that begin at `at`. (The library `cmsgpack` knows no bytes.)
local function skip_value(data, at)
  local code = string.byte(data, at)
  if PREFIX[code] then
    return at + 1 + PREFIX[code] + struct.unpack('>I' .. PREFIX[code], data, at + 1)
  elseif code >= 0xa0 and code <= 0xbf then
    return at + 1 + code - 0xa0
  end
  return at + 1 + (FOLLOW[code] or 0)
end

-- Measure the live path before `stop`: number of entries, the `seq` after the last one or the last note, bytes of the messages, number of
-- notes that are not retired, number of entries that are pinned or whose metadata contains `choices`. An entry is an array of ten values
-- after its first `head` bytes: the pin is the seventh, the metadata are the ninth, and the message is the last one.
function special.extent(key, retired, stop, head, choices)
  local last = find_index(key, tonumber(stop)) - 1
  local size, after, notes, pinned = 0, 0, 0, 0
  local function measure(entry, skip)
    local at = skip + tonumber(head) + 2
    for field = 1, 9 do
      local begin = at
      at = skip_value(entry, at)
      if field == 7 and string.byte(entry, begin) == 1 or field == 9 and string.find(string.sub(entry, begin, at - 1), choices, 1, true) then
        pinned = pinned + 1
      end
    end
    size = size + #entry - at - PREFIX[string.byte(entry, at)]
    after = math.max(after, struct.unpack('>I8', entry, skip + 1) + 1)
  end
  for at = 0, last, PAGE do
    for _, entry in ipairs(redis.call('LRANGE', key, at, math.min(at + PAGE - 1, last))) do
      measure(entry, 0)
    end
  end
  local begin = 0
  while true do
    local page = redis.call('ZRANGEBYSCORE', KEYS[tonumber(retired)], '-inf', '(' .. stop, 'LIMIT', begin, PAGE)
    for _, entry in ipairs(page) do
      if string.sub(entry, 1, 8) == string.sub(entry, 9, 16) then
        measure(entry, 8)
        notes = notes + 1
      end
    end
    if #page < PAGE then
      return {last + 1, after, size, notes, pinned}
    end
    begin = begin + PAGE
  end
end

-- Return the number of live entries from `start` on.
function special.count(key, start)
  return redis.call('LLEN', key) - find_index(key, tonumber(start))
end

-- Return the live ones of some entries, in order, each once.
local function find_entries(key, seqs)
  table.sort(seqs)
  local found = {}
  for i, seq in ipairs(seqs) do
    if seq ~= seqs[i - 1] then
      found[#found + 1] = find_entry(key, seq)
    end
  end
  return found
end

function special.at(key, ...)
  local seqs = {...}
  for i, seq in ipairs(seqs) do
    seqs[i] = tonumber(seq)
  end
  return find_entries(key, seqs)
end

-- Return a view, its live compaction, the entries that it keeps, and the entries from its frontier on.
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
      kept = find_entries(KEYS[tonumber(log)], fine and seqs or {})
    end
  end
  return {saved, compaction, kept, special.range(KEYS[tonumber(log)], from or 0, '-1', '-1')}
end

-- Return the members of one session with a score, the last first, by binary search: members with the same score are sorted.
local function find_of_session(key, score, number, limit)
  local function at(rank)
    local member = redis.call('ZRANGE', key, rank, rank)[1]
    return member, struct.unpack('>I6', member)
  end
  local first = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  local low, high = first, first + redis.call('ZCOUNT', key, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, found_number = at(middle)
    if found_number <= number then
      low = middle + 1
    else
      high = middle
    end
  end
  local found = {}
  for rank = low - 1, math.max(first, low - tonumber(limit)), -1 do
    local member, found_number = at(rank)
    if found_number ~= number then
      break
    end
    found[#found + 1] = member
  end
  return found
end

-- Find the first of some scores that has members, in all sessions or only in the one with the given head. Return the position of the
-- score, its newest members, and the ids of their sessions; nothing if no score has members.
function special.find_places(key, numbers, limit, head, ...)
  local identity = head ~= '0' and (redis.call('HGET', KEYS[tonumber(head)], 'i') or '')
  if identity and string.byte(identity) ~= 0 then
    return {}
  end
  local number = identity and struct.unpack('>I6', identity)
  for i, score in ipairs({...}) do
    local found
    if number then
      found = find_of_session(key, score, number, limit)
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

-- Return 1 if an entry is live, otherwise 0, and its first `length` bytes, without the eight bytes that precede a retired entry.
function special.read_place(key, retired, seq, length)
  local found = find_entry(key, tonumber(seq))
  if found then
    return {1, string.sub(found, 1, tonumber(length))}
  end
  found = redis.call('ZRANGEBYSCORE', KEYS[tonumber(retired)], seq, seq)[1]
  return {0, found and string.sub(found, 9, 8 + tonumber(length))}
end

-- List members of `recent` from a rank on, of sessions that count as active or closed (see `_compute_status` in `sessions.py`).
-- Return the last member that was checked with its score, or nothing at the end, and the members with their scores.
function special.list_by_status(key, idle, owned, expiring, begin, wanted, most, descending, status, now, since)
  local command = descending == '1' and 'ZREVRANGE' or 'ZRANGE'
  local at, found, checked = tonumber(begin), {}, {}
  local last = at + tonumber(most)
  while at < last do
    local page = redis.call(command, key, at, at + PAGE - 1, 'WITHSCORES')
    for i = 1, #page, 2 do
      local member, closed = page[i], true
      checked = {member, page[i + 1]}
      local accessed = redis.call('ZSCORE', KEYS[tonumber(idle)], member)
      if accessed then
        closed = since ~= '' and tonumber(accessed) <= tonumber(since)
      elseif redis.call('ZSCORE', KEYS[tonumber(owned)], member) then
        local over = redis.call('ZSCORE', KEYS[tonumber(expiring)], member)
        closed = over and now ~= '' and tonumber(over) <= tonumber(now)
      end
      if (closed and 'closed' or 'active') == status then
        found[#found + 1] = member
        found[#found + 1] = page[i + 1]
        if #found >= 2 * tonumber(wanted) then
          return {checked, found}
        end
      end
    end
    if #page < 2 * PAGE then
      return {{}, found}
    end
    at = at + PAGE
  end
  return {checked, found}
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
