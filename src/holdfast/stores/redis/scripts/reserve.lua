-- Take a session's next write for one that others were always faster than; whether it is taken now.
--   KEYS: 1 its head.  ARGV: 1 whose; 2 for how many milliseconds

if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
local now = redis.call('TIME')
local ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
local reserved = redis.call('HGET', KEYS[1], 't')
if reserved then
  local whose, till = string.match(reserved, '^(%S*) (%d+)$')
  if whose ~= ARGV[1] and tonumber(till) > ms then
    return 0
  end
end
redis.call('HSET', KEYS[1], 't', ARGV[1] .. ' ' .. string.format('%.0f', ms + tonumber(ARGV[2])))
return 1
