-- Changes of a tenant's state that have left the outbox: that they were done is known for a while yet, for whoever still has
-- them in hand.
--   KEYS: 1 what was delivered, by when it left the outbox, without end before that.  ARGV: what did

local KEPT = 7 * 86400
local now = tonumber(redis.call('TIME')[1])
for _, id in ipairs(ARGV) do
  redis.call('ZADD', KEYS[1], 'XX', now, id)
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - KEPT)
return 0
