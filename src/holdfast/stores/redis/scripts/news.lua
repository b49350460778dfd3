-- What a tenant's indexes are told of writes to users' slots. Each may come twice, and late: what is older than what is there
-- changes nothing. Stands before `commit` and `apply`, which are run for every write: so nothing is made that is not used.
--   base: what the tenant's keys begin with.  declared: or else they by name.
--   late: whether news may come late, so that what went has to be known for a while.
--   plan, carry: what changes state that sessions share, where `state` stands behind this.

local base, declared, late = '', nil, false
local plan, carry
local REMEMBERED = 7 * 86400

local function tenants(name)
  return declared and declared[name] or (base .. ':' .. name)
end

local function names()
  return {'index', 'recent', 'named', 'withdrawn', 'idle', 'owned', 'expiring', 'endings', 'due', 'used', 'departed', 'late'}
end

local function of_type(key, expected)
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= expected then
    error('WRONGTYPE ' .. key .. ' is a ' .. found .. ', not a ' .. expected)
  end
end

local function tenants_types()
  for _, name in ipairs(names()) do
    local hash = name == 'index' or name == 'endings' or name == 'used' or name == 'late'
    of_type(tenants(name), hash and 'hash' or 'zset')
  end
end

-- What stands for a name that went: the name itself is not kept.
local function hidden(name)
  return redis.sha1hex(name)
end

-- Whether something newer is known of `name`, of which `value` is there.
local function overtaken(name, n, value)
  if value and tonumber(string.match(value, '^%d+')) >= n then
    return true
  end
  local went = late and redis.call('HGET', tenants('late'), hidden(name))
  return went and tonumber(went) >= n
end

local function went(name, n)
  if not late then
    return
  end
  local now = tonumber(redis.call('TIME')[1])
  redis.call('HSET', tenants('late'), hidden(name), string.format('%.0f', n))
  redis.call('ZADD', tenants('departed'), now, hidden(name))
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', tenants('departed'), '-inf', now - REMEMBERED, 'LIMIT', 0, 8)) do
    redis.call('ZREM', tenants('departed'), old)
    redis.call('HDEL', tenants('late'), old)
  end
end

-- A session stands in other sets than before.
local function replaced(field, name, flag, before)
  for _, set in ipairs({'idle', 'owned', 'expiring', 'withdrawn'}) do
    redis.call('ZREM', tenants(set), field)
  end
  if flag == 'd' or flag == 'w' then
    redis.call('ZREM', tenants('recent'), field)
    redis.call('ZREM', tenants('named'), name)
  elseif before == '-' or before == '?' then
    redis.call('ZADD', tenants('named'), 0, name)
  end
end

-- What there is to tell, by kind.
local told = {}

-- A session. `flag`: i active; o, x active with a ttl of its own, x if it is over some day; c closed; w withdrawn; d deleted.
-- `before`: what it was, `-` if it was not there. Where news may come late the index says both better: then it is `?`.
function told.s(n, field, name, flag, before, updated, accessed, expires)
  if late then
    local value = redis.call('HGET', tenants('index'), field)
    if overtaken('s' .. field, n, value) then
      return
    end
    before = value and string.match(value, '%a$') or '?'
    if flag == 'd' then
      redis.call('HDEL', tenants('index'), field)
      went('s' .. field, n)
    else
      redis.call('HSET', tenants('index'), field, string.format('%.0f', n) .. flag)
    end
  end
  if before ~= flag then
    replaced(field, name, flag, before)
  end
  if flag == 'w' then
    redis.call('ZADD', tenants('withdrawn'), 0, field)
  elseif flag ~= 'd' then
    redis.call('ZADD', tenants('recent'), updated, field)
    if flag == 'i' then
      redis.call('ZADD', tenants('idle'), accessed, field)
    elseif flag ~= 'c' then
      redis.call('ZADD', tenants('owned'), accessed, field)
      if flag == 'x' then
        redis.call('ZADD', tenants('expiring'), expires, field)
      end
    end
  end
end

-- An end that hooks are to be told of.
function told.e(n, id, due_at, due, row)
  if overtaken('e' .. id, n) or redis.call('HEXISTS', tenants('endings'), id) == 1 then
    return
  end
  redis.call('HSET', tenants('endings'), id, row)
  redis.call('ZADD', tenants('due'), due_at, due)
end

-- An end that everybody was told of.
function told.f(_, id, due)
  redis.call('HDEL', tenants('endings'), id)
  redis.call('ZREM', tenants('due'), due)
  went('e' .. id, 9007199254740991)
end

-- A content that an artifact has (`on` is 1) or does not have any more.
function told.b(n, blob, on)
  if overtaken('b' .. blob, n, redis.call('HGET', tenants('used'), blob)) then
    return
  end
  if on == '1' then
    redis.call('HSET', tenants('used'), blob, string.format('%.0f', n))
  else
    redis.call('HDEL', tenants('used'), blob)
    went('b' .. blob, n)
  end
end
