-- Several reads, seen at one moment.
--   ARGV: for each: name, key, number of arguments, arguments; a reply for each

local special = {}
local PAGE = 1000

-- The first `length` bytes of every member.
function special.heads(key, length)
  local heads, size = {}, redis.call('ZCARD', key)
  for begin = 0, size - 1, PAGE do
    for _, member in ipairs(redis.call('ZRANGE', key, begin, begin + PAGE - 1)) do
      heads[#heads + 1] = string.sub(member, 1, tonumber(length))
    end
  end
  return heads
end

-- A view, its live compaction, the entries that it keeps, and those from its frontier on.
function special.window(key, view, lives, compactions, bodies, live)
  local saved = redis.call('HGET', key, view)
  local id = redis.call('HGET', KEYS[tonumber(lives)], view)
  local laying = id and redis.call('HGET', KEYS[tonumber(compactions)], id)
  local body = id and redis.call('HGET', KEYS[tonumber(bodies)], id)
  local from, kept = '0', {}
  if saved then
    local list
    from, list = string.match(saved, '^(%-?%d+) ([^\n]*)\n')
    if list ~= '' then
      for _, seq in ipairs(cjson.decode(list)) do
        local found = redis.call('ZRANGEBYSCORE', KEYS[tonumber(live)], seq, seq)
        kept[#kept + 1] = {string.format('%.0f', seq), found}
      end
    end
  end
  return {saved, id, laying, body, kept, redis.call('ZRANGEBYSCORE', KEYS[tonumber(live)], from, '+inf')}
end

-- Members of `recent` from a rank on, of sessions that count as active or closed: see `_status` in `lists`. Where to go on, or -1
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
