-- Delete fields of a hash that still have the given values. For a field that begins with a NUL, the rest of its name is also
-- removed from the sorted set.
--   KEYS: 1 the hash, 2 the sorted set, if there are such fields.  ARGV: for each field: name, value

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
