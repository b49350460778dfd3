-- The live path of a session: a list of entries in order of `seq`, with which each begins. Stands before scripts that use it.

local function seq_at(key, index)
  local entry = redis.call('LINDEX', key, index)
  return entry and struct.unpack('>I8', entry)
end

-- The index of the first entry whose `seq` is at least `seq`; the length of the list if there is none. Without retired entries
-- before it that is `seq` itself, which is looked at first.
local function index_of(key, seq)
  local low, high = 0, math.max(0, math.min(redis.call('LLEN', key), seq))
  local middle = high - 1
  while low < high do
    if seq_at(key, middle) < seq then
      low = middle + 1
    else
      high = middle
    end
    middle = math.floor((low + high) / 2)
  end
  return low
end

-- The entry of that `seq`, if it is live, and its index.
local function entry_at(key, seq)
  local index = index_of(key, seq)
  local entry = redis.call('LINDEX', key, index)
  if entry and struct.unpack('>I8', entry) == seq then
    return entry, index
  end
end
