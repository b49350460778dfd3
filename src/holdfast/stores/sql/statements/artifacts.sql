-- Artifacts and their contents. The session is 0 for artifacts of a user.

-- artifact_newest(session, tenant, user_id, folded): select data, highest from artifacts ORDER BY version DESC LIMIT 1 --
-- artifact_get(session, tenant, user_id, folded, version): select data from artifacts --
-- artifact_versions(session, tenant, user_id, folded, after, limit): select data from artifacts where version > :after ORDER BY version --
-- artifacts_all(session, tenant, user_id): select data from artifacts ORDER BY folded, version --

-- artifacts_newest(session, tenant, user_id, after, limit) --
-- Return the newest version of each name in a scope, in the order of the folded names, after a given one.
SELECT a.data FROM artifacts AS a
WHERE a.session = :session AND a.tenant = :tenant AND a.user_id = :user_id AND a.folded > :after AND NOT EXISTS
      (SELECT 1 FROM artifacts AS later WHERE later.session = a.session AND later.tenant = a.tenant AND later.user_id = a.user_id
                                          AND later.folded = a.folded AND later.version > a.version)
ORDER BY a.folded LIMIT :limit

-- artifact_totals(session, tenant, user_id, folded bytes) --
-- Count the names, versions and bytes of a scope, and the versions of one name.
SELECT count(DISTINCT folded), count(*), CAST(coalesce(sum(size), 0) AS {int}), count(CASE WHEN folded = :folded THEN 1 END)
FROM artifacts WHERE session = :session AND tenant = :tenant AND user_id = :user_id

-- artifact_insert(session, tenant, user_id, folded, version, highest, blob_key, size, data): insert artifacts --
-- artifact_raise(session, tenant, user_id, folded, version, highest): update artifacts --
-- artifact_delete(session, tenant, user_id, folded, version): delete artifacts --
-- artifact_versions_delete(session, tenant, user_id, folded): delete artifacts --
-- artifacts_clear(session, tenant, user_id): delete artifacts --
-- artifacts_delete(session): delete artifacts --
-- blobs_in_use(tenant, blob_keys ids): select blob_key from artifacts where blob_key IN :blob_keys --

-- blob_put(tenant, blob_key, part, written_at, data): put blobs --
-- blob_get(tenant, blob_key, part): select data from blobs --
-- blob_delete(tenant, blob_key): delete blobs --

-- blobs_before(tenant, before, after_key, limit): select blob_key from blobs where blob_key > :after_key GROUP BY blob_key HAVING max(written_at) < :before ORDER BY blob_key --
