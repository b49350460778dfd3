-- Apply news from an outbox to a tenant's indexes.
--   KEYS: the tenant's indexes in the order of `index_names`; if `v` is among the kinds, also its state and `delivered`
--   ARGV: for each news: kind, number of the write, number of arguments, arguments

late, declared = true, {}
for i, name in ipairs(index_names()) do
  declared[name] = KEYS[i]
end
check_tenant_types()

-- Change the tenant's state, only once even if the news is delivered several times.
local function share(id, first, last)
  local state, delivered = KEYS[#KEYS - 1], KEYS[#KEYS]
  check_type(state, 'hash')
  check_type(delivered, 'zset')
  if not redis.call('ZSCORE', delivered, id) then
    plan(state, first, last)
    redis.call('ZADD', delivered, 'inf', id)
    apply_plan(state)
  end
end

local at = 1
while at <= #ARGV do
  local count = tonumber(ARGV[at + 2])
  if ARGV[at] == 'v' then
    share(ARGV[at + 3], at + 4, at + 2 + count)
  else
    news[ARGV[at]](tonumber(ARGV[at + 1]), unpack(ARGV, at + 3, at + 2 + count))
  end
  at = at + 3 + count
end
return 0
