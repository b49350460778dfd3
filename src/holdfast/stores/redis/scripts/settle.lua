-- Record when changes of a tenant's state left the outbox. They stay in `delivered` for a week, because another process may still
-- be delivering them.
--   KEYS: 1 the tenant's `delivered`: ids by the time when they left the outbox, infinite before that.  ARGV: ids

local KEPT = 7 * 86400
local now = tonumber(redis.call('TIME')[1])
for _, id in ipairs(ARGV) do
  redis.call('ZADD', KEYS[1], 'XX', now, id)
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - KEPT)
return 0
