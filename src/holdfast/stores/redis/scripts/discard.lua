-- Fields of a hash, as far as they are still what they were. What stands behind a NUL goes from the sorted set as well.
--   KEYS: 1 the hash, 2 the set, if fields begin so.  ARGV: for each: field, value

for i = 1, #ARGV, 2 do
  local found = redis.call('HGET', KEYS[1], ARGV[i]) or ''
  if found == ARGV[i + 1] then
    redis.call('HDEL', KEYS[1], ARGV[i])
    if string.byte(ARGV[i]) == 0 then
      redis.call('ZREM', KEYS[2], string.sub(ARGV[i], 2))
    end
  end
end
return 0
