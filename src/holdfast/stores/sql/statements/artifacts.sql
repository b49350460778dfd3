-- Artifacts and their contents.

-- artifact_name_get(session, tenant, user_id, folded): select name, next_version, newest, versions, bytes from artifact_names --
-- Return what is stored for an artifact's name in its scope: a session, or the user if the session is 0.

-- artifact_name_put(session, tenant, user_id, folded, name, next_version, newest, versions, bytes): put artifact_names --

-- artifact_name_delete(session, tenant, user_id, folded): delete artifact_names --
-- Delete a name that has no versions.

-- artifact_totals(session, tenant, user_id): select count(*), CAST(coalesce(sum(versions), 0) AS {int}), CAST(coalesce(sum(bytes), 0) AS {int}) from artifact_names --

-- artifact_insert(session, tenant, user_id, folded, version, name, blob_key, mime_type, size, sha256, author, metadata, created_at): insert artifacts --
-- Insert a version. Two with the same number, and two with the same content, conflict.

-- artifact_get(session, tenant, user_id, folded, version): select * from artifact_rows --

-- artifact_versions(session, tenant, user_id, folded, after, limit) --
-- Return the versions of a name after a given one.
SELECT * FROM artifact_rows
WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded AND version > :after ORDER BY version LIMIT :limit

-- artifacts_newest(session, tenant, user_id, after, limit) --
-- Return the newest version of each name in a scope, in the order of the folded names, after a given one.
SELECT a.* FROM artifact_names AS n
JOIN artifact_rows AS a ON a.session = n.session AND a.tenant = n.tenant AND a.user_id = n.user_id
                       AND a.folded = n.folded AND a.version = n.newest
WHERE n.session = :session AND n.tenant = :tenant AND n.user_id = :user_id AND n.folded > :after ORDER BY n.folded LIMIT :limit

-- artifacts_all(session, tenant, user_id) --
-- Return all versions of all names in a scope.
SELECT * FROM artifact_rows WHERE session = :session AND tenant = :tenant AND user_id = :user_id ORDER BY folded, version

-- artifact_delete(session, tenant, user_id, folded, version): delete artifacts --
-- artifact_versions_delete(session, tenant, user_id, folded): delete artifacts --
-- artifacts_delete(session): delete artifacts --
-- artifact_names_delete(session): delete artifact_names --

-- blobs_in_use(tenant, blob_keys ids) --
-- Return the contents, of a JSON array of keys, that a version has.
SELECT blob_key FROM artifacts WHERE tenant = :tenant AND blob_key IN :blob_keys

-- blob_put(tenant, blob_key, part, written_at, data): put blobs --
-- blob_get(tenant, blob_key, part): select data from blobs --
-- blob_delete(tenant, blob_key): delete blobs --

-- blobs_before(tenant, before, after_key, limit) --
-- Return contents that were last written before a time, after a given key.
SELECT blob_key FROM blobs WHERE tenant = :tenant AND blob_key > :after_key
GROUP BY blob_key HAVING max(written_at) < :before ORDER BY blob_key LIMIT :limit
