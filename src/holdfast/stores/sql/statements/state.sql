-- State that sessions share.

-- state_named(owner, names names): select name, data from state_values where name IN :names --

-- state_read(tenant, kind, id, known_version) --
-- Return an owner's version and all its values; no values if the version is the known one.
SELECT o.version, v.name, v.data
FROM owners AS o LEFT JOIN state_values AS v ON v.owner = o.pk AND o.version <> :known_version
WHERE {of_owner}

-- state_read_named(tenant, kind, id, known_version, names names) --
-- Return an owner's version and the values of some keys, by a JSON array of names in hexadecimal.
SELECT o.version, v.name, v.data
FROM owners AS o
LEFT JOIN EACH :names AS n ON o.version <> :known_version
LEFT JOIN state_values AS v ON v.owner = o.pk
[sqlite]  AND v.name = CAST(unhex(n.value) AS TEXT)
[postgres]  AND v.name = decode(n.value, 'hex')
[mysql]  AND v.name = UNHEX(n.value)
WHERE {of_owner}

-- state_put(owner, name, data): put state_values --
-- state_drop(owner, name): delete state_values --
-- state_clear(owner): delete state_values --
