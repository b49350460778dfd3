-- Functions that apply news of writes in users' slots to a tenant's indexes. News may arrive twice, and late: news that are older than
-- the stored state change nothing. `commit` and `apply` follow; they run for every write, so nothing is created that is not used.
--   base: the prefix of the tenant's keys.  declared: alternatively, the keys by name.
--   late: true if news may arrive late, so that deletions must be remembered for a while.
--   plan, apply_plan: set by `state`, if it follows, to change state that sessions share.

local base, declared, late = '', nil, false
local plan, apply_plan
local REMEMBERED = 7 * 86400

local function tenant_key(name)
  return declared and declared[name] or (base .. ':' .. name)
end

local function index_names()
  return {'index', 'recent', 'named', 'withdrawn', 'idle', 'owned', 'expiring', 'endings', 'due', 'used', 'departed', 'late'}
end

local function check_type(key, expected)
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= expected then
    error('WRONGTYPE ' .. key .. ' is a ' .. found .. ', not a ' .. expected)
  end
end

local function check_tenant_types()
  for _, name in ipairs(index_names()) do
    local hash = name == 'index' or name == 'endings' or name == 'used' or name == 'late'
    check_type(tenant_key(name), hash and 'hash' or 'zset')
  end
end

-- Return the hash under which a deletion is remembered, so that the name itself is not kept.
local function hash_name(name)
  return redis.sha1hex(name)
end

-- Return true if the stored `value` of `name`, or its deletion, is newer than the write `n`.
local function is_outdated(name, n, value)
  if value and tonumber(string.match(value, '^%d+')) >= n then
    return true
  end
  local deleted_by = late and redis.call('HGET', tenant_key('late'), hash_name(name))
  return deleted_by and tonumber(deleted_by) >= n
end

-- Remember the deletion of `name` by the write `n`, if news may arrive late; forget a few old deletions.
local function record_deletion(name, n)
  if not late then
    return
  end
  local now = tonumber(redis.call('TIME')[1])
  redis.call('HSET', tenant_key('late'), hash_name(name), string.format('%.0f', n))
  redis.call('ZADD', tenant_key('departed'), now, hash_name(name))
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', tenant_key('departed'), '-inf', now - REMEMBERED, 'LIMIT', 0, 8)) do
    redis.call('ZREM', tenant_key('departed'), old)
    redis.call('HDEL', tenant_key('late'), old)
  end
end

-- Remove a session from the sets of its previous flag, and add it to `named` if it is new.
local function move_session(field, name, flag, before)
  for _, set in ipairs({'idle', 'owned', 'expiring', 'withdrawn'}) do
    redis.call('ZREM', tenant_key(set), field)
  end
  if flag == 'd' or flag == 'w' then
    redis.call('ZREM', tenant_key('recent'), field)
    redis.call('ZREM', tenant_key('named'), name)
  elseif before == '-' or before == '?' then
    redis.call('ZADD', tenant_key('named'), 0, name)
  end
end

-- Functions that apply news, by kind.
local news = {}

-- A session. `flag`: i active; x active with a ttl of its own; o active with its own ttl 0, so that it never expires; c closed;
-- w withdrawn; d deleted. `before`: its previous flag, `-` if it is new. If news may arrive late, the previous flag is read from the
-- index instead, and is `?` if it is unknown.
function news.s(n, field, name, flag, before, updated, accessed, expires)
  if late then
    local value = redis.call('HGET', tenant_key('index'), field)
    if is_outdated('s' .. field, n, value) then
      return
    end
    before = value and string.match(value, '%a$') or '?'
    if flag == 'd' then
      redis.call('HDEL', tenant_key('index'), field)
      record_deletion('s' .. field, n)
    else
      redis.call('HSET', tenant_key('index'), field, string.format('%.0f', n) .. flag)
    end
  end
  if before ~= flag then
    move_session(field, name, flag, before)
  end
  if flag == 'w' then
    redis.call('ZADD', tenant_key('withdrawn'), 0, field)
  elseif flag ~= 'd' then
    redis.call('ZADD', tenant_key('recent'), updated, field)
    if flag == 'i' then
      redis.call('ZADD', tenant_key('idle'), accessed, field)
    elseif flag ~= 'c' then
      redis.call('ZADD', tenant_key('owned'), accessed, field)
      if flag == 'x' then
        redis.call('ZADD', tenant_key('expiring'), expires, field)
      end
    end
  end
end

-- An end that hooks must be notified of.
function news.e(n, id, due_at, due, row)
  if is_outdated('e' .. id, n) or redis.call('HEXISTS', tenant_key('endings'), id) == 1 then
    return
  end
  redis.call('HSET', tenant_key('endings'), id, row)
  redis.call('ZADD', tenant_key('due'), due_at, due)
end

-- An end that all hooks have been notified of.
function news.f(_, id, due)
  redis.call('HDEL', tenant_key('endings'), id)
  redis.call('ZREM', tenant_key('due'), due)
  record_deletion('e' .. id, 9007199254740991)
end

-- A content that is now in use by an artifact (`on` is 1) or not any more.
function news.b(n, blob, on)
  if is_outdated('b' .. blob, n, redis.call('HGET', tenant_key('used'), blob)) then
    return
  end
  if on == '1' then
    redis.call('HSET', tenant_key('used'), blob, string.format('%.0f', n))
  else
    redis.call('HDEL', tenant_key('used'), blob)
    record_deletion('b' .. blob, n)
  end
end
