-- What the tenant was told leaves the outbox, unless there is newer in its place.
--   KEYS: 1 the outbox.  ARGV: for each: field, number of the write

for i = 1, #ARGV, 2 do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  if value and string.match(value, '^%d+') == ARGV[i + 1] then
    redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return 0
