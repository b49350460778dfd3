-- Execute all commands of one write, unless a value has changed since the write was computed.
--   ARGV: 1 the mark of the attempt, empty if nothing is guarded; otherwise KEYS[1] is the guarded head, KEYS[2] the user's clock
--         2 the prefix of the tenant's keys, or empty; 3 the index in KEYS of the first of them, or 0; 4 1 if news may arrive late
--         5 the index in KEYS of the head that gets the new guard, or 0
--         6 a letter for the type of each key, empty if the types are known; 7 the new record, empty if unchanged
--         8 the number of checks
--         then the checks: key, field, and `=` with the expected value or `-` for none; the first check is that of the guard
--         then the commands: name, key, number of arguments, arguments
-- All checks are made before the first write, because an error in the middle would leave a partial write.

local HEADER = 9
local guarded = ARGV[1] ~= ''
local n = 0
base, late = ARGV[2], ARGV[4] == '1'

if ARGV[3] ~= '0' then
  declared = {}
  for i, name in ipairs(index_names()) do
    declared[name] = KEYS[tonumber(ARGV[3]) + i - 1]
  end
end
if ARGV[6] ~= '' then
  for i = 1, #ARGV[6] do
    check_type(KEYS[i], ({h = 'hash', l = 'list', z = 'zset'})[string.sub(ARGV[6], i, i)])
  end
  if declared or base ~= '' then
    check_tenant_types()
  end
end

local at, checks = HEADER, tonumber(ARGV[8])
local own = nil
if guarded then
  local head = redis.call('HMGET', KEYS[1], 'g', 'i')
  local guard = head[1]
  -- The session's number among the user's sessions, with which members of the index of digests begin. Sessions of older releases
  -- have none.
  if head[2] and string.byte(head[2]) == 0 then
    own = string.sub(head[2], 1, 6)
  end
  if (guard and ('=' .. guard) or '-') ~= ARGV[at + 2] then
    return {-1, redis.call('HMGET', KEYS[1], 'g', 'r', 'p')}
  end
  if guard then
    n = tonumber(string.match(guard, '^%d+')) + 1
  else
    -- Higher than the number of an earlier session of this name, even if the machine's clock was set back.
    local now = redis.call('TIME')
    n = tonumber(now[1]) * 1000000 + tonumber(now[2])
    local last = redis.call('HGET', KEYS[2], 'n')
    if last and tonumber(last) >= n then
      n = tonumber(last) + 1
    end
  end
  at, checks = at + 3, checks - 1
end
for _ = 1, checks do
  local found = redis.call('HGET', KEYS[tonumber(ARGV[at])], ARGV[at + 1])
  if (found and ('=' .. found) or '-') ~= ARGV[at + 2] then
    return {-2}
  end
  at = at + 3
end
local number = string.format('%.0f', n)

-- Commands that Redis does not have, by name.
local special = {}

-- Retire the end of the live path, from `from` on; `by` is the encoded `seq` of the entry that retires it.
function special.retire(key, retired, from, by)
  local index = find_index(key, tonumber(from))
  for _, entry in ipairs(redis.call('LRANGE', key, index, -1)) do
    redis.call('ZADD', KEYS[tonumber(retired)], string.format('%.0f', struct.unpack('>I8', entry)), by .. entry)
  end
  if index == 0 then
    redis.call('DEL', key)
  else
    redis.call('LTRIM', key, 0, index - 1)
  end
end

-- Retire the notes from `from` on that are not retired: those that are stored as retired by their own `seq`.
function special.retire_notes(key, from, by)
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', key, from, '+inf')) do
    local seq = string.sub(entry, 9, 16)
    if string.sub(entry, 1, 8) == seq then
      redis.call('ZREM', key, entry)
      redis.call('ZADD', key, string.format('%.0f', struct.unpack('>I8', seq)), by .. string.sub(entry, 9))
    end
  end
end

-- Replace an entry of the live path.
function special.rewrite(key, seq, entry)
  local _, index = find_entry(key, tonumber(seq))
  if index then
    redis.call('LSET', key, index, entry)
  end
end

-- Return an entry with a changed running total, which is stored in eight bytes after the first `skip` bytes.
local function with_shifted_total(entry, skip, by)
  local total = struct.unpack('>I8', entry, skip + 1) + tonumber(by)
  return string.sub(entry, 1, skip) .. struct.pack('>I8', total) .. string.sub(entry, skip + 9)
end

-- Change the running totals of live entries from `from` up to, but not including, `to` (-1 for the end) by `by`.
function special.shift(key, from, to, by)
  local first = find_index(key, tonumber(from))
  local found = redis.call('LRANGE', key, first, -1)
  local last = (to == '-1' and first + #found or find_index(key, tonumber(to))) - first
  for i = 1, last do
    found[i] = with_shifted_total(found[i], 8, by)
  end
  if first == 0 then
    redis.call('DEL', key)
  else
    redis.call('LTRIM', key, 0, first - 1)
  end
  for i = 1, #found, 1000 do
    redis.call('RPUSH', key, unpack(found, i, math.min(i + 999, #found)))
  end
end

-- Change the running totals of retired entries in the same way.
function special.shift_retired(key, from, to, by)
  local found = redis.call('ZRANGEBYSCORE', key, from, to == '-1' and '+inf' or '(' .. to, 'WITHSCORES')
  for i = 1, #found, 2 do
    redis.call('ZREM', key, found[i])
    redis.call('ZADD', key, found[i + 1], with_shifted_total(found[i], 16, by))
  end
end

-- Rename a key of a session.
function special.move(key, to)
  if redis.call('EXISTS', key) == 1 then
    redis.call('RENAME', key, KEYS[tonumber(to)])
  end
end

-- Give a session that was moved to other keys its record and a new guard.
function special.detach(key, record)
  redis.call('HSET', key, 'g', number .. '.' .. ARGV[1], 'r', record)
end

-- Give a session the next number of the user; `identity` is stored after the number in the head.
function special.number(key, numbers, id, identity)
  local given = redis.call('HINCRBY', KEYS[tonumber(numbers)], '', 1)
  redis.call('HSET', KEYS[tonumber(numbers)], given, id)
  own = struct.pack('>I6', given)
  redis.call('HSET', key, 'i', own .. identity)
end

-- Add members to the index of digests: scores, and what follows the session's number. A session without a number gets one.
function special.mark(key, numbers, id, ...)
  if not own then
    special.number(KEYS[1], numbers, id, redis.call('HGET', KEYS[1], 'i') or '')
  end
  local places = {...}
  for i = 2, #places, 2 do
    places[i] = own .. places[i]
  end
  redis.call('ZADD', key, unpack(places))
end

-- Copy the first `count` entries of another session's log, none of which is retired, with the notes among them.
function special.copy_log(key, source, notes, source_notes, count)
  source, notes, source_notes = KEYS[tonumber(source)], KEYS[tonumber(notes)], KEYS[tonumber(source_notes)]
  local last = find_index(source, tonumber(count)) - 1
  for at = 0, last, 1000 do
    redis.call('RPUSH', key, unpack(redis.call('LRANGE', source, at, math.min(at + 999, last))))
  end
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', source_notes, '-inf', '(' .. count)) do
    redis.call('ZADD', notes, string.format('%.0f', struct.unpack('>I8', entry)), entry)
  end
end

-- Copy the places of the first `count` entries of another session's log in the index of digests. Sessions without a number have none.
function special.copy_marks(key, source, count)
  local head = redis.call('HGET', KEYS[tonumber(source)], 'i')
  local from = head and string.byte(head) == 0 and string.sub(head, 1, 6)
  local last = from and 2 * tonumber(count) - 1 or -1
  for begin = 0, last, 1000 do
    local places, members, found = {}, {}, {}
    for place = begin, math.min(begin + 999, last) do
      places[#places + 1] = struct.pack('>I6', place)
      members[#members + 1] = from .. places[#places]
    end
    for i, score in ipairs(redis.call('ZMSCORE', key, unpack(members))) do
      if score then
        found[#found + 1] = score
        found[#found + 1] = own .. places[i]
      end
    end
    if #found > 0 then
      redis.call('ZADD', key, unpack(found))
    end
  end
end

-- Remove one place in the session's log from the index of digests.
function special.unmark(key, place)
  if own then
    redis.call('ZREM', key, own .. place)
  end
end

-- Remove the session's number and the places of its first `size` entries from the index of digests. If the user has no other
-- numbered session, delete the index.
function special.unmark_all(key, numbers, size)
  if not own then
    return
  end
  numbers = KEYS[tonumber(numbers)]
  redis.call('HDEL', numbers, string.format('%.0f', struct.unpack('>I6', own)))
  if redis.call('HLEN', numbers) == 1 then
    redis.call('UNLINK', key, numbers)
  else
    local last = 2 * tonumber(size) - 1
    for begin = 0, last, 1000 do
      local members = {}
      for place = begin, math.min(begin + 999, last) do
        members[#members + 1] = own .. struct.pack('>I6', place)
      end
      redis.call('ZREM', key, unpack(members))
    end
    redis.call('ZREM', key, own .. string.rep('\255', 6))  -- the member of the end of the live path
  end
  own = nil
end

-- Remember the number of this write in the user's clock, so that a new session with the name of a deleted one gets a higher number.
-- The clock expires after a week; no data depends on that.
function special.keep_clock(key)
  local last = redis.call('HGET', key, 'n')
  if not last or tonumber(last) < n then
    redis.call('HSET', key, 'n', number)
  end
  redis.call('EXPIRE', key, 7 * 86400)
end

-- Put news for the tenant's indexes into the outbox of a cluster.
function special.note(key, field, news)
  redis.call('HSET', key, field, number .. ' ' .. news)
end

-- Remove up to 100 members with scores of at most `most`, and the hash's fields with their names.
function special.clean(key, hash, most)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', most, 'LIMIT', 0, 100)) do
    redis.call('ZREM', key, name)
    redis.call('HDEL', KEYS[tonumber(hash)], name)
  end
end

-- Remove all but the last `kept` members, and the hash's fields with their names, which follow the first eight bytes.
function special.trim(key, hash, kept)
  for _, name in ipairs(redis.call('ZRANGE', key, 0, -1 - tonumber(kept))) do
    redis.call('ZREM', key, name)
    redis.call('HDEL', KEYS[tonumber(hash)], string.sub(name, 9))
  end
end

-- Changes of shared state are computed before anything is written; see `state.lua`.
local sharing = plan and at or #ARGV + 1
while sharing <= #ARGV do
  local last = sharing + 2 + tonumber(ARGV[sharing + 2])
  if ARGV[sharing] == 'share' then
    local limits = {tonumber(ARGV[sharing + 3]), tonumber(ARGV[sharing + 4]), tonumber(ARGV[sharing + 5])}
    if not plan(KEYS[tonumber(ARGV[sharing + 1])], sharing + 6, last, limits) then
      return {-2}
    end
  end
  sharing = last + 1
end

-- A full or read-only server refuses the first command; once that has succeeded, the others succeed too.
while at <= #ARGV do
  local count = tonumber(ARGV[at + 2])
  local name, key = ARGV[at], KEYS[tonumber(ARGV[at + 1])]
  -- Names of Redis commands are in capitals.
  if string.byte(name) < 97 then
    redis.call(name, key, unpack(ARGV, at + 3, at + 2 + count))
  elseif name == 'share' then
    apply_plan(key)
  elseif special[name] then
    special[name](key, unpack(ARGV, at + 3, at + 2 + count))
  else
    news[name](n, unpack(ARGV, at + 3, at + 2 + count))
  end
  at = at + 3 + count
end

if guarded and ARGV[5] ~= '0' then
  local head, guard = KEYS[tonumber(ARGV[5])], number .. '.' .. ARGV[1]
  if ARGV[7] == '' then
    redis.call('HSET', head, 'g', guard)
  else
    redis.call('HSET', head, 'g', guard, 'r', ARGV[7])
  end
end
return {0, number}
