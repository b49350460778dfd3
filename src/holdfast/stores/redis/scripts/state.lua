-- Change state that sessions share: a hash of JSON values for each scope, whose empty field has version, bytes and number of keys.
-- This follows `news` in scripts that change state. `plan` computes all changes before `apply_plan` writes them.
--   An operation consists of key, bytes of the key without its value, kind, and operand. Kinds:
--     `=` set the value to this JSON; `-` delete it; `+` add to a number; `&` append these values, separated by commas, to a list

local OPERATION = 4
local INEXACT = 9007199254740992
local plans = {}

-- Format a number as JSON, as short as possible. A number that is not a sum of integers gets a decimal point.
local function format_number(number, whole)
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

-- Return the value after an operation; false if it is deleted, nil if the operation is not possible for the old value.
local function apply_operation(old, kind, with)
  if kind == '=' then
    return with
  elseif kind == '-' then
    return false
  elseif kind == '+' then
    local before = not old and -0.0 or (string.match(old, '^%-?%d') and tonumber(old))
    local sum = before and before + tonumber(with)
    if not sum or math.abs(before) >= INEXACT or math.abs(sum) >= INEXACT then
      return nil
    end
    return format_number(sum, not string.find((old or '') .. with, '[.eE]'))
  elseif not old or old == '[]' then
    return '[' .. with .. ']'
  elseif string.sub(old, 1, 1) ~= '[' then
    return nil
  end
  return with == '' and old or (string.sub(old, 1, -2) .. ',' .. with .. ']')
end

local function load_scope(key)
  local version, bytes, keys = string.match(redis.call('HGET', key, '') or '0 0 0', '^(%d+) (%d+) (%d+)$')
  return {version = tonumber(version), bytes = tonumber(bytes), keys = tonumber(keys), changes = {}}
end

-- Compute the operations in ARGV from `first` to `last`, and return whether they are possible. `limits`: the most bytes of a value,
-- bytes of a scope, and keys of a scope. Without limits, impossible operations are skipped, because other changes were made first.
plan = function(key, first, last, limits)
  local scope = plans[key] or load_scope(key)
  local bytes, keys = scope.bytes, scope.keys
  plans[key] = scope
  for i = first, last, OPERATION do
    local name, key_bytes = ARGV[i], tonumber(ARGV[i + 1])
    local old = redis.call('HGET', key, name)
    local new = apply_operation(old, ARGV[i + 2], ARGV[i + 3])
    if limits and (new == nil or (new and #new > limits[1])) then
      return false
    end
    if new ~= nil then
      if old then
        scope.bytes, scope.keys = scope.bytes - key_bytes - #old, scope.keys - 1
      end
      if new then
        scope.bytes, scope.keys = scope.bytes + key_bytes + #new, scope.keys + 1
      end
      scope.changes[#scope.changes + 1] = {name, new}
    end
  end
  return not limits
    or ((scope.bytes <= limits[2] or scope.bytes <= bytes) and (scope.keys <= limits[3] or scope.keys <= keys))
end

-- Write the computed changes of a scope.
apply_plan = function(key)
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
