-- Artifacts and their contents.

-- artifact_name_get(session, tenant, user_id, folded) --
-- Return what is stored for an artifact's name in its scope: a session, or the user if the session is 0.
SELECT name, next_version, newest, versions, bytes FROM artifact_names
WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded

-- artifact_name_get_lock(session, tenant, user_id, folded) --
-- Lock the name of an artifact, so that no other transaction changes it.
[postgres mysql] SELECT 1 FROM artifact_names WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded {lock}

-- artifact_name_put(session, tenant, user_id, folded, name, next_version, newest, versions, bytes) --
-- Insert or replace what is stored for an artifact's name.
INSERT INTO artifact_names (session, tenant, user_id, folded, name, next_version, newest, versions, bytes)
VALUES (:session, :tenant, :user_id, :folded, :name, :next_version, :newest, :versions, :bytes)
ON CONFLICT (session, tenant, user_id, folded) DO UPDATE
SET name = excluded.name, next_version = excluded.next_version, newest = excluded.newest, versions = excluded.versions,
    bytes = excluded.bytes

-- artifact_name_delete(session, tenant, user_id, folded) --
-- Delete a name that has no versions.
DELETE FROM artifact_names WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded

-- artifact_totals(session, tenant, user_id) --
-- Count the names, versions and bytes of a scope.
SELECT count(*), CAST(coalesce(sum(versions), 0) AS {int}), CAST(coalesce(sum(bytes), 0) AS {int}) FROM artifact_names
WHERE session = :session AND tenant = :tenant AND user_id = :user_id

-- artifact_insert(session, tenant, user_id, folded, version, name, blob_key, mime_type, size, sha256, author, metadata, created_at) --
-- Insert a version. Two with the same number, and two with the same content, conflict.
INSERT INTO artifacts (session, tenant, user_id, folded, version, name, blob_key, mime_type, size, sha256, author, metadata,
                       created_at)
VALUES (:session, :tenant, :user_id, :folded, :version, :name, :blob_key, :mime_type, :size, :sha256, :author, :metadata, :created_at)

-- artifact_get(session, tenant, user_id, folded, version) --
-- Return a version.
SELECT * FROM artifact_rows WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded AND version = :version

-- artifact_versions(session, tenant, user_id, folded, after, limit) --
-- Return the versions of a name after a given one.
SELECT * FROM artifact_rows
WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded AND version > :after ORDER BY version LIMIT :limit

-- artifact_last(session, tenant, user_id, folded) --
-- Return the number of a name's newest version.
SELECT max(version) FROM artifacts WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded

-- artifacts_newest(session, tenant, user_id, after, limit) --
-- Return the newest version of each name in a scope, in the order of the folded names, after a given one.
SELECT a.* FROM artifact_names AS n
JOIN artifact_rows AS a ON a.session = n.session AND a.tenant = n.tenant AND a.user_id = n.user_id
                       AND a.folded = n.folded AND a.version = n.newest
WHERE n.session = :session AND n.tenant = :tenant AND n.user_id = :user_id AND n.folded > :after ORDER BY n.folded LIMIT :limit

-- artifacts_all(session, tenant, user_id) --
-- Return all versions of all names in a scope.
SELECT * FROM artifact_rows WHERE session = :session AND tenant = :tenant AND user_id = :user_id ORDER BY folded, version

-- artifact_delete(session, tenant, user_id, folded, version) --
-- Delete a version.
DELETE FROM artifacts WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded AND version = :version

-- artifact_versions_delete(session, tenant, user_id, folded) --
-- Delete all versions of a name.
DELETE FROM artifacts WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded

-- artifacts_delete(session) --
-- Delete the artifacts of a session.
DELETE FROM artifacts WHERE session = :session

-- artifact_names_delete(session) --
-- Delete the names of artifacts of a session.
DELETE FROM artifact_names WHERE session = :session

-- blobs_in_use(tenant, blob_keys ids) --
-- Return the contents, of a JSON array of keys, that a version has.
SELECT blob_key FROM artifacts WHERE tenant = :tenant AND blob_key IN :blob_keys

-- blob_put(tenant, blob_key, part, written_at, data) --
-- Insert or replace a part of a content.
INSERT INTO blobs (tenant, blob_key, part, written_at, data) VALUES (:tenant, :blob_key, :part, :written_at, :data)
ON CONFLICT (tenant, blob_key, part) DO UPDATE SET written_at = excluded.written_at, data = excluded.data

-- blob_get(tenant, blob_key, part) --
-- Return a part of a content.
SELECT data FROM blobs WHERE tenant = :tenant AND blob_key = :blob_key AND part = :part

-- blob_delete(tenant, blob_key) --
-- Delete all parts of a content.
DELETE FROM blobs WHERE tenant = :tenant AND blob_key = :blob_key

-- blobs_before(tenant, before, after_key, limit) --
-- Return contents that were last written before a time, after a given key.
SELECT blob_key FROM blobs WHERE tenant = :tenant AND blob_key > :after_key
GROUP BY blob_key HAVING max(written_at) < :before ORDER BY blob_key LIMIT :limit
