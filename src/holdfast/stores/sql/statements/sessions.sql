-- Sessions and lists of them.

-- session_get(tenant, id, user_id, withdrawn): select * from session_rows --

-- session_get_lock(tenant, id, user_id, withdrawn) --
-- Lock a session, so that no other transaction writes to it. This is a separate statement, so that later reads see the state after the
-- lock. In PostgreSQL, a single statement that waited for the lock would join the newest session with an old profile.
[postgres] SELECT 1 FROM sessions WHERE tenant = :tenant AND id = :id AND user_id = :user_id AND withdrawn = :withdrawn {lock}

-- session_get_locked(tenant, id, user_id, withdrawn) --
-- Like session_get, and lock the row until the transaction ends.
[mysql] SELECT * FROM session_rows WHERE tenant = :tenant AND id = :id AND user_id = :user_id AND withdrawn = :withdrawn {lock}

-- session_guard(pk, version, claim_holder, claim_until, claim_wanted) --
-- Return the session if its version and claim are still those that a write was computed from.
[postgres] SELECT pk FROM sessions
[postgres] WHERE pk = :pk AND version = :version AND claim_holder = :claim_holder AND claim_until = :claim_until AND claim_wanted = :claim_wanted {lock}

-- session_find(tenant, id): select * from session_rows where withdrawn = '' LIMIT 2 --
-- Return up to two sessions with this id among all users of a tenant; two show that the id is ambiguous.

-- session_insert(tenant, user_id, id, agent, version, created_at, accessed_at int, status text, ttl int, messages, bytes, next_seq, total, digest, last_seq, counts, identity) --
-- Insert a session.
INSERT INTO sessions (tenant, user_id, id, agent, version, created_at, updated_at, status, ttl, messages, bytes, next_seq, total, digest,
                      last_seq, counts, accessed_at, expires_at, identity)
VALUES (:tenant, :user_id, :id, :agent, :version, :created_at, :accessed_at, :status, :ttl, :messages, :bytes, :next_seq, :total, :digest,
        :last_seq, :counts, :accessed_at, :accessed_at + nullif(:ttl, 0), :identity)
[sqlite postgres] RETURNING pk

-- session_advance(pk, version, updated_at, accessed_at, expires_at, status, ended_at, end_reason, messages, bytes, next_seq, total, digest, last_seq, counts, claim_holder, claim_until, claim_wanted): update sessions --
-- Update all columns of a session that an append changes.

-- session_claim(pk, claim_holder, claim_until, claim_wanted): update sessions --
-- Set who holds a session's open turn, for a write that changes nothing else of the session.

-- claim_want(pk, claim_holder): update sessions set claim_wanted = 1 where claim_holder = :claim_holder --

-- session_patch(pk, version, accessed_at int, agent, ttl int): update sessions set updated_at = :accessed_at, ttl = :ttl, accessed_at = :accessed_at, expires_at = :accessed_at + nullif(:ttl, 0) --

-- session_touch(pk, version, total, bytes): update sessions --
-- Update a session after a change of one of its entries.

-- session_used(pk, accessed_at int): update sessions set accessed_at = :accessed_at, expires_at = :accessed_at + nullif(ttl, 0) where accessed_at < :accessed_at --
-- Record the use of a session without a write.

-- session_end(pk, version, ended_at, end_reason): update sessions set status = 'closed' --

-- session_withdraw(pk, version, ended_at, end_reason, withdrawn): update sessions set status = 'closed' --

-- counted --
-- Used by other statements: the condition for sessions that count toward the maximum.
status = 'active' AND substr(id, 1, 9) <> 'unplaced_'

-- sessions_idle(tenant, idle_since, limit): select * from session_rows where {counted} AND accessed_at <= :idle_since AND ttl IS NULL ORDER BY accessed_at --

-- sessions_expired(tenant, now, limit): select * from session_rows where status = 'active' AND expires_at IS NOT NULL AND expires_at <= :now ORDER BY expires_at --

-- sessions_oldest(tenant, limit): select * from session_rows where {counted} ORDER BY accessed_at --

-- sessions_active(tenant): select count(*) from sessions where {counted} --

-- session_holds(session) --
-- Count what belongs to a session: compactions, views, model calls, idempotency keys, artifacts and media, with their bytes.
SELECT (SELECT count(*) FROM compactions WHERE session = :session), (SELECT count(*) FROM saved_views WHERE session = :session),
       (SELECT count(*) FROM model_calls WHERE session = :session),
       (SELECT count(*) FROM idempotency WHERE session = :session)
       + (SELECT count(*) FROM turn_keys WHERE session = :session AND expires_at IS NULL),
       (SELECT count(*) FROM artifacts WHERE session = :session),
       (SELECT CAST(coalesce(sum(size), 0) AS {int}) FROM artifacts WHERE session = :session),
       (SELECT count(*) FROM media WHERE session = :session),
       (SELECT CAST(coalesce(sum(size), 0) AS {int}) FROM media WHERE session = :session)

-- session_delete(pk): delete sessions --
-- profile_put(session, system_messages, state, metadata): put profiles --
-- profile_delete(session): delete profiles --

-- listed(agent bytes, status text, now int, idle_since int, placed int) --
-- Used by other statements: the condition for sessions of a list, which are named `w` there.
(:agent IS NULL OR w.agent = :agent) AND w.withdrawn = '' AND (:placed = 0 OR substr(w.id, 1, 9) <> 'unplaced_')
  AND (:status IS NULL OR :status = CASE
       WHEN w.status = 'active' AND (w.expires_at <= :now OR w.ttl IS NULL AND w.accessed_at <= :idle_since) THEN 'closed'
       ELSE w.status END)

-- list_oldest | list_newest(tenant, at, user_id, id, agent bytes, status text, limit, now int, idle_since int, placed int) --
-- Return a tenant's sessions, oldest first, after a given one.
[sqlite postgres] SELECT * FROM session_rows AS w
[sqlite postgres] WHERE w.tenant = :tenant AND (w.updated_at, w.user_id, w.id) {past} (:at, :user_id, :id)
[mysql] SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
[mysql] WHERE w.tenant = :tenant AND (w.updated_at {past} :at OR w.updated_at = :at AND w.user_id {past} :user_id OR w.updated_at = :at AND w.user_id = :user_id AND w.id {past} :id)
  AND {listed}
ORDER BY w.updated_at, w.user_id, w.id LIMIT :limit

-- list_oldest_of_user | list_newest_of_user(tenant, at, user_id, id, agent bytes, status text, limit, now int, idle_since int, placed int) --
-- Return a user's sessions, oldest first, after a given one.
[sqlite postgres] SELECT * FROM session_rows AS w
[sqlite postgres] WHERE w.tenant = :tenant AND w.user_id = :user_id AND (w.updated_at, w.id) {past} (:at, :id)
[mysql] SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent_of_user) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
[mysql] WHERE w.tenant = :tenant AND w.user_id = :user_id AND (w.updated_at {past} :at OR w.updated_at = :at AND w.id {past} :id)
  AND {listed}
ORDER BY w.updated_at, w.id LIMIT :limit

-- live_session(tenant, user_id) --
-- Used by other statements: the condition for sessions of a user that have their name.
s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = ''
