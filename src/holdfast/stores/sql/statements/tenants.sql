-- Tenants, ids of writes, and the ping.

-- tenant_after(after) --
-- Return the next tenant that has sessions, owners, or a removal that is not finished.
SELECT tenant FROM (
    SELECT * FROM (SELECT tenant FROM sessions WHERE tenant > :after ORDER BY tenant LIMIT 1) AS one
    UNION ALL SELECT * FROM (SELECT tenant FROM owners WHERE tenant > :after AND session <> -1 ORDER BY tenant LIMIT 1) AS other
    UNION ALL SELECT * FROM (SELECT tenant FROM due WHERE tenant > :after ORDER BY tenant LIMIT 1) AS unfinished
) AS found ORDER BY tenant LIMIT 1

-- write_put(id bytes) --
-- Record the id of a write.
[postgres] INSERT INTO writes (id) VALUES (:id)

-- writes_clean(before, limit) --
-- Delete the oldest ids of writes.
[mysql] DELETE FROM writes WHERE id < :before ORDER BY id LIMIT :limit
[postgres] DELETE FROM writes WHERE id IN
[postgres]   (SELECT id FROM writes WHERE id < :before ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED)

-- ping() --
-- Read anything.
SELECT max(number) FROM holdfast_schema

-- ping_put(padding bytes) --
-- Write anything; `ping_delete` undoes it in the same transaction.
INSERT INTO holdfast_schema (number, name, checksum)
[sqlite] VALUES (0, 'ping', :padding)
[postgres] VALUES (0, 'ping', encode(substr(:padding, 1, 1), 'escape'))
[mysql] VALUES (0, 'ping', left(:padding, 1))

-- ping_delete(): delete holdfast_schema where number = 0 --
