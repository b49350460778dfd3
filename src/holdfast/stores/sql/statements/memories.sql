-- Memories, their recalls and diaries.

-- memory_owners_after(tenant, kind, id, limit) --
-- Return owners of memories in the order of kind and id, after a given one.
SELECT kind, id, updated_at FROM owners {use owners_name}
[sqlite postgres] WHERE tenant = :tenant AND (kind, id) > (:kind, :id) AND kind < 'memories/' AND session = 0
[mysql] WHERE tenant = :tenant AND (kind > :kind OR (kind = :kind AND id > :id)) AND kind < 'memories/' AND session = 0
ORDER BY kind, id LIMIT :limit

-- memories_forward | memories_backward(tenant, kind, id, place, limit) --
-- Return an owner with its memories after a number; one row if there are none.
SELECT o.version, o.items, m.number, m.id, m.version, m.data
FROM owners AS o
[sqlite] LEFT JOIN memories AS m ON m.owner = o.pk AND m.number {past} :place
[postgres mysql] LEFT JOIN (SELECT number, id, version, data FROM memories WHERE {owned} AND number {past} :place ORDER BY number LIMIT :limit) AS m ON TRUE
WHERE {of_owner} ORDER BY m.number LIMIT :limit

-- memories_forward_of | memories_backward_of(tenant, kind, id, status, place, limit) --
-- Return an owner with its memories of a status after a number.
SELECT o.version, o.items, m.number, m.id, m.version, m.data
FROM owners AS o
[sqlite] LEFT JOIN memories AS m ON m.owner = o.pk AND m.status = :status AND m.number {past} :place
[postgres mysql] LEFT JOIN (SELECT number, id, version, data FROM memories
[postgres mysql]            WHERE {owned} AND status = :status AND number {past} :place ORDER BY number LIMIT :limit) AS m ON TRUE
WHERE {of_owner} ORDER BY m.number LIMIT :limit

-- wanted_memories(after_version, status bytes, direction, place) --
-- Used by other statements: the condition for memories, named `m`, that were changed after a version and have a status, after a place.
m.version > :after_version AND (:status = '' OR m.status = :status) AND m.number * :direction > :place

-- memories_since(tenant, kind, id, after_version, status bytes, direction, place, limit) --
-- Return an owner with its memories that were changed after a version, of one status or any, after a place in a direction: numbers are multiplied by 1 or -1.
SELECT o.version, o.items, m.number, m.id, m.version, m.data
FROM owners AS o
[sqlite mysql] LEFT JOIN memories AS m ON m.owner = o.pk AND {wanted_memories}
[postgres] LEFT JOIN LATERAL (SELECT number, id, version, data FROM memories AS m
[postgres]                    WHERE m.owner = o.pk AND {wanted_memories} ORDER BY number * :direction LIMIT :limit) AS m ON true
WHERE {of_owner} ORDER BY m.number * :direction LIMIT :limit

-- memories_of_ids(tenant, kind, id, wanted ids, after_version, status bytes, direction, place, limit) --
-- Like `memories_since`, for a JSON array of ids.
SELECT o.version, o.items, m.number, m.id, m.version, m.data
FROM owners AS o
[sqlite mysql] LEFT JOIN EACH :wanted AS n ON TRUE
[sqlite] LEFT JOIN memories AS m ON m.tenant = o.tenant AND m.id = n.value AND m.owner = o.pk AND {wanted_memories}
[mysql] LEFT JOIN memories AS m ON m.tenant = o.tenant AND m.id = CAST(n.value AS BINARY) AND m.owner = o.pk AND {wanted_memories}
[sqlite mysql] WHERE {of_owner} ORDER BY m.number IS NULL, m.number * :direction LIMIT :limit
[postgres] LEFT JOIN LATERAL (SELECT number, id, version, data FROM (SELECT * FROM memories WHERE tenant = :tenant AND id = ANY :wanted OFFSET 0) AS m
[postgres]                    WHERE m.owner = o.pk AND {wanted_memories} ORDER BY number * :direction LIMIT :limit) AS m ON true
[postgres] WHERE {of_owner} ORDER BY m.number * :direction

-- memories_of_numbers(tenant, kind, id, wanted ints, after_version, status bytes, direction, place, limit) --
-- Like `memories_since`, for a JSON array of numbers.
SELECT o.version, o.items, m.number, m.id, m.version, m.data
FROM owners AS o
[sqlite mysql] LEFT JOIN EACH :wanted AS n ON TRUE
[sqlite mysql] LEFT JOIN memories AS m ON m.number = n.value AND m.owner = o.pk AND {wanted_memories}
[sqlite mysql] WHERE {of_owner} ORDER BY m.number IS NULL, m.number * :direction LIMIT :limit
[postgres] LEFT JOIN LATERAL (SELECT number, id, version, data FROM EACH :wanted AS n
[postgres]                    CROSS JOIN LATERAL (SELECT * FROM memories WHERE owner = o.pk AND number = n.value::bigint OFFSET 0) AS m
[postgres]                    WHERE {wanted_memories} ORDER BY number * :direction LIMIT :limit) AS m ON true
[postgres] WHERE {of_owner} ORDER BY m.number * :direction

-- memory_find(tenant, id) --
-- Return a memory by id, with its owner.
SELECT o.kind, o.id, m.number, m.id, m.version, m.data
FROM memories AS m JOIN owners AS o ON o.pk = m.owner WHERE m.tenant = :tenant AND m.id = :id

-- memories_named(tenant, ids ids): select id, owner, number from memories where id = ANY :ids --

-- memory_insert(owner, number, tenant, id, version, status, data): insert memories --
-- Two with the same id conflict.

-- memory_put(owner, number, version, status, data): update memories --
-- memory_delete(owner, number): delete memories --
-- memories_clear(owner): delete memories --
-- signal_insert(owner, memory, seq, recalled_at, asked, score, session_id): insert memory_signals --

-- signals_trim(owner, memory, kept) --
-- Delete all but the newest signals of a memory.
DELETE FROM memory_signals
WHERE owner = :owner AND memory = :memory
  AND seq <= (SELECT seq FROM (SELECT seq FROM memory_signals WHERE owner = :owner AND memory = :memory
             ORDER BY seq DESC LIMIT 1 OFFSET :kept) AS last_to_go)

-- signals_before(owner, before): delete memory_signals where recalled_at < :before --

-- signals_delete(owner, memory): delete memory_signals --
-- signals_clear(owner): delete memory_signals --

-- signals_all(tenant, kind, id, since) --
-- Return signals of an owner's memories from a time on, in the order of their insertion.
SELECT m.id, s.recalled_at, s.asked, s.score, s.session_id
FROM owners AS o
[sqlite mysql] JOIN memory_signals AS s ON s.owner = o.pk
[sqlite mysql] JOIN memories AS m ON m.owner = s.owner AND m.number = s.memory
[postgres] CROSS JOIN LATERAL (SELECT * FROM memory_signals WHERE owner = o.pk AND recalled_at >= :since OFFSET 0) AS s
[postgres] CROSS JOIN LATERAL (SELECT id FROM memories WHERE owner = o.pk AND number = s.memory OFFSET 0) AS m
WHERE {of_owner} AND s.recalled_at >= :since ORDER BY s.seq

-- signals_of(tenant, kind, id, memory_ids ids, since) --
-- Return signals of some memories, by a JSON array of ids.
SELECT m.id, s.recalled_at, s.asked, s.score, s.session_id
FROM owners AS o
[sqlite] CROSS JOIN EACH :memory_ids AS n
[sqlite] CROSS JOIN memories AS m ON m.tenant = o.tenant AND m.id = n.value AND m.owner = o.pk
[sqlite] CROSS JOIN memory_signals AS s ON s.owner = m.owner AND s.memory = m.number
[postgres] CROSS JOIN LATERAL (SELECT * FROM memories WHERE tenant = :tenant AND id = ANY :memory_ids OFFSET 0) AS m
[postgres] CROSS JOIN LATERAL (SELECT * FROM memory_signals WHERE owner = m.owner AND memory = m.number OFFSET 0) AS s
[mysql] JOIN EACH :memory_ids AS n
[mysql] JOIN memories AS m ON m.tenant = o.tenant AND m.id = CAST(n.value AS BINARY) AND m.owner = o.pk
[mysql] JOIN memory_signals AS s ON s.owner = m.owner AND s.memory = m.number
[sqlite] WHERE {of_owner} AND +s.recalled_at >= :since ORDER BY s.seq
[postgres mysql] WHERE {of_owner} AND m.owner = o.pk AND s.recalled_at >= :since ORDER BY s.seq
