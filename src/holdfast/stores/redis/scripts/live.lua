-- Functions for the live path of a session, a list of entries that begin with their `seq`, in order. Scripts that use them follow.

local function read_seq(key, index)
  local entry = redis.call('LINDEX', key, index)
  return entry and struct.unpack('>I8', entry)
end

-- Return the index of the first entry whose `seq` is at least `seq`, or the length of the list if there is none. If no entry before
-- it is retired, the index is `seq` itself, so the search begins there.
local function find_index(key, seq)
  local low, high = 0, math.max(0, math.min(redis.call('LLEN', key), seq))
  local middle = high - 1
  while low < high do
    if read_seq(key, middle) < seq then
      low = middle + 1
    else
      high = middle
    end
    middle = math.floor((low + high) / 2)
  end
  return low
end

-- Return the entry with that `seq` and its index, if it is live.
local function find_entry(key, seq)
  local index = find_index(key, seq)
  local entry = redis.call('LINDEX', key, index)
  if entry and struct.unpack('>I8', entry) == seq then
    return entry, index
  end
end
