-- All statements of the SQL stores: `-- name(parameters) --`, what the statement does, and its text.
--
-- A line that begins with names of dialects, such as `[sqlite mysql]`, belongs only to the statement's text in these dialects.
-- Callers pass values in the order of the parameters in the header. A parameter may have a type, for the dialects that need one:
-- int, float, bytes or text. A JSON array is one parameter: ints, texts, ids (texts of up to 64 characters), names (texts in
-- hexadecimal), hashes or places (bytes in hexadecimal). It follows IN, or = ANY where PostgreSQL needs an array to use an index; and
-- `EACH :ids AS wanted` is a table of its elements, in the column `value`.
-- `{name}` is replaced with the text of another statement, or with what a dialect writes for a join in this order (`{then}`), the use of
-- an index (`{use …}`, `{use_key}`), a lock (`{lock}`) and the type of whole numbers (`{int}`). `ON CONFLICT`, and "key" in double quotes, are
-- written as in SQLite and PostgreSQL.
-- `holdfast.stores.logic.rows` decodes the columns of session_rows and entry_rows, in their order.

-- filters(sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until) --
-- Used by other statements: the conditions for documents of an index that a search may find.
(:sources IS NULL OR d.source IN :sources) AND {other_filters}

-- other_filters(without ints, agents names, roles names, first_name bytes, end_name bytes, since, until) --
-- Used by other statements: these conditions without that for the sources.
(:without IS NULL OR d.source NOT IN :without) AND (:agents IS NULL OR d.agent IN :agents)
      AND (:roles IS NULL OR d.role IN :roles) AND {named} AND d.at >= :since AND d.at < :until

-- named(first_name bytes, end_name bytes) --
-- Used by other statements: the condition for documents with names in a range.
[sqlite] (:first_name IS NULL OR (CAST(d.name AS BLOB) >= :first_name AND CAST(d.name AS BLOB) < :end_name))
[postgres mysql] (:first_name IS NULL OR (d.name >= :first_name AND d.name < :end_name))

-- session_get(tenant, id, user_id, withdrawn) --
-- Return a session by name. A withdrawn session has the id of its end in `withdrawn`; for others it is empty.
SELECT * FROM session_rows WHERE tenant = :tenant AND id = :id AND user_id = :user_id AND withdrawn = :withdrawn

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

-- session_find(tenant, id) --
-- Return up to two sessions with this id among all users of a tenant; two show that the id is ambiguous.
SELECT * FROM session_rows WHERE tenant = :tenant AND id = :id AND withdrawn = '' LIMIT 2

-- session_insert(tenant, user_id, id, agent, version, created_at, accessed_at int, status text, ttl int, messages, bytes, calls, prompt_tokens, completion_tokens, cached_tokens, next_seq, turn_id, total, digest, last_seq, last_kind, unit, open_calls, anchor, identity) --
-- Insert a session.
INSERT INTO sessions (tenant, user_id, id, agent, version, created_at, updated_at, status, ttl, messages, bytes, calls,
                      prompt_tokens, completion_tokens, cached_tokens, next_seq, turn_id, total, digest, last_seq,
                      last_kind, unit, open_calls, anchor, accessed_at, expires_at, identity)
VALUES (:tenant, :user_id, :id, :agent, :version, :created_at, :accessed_at, :status, :ttl, :messages, :bytes, :calls, :prompt_tokens, :completion_tokens, :cached_tokens, :next_seq, :turn_id, :total, :digest, :last_seq, :last_kind, :unit, :open_calls, :anchor, :accessed_at,
        :accessed_at + nullif(:ttl, 0), :identity)
[sqlite postgres] RETURNING pk

-- session_advance(pk, version, accessed_at int, status text, messages, bytes, calls, prompt_tokens, completion_tokens, cached_tokens, next_seq, turn_id, total, digest, last_seq, last_kind, unit, open_calls, anchor, claim_holder, claim_until, claim_wanted) --
-- Update all columns of a session that an append changes.
UPDATE sessions
SET version = :version, updated_at = :accessed_at, status = :status, messages = :messages, bytes = :bytes, calls = :calls, prompt_tokens = :prompt_tokens,
    completion_tokens = :completion_tokens, cached_tokens = :cached_tokens, next_seq = :next_seq, turn_id = :turn_id, total = :total, digest = :digest,
    last_seq = :last_seq, last_kind = :last_kind, unit = :unit, open_calls = :open_calls, anchor = :anchor, accessed_at = :accessed_at, expires_at = :accessed_at + nullif(ttl, 0),
    ended_at = CASE WHEN :status = 'active' THEN NULL ELSE ended_at END,
    end_reason = CASE WHEN :status = 'active' THEN NULL ELSE end_reason END,
    claim_holder = :claim_holder, claim_until = :claim_until, claim_wanted = :claim_wanted
WHERE pk = :pk

-- session_claim(pk, claim_holder, claim_until, claim_wanted) --
-- Set who holds a session's open turn, for a write that changes nothing else of the session.
UPDATE sessions SET claim_holder = :claim_holder, claim_until = :claim_until, claim_wanted = :claim_wanted WHERE pk = :pk

-- claim_want(pk, claim_holder) --
-- Record that another caller wants the holder of a turn to stop.
UPDATE sessions SET claim_wanted = 1 WHERE pk = :pk AND claim_holder = :claim_holder

-- session_patch(pk, version, accessed_at int, agent, ttl int) --
-- Update a session's own fields.
UPDATE sessions
SET version = :version, updated_at = :accessed_at, agent = :agent, ttl = :ttl, accessed_at = :accessed_at,
    expires_at = :accessed_at + nullif(:ttl, 0)
WHERE pk = :pk

-- session_touch(pk, version, total, bytes) --
-- Update a session after a change of one of its entries.
UPDATE sessions SET version = :version, total = :total, bytes = :bytes WHERE pk = :pk

-- session_used(pk, accessed_at int) --
-- Record the use of a session without a write.
UPDATE sessions SET accessed_at = :accessed_at, expires_at = :accessed_at + nullif(ttl, 0) WHERE pk = :pk AND accessed_at < :accessed_at

-- session_end(pk, version, ended_at, end_reason) --
-- End a session that keeps its name.
UPDATE sessions SET version = :version, status = 'closed', ended_at = :ended_at, end_reason = :end_reason WHERE pk = :pk

-- session_withdraw(pk, version, ended_at, end_reason, withdrawn) --
-- End a session and withdraw its name.
UPDATE sessions SET version = :version, status = 'closed', ended_at = :ended_at, end_reason = :end_reason, withdrawn = :withdrawn WHERE pk = :pk

-- sessions_idle(tenant, idle_since, limit) --
-- Return active sessions without a ttl of their own that were not used since a time, longest idle first.
SELECT * FROM session_rows
WHERE tenant = :tenant AND status = 'active' AND accessed_at <= :idle_since AND ttl IS NULL ORDER BY accessed_at LIMIT :limit

-- sessions_expired(tenant, now, limit) --
-- Return active sessions whose own ttl is over.
SELECT * FROM session_rows
WHERE tenant = :tenant AND status = 'active' AND expires_at IS NOT NULL AND expires_at <= :now ORDER BY expires_at LIMIT :limit

-- sessions_oldest(tenant, limit) --
-- Return active sessions, longest idle first.
SELECT * FROM session_rows WHERE tenant = :tenant AND status = 'active' ORDER BY accessed_at LIMIT :limit

-- sessions_active(tenant) --
-- Count active sessions.
SELECT count(*) FROM sessions WHERE tenant = :tenant AND status = 'active'

-- tenant_after(after) --
-- Return the next tenant that has sessions, owners of memories or owners of records.
SELECT tenant FROM (
    SELECT * FROM (SELECT tenant FROM sessions WHERE tenant > :after ORDER BY tenant LIMIT 1) AS one
    UNION ALL SELECT * FROM (SELECT tenant FROM memory_owners WHERE tenant > :after ORDER BY tenant LIMIT 1) AS other
    UNION ALL SELECT * FROM (SELECT tenant FROM record_owners WHERE tenant > :after AND session <> -1 ORDER BY tenant LIMIT 1) AS another
) AS found ORDER BY tenant LIMIT 1

-- ending_insert(tenant, id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error) --
-- Insert an end that hooks must be notified of.
INSERT INTO endings (tenant, id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error)
VALUES (:tenant, :id, :user_id, :session_id, :identity, :withdrawn, :reason, :ended_at, :due_at, :attempts, :hooks, :error)

-- ending_get(tenant, id) --
-- Return a recorded end.
SELECT id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error
FROM endings WHERE tenant = :tenant AND id = :id

-- ending_get_lock(tenant, id) --
-- Lock an end, so that no other transaction records an outcome of it.
[postgres mysql] SELECT 1 FROM endings WHERE tenant = :tenant AND id = :id {lock}

-- endings_due(tenant, due, limit) --
-- Return recorded ends that are due, in the order of their due time.
SELECT id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error
FROM endings WHERE tenant = :tenant AND due_at <= :due ORDER BY due_at, ended_at, id LIMIT :limit

-- endings_of_user(tenant, user_id, after, limit) --
-- Return recorded ends of a user's sessions, in the order of their ids, after a given one.
SELECT id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error
FROM endings WHERE tenant = :tenant AND user_id = :user_id AND id > :after ORDER BY id LIMIT :limit

-- ending_put(tenant, id, due_at, attempts, hooks, error) --
-- Record the outcome of notifying a hook of an end.
UPDATE endings SET due_at = :due_at, attempts = :attempts, hooks = :hooks, error = :error WHERE tenant = :tenant AND id = :id

-- ending_delete(tenant, id) --
-- Delete an end that all hooks have been notified of.
DELETE FROM endings WHERE tenant = :tenant AND id = :id

-- session_holds(session) --
-- Count what belongs to a session: compactions, views, model calls, idempotency keys, artifacts and media, with their bytes.
SELECT (SELECT count(*) FROM compactions WHERE session = :session), (SELECT count(*) FROM saved_views WHERE session = :session),
       (SELECT count(*) FROM model_calls WHERE session = :session), (SELECT count(*) FROM idempotency WHERE session = :session),
       (SELECT count(*) FROM artifacts WHERE session = :session),
       (SELECT CAST(coalesce(sum(size), 0) AS {int}) FROM artifacts WHERE session = :session),
       (SELECT count(*) FROM media WHERE session = :session),
       (SELECT CAST(coalesce(sum(size), 0) AS {int}) FROM media WHERE session = :session)

-- session_delete(pk) --
-- Delete a session's row. The statements `*_delete(session)` below delete what belongs to it.
DELETE FROM sessions WHERE pk = :pk

-- profile_put(session int, system_messages bytes, state bytes, metadata bytes) --
-- Set the large fields of a session.
INSERT INTO profiles (session, system_messages, state, metadata) VALUES (:session, :system_messages, :state, :metadata)
ON CONFLICT (session) DO UPDATE
SET system_messages = excluded.system_messages, state = excluded.state, metadata = excluded.metadata

-- profile_delete(session) --
-- Delete the large fields of a session.
DELETE FROM profiles WHERE session = :session

-- listed(agent bytes, status text, now int, idle_since int) --
-- Used by other statements: the condition for sessions of a list, which are named `w` there.
(:agent IS NULL OR w.agent = :agent) AND w.withdrawn = ''
  AND (:status IS NULL OR :status = CASE
       WHEN w.status = 'active' AND (w.expires_at <= :now OR w.ttl IS NULL AND w.accessed_at <= :idle_since) THEN 'closed'
       ELSE w.status END)

-- list_newest(tenant, at, user_id, id, agent bytes, status text, limit, now int, idle_since int) --
-- Return a tenant's sessions, newest first, after a given one.
[sqlite postgres] SELECT * FROM session_rows AS w
[sqlite postgres] WHERE w.tenant = :tenant AND (w.updated_at, w.user_id, w.id) < (:at, :user_id, :id)
[mysql] SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
[mysql] WHERE w.tenant = :tenant AND (w.updated_at < :at OR w.updated_at = :at AND w.user_id < :user_id OR w.updated_at = :at AND w.user_id = :user_id AND w.id < :id)
  AND {listed}
ORDER BY w.updated_at DESC, w.user_id DESC, w.id DESC LIMIT :limit

-- list_oldest(tenant, at, user_id, id, agent bytes, status text, limit, now int, idle_since int) --
-- Return a tenant's sessions, oldest first, after a given one.
[sqlite postgres] SELECT * FROM session_rows AS w
[sqlite postgres] WHERE w.tenant = :tenant AND (w.updated_at, w.user_id, w.id) > (:at, :user_id, :id)
[mysql] SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
[mysql] WHERE w.tenant = :tenant AND (w.updated_at > :at OR w.updated_at = :at AND w.user_id > :user_id OR w.updated_at = :at AND w.user_id = :user_id AND w.id > :id)
  AND {listed}
ORDER BY w.updated_at, w.user_id, w.id LIMIT :limit

-- list_newest_of_user(tenant, at, user_id, id, agent bytes, status text, limit, now int, idle_since int) --
-- Return a user's sessions, newest first, after a given one.
[sqlite postgres] SELECT * FROM session_rows AS w
[sqlite postgres] WHERE w.tenant = :tenant AND w.user_id = :user_id AND (w.updated_at, w.id) < (:at, :id)
[mysql] SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent_of_user) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
[mysql] WHERE w.tenant = :tenant AND w.user_id = :user_id AND (w.updated_at < :at OR w.updated_at = :at AND w.id < :id)
  AND {listed}
ORDER BY w.updated_at DESC, w.id DESC LIMIT :limit

-- list_oldest_of_user(tenant, at, user_id, id, agent bytes, status text, limit, now int, idle_since int) --
-- Return a user's sessions, oldest first, after a given one.
[sqlite postgres] SELECT * FROM session_rows AS w
[sqlite postgres] WHERE w.tenant = :tenant AND w.user_id = :user_id AND (w.updated_at, w.id) > (:at, :id)
[mysql] SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent_of_user) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
[mysql] WHERE w.tenant = :tenant AND w.user_id = :user_id AND (w.updated_at > :at OR w.updated_at = :at AND w.id > :id)
  AND {listed}
ORDER BY w.updated_at, w.id LIMIT :limit

-- entry_insert(session int, seq int, turn_id int, unit_back int, timestamp int, tokens int, total int, kind int, digest bytes, agent bytes, importance float, pinned int, metadata bytes, payload bytes, mark int, alias int, retired_by int, erased int) --
-- Insert an entry. An imported one may be retired or erased.
INSERT INTO entries (session, seq, turn_id, unit_back, timestamp, tokens, total, kind, digest, agent, importance, pinned,
                     retired_by, erased, metadata, payload, mark, alias)
VALUES (:session, :seq, :turn_id, :unit_back, :timestamp, :tokens, :total, :kind, :digest, :agent, :importance, :pinned, :retired_by, :erased, :metadata, :payload, :mark, :alias)

-- entry_annotate(session, seq, pinned, importance, metadata) --
-- Set pin, importance and metadata of a live entry.
UPDATE entries SET pinned = :pinned, importance = :importance, metadata = :metadata
WHERE session = :session AND seq = :seq AND retired_by IS NULL

-- entry_erase_live(session, seq, payload, tokens) --
-- Clear an erased live entry. `entries_shift_live` updates its total.
UPDATE entries SET payload = :payload, tokens = :tokens, erased = 1, metadata = NULL, alias = NULL
WHERE session = :session AND seq = :seq AND retired_by IS NULL

-- entry_erase_retired(session, seq, payload, tokens) --
-- Clear an erased retired entry.
UPDATE entries SET payload = :payload, tokens = :tokens, erased = 1, metadata = NULL, alias = NULL
WHERE session = :session AND seq = :seq AND retired_by IS NOT NULL

-- entries_shift_live(session, start, stop, shift) --
-- Change the running totals of live entries after an entry before them got another token count.
UPDATE entries SET total = total + :shift WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NULL

-- entries_shift_retired(session, start, stop, shift) --
-- Change the running totals of retired entries after an entry before them got another token count.
UPDATE entries SET total = total + :shift WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NOT NULL

-- entries_retire(session, start, retired_by) --
-- Retire the end of the live path.
UPDATE entries SET retired_by = :retired_by WHERE session = :session AND seq >= :start AND retired_by IS NULL

-- notes_retire(session, start, retired_by) --
-- Retire the notes from a `seq` on that are not retired.
UPDATE entries SET retired_by = :retired_by WHERE session = :session AND seq >= :start AND retired_by IS NOT NULL AND retired_by = seq

-- entries_count_from(session, start) --
-- Count the live entries from a `seq` on.
SELECT count(*) FROM entries WHERE session = :session AND seq >= :start AND retired_by IS NULL

-- entries_delete_live(session) --
-- Delete the live entries of a session.
DELETE FROM entries WHERE session = :session AND retired_by IS NULL

-- entries_delete_retired(session) --
-- Delete the retired entries of a session.
DELETE FROM entries WHERE session = :session AND retired_by IS NOT NULL

-- entry_live(session, seq) --
-- Return a live entry.
SELECT * FROM entry_rows WHERE session = :session AND seq = :seq AND retired_by IS NULL

-- entries_among(session, seqs ints) --
-- Return the live ones of some entries, given by a JSON array of `seq`.
SELECT * FROM entry_rows
WHERE session = :session AND seq IN :seqs AND retired_by IS NULL ORDER BY seq

-- entry_is_live(session, seq) --
-- Return a row if an entry is live.
SELECT 1 FROM entries WHERE session = :session AND seq = :seq AND retired_by IS NULL

-- unrated_among(session, seqs ints) --
-- Count the live ones of some entries that have no importance yet.
SELECT count(*) FROM entries
WHERE session = :session AND seq IN :seqs AND retired_by IS NULL AND importance IS NULL

-- entry_rate(session, seq, importance) --
-- Set the importance of a live entry that has none.
UPDATE entries SET importance = :importance WHERE session = :session AND seq = :seq AND retired_by IS NULL AND importance IS NULL

-- entry_retired(session, seq) --
-- Return a retired entry.
SELECT * FROM entry_rows WHERE session = :session AND seq = :seq AND retired_by IS NOT NULL

-- entry_columns --
-- Used by other statements: the columns of entry_rows.
e.session, e.seq, e.turn_id, e.unit_back, e.timestamp, e.tokens, e.total, e.digest, e.agent, e.importance, e.pinned, e.retired_by, e.erased, e.metadata, e.payload

-- live_forward(session, start, stop, limit) --
-- Return a range of the live path.
SELECT {entry_columns} FROM entries AS e {use entries_live}
WHERE session = :session AND retired_by IS NULL AND seq >= :start AND seq < :stop ORDER BY seq LIMIT :limit

-- live_backward(session, start, stop, limit) --
-- Return a range of the live path, newest first.
SELECT {entry_columns} FROM entries AS e {use entries_live}
WHERE session = :session AND retired_by IS NULL AND seq >= :start AND seq < :stop ORDER BY seq DESC LIMIT :limit

-- entries_at(tenant, user_id, places, steps ints) --
-- Return live entries of a user's sessions. Places are a JSON array of pairs: the session's id in hexadecimal, and a `seq`. Steps are added
-- to each `seq`; they are listed because MySQL cannot use an index for a range that begins at a column's value.
SELECT s.id, place.seq, s.identity, s.next_seq, {entry_columns}
[sqlite] FROM (SELECT CAST(unhex(value ->> 0) AS TEXT) AS id, value ->> 1 AS seq FROM json_each(:places)) AS place
[postgres] FROM (SELECT decode(value ->> 0, 'hex') AS id, (value ->> 1)::bigint AS seq FROM jsonb_array_elements(convert_from(:places, 'UTF8')::jsonb)) AS place
[mysql] FROM JSON_TABLE(CONVERT(:places USING utf8mb4), '$[*]' COLUMNS (name VARCHAR(2048) PATH '$[0]', seq BIGINT PATH '$[1]')) AS place
[sqlite] CROSS JOIN sessions AS s ON s.id = place.id AND {live_session}
[postgres] CROSS JOIN LATERAL (SELECT pk, id, identity, next_seq FROM sessions AS s WHERE s.id = place.id AND {live_session} OFFSET 0) AS s
[mysql] STRAIGHT_JOIN sessions AS s FORCE INDEX (sessions_name) ON s.id = UNHEX(place.name) AND {live_session}
CROSS JOIN EACH :steps AS step
[sqlite] CROSS JOIN entries AS e INDEXED BY entries_live ON e.session = s.pk AND e.retired_by IS NULL AND e.seq = place.seq + step.value
[postgres] CROSS JOIN LATERAL
[postgres]      (SELECT * FROM entries WHERE session = s.pk AND retired_by IS NULL AND seq = place.seq + step.value::bigint OFFSET 0) AS e
[mysql] STRAIGHT_JOIN entries AS e FORCE INDEX (PRIMARY) ON e.session = s.pk AND e.retired_by IS NULL AND e.seq = place.seq + step.value

-- log_rows(session, start, stop) --
-- Used by other statements: a range of the whole log, live and retired entries merged. Each of the two has an index of its own.
SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop
[sqlite postgres] AND retired_by IS NULL
[sqlite postgres] UNION ALL
[sqlite postgres] SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NOT NULL

-- log_forward(session, start, stop, limit) --
-- Return a range of the whole log, live and retired entries merged.
{log_rows} ORDER BY seq LIMIT :limit

-- log_backward(session, start, stop, limit) --
-- Return a range of the whole log, newest first.
{log_rows} ORDER BY seq DESC LIMIT :limit

-- noted_rows(session, start, stop) --
-- Used by other statements: a range of the live path, merged with the notes that are not retired. These are stored as retired by their own `seq`.
SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop
[mysql] AND (retired_by IS NULL OR retired_by = seq)
[sqlite postgres] AND retired_by IS NULL
[sqlite postgres] UNION ALL
[sqlite postgres] SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NOT NULL AND retired_by = seq

-- noted_forward(session, start, stop, limit) --
-- Return a range of the live path, merged with the notes that are not retired: those that are stored as retired by their own `seq`.
{noted_rows} ORDER BY seq LIMIT :limit

-- log_extent(session, stop, choices bytes) --
-- Measure the live path before a `seq`, with the notes that are not retired: number of entries and of messages, the `seq` after the last
-- entry, bytes of the messages, number of pinned entries and of entries whose metadata contains a text.
SELECT count(*), sum(live), max(seq) + 1, sum(size), sum(pinned), sum(chosen) FROM (
    SELECT seq, 1 AS live, length(payload) AS size, pinned,
[sqlite mysql] CASE WHEN instr(metadata, :choices) > 0 THEN 1 ELSE 0 END AS chosen
[postgres] CASE WHEN position(:choices IN metadata) > 0 THEN 1 ELSE 0 END AS chosen
    FROM entries WHERE session = :session AND seq < :stop AND retired_by IS NULL
    UNION ALL
    SELECT seq, 0, length(payload), pinned, 0
    FROM entries WHERE session = :session AND seq < :stop AND retired_by IS NOT NULL AND retired_by = seq) AS found

-- entry_values --
-- Used by other statements: the columns of entries that a copy has too, without `retired_by`.
seq, turn_id, unit_back, timestamp, tokens, total, kind, digest, agent, importance, pinned, erased, metadata, payload, mark, alias

-- log_copy_live(target int, session int, stop int) --
-- Copy the live path before a `seq` to another session.
INSERT INTO entries (session, {entry_values}, retired_by) SELECT :target, {entry_values}, NULL
FROM entries WHERE session = :session AND seq < :stop AND retired_by IS NULL ORDER BY seq

-- log_copy_notes(target int, session int, stop int) --
-- Copy the notes before a `seq` that are not retired to another session.
INSERT INTO entries (session, {entry_values}, retired_by) SELECT :target, {entry_values}, seq
FROM entries WHERE session = :session AND seq < :stop AND retired_by IS NOT NULL AND retired_by = seq ORDER BY seq

-- log_unpin(session) --
-- Unpin all entries of the live path.
UPDATE entries SET pinned = 0 WHERE session = :session AND retired_by IS NULL AND pinned = 1

-- noted_backward(session, start, stop, limit) --
-- Return a range of the live path merged with the notes that are not retired, newest first.
{noted_rows} ORDER BY seq DESC LIMIT :limit

-- within(session int) --
-- Used by other statements: the condition for entries of one session, or of any.
[sqlite postgres] e.session BETWEEN coalesce(:session, 0) AND coalesce(:session, 4611686018427387904)
[mysql] (:session IS NULL OR e.session = :session)

-- live_session(tenant, user_id) --
-- Used by other statements: the condition for sessions of a user that have their name.
s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = ''

-- mark_last(tenant, user_id, session int, wanted) --
-- Return the index of the last one of some digests that occurs in a user's logs, or in one session. Digests and their keys are a JSON array.
[sqlite] SELECT max(wanted.key) FROM json_each(:wanted) AS wanted
[sqlite] WHERE EXISTS (SELECT 1 FROM entries AS e CROSS JOIN sessions AS s ON s.pk = e.session
[sqlite]               WHERE e.mark = wanted.value ->> 0 AND e.digest = unhex(wanted.value ->> 1) AND {within} AND {live_session})
[postgres] SELECT max(place) - 1 FROM jsonb_array_elements(convert_from(:wanted, 'UTF8')::jsonb) WITH ORDINALITY AS wanted (value, place)
[postgres] WHERE (SELECT 1 FROM entries AS e
[postgres]        CROSS JOIN LATERAL (SELECT tenant, user_id, withdrawn FROM sessions WHERE pk = e.session OFFSET 0) AS s
[postgres]        WHERE e.mark = (value ->> 0)::bigint AND e.digest = decode(value ->> 1, 'hex') AND {within} AND {live_session}
[postgres]        ORDER BY e.session DESC, e.seq DESC LIMIT 1) = 1
[mysql] SELECT max(place) - 1
[mysql] FROM JSON_TABLE(CONVERT(:wanted USING utf8mb4), '$[*]' COLUMNS
[mysql]      (place FOR ORDINALITY, number BIGINT PATH '$[0]', digest VARCHAR(64) PATH '$[1]')) AS wanted
[mysql] WHERE (SELECT 1 FROM entries AS e FORCE INDEX (entries_mark) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
[mysql]        WHERE e.mark = wanted.number AND e.digest = UNHEX(wanted.digest) AND {within} AND {live_session} LIMIT 1) = 1

-- entries_of_user --
-- Used by other statements: entries with their sessions, which are read after them.
[sqlite] entries AS e CROSS JOIN sessions AS s ON s.pk = e.session
[postgres] entries AS e CROSS JOIN LATERAL
[postgres]      (SELECT id, identity, updated_at, digest, tenant, user_id, withdrawn FROM sessions WHERE pk = e.session OFFSET 0) AS s

-- mark_places(tenant, user_id, session int, mark, limit, digest) --
-- Return the places of a digest, newest sessions first, with the columns that show whether it is the end of the live path.
SELECT s.id, s.identity, s.updated_at, s.digest, e.seq, e.digest, e.retired_by
[sqlite postgres] FROM {entries_of_user}
[mysql] FROM entries AS e FORCE INDEX (entries_mark) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
WHERE e.mark = :mark AND e.digest = :digest AND {within} AND {live_session}
ORDER BY e.session DESC, e.seq DESC LIMIT :limit

-- alias_last(tenant, user_id, session int, wanted) --
-- Return the index of the last one of some aliases that occurs in a user's logs, or in one session. Keys of aliases are a JSON array.
[sqlite] SELECT max(wanted.key) FROM json_each(:wanted) AS wanted
[sqlite] WHERE EXISTS (SELECT 1 FROM {entries_of_user} WHERE e.alias = wanted.value AND {within} AND {live_session})
[postgres] SELECT max(place) - 1 FROM jsonb_array_elements(convert_from(:wanted, 'UTF8')::jsonb) WITH ORDINALITY AS wanted (value, place)
[postgres] WHERE (SELECT 1 FROM entries AS e
[postgres]        CROSS JOIN LATERAL (SELECT tenant, user_id, withdrawn FROM sessions WHERE pk = e.session OFFSET 0) AS s
[postgres]        WHERE e.alias = value::bigint AND {within} AND {live_session}
[postgres]        ORDER BY e.session DESC, e.seq DESC LIMIT 1) = 1
[mysql] SELECT max(place) - 1
[mysql] FROM JSON_TABLE(CONVERT(:wanted USING utf8mb4), '$[*]' COLUMNS (place FOR ORDINALITY, number BIGINT PATH '$')) AS wanted
[mysql] WHERE (SELECT 1 FROM entries AS e FORCE INDEX (entries_alias) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
[mysql]        WHERE e.alias = wanted.number AND {within} AND {live_session} LIMIT 1) = 1

-- alias_places(tenant, user_id, session int, alias, limit) --
-- Return the places of an alias; otherwise like `mark_places`.
SELECT s.id, s.identity, s.updated_at, s.digest, e.seq, e.digest, e.retired_by
[sqlite postgres] FROM {entries_of_user}
[mysql] FROM entries AS e FORCE INDEX (entries_alias) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
WHERE e.alias = :alias AND {within} AND {live_session}
ORDER BY e.session DESC, e.seq DESC LIMIT :limit

-- end_last(tenant bytes, user_id bytes, digests) --
-- Return the last one of some digests, given as a JSON array, with which the live path of a session of a user ends.
[sqlite] SELECT max(wanted.key) FROM json_each(:digests) AS wanted
[sqlite] WHERE EXISTS (SELECT 1 FROM sessions AS s INDEXED BY sessions_end WHERE s.digest = unhex(wanted.value) AND {live_session})
[postgres] SELECT max(place) - 1 FROM jsonb_array_elements_text(convert_from(:digests, 'UTF8')::jsonb) WITH ORDINALITY AS wanted (value, place)
[postgres] WHERE EXISTS (SELECT 1 FROM
[postgres]        (SELECT tenant, user_id, withdrawn FROM sessions AS s
[postgres]         WHERE s.digest || s.tenant || s.user_id = decode(value, 'hex') || :tenant || :user_id OFFSET 0) AS s
[postgres]        WHERE {live_session})
[mysql] SELECT max(place) - 1
[mysql] FROM JSON_TABLE(CONVERT(:digests USING utf8mb4), '$[*]' COLUMNS (place FOR ORDINALITY, digest VARCHAR(64) PATH '$')) AS wanted
[mysql] WHERE (SELECT 1 FROM sessions AS s FORCE INDEX (sessions_end)
[mysql]        WHERE s.digest = UNHEX(wanted.digest) AND {live_session} LIMIT 1) = 1

-- end_places(tenant bytes, user_id bytes, digest bytes, limit) --
-- Return the sessions of a user whose live path ends with a digest, most recently used first.
SELECT s.id, s.identity, s.updated_at, s.digest, s.last_seq, s.digest, NULL
[sqlite mysql] FROM sessions AS s {use sessions_end} WHERE s.digest = :digest AND {live_session} ORDER BY s.updated_at DESC LIMIT :limit
[postgres] FROM (SELECT * FROM sessions WHERE digest || tenant || user_id = :digest || :tenant || :user_id ORDER BY updated_at DESC OFFSET 0) AS s
[postgres] WHERE {live_session} LIMIT :limit

-- last_not_result(session, before) --
-- Return the `seq` where the last unit before a `seq` begins: results (kind 4) follow their calls.
SELECT seq FROM entries {use entries_live}
WHERE session = :session AND seq < :before AND retired_by IS NULL AND kind <> 4 ORDER BY seq DESC LIMIT 1

-- last_visible(session, before) --
-- Return the digest of the last message before a `seq` that clients see: neither calls (3) nor results (4).
SELECT digest FROM entries {use entries_live}
WHERE session = :session AND seq < :before AND retired_by IS NULL AND kind < 3 ORDER BY seq DESC LIMIT 1

-- view_get(pk, key) --
-- Return a saved view and its live compaction: always one row, with NULL for what does not exist.
SELECT v.frontier, v.state, v.kept, c.*
FROM sessions AS s
LEFT JOIN saved_views AS v ON v.session = s.pk AND v."key" = :key
LEFT JOIN compaction_rows AS c ON c.session = s.pk AND c.view_key = :key AND c.status = 'live'
WHERE s.pk = :pk

-- view_put(session int, key bytes, frontier int, state bytes, kept bytes, saved_at int, known int) --
-- Save the state of a view, unless a compaction of the view was recorded after the state was built.
INSERT INTO saved_views (session, "key", frontier, state, kept, saved_at)
SELECT :session, :key, :frontier, :state, :kept, :saved_at
[mysql] FROM DUAL
WHERE NOT EXISTS
      (SELECT 1 FROM compactions WHERE session = :session AND view_key = :key AND status = 'live' AND laid_at > :known)
ON CONFLICT (session, "key") DO UPDATE
SET frontier = excluded.frontier, state = excluded.state, kept = excluded.kept, saved_at = excluded.saved_at

-- views_trim(session, kept) --
-- Delete all but the views that were saved last.
DELETE FROM saved_views
WHERE session = :session
  AND "key" NOT IN (SELECT "key" FROM (SELECT "key" FROM saved_views WHERE session = :session
                                       ORDER BY saved_at DESC, frontier DESC, "key" LIMIT :kept) AS saved_last)

-- views_stale(pk, views_from) --
-- Set a version; views that were built before it are not saved from now on.
UPDATE sessions SET views_from = :views_from WHERE pk = :pk

-- compactions_stale(pk, compactions_from) --
-- Set a version; compactions that are based on an earlier one get the status "dead" when they are recorded.
UPDATE sessions SET compactions_from = :compactions_from WHERE pk = :pk

-- views_delete(session) --
-- Delete all views of a session.
DELETE FROM saved_views WHERE session = :session

-- idempotency_get(session, key) --
-- Return the result of the write with an idempotency key.
SELECT fingerprint, version, first_seq, entries FROM idempotency WHERE session = :session AND "key" = :key

-- idempotency_put(session int, key bytes, fingerprint bytes, version int, first_seq int, entries int) --
-- Record an idempotency key and the result of its write.
INSERT INTO idempotency (session, "key", fingerprint, version, first_seq, entries) VALUES (:session, :key, :fingerprint, :version, :first_seq, :entries)

-- idempotency_delete(session) --
-- Delete the idempotency keys of a session.
DELETE FROM idempotency WHERE session = :session

-- compaction_next(pk) --
-- Return the id of a session's next compaction, and the version that `compactions_stale` sets.
SELECT coalesce((SELECT max(id) FROM compactions WHERE session = :pk), 0) + 1, compactions_from
FROM sessions WHERE pk = :pk

-- compaction_live(session, view_key) --
-- Return the range of a view's live compaction, and the session's version when it was recorded.
SELECT first_seq, last_seq, laid_at FROM compactions WHERE session = :session AND view_key = :view_key AND status = 'live'

-- compaction_insert(session, id, status text, view_key, laid_at, first_seq, last_seq, kind text, tokens, source_tokens, total, model, created_at, through, prompt_tokens, completion_tokens, error, report, text) --
-- Insert a compaction.
INSERT INTO compactions (session, id, status, view_key, laid_at, first_seq, last_seq, kind, tokens, source_tokens, total,
                         model, created_at, through, prompt_tokens, completion_tokens, error, report, text)
VALUES (:session, :id, :status, :view_key, :laid_at, :first_seq, :last_seq, :kind, :tokens, :source_tokens, :total, :model, :created_at, :through, :prompt_tokens, :completion_tokens, :error, :report, :text)

-- compaction_supersede(session, view_key) --
-- Mark a view's live compaction as superseded by a new one.
UPDATE compactions SET status = 'superseded' WHERE session = :session AND view_key = :view_key AND status = 'live'

-- compaction_get(session, id) --
-- Return a compaction.
SELECT * FROM compaction_rows WHERE session = :session AND id = :id

-- compaction_drop(session, id) --
-- Mark a compaction as dropped, so that it is not used any more.
UPDATE compactions SET status = 'dropped' WHERE session = :session AND id = :id

-- compactions_retire(session, start) --
-- Invalidate the compactions of entries that are retired.
UPDATE compactions SET status = 'dead' WHERE session = :session AND last_seq >= :start AND status IN ('live', 'superseded')

-- compactions_erase(session, seq, error bytes) --
-- Clear all compactions, of any status, whose range contains an erased entry.
UPDATE compactions
SET status = CASE WHEN status IN ('live', 'superseded') THEN 'dead' ELSE status END, report = NULL,
    error = CASE WHEN error IS NULL THEN NULL ELSE :error END,
[sqlite mysql] text = x''
[postgres] text = ''
WHERE session = :session AND first_seq <= :seq AND last_seq >= :seq

-- compactions_revive(session) --
-- For each view without a live compaction, make its newest superseded one live; a live one would be newer.
UPDATE compactions SET status = 'live'
WHERE session = :session AND status = 'superseded'
  AND id IN (SELECT newest FROM (SELECT max(id) AS newest FROM compactions
             WHERE session = :session AND status IN ('live', 'superseded') GROUP BY view_key) AS of_views)

-- compactions_shift(session, seq, shift) --
-- Change the totals of compactions after an entry before their end got another token count.
UPDATE compactions SET total = total + :shift WHERE session = :session AND last_seq >= :seq AND status <> 'dead'

-- compactions_list(session, view_key bytes, live_only int) --
-- Return the compactions of a session or a view, all of them or the live ones.
SELECT * FROM compaction_rows
WHERE session = :session AND (:view_key IS NULL OR view_key = :view_key) AND (:live_only = 0 OR status = 'live') ORDER BY id

-- compactions_trim(session, kept) --
-- Delete all but the newest compactions that are not in use any more.
DELETE FROM compactions
WHERE session = :session AND status IN ('superseded', 'dropped', 'dead')
  AND id <= (SELECT id FROM (SELECT id FROM compactions WHERE session = :session AND status IN ('superseded', 'dropped', 'dead')
             ORDER BY id DESC LIMIT 1 OFFSET :kept) AS last_to_go)

-- compactions_trim_failed(session, kept) --
-- Delete all but the newest failed attempts.
DELETE FROM compactions
WHERE session = :session AND status = 'failed'
  AND id <= (SELECT id FROM (SELECT id FROM compactions WHERE session = :session AND status = 'failed'
             ORDER BY id DESC LIMIT 1 OFFSET :kept) AS last_to_go)

-- compactions_delete(session) --
-- Delete the compactions of a session.
DELETE FROM compactions WHERE session = :session

-- call_insert(session int, timestamp int, model bytes, prompt_tokens int, completion_tokens int, cached_tokens int, turn_id int, through int, view_key bytes, hash bytes, build bytes) --
-- Insert a model call.
INSERT INTO model_calls (session, timestamp, model, prompt_tokens, completion_tokens, cached_tokens, turn_id, through,
                         view_key, hash, build)
VALUES (:session, :timestamp, :model, :prompt_tokens, :completion_tokens, :cached_tokens, :turn_id, :through, :view_key, :hash, :build)

-- calls_newest(session, limit) --
-- Return a session's model calls, newest first.
SELECT model, timestamp, prompt_tokens, completion_tokens, cached_tokens, turn_id, through, view_key, hash, build
FROM model_calls WHERE session = :session ORDER BY pk DESC LIMIT :limit

-- calls_backward(session, start, stop, limit) --
-- Return the model calls of a range of turns, newest first.
SELECT model, timestamp, prompt_tokens, completion_tokens, cached_tokens, turn_id, through, view_key, hash, build
FROM model_calls WHERE session = :session AND turn_id >= :start AND turn_id < :stop ORDER BY turn_id DESC, pk DESC LIMIT :limit

-- calls_forward(session, start, stop, limit) --
-- Return the model calls of a range of turns, oldest first.
SELECT model, timestamp, prompt_tokens, completion_tokens, cached_tokens, turn_id, through, view_key, hash, build
FROM model_calls WHERE session = :session AND turn_id >= :start AND turn_id < :stop ORDER BY turn_id, pk LIMIT :limit

-- calls_delete(session) --
-- Delete the model calls of a session.
DELETE FROM model_calls WHERE session = :session

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

-- media_known(session, sha256s hashes) --
-- Return the contents, of a JSON array of hashes, that a session has.
SELECT sha256 FROM media WHERE session = :session AND sha256 IN
      :sha256s

-- media_get(session, sha256s hashes) --
-- Return contents by a JSON array of hashes.
SELECT sha256, data FROM media WHERE session = :session AND sha256 IN
      :sha256s

-- media_put(session, sha256, size, data) --
-- Insert a content that the session did not have.
INSERT INTO media (session, sha256, size, data) VALUES (:session, :sha256, :size, :data)

-- media_use(session, seq, sha256) --
-- Record that an entry refers to a content.
INSERT INTO media_uses (session, seq, sha256) VALUES (:session, :seq, :sha256)

-- media_copy(target int, session int, stop int) --
-- Copy the contents to which entries before a `seq` refer to another session.
INSERT INTO media (session, sha256, size, data)
SELECT :target, sha256, size, data FROM media WHERE session = :session AND sha256 IN
       (SELECT sha256 FROM media_uses WHERE session = :session AND seq < :stop)

-- media_uses_copy(target int, session int, stop int) --
-- Copy the references of entries before a `seq` to another session.
INSERT INTO media_uses (session, seq, sha256)
SELECT :target, seq, sha256 FROM media_uses WHERE session = :session AND seq < :stop

-- media_of(session, seq) --
-- Return the contents that an entry refers to.
SELECT sha256 FROM media_uses WHERE session = :session AND seq = :seq

-- media_uses_drop(session, seq) --
-- Delete an entry's references to contents.
DELETE FROM media_uses WHERE session = :session AND seq = :seq

-- media_drop_unused(session, sha256) --
-- Delete a content that no entry refers to any more.
DELETE FROM media WHERE session = :session AND sha256 = :sha256
  AND NOT EXISTS (SELECT 1 FROM media_uses WHERE session = :session AND sha256 = :sha256)

-- media_uses_delete(session) --
-- Delete all references to contents in a session.
DELETE FROM media_uses WHERE session = :session

-- media_delete(session) --
-- Delete the contents of a session.
DELETE FROM media WHERE session = :session

-- origin_insert(session, first, source, source_first) --
-- Record the origin of a session's entries, up to the next range.
INSERT INTO entry_origins (session, first, source, source_first) VALUES (:session, :first, :source, :source_first)

-- origin_delete(session, first) --
-- Delete the range of a session that begins at an entry.
DELETE FROM entry_origins WHERE session = :session AND first = :first

-- origins_named(tenant, user_id, ids names) --
-- Return the origins of some sessions of a user, by a JSON array of ids in hexadecimal.
SELECT s.id, o.first, o.source, o.source_first FROM sessions AS s JOIN entry_origins AS o ON o.session = s.pk
WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = '' AND s.id IN
      :ids
ORDER BY s.pk, o.first

-- origins_sharing(tenant, user_id, source) --
-- Return the origins of all sessions of a user that have entries of one session, given by its identity.
SELECT s.id, o.first, o.source, o.source_first FROM entry_origins AS o JOIN sessions AS s ON s.pk = o.session
WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = '' AND o.session IN
      (SELECT session FROM entry_origins WHERE source = :source)
ORDER BY s.pk, o.first

-- origins_delete(session) --
-- Delete the origins of a session.
DELETE FROM entry_origins WHERE session = :session

-- scope_get(tenant, user_id) --
-- Return version, number of keys, bytes and last change of a scope, and the floor of versions. Without a user it is the tenant's.
SELECT s.version, s.key_count, s.bytes, s.updated_at, coalesce(f.number, 0)
FROM state_scopes AS s LEFT JOIN floors AS f ON f.tenant = s.tenant WHERE s.tenant = :tenant AND s.user_id = :user_id

-- scope_get_lock(tenant, user_id) --
-- Lock a scope, so that no other transaction writes to it.
[postgres mysql] SELECT 1 FROM state_scopes WHERE tenant = :tenant AND user_id = :user_id {lock}

-- scope_new(tenant, user_id) --
-- Insert an empty scope. If another process has just done so, lock that row, so that no other transaction deletes it.
INSERT INTO state_scopes (tenant, user_id, version, key_count, bytes, updated_at) VALUES (:tenant, :user_id, 0, 0, 0, 0)
ON CONFLICT (tenant, user_id) DO UPDATE SET version = state_scopes.version

-- scope_put(tenant, user_id, version, key_count, bytes, updated_at) --
-- Update a scope after a write.
UPDATE state_scopes SET version = :version, key_count = :key_count, bytes = :bytes, updated_at = :updated_at WHERE tenant = :tenant AND user_id = :user_id

-- scope_delete(tenant, user_id) --
-- Delete a scope with the name of its user.
DELETE FROM state_scopes WHERE tenant = :tenant AND user_id = :user_id

-- state_named(tenant, user_id, names names) --
-- Return the values of some keys of a scope, by a JSON array of names in hexadecimal.
SELECT name, data FROM state_values WHERE tenant = :tenant AND user_id = :user_id AND name IN
      :names

-- state_read(tenant, user_id, known_version) --
-- Return a scope's version and all its values; no values if the version is the known one.
SELECT s.version, v.name, v.data
FROM state_scopes AS s
LEFT JOIN state_values AS v ON v.tenant = s.tenant AND v.user_id = s.user_id AND s.version <> :known_version
WHERE s.tenant = :tenant AND s.user_id = :user_id

-- state_read_named(tenant, user_id, known_version, names names) --
-- Return a scope's version and the values of some keys, by a JSON array of names in hexadecimal.
SELECT s.version, v.name, v.data
FROM state_scopes AS s
LEFT JOIN EACH :names AS n ON s.version <> :known_version
LEFT JOIN state_values AS v ON v.tenant = s.tenant AND v.user_id = s.user_id
[sqlite]  AND v.name = CAST(unhex(n.value) AS TEXT)
[postgres]  AND v.name = decode(n.value, 'hex')
[mysql]  AND v.name = UNHEX(n.value)
WHERE s.tenant = :tenant AND s.user_id = :user_id

-- state_put(tenant, user_id, name, data) --
-- Insert or replace the value of a key.
INSERT INTO state_values (tenant, user_id, name, data) VALUES (:tenant, :user_id, :name, :data)
ON CONFLICT (tenant, user_id, name) DO UPDATE SET data = excluded.data

-- state_drop(tenant, user_id, name) --
-- Delete a key.
DELETE FROM state_values WHERE tenant = :tenant AND user_id = :user_id AND name = :name

-- state_clear(tenant, user_id) --
-- Delete all keys of a scope.
DELETE FROM state_values WHERE tenant = :tenant AND user_id = :user_id

-- record_owner_get(tenant, user_id, session) --
-- Return an owner of records, its version, and the floor of versions. Session 0: the user; also without a user: the tenant.
-- The last column is how many numbers of searchable records the owner has given. The floor is stored as the version of an owner with session -1.
SELECT o.pk, o.version, coalesce(f.version, 0), o.numbers
FROM record_owners AS o LEFT JOIN record_owners AS f ON f.tenant = o.tenant AND f.user_id = '' AND f.session = -1
WHERE o.tenant = :tenant AND o.user_id = :user_id AND o.session = :session

-- record_owner_get_lock(tenant, user_id, session) --
-- Lock an owner, so that no other transaction writes to its records.
[postgres mysql] SELECT 1 FROM record_owners WHERE tenant = :tenant AND user_id = :user_id AND session = :session {lock}

-- record_owner_new(tenant, user_id, session) --
-- Insert an owner of records. If another process has just done so, lock that row, so that no other transaction deletes it.
INSERT INTO record_owners (tenant, user_id, session, version) VALUES (:tenant, :user_id, :session, 0)
ON CONFLICT (tenant, user_id, session) DO UPDATE SET version = record_owners.version

-- record_owner_put(pk, version, numbers) --
-- Update the version of an owner of records, and how many numbers it has given.
UPDATE record_owners SET version = :version, numbers = :numbers WHERE pk = :pk

-- record_users(tenant, after, inclusive int, limit) --
-- Return the users of a tenant that have given numbers to searchable records, in order, on or after one. An empty name is the tenant itself.
SELECT user_id FROM record_owners
WHERE tenant = :tenant AND session = 0 AND numbers > 0 AND (user_id > :after OR (:inclusive = 1 AND user_id = :after))
ORDER BY user_id LIMIT :limit

-- record_owner_delete(pk) --
-- Delete an owner of records, with the name of its user.
DELETE FROM record_owners WHERE pk = :pk

-- record_owner_detach(pk) --
-- Take the name from an owner of records whose records are about to be deleted. Its session is then below -1.
UPDATE record_owners SET user_id = '', session = -1 - pk WHERE pk = :pk

-- record_owner_detached(tenant) --
-- Return an owner of records that has lost its name.
SELECT pk FROM record_owners WHERE tenant = :tenant AND user_id = '' AND session < -1 ORDER BY session LIMIT 1

-- record_floor_raise(tenant, version) --
-- Raise the floor of versions: all versions of records of deleted owners are at most this one.
INSERT INTO record_owners (tenant, user_id, session, version) VALUES (:tenant, '', -1, :version)
ON CONFLICT (tenant, user_id, session) DO UPDATE
SET version = CASE WHEN excluded.version > record_owners.version THEN excluded.version ELSE record_owners.version END

-- records_info(owner, places places) --
-- Return what is stored of some records of an owner, besides their values; expired ones too.
SELECT place, version, created_at, updated_at, expires_at, form, size, number FROM records WHERE owner = :owner AND place = ANY :places

-- records_of(tenant, user_id, session, places places, now) --
-- Used by other statements: some records of an owner.
FROM record_owners AS o
[sqlite mysql] JOIN records AS r ON r.owner = o.pk AND r.place IN :places
[postgres] CROSS JOIN LATERAL (SELECT * FROM records WHERE owner = o.pk AND place = ANY :places OFFSET 0) AS r
WHERE o.tenant = :tenant AND o.user_id = :user_id AND o.session = :session AND (r.expires_at IS NULL OR r.expires_at > :now)

-- records_sizes(tenant, user_id, session, places places, now) --
-- Return the sizes of some records of an owner.
SELECT r.size {records_of}

-- records_named(tenant, user_id, session, places places, now) --
-- Return some records of an owner with their values.
SELECT r.place, r.version, r.created_at, r.updated_at, r.expires_at, r.form, r.size, r.number, r.data, r.words {records_of}

-- records_forward(owner, begin, end, now, limit) --
-- Return a range of an owner's records without their values.
SELECT place, version, created_at, updated_at, expires_at, form, size FROM records
WHERE owner = :owner AND place >= :begin AND place < :end AND (expires_at IS NULL OR expires_at > :now)
ORDER BY place LIMIT :limit

-- records_backward(owner, begin, end, now, limit) --
-- Return a range of an owner's records without their values, last ones first.
SELECT place, version, created_at, updated_at, expires_at, form, size FROM records
WHERE owner = :owner AND place >= :begin AND place < :end AND (expires_at IS NULL OR expires_at > :now)
ORDER BY place DESC LIMIT :limit

-- records_searchable(owner, version, number, now, limit) --
-- Return an owner's searchable records after a version and number, without their values.
SELECT place, version, created_at, updated_at, expires_at, form, size, number, words
[sqlite postgres] FROM records WHERE owner = :owner AND number IS NOT NULL AND (version, number) > (:version, :number)
[mysql] FROM records FORCE INDEX (records_searchable) WHERE owner = :owner AND (searched > :version OR (searched = :version AND number > :number))
      AND (expires_at IS NULL OR expires_at > :now)
[sqlite postgres] ORDER BY version, number LIMIT :limit
[mysql] ORDER BY searched, number LIMIT :limit

-- records_searchable_named(owner, places places, now) --
-- Return some records of an owner without their values, if they are searchable.
SELECT place, version, created_at, updated_at, expires_at, form, size, number, words FROM records
WHERE owner = :owner AND place = ANY :places AND number IS NOT NULL AND (expires_at IS NULL OR expires_at > :now)
ORDER BY version, number

-- record_put(owner, place, tenant, version, created_at, updated_at, expires_at, form, size, number, data, words) --
-- Insert or replace a record.
INSERT INTO records (owner, place, tenant, version, created_at, updated_at, expires_at, form, size, number, data, words)
VALUES (:owner, :place, :tenant, :version, :created_at, :updated_at, :expires_at, :form, :size, :number, :data, :words)
ON CONFLICT (owner, place) DO UPDATE
SET version = excluded.version, created_at = excluded.created_at, updated_at = excluded.updated_at,
    expires_at = excluded.expires_at, form = excluded.form, size = excluded.size, number = excluded.number,
    data = excluded.data, words = excluded.words

-- record_delete(owner, place) --
-- Delete a record.
DELETE FROM records WHERE owner = :owner AND place = :place

-- record_expire(owner, place, now) --
-- Delete a record if it has expired.
DELETE FROM records WHERE owner = :owner AND place = :place AND expires_at <= :now

-- records_expired(tenant, now, limit) --
-- Return records of a tenant that have expired, those that expired first before the others.
SELECT owner, place, size FROM records WHERE tenant = :tenant AND expires_at <= :now ORDER BY expires_at LIMIT :limit

-- records_first(owner, limit) --
-- Return the first records of an owner and their sizes, expired ones too.
SELECT place, size FROM records WHERE owner = :owner ORDER BY place LIMIT :limit

-- records_delete_through(owner, place) --
-- Delete the records of an owner up to a place, which is included.
DELETE FROM records WHERE owner = :owner AND place <= :place

-- key_get(tenant, id) --
-- Return an API key.
SELECT id, hash, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget
FROM api_keys WHERE tenant = :tenant AND id = :id

-- keys_after(tenant, after, limit, opens bytes) --
-- Return API keys in the order of their ids, after a given one: all, or those that give access to one tenant.
SELECT id, hash, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget
FROM api_keys WHERE tenant = :tenant AND id > :after AND (:opens IS NULL OR opens = :opens) ORDER BY id LIMIT :limit

-- key_insert(tenant, id, hash, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget) --
-- Insert an API key. Two with the same id, and two with the same hash, conflict.
INSERT INTO api_keys (tenant, id, hash, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget)
VALUES (:tenant, :id, :hash, :name, :opens, :user_id, :role, :created_at, :expires_at, :revoked_at, :used_at, :rate, :max_body, :session_mode, :budget)

-- key_revoke(tenant, id, revoked_at) --
-- Revoke an API key.
UPDATE api_keys SET revoked_at = :revoked_at WHERE tenant = :tenant AND id = :id AND revoked_at IS NULL

-- key_use(tenant, id, used_at) --
-- Record the time of an API key's last use.
UPDATE api_keys SET used_at = :used_at WHERE tenant = :tenant AND id = :id AND (used_at IS NULL OR used_at < :used_at)

-- deletion_insert(tenant, deleted_at, id, kind, user_hash, session_hash, key_id, counts) --
-- Insert a deletion into the journal, unless it is there.
INSERT INTO deletions (tenant, deleted_at, id, kind, user_hash, session_hash, key_id, counts)
VALUES (:tenant, :deleted_at, :id, :kind, :user_hash, :session_hash, :key_id, :counts)
ON CONFLICT (tenant, deleted_at, id) DO NOTHING

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

-- deletion_delete(tenant, deleted_at, id) --
-- Delete a deletion from the journal.
DELETE FROM deletions WHERE tenant = :tenant AND deleted_at = :deleted_at AND id = :id

-- lease_put(tenant, name, holder, expires_at, now) --
-- Take a lease that no holder has any more, or renew it.
INSERT INTO leases (tenant, name, holder, expires_at) VALUES (:tenant, :name, :holder, :expires_at)
[sqlite postgres] ON CONFLICT (tenant, name) DO UPDATE
[sqlite postgres] SET holder = excluded.holder, expires_at = excluded.expires_at
[sqlite postgres] WHERE leases.holder = excluded.holder OR leases.expires_at <= :now
[mysql] ON DUPLICATE KEY UPDATE
[mysql] holder = IF(holder = VALUES(holder) OR expires_at <= :now, VALUES(holder), holder),
[mysql] expires_at = IF(holder = VALUES(holder), VALUES(expires_at), expires_at)

-- lease_get(tenant, name) --
-- Return the holder of a lease, and its expiry.
SELECT holder, expires_at FROM leases WHERE tenant = :tenant AND name = :name

-- lease_delete(tenant, name, holder) --
-- Release a lease of its holder.
DELETE FROM leases WHERE tenant = :tenant AND name = :name AND holder = :holder

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

-- learned_get(tenant, model) --
-- Return the calibration data of a model.
SELECT data FROM learned WHERE tenant = :tenant AND model = :model

-- learned_get_lock(tenant, model) --
-- Lock the calibration data of a model, so that no other transaction changes them.
[postgres mysql] SELECT 1 FROM learned WHERE tenant = :tenant AND model = :model {lock}

-- learned_new(tenant, model, updated_at, data) --
-- Insert the calibration data of a new model. Two processes that do so at the same time do not overwrite each other.
INSERT INTO learned (tenant, model, updated_at, data) VALUES (:tenant, :model, :updated_at, :data)

-- learned_put(tenant, model, updated_at, data) --
-- Replace the calibration data of a model.
INSERT INTO learned (tenant, model, updated_at, data) VALUES (:tenant, :model, :updated_at, :data)
ON CONFLICT (tenant, model) DO UPDATE SET updated_at = excluded.updated_at, data = excluded.data

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

-- index_space_get(tenant, kind, name) --
-- Return a space of an index, and its totals in each channel.
SELECT number, talk_documents, talk_length, tool_documents, tool_length FROM index_spaces
WHERE tenant = :tenant AND kind = :kind AND name = :name

-- index_space_get_lock(tenant, kind, name) --
-- Lock a space, so that its writers take turns.
[postgres mysql] SELECT 1 FROM index_spaces WHERE tenant = :tenant AND kind = :kind AND name = :name {lock}

-- index_space_new(tenant, kind, name) --
-- Insert an empty space. Two that are inserted at the same time conflict.
INSERT INTO index_spaces (tenant, kind, name, talk_documents, talk_length, tool_documents, tool_length)
VALUES (:tenant, :kind, :name, 0, 0, 0, 0)

-- index_space_add(number, more_talk_documents, more_talk_length, more_tool_documents, more_tool_length) --
-- Change the totals of a space, by channel.
UPDATE index_spaces
SET talk_documents = talk_documents + :more_talk_documents, talk_length = talk_length + :more_talk_length,
    tool_documents = tool_documents + :more_tool_documents, tool_length = tool_length + :more_tool_length
WHERE number = :number

-- index_space_rename(number, kind, name) --
-- Rename a space that is going to be deleted, so that it is not found any more.
UPDATE index_spaces SET kind = :kind, name = :name WHERE number = :number

-- index_space_delete(number) --
-- Delete a space that has no sources.
DELETE FROM index_spaces WHERE number = :number

-- index_spaces(tenant, kind bytes, limit) --
-- Return spaces of a tenant, of one kind or of all.
SELECT number, kind, name FROM index_spaces
WHERE tenant = :tenant AND (:kind IS NULL OR kind = :kind) ORDER BY kind, name LIMIT :limit

-- index_spaces_lock(tenant, kind bytes, limit) --
-- Lock several spaces.
[postgres mysql] SELECT 1 FROM index_spaces WHERE tenant = :tenant AND (:kind IS NULL OR kind = :kind) ORDER BY kind, name LIMIT :limit {lock}

-- index_source_get(space, id) --
-- Return the progress of a source in a space.
SELECT number, identity, version, next_seq, talk, tool, epoch, complete, documents FROM index_sources
WHERE space = :space AND id = :id

-- index_source_new(space, id, identity) --
-- Insert a source without documents.
INSERT INTO index_sources (space, id, identity, version, next_seq, talk, tool, epoch, complete, documents)
VALUES (:space, :id, :identity, 0, 0, 0, 0, 0, 0, 0)

-- index_source_put(number, version, next_seq, talk, tool, epoch, complete, more_documents) --
-- Update the progress of a source. The last parameter is the number of added documents, less the deleted ones.
UPDATE index_sources
SET version = :version, next_seq = :next_seq, talk = :talk, tool = :tool, epoch = :epoch, complete = :complete, documents = documents + :more_documents
WHERE number = :number

-- index_source_delete(number) --
-- Delete a source that has no documents.
DELETE FROM index_sources WHERE number = :number

-- index_sources_named(space, ids names) --
-- Return numbers and document counts of the sources of a space with these ids, in hexadecimal.
SELECT number, documents FROM index_sources
WHERE space = :space AND id IN :ids

-- index_sources_of(space, limit) --
-- Return some sources of a space.
SELECT number, id FROM index_sources WHERE space = :space ORDER BY id LIMIT :limit

-- source_columns --
-- Used by other statements: a source of an index and its progress, with the name of its space.
p.kind, p.name, s.id, s.identity, s.version, s.next_seq, s.talk, s.tool, s.epoch, s.complete

-- index_sources_after(tenant, kind, name, spaces, limit) --
-- Return sources of some spaces after a given one, in the order of space and id. A space without sources has one row without a source.
SELECT {source_columns}
FROM (SELECT number, kind, name FROM index_spaces {use index_spaces_name}
[sqlite postgres] WHERE tenant = :tenant AND (kind, name) > (:kind, :name)
[mysql] WHERE tenant = :tenant AND (kind > :kind OR kind = :kind AND name > :name)
        AND kind <> 'gone' ORDER BY kind, name LIMIT :spaces) AS p
     LEFT JOIN index_sources AS s {use index_sources_id} ON s.space = p.number
ORDER BY p.kind, p.name, s.id LIMIT :limit

-- index_sources_of_after(space, id, inclusive int, limit) --
-- Return sources of one space, from an id on or after it.
SELECT {source_columns}
FROM index_spaces AS p {then} index_sources AS s {use index_sources_id} ON s.space = p.number
WHERE p.number = :space AND s.id >= :id AND (:inclusive = 1 OR s.id > :id)
ORDER BY s.id LIMIT :limit

-- index_sources_incomplete(tenant, first_space, last_space, kind, name, after_id bytes, limit) --
-- Return incomplete sources of some spaces from a position on, in the order of space and id.
SELECT {source_columns}
FROM index_sources AS s {use index_sources_incomplete} {then} index_spaces AS p {use_key} ON p.number = s.space
WHERE p.tenant = :tenant AND s.complete = 0 AND s.space BETWEEN :first_space AND :last_space
      AND (p.kind, p.name) >= (:kind, :name) AND ((p.kind, p.name) > (:kind, :name) OR :after_id IS NULL OR s.id > :after_id)
      AND p.kind <> 'gone'
ORDER BY p.kind, p.name, s.id LIMIT :limit

-- index_sources_count(tenant, first_space, last_space) --
-- Count the sources of a tenant's spaces or of one of them, the incomplete ones, and all their documents.
SELECT count(*), CAST(coalesce(sum(1 - s.complete), 0) AS {int}), CAST(coalesce(sum(s.documents), 0) AS {int})
FROM index_spaces AS p JOIN index_sources AS s ON s.space = p.number
WHERE p.tenant = :tenant AND p.number BETWEEN :first_space AND :last_space AND p.kind <> 'gone'

-- index_documents_at(source, seqs ints, ids ints) --
-- Return the columns that are needed to delete documents of a source, by numbers or ids.
[sqlite postgres] SELECT id, seq, channel, digest, length, terms, model FROM index_documents WHERE source = :source AND seq IN :seqs
[sqlite postgres] UNION
[sqlite postgres] SELECT id, seq, channel, digest, length, terms, model FROM index_documents WHERE source = :source AND id IN :ids
[mysql] SELECT d.id, d.seq, d.channel, d.digest, d.length, d.terms, d.model
[mysql] FROM EACH :seqs AS wanted {then} index_documents AS d {use index_documents_seq} ON d.source = :source AND d.seq = wanted.value
[mysql] UNION
[mysql] SELECT d.id, d.seq, d.channel, d.digest, d.length, d.terms, d.model
[mysql] FROM EACH :ids AS wanted {then} index_documents AS d {use_key} ON d.id = wanted.value WHERE d.source = :source

-- index_documents_first(source, limit) --
-- Return the columns that are needed to delete documents, for some documents of a source.
SELECT id, seq, channel, digest, length, terms, model FROM index_documents WHERE source = :source ORDER BY seq LIMIT :limit

-- index_documents_delete(ids ints) --
-- Delete documents by id.
[sqlite postgres] DELETE FROM index_documents WHERE id IN :ids
[mysql] DELETE d FROM EACH :ids AS wanted {then} index_documents AS d {use_key} ON d.id = wanted.value

-- index_document_put(id, space, channel, source, seq, at, length, traits, model, role, agent, name, digest, terms) --
-- Insert or replace a document.
INSERT INTO index_documents (id, space, channel, source, seq, at, length, traits, model, role, agent, name, digest, terms)
VALUES (:id, :space, :channel, :source, :seq, :at, :length, :traits, :model, :role, :agent, :name, :digest, :terms)
ON CONFLICT (id) DO UPDATE
SET seq = excluded.seq, at = excluded.at, role = excluded.role, agent = excluded.agent, name = excluded.name,
    traits = excluded.traits

-- index_documents_held(source, start, limit) --
-- Return numbers and digests of the documents of a source.
SELECT seq, digest FROM index_documents WHERE source = :source AND seq >= :start ORDER BY seq LIMIT :limit

-- index_posting_put(rowid, tokens text) --
-- Insert the words of a document.
[sqlite] INSERT INTO index_postings (rowid, tokens) VALUES (:rowid, :tokens)
[postgres] INSERT INTO index_postings (id, tokens) VALUES (:rowid, array_to_tsvector(string_to_array(:tokens, ' ')))
[mysql] INSERT INTO index_postings (word, id)
[mysql] SELECT CAST(wanted.one AS BINARY), :rowid
[mysql] FROM JSON_TABLE(CONVERT(CONCAT('["', REPLACE(:tokens, ' ', '","'), '"]') USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS wanted
[mysql] WHERE wanted.one <> ''

-- index_posting_delete(rowid, tokens bytes) --
-- Delete the words of a document.
[sqlite] INSERT INTO index_postings (index_postings, rowid, tokens) VALUES ('delete', :rowid, :tokens)
[postgres] DELETE FROM index_postings WHERE id = :rowid AND :tokens IS NOT NULL
[mysql] DELETE p FROM JSON_TABLE(CONVERT(CONCAT('["', REPLACE(:tokens, ' ', '","'), '"]') USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS wanted
[mysql]      STRAIGHT_JOIN index_postings AS p FORCE INDEX (PRIMARY) ON p.word = CAST(wanted.one AS BINARY) AND p.id = :rowid

-- index_frequencies_add(space int, channel, pairs) --
-- Change the numbers of documents with these terms, given as pairs in the order of the terms.
INSERT INTO index_frequencies (space, channel, term, documents)
[sqlite] SELECT :space, :channel, value ->> 0, value ->> 1 FROM json_each(:pairs) WHERE true
[postgres] SELECT :space, :channel::integer, convert_to(value ->> 0, 'UTF8'), (value ->> 1)::bigint FROM json_array_elements(convert_from(:pairs, 'UTF8')::json) AS value
[mysql] SELECT :space, :channel, one.term, one.more
[mysql] FROM JSON_TABLE(CONVERT(:pairs USING utf8mb4), '$[*]' COLUMNS (term VARCHAR(64) PATH '$[0]', more BIGINT PATH '$[1]')) AS one
ON CONFLICT (space, channel, term) DO UPDATE SET documents = index_frequencies.documents + excluded.documents

-- index_frequencies_clean(space, channel, terms ids) --
-- Delete the terms, of these, that no document has any more.
[sqlite postgres] DELETE FROM index_frequencies WHERE space = :space AND channel = :channel AND term IN :terms AND documents <= 0
[mysql] DELETE f FROM EACH :terms AS wanted
[mysql]      {then} index_frequencies AS f {use_key} ON f.space = :space AND f.channel = :channel AND f.term = CAST(wanted.value AS BINARY)
[mysql] WHERE f.documents <= 0

-- index_frequencies(space, channel, terms ids) --
-- Return the numbers of documents with these terms.
[sqlite] SELECT term, documents FROM index_frequencies WHERE space = :space AND channel = :channel AND term IN :terms
[postgres] SELECT f.term, f.documents FROM EACH :terms AS wanted
[postgres] CROSS JOIN LATERAL (SELECT term, documents FROM index_frequencies
[postgres]                     WHERE space = :space AND channel = :channel AND term = convert_to(wanted.value, 'UTF8') LIMIT 1) AS f
[mysql] SELECT f.term, f.documents FROM EACH :terms AS wanted
[mysql]      {then} index_frequencies AS f {use_key} ON f.space = :space AND f.channel = :channel AND f.term = CAST(wanted.value AS BINARY)

-- index_postings_read(words texts) --
-- Return all documents with each of some words, a JSON array: the index of the word, and an id or all ids as one JSON array, which is faster.
[sqlite] SELECT n.key, (SELECT json_group_array(rowid) FROM index_postings WHERE index_postings MATCH n.value) FROM EACH :words AS n
[postgres] SELECT n.place - 1, p.id FROM json_array_elements_text(convert_from(:words, 'UTF8')::json) WITH ORDINALITY AS n (value, place)
[postgres] CROSS JOIN LATERAL (SELECT id FROM index_postings WHERE tokens @@ ('''' || n.value || '''')::tsquery OFFSET 0) AS p
[mysql] SELECT n.place - 1, p.id
[mysql] FROM JSON_TABLE(CONVERT(:words USING utf8mb4), '$[*]' COLUMNS (place FOR ORDINALITY, value VARCHAR(64) PATH '$')) AS n
[mysql]      {then} index_postings AS p {use_key} ON p.word = CAST(n.value AS BINARY)

-- postings_of(word text, other text) --
-- Used by other statements: the documents that have two words.
[sqlite] index_postings MATCH iif(:word = :other, :word, :word || ' AND ' || :other)
[postgres] (SELECT id FROM index_postings WHERE tokens @@ ('''' || :word || ''' & ''' || :other || '''')::tsquery OFFSET 0)
[mysql] w.word = :word AND (:word = :other OR EXISTS (SELECT 1 FROM index_postings AS o WHERE o.word = :other AND o.id = w.id))

-- index_postings_newest(word text, other text, limit) --
-- Return the newest documents that have two words, or one word that is given twice.
[sqlite] SELECT rowid FROM index_postings WHERE {postings_of} ORDER BY rowid DESC LIMIT :limit
[postgres] SELECT id FROM {postings_of} AS found ORDER BY id DESC LIMIT :limit
[mysql] SELECT id FROM index_postings AS w WHERE {postings_of} ORDER BY id DESC LIMIT :limit

-- index_postings_passing(word text, other text, limit, sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until) --
-- Return the newest documents that have two words and pass filters.
[sqlite] SELECT d.id FROM index_postings AS w CROSS JOIN index_documents AS d ON d.id = w.rowid WHERE w.{postings_of} AND {filters} ORDER BY w.rowid DESC LIMIT :limit
[postgres] SELECT d.id FROM {postings_of} AS found JOIN index_documents AS d ON d.id = found.id WHERE {filters} ORDER BY d.id DESC LIMIT :limit
[mysql] SELECT d.id FROM index_postings AS w STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = w.id WHERE {postings_of} AND {filters} ORDER BY w.id DESC LIMIT :limit

-- index_documents_counted(space, channel, since, until, limit) --
-- Count the documents of a space in a time range, up to a limit.
SELECT count(*) FROM (SELECT 1 FROM index_documents WHERE space = :space AND channel = :channel AND at >= :since AND at < :until LIMIT :limit) AS page

-- candidate --
-- Used by other statements: the columns of a candidate of a search.
d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms

-- index_candidates(ids ints, space, channel, sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until) --
-- Return those of some documents that pass filters, by id.
SELECT {candidate} FROM EACH :ids AS wanted
[sqlite mysql]      {then} index_documents AS d {use_key} ON d.id = wanted.value {then} index_sources AS s {use_key} ON s.number = d.source
[postgres]      CROSS JOIN LATERAL (SELECT * FROM index_documents WHERE id = wanted.value::bigint LIMIT 1) AS d
[postgres]      CROSS JOIN LATERAL (SELECT id, identity FROM index_sources WHERE number = d.source LIMIT 1) AS s
WHERE d.space = :space AND d.channel = :channel AND {filters}

-- index_candidates_newest(limit, space, channel, sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until) --
-- Return the newest documents of a space that pass filters.
SELECT {candidate}
FROM index_documents AS d {use index_documents_at} {then} index_sources AS s {use_key} ON s.number = d.source
WHERE d.space = :space AND d.channel = :channel AND {filters}
ORDER BY d.at DESC, d.id DESC LIMIT :limit

-- index_candidates_of(limit, space, channel, sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until) --
-- Return the newest documents of given sources that pass filters; they are few compared to those of the space.
SELECT {candidate} FROM EACH :sources AS wanted
[sqlite mysql]      {then} index_sources AS s {use_key} ON s.number = wanted.value {then} index_documents AS d {use index_documents_seq} ON d.source = s.number
[postgres]      CROSS JOIN LATERAL (SELECT number, id, identity FROM index_sources WHERE number = wanted.value::bigint LIMIT 1) AS s
[postgres]      CROSS JOIN LATERAL (SELECT * FROM index_documents WHERE source = s.number OFFSET 0) AS d
WHERE d.space = :space AND d.channel = :channel AND {other_filters}
ORDER BY d.at DESC, d.id DESC LIMIT :limit

-- index_candidates_at(source, seqs ints) --
-- Return documents of a source by their numbers.
SELECT {candidate}
[sqlite postgres] FROM index_documents AS d JOIN index_sources AS s ON s.number = d.source WHERE d.source = :source AND d.seq IN :seqs
[mysql] FROM EACH :seqs AS wanted {then} index_documents AS d {use index_documents_seq} ON d.source = :source AND d.seq = wanted.value
[mysql]      {then} index_sources AS s {use_key} ON s.number = d.source
ORDER BY d.id

-- index_models(tenant) --
-- Return the models of a tenant's vectors. The model without a name is that of documents without a vector.
SELECT number, name, dimensions FROM index_models WHERE tenant = :tenant

-- index_models_lock(tenant) --
-- Lock models, so that none is deleted while documents get vectors of it.
[postgres] SELECT 1 FROM index_models WHERE tenant = :tenant FOR KEY SHARE
[mysql] SELECT 1 FROM index_models WHERE tenant = :tenant LOCK IN SHARE MODE

-- index_model_new(tenant, name, dimensions) --
-- Insert a model. Two that are inserted at the same time conflict.
INSERT INTO index_models (tenant, name, dimensions) VALUES (:tenant, :name, :dimensions)

-- index_model_delete(number) --
-- Delete a model that no document has any more.
DELETE FROM index_models WHERE number = :number AND NOT EXISTS (SELECT 1 FROM index_documents WHERE model = :number)

-- index_model_delete_lock(number) --
-- Wait for transactions that store vectors of a model, before checking whether it is in use.
[postgres mysql] SELECT 1 FROM index_models WHERE number = :number FOR UPDATE

-- index_model_of(model, limit) --
-- Return some documents that have a vector of a model.
SELECT id FROM index_documents WHERE model = :model ORDER BY space, id LIMIT :limit

-- index_model_count(model, first_space, last_space) --
-- Count the documents that have a vector of a model, in all spaces or in one.
SELECT count(*) FROM index_documents WHERE model = :model AND space BETWEEN :first_space AND :last_space

-- index_pending(model, first_space, last_space, limit) --
-- Return documents of a model, or without a vector, by space, oldest first.
SELECT p.kind, p.name, s.id, s.identity, d.seq, d.digest
FROM index_documents AS d {use index_documents_model} {then} index_sources AS s {use_key} ON s.number = d.source
     {then} index_spaces AS p {use_key} ON p.number = d.space
WHERE d.model = :model AND d.space BETWEEN :first_space AND :last_space AND p.kind <> 'gone' ORDER BY d.space, d.id LIMIT :limit

-- index_documents_model(ids ints, model) --
-- Set the model of documents.
[sqlite postgres] UPDATE index_documents SET model = :model WHERE id IN :ids
[mysql] UPDATE EACH :ids AS wanted {then} index_documents AS d {use_key} ON d.id = wanted.value SET d.model = :model

-- index_vector_put(id, mark, data) --
-- Insert or replace the vector of a document.
INSERT INTO index_vectors (id, mark, data) VALUES (:id, :mark, :data)
ON CONFLICT (id) DO UPDATE SET mark = excluded.mark, data = excluded.data

-- index_vectors_delete(ids ints) --
-- Delete the vectors of documents.
[sqlite postgres] DELETE FROM index_vectors WHERE id IN :ids
[mysql] DELETE v FROM EACH :ids AS wanted {then} index_vectors AS v {use_key} ON v.id = wanted.value

-- index_vectors_at(ids ints, model) --
-- Return the vectors of those of some documents that have one of a model.
SELECT d.id, v.data FROM EACH :ids AS wanted
[sqlite mysql]      {then} index_documents AS d {use_key} ON d.id = wanted.value {then} index_vectors AS v {use_key} ON v.id = d.id
[postgres]      JOIN index_documents AS d ON d.id = wanted.value::bigint JOIN index_vectors AS v ON v.id = d.id
WHERE d.model = :model

-- index_vectors_like(model, space, marks ints) --
-- Return the vectors of a model in a space whose documents' digests begin with these eight bytes, given as a number.
SELECT d.digest, v.data
[sqlite postgres] FROM index_vectors AS v {then} index_documents AS d ON d.id = v.id WHERE d.model = :model AND d.space = :space AND v.mark IN :marks
[mysql] FROM EACH :marks AS wanted {then} index_vectors AS v {use index_vectors_mark} ON v.mark = wanted.value
[mysql]      {then} index_documents AS d {use_key} ON d.id = v.id WHERE d.model = :model AND d.space = :space

-- index_vectors_read(model, space, channel, sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until, after_id, limit) --
-- Return the vectors of a model in a space, from an id on, of documents that pass filters.
SELECT d.id, v.data FROM index_documents AS d {use index_documents_model} {then} index_vectors AS v {use_key} ON v.id = d.id
WHERE d.model = :model AND d.space = :space AND d.id > :after_id AND d.channel = :channel AND {filters}
ORDER BY d.id LIMIT :limit

-- index_nearest(model, space, channel, sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until, vector bytes, limit) --
-- Return the nearest documents that pass filters, and their similarities.
[sqlite] SELECT d.id, 1 - vec1_cos_distance(v.data, :vector) AS near
[postgres] SELECT d.id, length(:vector)::double precision AS near
[mysql] SELECT d.id, LENGTH(:vector) AS near
FROM index_documents AS d {use index_documents_model} {then} index_vectors AS v {use_key} ON v.id = d.id
WHERE d.model = :model AND d.space = :space AND d.channel = :channel AND {filters}
ORDER BY near DESC, d.id DESC LIMIT :limit

-- index_note_get(tenant, name) --
-- Return a tenant's note of a name.
SELECT data FROM index_notes WHERE tenant = :tenant AND name = :name

-- index_note_put(tenant, name, data) --
-- Replace a note.
INSERT INTO index_notes (tenant, name, data) VALUES (:tenant, :name, :data)
ON CONFLICT (tenant, name) DO UPDATE SET data = excluded.data

-- index_note_new(tenant, name, data) --
-- Insert a note, unless there is one.
INSERT INTO index_notes (tenant, name, data) VALUES (:tenant, :name, :data)
ON CONFLICT (tenant, name) DO NOTHING

-- index_note_delete(tenant, name) --
DELETE FROM index_notes WHERE tenant = :tenant AND name = :name

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
