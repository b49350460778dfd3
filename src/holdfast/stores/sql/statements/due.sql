-- What is to be done after a write: removals from search indexes, and jobs.

-- search_indexes(tenant): select name, seen_at from search_indexes --
-- Return the search indexes of a tenant, and when each was last in use.

-- search_index_put(tenant, name, seen_at): put search_indexes --
-- search_index_delete(tenant, name): delete search_indexes --
-- due_insert(tenant, target, kind, name, source, seq, data): insert due --

-- due_first(tenant, target, limit) --
-- Return what is to be done for a target, the oldest first.
SELECT pk, kind, name, source, seq, data FROM due WHERE tenant = :tenant AND target = :target ORDER BY pk LIMIT :limit

-- due_same(tenant, target, kind, name, source, seq) --
-- Return what is to be done already for the same data.
SELECT pk, kind, name, source, seq, data FROM due
WHERE tenant = :tenant AND target = :target AND kind = :kind AND name = :name AND source = :source AND seq = :seq
ORDER BY pk LIMIT 1

-- due_get(tenant, pk): select pk, kind, name, source, seq, data from due locked --
-- Return one thing that is to be done.

-- due_put(pk, data): update due --
-- due_delete(tenant, pk): delete due --
-- due_clear(tenant, target): delete due --
