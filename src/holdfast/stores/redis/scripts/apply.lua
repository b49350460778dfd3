-- What a tenant's indexes are told from an outbox.
--   KEYS: the tenant's, as `names` has them; behind them, if `v` is among the kinds, its state, and what was delivered of that
--   ARGV: for each: kind, number of the write, number of arguments, arguments

late, declared = true, {}
for i, name in ipairs(names()) do
  declared[name] = KEYS[i]
end
tenants_types()

-- Changes of the tenant's state: done once, however often they are delivered.
local function share(id, first, last)
  local state, delivered = KEYS[#KEYS - 1], KEYS[#KEYS]
  of_type(state, 'hash')
  of_type(delivered, 'zset')
  if not redis.call('ZSCORE', delivered, id) then
    plan(state, first, last)
    redis.call('ZADD', delivered, 'inf', id)
    carry(state)
  end
end

local at = 1
while at <= #ARGV do
  local count = tonumber(ARGV[at + 2])
  if ARGV[at] == 'v' then
    share(ARGV[at + 3], at + 4, at + 2 + count)
  else
    told[ARGV[at]](tonumber(ARGV[at + 1]), unpack(ARGV, at + 3, at + 2 + count))
  end
  at = at + 3 + count
end
return 0
