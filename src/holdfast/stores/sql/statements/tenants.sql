-- What belongs to a tenant: ends of sessions, keys, deletions, leases, calibration, ids of writes, and the ping.

-- tenant_after(after) --
-- Return the next tenant that has sessions, owners, or a removal that is not finished.
SELECT tenant FROM (
    SELECT * FROM (SELECT tenant FROM sessions WHERE tenant > :after ORDER BY tenant LIMIT 1) AS one
    UNION ALL SELECT * FROM (SELECT tenant FROM owners WHERE tenant > :after AND session <> -1 ORDER BY tenant LIMIT 1) AS other
    UNION ALL SELECT * FROM (SELECT tenant FROM due WHERE tenant > :after ORDER BY tenant LIMIT 1) AS unfinished
) AS found ORDER BY tenant LIMIT 1

-- ending_insert(tenant, id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error): insert endings --
-- Insert an end that hooks must be notified of.

-- ending_get(tenant, id): select id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error from endings locked --

-- endings_due(tenant, due, limit) --
-- Return recorded ends that are due, in the order of their due time.
SELECT id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error
FROM endings WHERE tenant = :tenant AND due_at <= :due ORDER BY due_at, ended_at, id LIMIT :limit

-- endings_of_user(tenant, user_id, after, limit) --
-- Return recorded ends of a user's sessions, in the order of their ids, after a given one.
SELECT id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error
FROM endings WHERE tenant = :tenant AND user_id = :user_id AND id > :after ORDER BY id LIMIT :limit

-- ending_put(tenant, id, due_at, attempts, hooks, error): update endings --
-- ending_delete(tenant, id): delete endings --
-- key_get(tenant, id): select id, hash, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget from api_keys --

-- keys_after(tenant, after, limit, opens bytes) --
-- Return API keys in the order of their ids, after a given one: all, or those that give access to one tenant.
SELECT id, hash, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget
FROM api_keys WHERE tenant = :tenant AND id > :after AND (:opens IS NULL OR opens = :opens) ORDER BY id LIMIT :limit

-- key_insert(tenant, id, hash, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget): insert api_keys --
-- Insert an API key. Two with the same id, and two with the same hash, conflict.

-- key_revoke(tenant, id, revoked_at) --
-- Revoke an API key.
UPDATE api_keys SET revoked_at = :revoked_at WHERE tenant = :tenant AND id = :id AND revoked_at IS NULL

-- key_use(tenant, id, used_at) --
-- Record the time of an API key's last use.
UPDATE api_keys SET used_at = :used_at WHERE tenant = :tenant AND id = :id AND (used_at IS NULL OR used_at < :used_at)

-- deletion_insert(tenant, deleted_at, id, kind, user_hash, session_hash, key_id, counts): add deletions --

-- deletions_before(tenant, deleted_at, id, limit, hash bytes) --
-- Return the deletions before one of them, the newest first: all, or those of a user or session.
SELECT id, deleted_at, kind, user_hash, session_hash, key_id, counts FROM deletions
WHERE tenant = :tenant AND deleted_at <= :deleted_at AND (deleted_at < :deleted_at OR id < :id)
      AND (:hash IS NULL OR user_hash = :hash OR session_hash = :hash)
ORDER BY deleted_at DESC, id DESC LIMIT :limit

-- deletions_surplus(tenant, kind, kept, limit) --
-- Return deletions of a kind, without the newest ones.
SELECT deleted_at, id FROM deletions WHERE tenant = :tenant AND kind = :kind
ORDER BY deleted_at DESC, id DESC LIMIT :limit OFFSET :kept

-- deletion_delete(tenant, deleted_at, id): delete deletions --

-- lease_put(tenant, name, holder, expires_at, now) --
-- Take a lease that no holder has any more, or renew it.
INSERT INTO leases (tenant, name, holder, expires_at) VALUES (:tenant, :name, :holder, :expires_at)
[sqlite postgres] ON CONFLICT (tenant, name) DO UPDATE
[sqlite postgres] SET holder = excluded.holder, expires_at = excluded.expires_at
[sqlite postgres] WHERE leases.holder = excluded.holder OR leases.expires_at <= :now
[mysql] ON DUPLICATE KEY UPDATE
[mysql] holder = IF(holder = VALUES(holder) OR expires_at <= :now, VALUES(holder), holder),
[mysql] expires_at = IF(holder = VALUES(holder), VALUES(expires_at), expires_at)

-- lease_get(tenant, name): select holder, expires_at from leases --
-- lease_delete(tenant, name, holder): delete leases --

-- leases_clean(tenant, now) --
-- Delete leases that have expired.
[sqlite mysql] DELETE FROM leases WHERE tenant = :tenant AND expires_at <= :now
[postgres] DELETE FROM leases WHERE (tenant, name) IN
[postgres]   (SELECT tenant, name FROM leases WHERE tenant = :tenant AND expires_at <= :now FOR UPDATE SKIP LOCKED)

-- write_put(id bytes) --
-- Record the id of a write.
[postgres] INSERT INTO writes (id) VALUES (:id)

-- writes_clean(before, limit) --
-- Delete the oldest ids of writes.
[mysql] DELETE FROM writes WHERE id < :before ORDER BY id LIMIT :limit
[postgres] DELETE FROM writes WHERE id IN
[postgres]   (SELECT id FROM writes WHERE id < :before ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED)

-- learned_get(tenant, model): select data from learned locked --

-- learned_new(tenant, model, updated_at, data): insert learned --
-- Insert the calibration data of a new model. Two processes that do so at the same time do not overwrite each other.

-- learned_put(tenant, model, updated_at, data): put learned --

-- learned_trim(tenant, kept) --
-- Delete the calibration data of all but the most recently written models.
DELETE FROM learned
WHERE tenant = :tenant AND (updated_at, model) <=
      (SELECT updated_at, model FROM (SELECT updated_at, model FROM learned WHERE tenant = :tenant
                                      ORDER BY updated_at DESC, model DESC LIMIT 1 OFFSET :kept) AS last_to_go)

-- ping() --
-- Read anything.
SELECT max(number) FROM holdfast_schema

-- ping_put(padding bytes) --
-- Write anything; `ping_delete` undoes it in the same transaction.
INSERT INTO holdfast_schema (number, name, checksum)
[sqlite] VALUES (0, 'ping', :padding)
[postgres] VALUES (0, 'ping', encode(substr(:padding, 1, 1), 'escape'))
[mysql] VALUES (0, 'ping', left(:padding, 1))

-- ping_delete() --
DELETE FROM holdfast_schema WHERE number = 0
