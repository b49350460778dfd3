-- Unmark users whose outbox was found empty, if they have not been marked again for a while.
--   KEYS: 1 the tenant's `dirty`.  ARGV: 1 seconds; then the users

local before = tonumber(redis.call('TIME')[1]) - tonumber(ARGV[1])
for i = 2, #ARGV do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if score and tonumber(score) <= before then
    redis.call('ZREM', KEYS[1], ARGV[i])
  end
end
return 0
