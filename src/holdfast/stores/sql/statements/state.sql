-- State that sessions share.

-- scope_get(tenant, user_id) --
-- Return version, number of keys, bytes and last change of a scope, and the floor of versions. Without a user it is the tenant's.
SELECT s.version, s.key_count, s.bytes, s.updated_at, coalesce(f.number, 0)
FROM state_scopes AS s LEFT JOIN floors AS f ON f.tenant = s.tenant WHERE s.tenant = :tenant AND s.user_id = :user_id

-- scope_get_lock(tenant, user_id) --
-- Lock a scope, so that no other transaction writes to it.
[postgres mysql] SELECT 1 FROM state_scopes WHERE tenant = :tenant AND user_id = :user_id {lock}

-- scope_new(tenant, user_id) --
-- Insert an empty scope. If another process has just done so, lock that row, so that no other transaction deletes it.
INSERT INTO state_scopes (tenant, user_id, version, key_count, bytes, updated_at) VALUES (:tenant, :user_id, 0, 0, 0, 0)
ON CONFLICT (tenant, user_id) DO UPDATE SET version = state_scopes.version

-- scope_put(tenant, user_id, version, key_count, bytes, updated_at) --
-- Update a scope after a write.
UPDATE state_scopes SET version = :version, key_count = :key_count, bytes = :bytes, updated_at = :updated_at WHERE tenant = :tenant AND user_id = :user_id

-- scope_delete(tenant, user_id) --
-- Delete a scope with the name of its user.
DELETE FROM state_scopes WHERE tenant = :tenant AND user_id = :user_id

-- state_named(tenant, user_id, names names) --
-- Return the values of some keys of a scope, by a JSON array of names in hexadecimal.
SELECT name, data FROM state_values WHERE tenant = :tenant AND user_id = :user_id AND name IN
      :names

-- state_read(tenant, user_id, known_version) --
-- Return a scope's version and all its values; no values if the version is the known one.
SELECT s.version, v.name, v.data
FROM state_scopes AS s
LEFT JOIN state_values AS v ON v.tenant = s.tenant AND v.user_id = s.user_id AND s.version <> :known_version
WHERE s.tenant = :tenant AND s.user_id = :user_id

-- state_read_named(tenant, user_id, known_version, names names) --
-- Return a scope's version and the values of some keys, by a JSON array of names in hexadecimal.
SELECT s.version, v.name, v.data
FROM state_scopes AS s
LEFT JOIN EACH :names AS n ON s.version <> :known_version
LEFT JOIN state_values AS v ON v.tenant = s.tenant AND v.user_id = s.user_id
[sqlite]  AND v.name = CAST(unhex(n.value) AS TEXT)
[postgres]  AND v.name = decode(n.value, 'hex')
[mysql]  AND v.name = UNHEX(n.value)
WHERE s.tenant = :tenant AND s.user_id = :user_id

-- state_put(tenant, user_id, name, data) --
-- Insert or replace the value of a key.
INSERT INTO state_values (tenant, user_id, name, data) VALUES (:tenant, :user_id, :name, :data)
ON CONFLICT (tenant, user_id, name) DO UPDATE SET data = excluded.data

-- state_drop(tenant, user_id, name) --
-- Delete a key.
DELETE FROM state_values WHERE tenant = :tenant AND user_id = :user_id AND name = :name

-- state_clear(tenant, user_id) --
-- Delete all keys of a scope.
DELETE FROM state_values WHERE tenant = :tenant AND user_id = :user_id
