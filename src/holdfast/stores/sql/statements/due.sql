-- What is to be done after a write: removals from search indexes, and jobs.

-- search_indexes(tenant) --
-- Return the search indexes of a tenant, and when each was last in use.
SELECT name, seen_at FROM search_indexes WHERE tenant = :tenant

-- search_index_put(tenant, name, seen_at) --
-- Record that a search index is in use.
INSERT INTO search_indexes (tenant, name, seen_at) VALUES (:tenant, :name, :seen_at)
ON CONFLICT (tenant, name) DO UPDATE SET seen_at = excluded.seen_at

-- search_index_delete(tenant, name) --
-- Delete a search index that is no longer in use.
DELETE FROM search_indexes WHERE tenant = :tenant AND name = :name

-- due_insert(tenant, target, kind, name, source, seq, version, data bytes) --
-- Insert something that is to be done.
INSERT INTO due (tenant, target, kind, name, source, seq, version, data)
VALUES (:tenant, :target, :kind, :name, :source, :seq, :version, :data)

-- due_first(tenant, target, limit) --
-- Return what is to be done for a target, the oldest first.
SELECT pk, kind, name, source, seq, version, data FROM due WHERE tenant = :tenant AND target = :target ORDER BY pk LIMIT :limit

-- due_same(tenant, target, kind, name, source, seq) --
-- Return what is to be done already for the same data.
SELECT pk, kind, name, source, seq, version, data FROM due
WHERE tenant = :tenant AND target = :target AND kind = :kind AND name = :name AND source = :source AND seq = :seq
ORDER BY pk LIMIT 1

-- due_get(pk) --
-- Return one thing that is to be done.
SELECT pk, kind, name, source, seq, version, data FROM due WHERE pk = :pk

-- due_get_lock(pk) --
-- Lock one thing that is to be done.
[postgres mysql] SELECT 1 FROM due WHERE pk = :pk {lock}

-- due_put(pk, data bytes) --
-- Replace the data of one thing that is to be done.
UPDATE due SET data = :data WHERE pk = :pk

-- due_delete(pk) --
-- Delete something that was done.
DELETE FROM due WHERE pk = :pk

-- due_clear(tenant, target) --
-- Delete all that is to be done for a target.
DELETE FROM due WHERE tenant = :tenant AND target = :target
