-- Mark a user whose outbox may contain something from now on.
--   KEYS: 1 the tenant's `dirty`.  ARGV: 1 the user

redis.call('ZADD', KEYS[1], redis.call('TIME')[1], ARGV[1])
return 0
