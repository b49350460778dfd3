-- Memories, their owners, recalls and diaries; and the floors of versions.

-- memory_owner_get(tenant, kind, id) --
-- Return version, number of memories, next numbers and last change of an owner, and the floor of versions and numbers.
SELECT o.pk, o.version, o.held, o.next_memory, o.next_signal, o.next_entry, o.updated_at, coalesce(f.number, 0)
FROM memory_owners AS o LEFT JOIN floors AS f ON f.tenant = o.tenant
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id

-- memory_owner_get_lock(tenant, kind, id) --
-- Lock an owner, so that no other transaction writes to its memories.
[postgres mysql] SELECT 1 FROM memory_owners WHERE tenant = :tenant AND kind = :kind AND id = :id {lock}

-- memory_owner_new(tenant, kind, id) --
-- Insert an owner without memories. If another process has just done so, lock that row, so that no other transaction deletes it.
INSERT INTO memory_owners (tenant, kind, id, version, held, next_memory, next_signal, next_entry, updated_at)
VALUES (:tenant, :kind, :id, 0, 0, 1, 1, 1, 0)
ON CONFLICT (tenant, kind, id) DO UPDATE SET version = memory_owners.version

-- memory_owner_put(pk, version, held, next_memory, next_signal, next_entry, updated_at) --
-- Update an owner after a write.
UPDATE memory_owners SET version = :version, held = :held, next_memory = :next_memory, next_signal = :next_signal, next_entry = :next_entry, updated_at = :updated_at
WHERE pk = :pk

-- memory_owner_delete(pk) --
-- Delete an owner with its name.
DELETE FROM memory_owners WHERE pk = :pk

-- floor_raise(tenant, number) --
-- Raise the floor of a tenant: all versions and numbers of deleted owners are at most this one.
INSERT INTO floors (tenant, number) VALUES (:tenant, :number)
ON CONFLICT (tenant) DO UPDATE
SET number = CASE WHEN excluded.number > floors.number THEN excluded.number ELSE floors.number END

-- memory_owners_after(tenant, kind, id, limit) --
-- Return owners in the order of kind and id, after a given one.
SELECT kind, id, updated_at FROM memory_owners {use memory_owners_name}
[sqlite postgres] WHERE tenant = :tenant AND (kind, id) > (:kind, :id)
[mysql] WHERE tenant = :tenant AND (kind > :kind OR (kind = :kind AND id > :id))
ORDER BY kind, id LIMIT :limit

-- of_owner(tenant, kind, id) --
-- Used by other statements: the condition for an owner of memories.
o.tenant = :tenant AND o.kind = :kind AND o.id = :id

-- owned(tenant, kind, id) --
-- Used by other statements: the condition for memories of an owner.
owner = (SELECT o.pk FROM memory_owners AS o WHERE {of_owner})

-- memories_forward(tenant, kind, id, place, limit) --
-- Return an owner with its memories after a number; one row if there are none.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
[sqlite] LEFT JOIN memories AS m ON m.owner = o.pk AND m.number > :place
[postgres mysql] LEFT JOIN (SELECT number, id, version, data FROM memories WHERE {owned} AND number > :place ORDER BY number LIMIT :limit) AS m ON TRUE
WHERE {of_owner} ORDER BY m.number LIMIT :limit

-- memories_backward(tenant, kind, id, place, limit) --
-- Return an owner with its memories before a number, last first.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
[sqlite] LEFT JOIN memories AS m ON m.owner = o.pk AND m.number < :place
[postgres mysql] LEFT JOIN (SELECT number, id, version, data FROM memories WHERE {owned} AND number < :place ORDER BY number DESC LIMIT :limit) AS m ON TRUE
WHERE {of_owner} ORDER BY m.number DESC LIMIT :limit

-- memories_forward_of(tenant, kind, id, status, place, limit) --
-- Return an owner with its memories of a status after a number.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
[sqlite] LEFT JOIN memories AS m ON m.owner = o.pk AND m.status = :status AND m.number > :place
[postgres mysql] LEFT JOIN (SELECT number, id, version, data FROM memories
[postgres mysql]            WHERE {owned} AND status = :status AND number > :place ORDER BY number LIMIT :limit) AS m ON TRUE
WHERE {of_owner} ORDER BY m.number LIMIT :limit

-- memories_backward_of(tenant, kind, id, status, place, limit) --
-- Return an owner with its memories of a status before a number, last first.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
[sqlite] LEFT JOIN memories AS m ON m.owner = o.pk AND m.status = :status AND m.number < :place
[postgres mysql] LEFT JOIN (SELECT number, id, version, data FROM memories
[postgres mysql]            WHERE {owned} AND status = :status AND number < :place ORDER BY number DESC LIMIT :limit) AS m ON TRUE
WHERE {of_owner} ORDER BY m.number DESC LIMIT :limit

-- wanted_memories(after_version, status bytes, direction, place) --
-- Used by other statements: the condition for memories, named `m`, that were changed after a version and have a status, after a place.
m.version > :after_version AND (:status = '' OR m.status = :status) AND m.number * :direction > :place

-- memories_since(tenant, kind, id, after_version, status bytes, direction, place, limit) --
-- Return an owner with its memories that were changed after a version, of one status or any, after a place in a direction: numbers are multiplied by 1 or -1.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
[sqlite mysql] LEFT JOIN memories AS m ON m.owner = o.pk AND {wanted_memories}
[postgres] LEFT JOIN LATERAL (SELECT number, id, version, data FROM memories AS m
[postgres]                    WHERE m.owner = o.pk AND {wanted_memories} ORDER BY number * :direction LIMIT :limit) AS m ON true
WHERE {of_owner} ORDER BY m.number * :direction LIMIT :limit

-- memories_of_ids(tenant, kind, id, wanted ids, after_version, status bytes, direction, place, limit) --
-- Like `memories_since`, for a JSON array of ids.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
[sqlite mysql] LEFT JOIN EACH :wanted AS n ON TRUE
[sqlite] LEFT JOIN memories AS m ON m.tenant = o.tenant AND m.id = n.value AND m.owner = o.pk AND {wanted_memories}
[mysql] LEFT JOIN memories AS m ON m.tenant = o.tenant AND m.id = CAST(n.value AS BINARY) AND m.owner = o.pk AND {wanted_memories}
[sqlite mysql] WHERE {of_owner} ORDER BY m.number IS NULL, m.number * :direction LIMIT :limit
[postgres] LEFT JOIN LATERAL (SELECT number, id, version, data FROM (SELECT * FROM memories WHERE tenant = :tenant AND id = ANY :wanted OFFSET 0) AS m
[postgres]                    WHERE m.owner = o.pk AND {wanted_memories} ORDER BY number * :direction LIMIT :limit) AS m ON true
[postgres] WHERE {of_owner} ORDER BY m.number * :direction

-- memories_of_numbers(tenant, kind, id, wanted ints, after_version, status bytes, direction, place, limit) --
-- Like `memories_since`, for a JSON array of numbers.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
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
FROM memories AS m JOIN memory_owners AS o ON o.pk = m.owner WHERE m.tenant = :tenant AND m.id = :id

-- memories_named(tenant, ids ids) --
-- Return numbers and owners of memories, by a JSON array of ids.
SELECT id, owner, number FROM memories WHERE tenant = :tenant AND id = ANY :ids

-- memory_insert(owner, number, tenant, id, version, status, data) --
-- Insert a memory. Two with the same id conflict.
INSERT INTO memories (owner, number, tenant, id, version, status, data) VALUES (:owner, :number, :tenant, :id, :version, :status, :data)

-- memory_put(owner, number, version, status, data) --
-- Replace a memory.
UPDATE memories SET version = :version, status = :status, data = :data WHERE owner = :owner AND number = :number

-- memory_delete(owner, number) --
-- Delete a memory.
DELETE FROM memories WHERE owner = :owner AND number = :number

-- memories_clear(owner) --
-- Delete all memories of an owner.
DELETE FROM memories WHERE owner = :owner

-- signal_insert(owner, memory, seq, recalled_at, asked, score, session_id) --
-- Insert a recall of a memory.
INSERT INTO memory_signals (owner, memory, seq, recalled_at, asked, score, session_id) VALUES (:owner, :memory, :seq, :recalled_at, :asked, :score, :session_id)

-- signals_trim(owner, memory, kept) --
-- Delete all but the newest signals of a memory.
DELETE FROM memory_signals
WHERE owner = :owner AND memory = :memory
  AND seq <= (SELECT seq FROM (SELECT seq FROM memory_signals WHERE owner = :owner AND memory = :memory
             ORDER BY seq DESC LIMIT 1 OFFSET :kept) AS last_to_go)

-- signals_before(owner, before) --
-- Delete signals of an owner's memories from before a time.
DELETE FROM memory_signals WHERE owner = :owner AND recalled_at < :before

-- signals_delete(owner, memory) --
-- Delete the signals of a memory.
DELETE FROM memory_signals WHERE owner = :owner AND memory = :memory

-- signals_clear(owner) --
-- Delete all signals of an owner's memories.
DELETE FROM memory_signals WHERE owner = :owner

-- signals_all(tenant, kind, id, since) --
-- Return signals of an owner's memories from a time on, in the order of their insertion.
SELECT m.id, s.recalled_at, s.asked, s.score, s.session_id
FROM memory_owners AS o
[sqlite mysql] JOIN memory_signals AS s ON s.owner = o.pk
[sqlite mysql] JOIN memories AS m ON m.owner = s.owner AND m.number = s.memory
[postgres] CROSS JOIN LATERAL (SELECT * FROM memory_signals WHERE owner = o.pk AND recalled_at >= :since OFFSET 0) AS s
[postgres] CROSS JOIN LATERAL (SELECT id FROM memories WHERE owner = o.pk AND number = s.memory OFFSET 0) AS m
WHERE {of_owner} AND s.recalled_at >= :since ORDER BY s.seq

-- signals_of(tenant, kind, id, memory_ids ids, since) --
-- Return signals of some memories, by a JSON array of ids.
SELECT m.id, s.recalled_at, s.asked, s.score, s.session_id
FROM memory_owners AS o
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

-- diary_insert(owner, seq, id, swept_at, report) --
-- Insert an entry of an owner's diary, for one consolidation.
INSERT INTO memory_diary (owner, seq, id, swept_at, report) VALUES (:owner, :seq, :id, :swept_at, :report)

-- diary_trim(owner, before) --
-- Delete diary entries before a number.
DELETE FROM memory_diary WHERE owner = :owner AND seq < :before

-- diary_newest(tenant, kind, id, limit) --
-- Return the newest diary entries of an owner, newest first.
SELECT d.id, d.swept_at, d.report
FROM memory_owners AS o JOIN memory_diary AS d ON d.owner = o.pk
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY d.seq DESC LIMIT :limit

-- diary_clear(owner) --
-- Delete all diary entries of an owner.
DELETE FROM memory_diary WHERE owner = :owner
