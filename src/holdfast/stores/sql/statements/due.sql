-- What is to be done after a write: removals from search indexes, and jobs.

-- due_insert(tenant, target, kind, name, source, seq, data): insert due --

-- due_first(tenant, target, limit): select pk, kind, name, source, seq, data from due ORDER BY pk --

-- due_same(tenant, target, kind, name, source, seq): select pk, kind, name, source, seq, data from due ORDER BY pk LIMIT 1 --

-- due_get(tenant, pk): select pk, kind, name, source, seq, data from due locked --
-- Return one thing that is to be done.

-- due_put(pk, data): update due --
-- due_delete(tenant, pk): delete due --
-- due_clear(tenant, target): delete due --
