-- State that sessions share: a hash for each scope, JSON by key; under no name stand its version, its bytes, and how many keys.
-- Stands between `told` and what is run, where that changes any: all of it is worked out by `plan` before `carry` writes it.
--   An operation: key, bytes that the key takes beside its value, what is done, with what:
--     `=` the value is this JSON; `-` there is none any more; `+` this is added to the number; `&` these, joined by commas, to the list

local OPERATION = 4
local INEXACT = 9007199254740992
local plans = {}

-- A number as JSON, as short as it can be told; one that is no sum of whole ones shows that.
local function told_number(number, whole)
  if number == math.floor(number) then
    return string.format(whole and '%.0f' or '%.1f', number)
  end
  for digits = 15, 17 do
    local text = string.format('%.' .. digits .. 'g', number)
    if tonumber(text) == number then
      return text
    end
  end
end

-- What stands after an operation: false for nothing; nil if it cannot be done to what stands before.
local function after(old, what, with)
  if what == '=' then
    return with
  elseif what == '-' then
    return false
  elseif what == '+' then
    local before = not old and -0.0 or (string.match(old, '^%-?%d') and tonumber(old))
    local sum = before and before + tonumber(with)
    if not sum or math.abs(before) >= INEXACT or math.abs(sum) >= INEXACT then
      return nil
    end
    return told_number(sum, not string.find((old or '') .. with, '[.eE]'))
  elseif not old or old == '[]' then
    return '[' .. with .. ']'
  elseif string.sub(old, 1, 1) ~= '[' then
    return nil
  end
  return with == '' and old or (string.sub(old, 1, -2) .. ',' .. with .. ']')
end

local function scope_of(key)
  local version, bytes, keys = string.match(redis.call('HGET', key, '') or '0 0 0', '^(%d+) (%d+) (%d+)$')
  return {version = tonumber(version), bytes = tonumber(bytes), keys = tonumber(keys), changes = {}}
end

-- Work out the operations that stand from `first` to `last`; whether they can be done. `limits`: the most bytes of a value, bytes
-- and keys of a scope; without them what cannot be done is left out: it came before what stands there now.
plan = function(key, first, last, limits)
  local scope = plans[key] or scope_of(key)
  local bytes, keys = scope.bytes, scope.keys
  plans[key] = scope
  for i = first, last, OPERATION do
    local name, beside = ARGV[i], tonumber(ARGV[i + 1])
    local old = redis.call('HGET', key, name)
    local new = after(old, ARGV[i + 2], ARGV[i + 3])
    if limits and (new == nil or (new and #new > limits[1])) then
      return false
    end
    if new ~= nil then
      if old then
        scope.bytes, scope.keys = scope.bytes - beside - #old, scope.keys - 1
      end
      if new then
        scope.bytes, scope.keys = scope.bytes + beside + #new, scope.keys + 1
      end
      scope.changes[#scope.changes + 1] = {name, new}
    end
  end
  return not limits
    or ((scope.bytes <= limits[2] or scope.bytes <= bytes) and (scope.keys <= limits[3] or scope.keys <= keys))
end

-- Write what was worked out for a scope.
carry = function(key)
  local scope = plans[key]
  if not scope then
    return
  end
  plans[key] = nil
  redis.call('HSET', key, '', string.format('%.0f %.0f %.0f', scope.version + 1, scope.bytes, scope.keys))
  for _, change in ipairs(scope.changes) do
    if change[2] then
      redis.call('HSET', key, change[1], change[2])
    else
      redis.call('HDEL', key, change[1])
    end
  end
end
