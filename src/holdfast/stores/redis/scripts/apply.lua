-- What a tenant's indexes are told from an outbox.
--   KEYS: the tenant's, as `names` has them.  ARGV: for each: kind, number of the write, number of arguments, arguments

late, declared = true, {}
for i, name in ipairs(names()) do
  declared[name] = KEYS[i]
end
tenants_types()
local at = 1
while at <= #ARGV do
  local count = tonumber(ARGV[at + 2])
  told(ARGV[at], tonumber(ARGV[at + 1]), unpack(ARGV, at + 3, at + 2 + count))
  at = at + 3 + count
end
return 0
