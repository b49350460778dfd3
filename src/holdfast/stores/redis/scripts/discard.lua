-- Fields of a hash, as far as they are still what they were.
--   KEYS: 1 the hash.  ARGV: for each: field, value

for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return 0
