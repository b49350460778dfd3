-- Everything that one write changes, unless something is no longer as it was when the write was worked out.
--   ARGV: 1 the attempt's own mark, empty where nothing is guarded; else KEYS[1] is the head of what is, KEYS[2] the user's clock
--         2 what the tenant's keys begin with, or empty; 3 the place in KEYS of the first of them, or 0; 4 1 if news may come late
--         5 the place in KEYS of the head that is guarded from now on, 0 for none
--         6 a letter for the type of each key that is not known to be right; 7 its record, empty where it stays; 8 how many checks
--         then the checks: key, field, `=` and what it is, or `-` for nothing; the first is the guard
--         then the commands: name, key, number of arguments, arguments
-- Nothing is written before everything was looked at: an error in the middle would leave half of it.

local HEADER = 9
local guarded = ARGV[1] ~= ''
local n = 0
base, late = ARGV[2], ARGV[4] == '1'

if ARGV[3] ~= '0' then
  declared = {}
  for i, name in ipairs(names()) do
    declared[name] = KEYS[tonumber(ARGV[3]) + i - 1]
  end
end
if ARGV[6] ~= '' then
  for i = 1, #ARGV[6] do
    of_type(KEYS[i], ({h = 'hash', l = 'list', z = 'zset'})[string.sub(ARGV[6], i, i)])
  end
  if declared or base ~= '' then
    tenants_types()
  end
end

local at, checks = HEADER, tonumber(ARGV[8])
local own = nil
if guarded then
  local head = redis.call('HMGET', KEYS[1], 'g', 'i')
  local guard = head[1]
  -- The session's number among the user's, as members of the user's marks begin with it; none has what an older release made.
  if head[2] and string.byte(head[2]) == 0 then
    own = string.sub(head[2], 1, 6)
  end
  if (guard and ('=' .. guard) or '-') ~= ARGV[at + 2] then
    return {-1, redis.call('HMGET', KEYS[1], 'g', 'r', 'p')}
  end
  if guard then
    n = tonumber(string.match(guard, '^%d+')) + 1
  else
    -- Behind what a session of this name had before, also where the machine's time went back.
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

-- Commands that are not Redis' own, by name.
local special = {}

-- The end of the live path, from `from` on, is retired; `by` says by which entry.
function special.retire(key, retired, from, by)
  local index = index_of(key, tonumber(from))
  for _, entry in ipairs(redis.call('LRANGE', key, index, -1)) do
    redis.call('ZADD', KEYS[tonumber(retired)], string.format('%.0f', struct.unpack('>I8', entry)), by .. entry)
  end
  if index == 0 then
    redis.call('DEL', key)
  else
    redis.call('LTRIM', key, 0, index - 1)
  end
end

-- An entry of the live path is replaced.
function special.rewrite(key, seq, entry)
  local _, index = entry_at(key, tonumber(seq))
  if index then
    redis.call('LSET', key, index, entry)
  end
end

-- An entry with another running total, which is eight bytes after its first `skip` bytes.
local function shifted(entry, skip, by)
  local total = struct.unpack('>I8', entry, skip + 1) + tonumber(by)
  return string.sub(entry, 1, skip) .. struct.pack('>I8', total) .. string.sub(entry, skip + 9)
end

-- The running totals of live entries from `from` to before `to` change by `by`; -1: to the end.
function special.shift(key, from, to, by)
  local first = index_of(key, tonumber(from))
  local found = redis.call('LRANGE', key, first, -1)
  local last = (to == '-1' and first + #found or index_of(key, tonumber(to))) - first
  for i = 1, last do
    found[i] = shifted(found[i], 8, by)
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

-- The same for retired ones.
function special.shift_retired(key, from, to, by)
  local found = redis.call('ZRANGEBYSCORE', key, from, to == '-1' and '+inf' or '(' .. to, 'WITHSCORES')
  for i = 1, #found, 2 do
    redis.call('ZREM', key, found[i])
    redis.call('ZADD', key, found[i + 1], shifted(found[i], 16, by))
  end
end

-- What hangs on a session gets another name.
function special.move(key, to)
  if redis.call('EXISTS', key) == 1 then
    redis.call('RENAME', key, KEYS[tonumber(to)])
  end
end

-- What was moved stays there: its record, and a guard that it never had before.
function special.leave(key, record)
  redis.call('HSET', key, 'g', number .. '.' .. ARGV[1], 'r', record)
end

-- A session gets a number, higher than those that were there before: `id` is what it says, `whose` what stands behind it.
function special.number(key, numbers, id, whose)
  local given = redis.call('HINCRBY', KEYS[tonumber(numbers)], '', 1)
  redis.call('HSET', KEYS[tonumber(numbers)], given, id)
  own = struct.pack('>I6', given)
  redis.call('HSET', key, 'i', own .. whose)
end

-- What the session said is found: scores, and what stands behind its number. One from before there were numbers gets one.
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

-- One place in the session's log is not found any more.
function special.unmark(key, place)
  if own then
    redis.call('ZREM', key, own .. place)
  end
end

-- Nothing of the session's first `size` entries is found any more, and its number goes; with the last one all there is.
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
    redis.call('ZREM', key, own .. string.rep('\255', 6))  -- the end of its live path
  end
  own = nil
end

-- What comes next under the name of a session that is deleted has a higher number; for how long, is no matter of data.
function special.rest(key)
  local last = redis.call('HGET', key, 'n')
  if not last or tonumber(last) < n then
    redis.call('HSET', key, 'n', number)
  end
  redis.call('EXPIRE', key, 7 * 86400)
end

-- The tenant has to be told this, in a cluster: see outbox.
function special.note(key, field, news)
  redis.call('HSET', key, field, number .. ' ' .. news)
end

-- Those with the lowest scores, up to `most`, leave; and so do the hash's fields of these names.
function special.clean(key, hash, most)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', most, 'LIMIT', 0, 100)) do
    redis.call('ZREM', key, name)
    redis.call('HDEL', KEYS[tonumber(hash)], name)
  end
end

-- All but the last `kept` leave; and so do the hash's fields of what stands behind the first eight bytes.
function special.trim(key, hash, kept)
  for _, name in ipairs(redis.call('ZRANGE', key, 0, -1 - tonumber(kept))) do
    redis.call('ZREM', key, name)
    redis.call('HDEL', KEYS[tonumber(hash)], string.sub(name, 9))
  end
end

-- What sessions share is worked out before anything is written: see `state`.
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

-- The first command is the one that a full or read-only server refuses; once it is done, the rest is as well.
while at <= #ARGV do
  local count = tonumber(ARGV[at + 2])
  local name, key = ARGV[at], KEYS[tonumber(ARGV[at + 1])]
  -- Those of Redis are in capitals.
  if string.byte(name) < 97 then
    redis.call(name, key, unpack(ARGV, at + 3, at + 2 + count))
  elseif name == 'share' then
    carry(key)
  elseif special[name] then
    special[name](key, unpack(ARGV, at + 3, at + 2 + count))
  else
    told[name](n, unpack(ARGV, at + 3, at + 2 + count))
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
