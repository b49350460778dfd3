-- The log: entries, idempotency keys and model calls.

-- entry_insert(session, seq, turn_id, unit_back, timestamp, tokens, total, kind, digest, agent, importance, pinned, metadata, payload, mark, alias, retired_by, erased): insert entries --
-- Insert an entry. An imported one may be retired or erased.

-- entry_annotate(session, seq, pinned, importance, metadata): update entries where retired_by IS NULL --

-- entry_erase_live(session, seq, payload, tokens): update entries set erased = 1, metadata = NULL, alias = NULL where retired_by IS NULL --

-- entry_erase_retired(session, seq, payload, tokens): update entries set erased = 1, metadata = NULL, alias = NULL where retired_by IS NOT NULL --

-- entries_shift_live(session, start, stop, shift): update entries set total = total + :shift where seq >= :start AND seq < :stop AND retired_by IS NULL --
-- Change the running totals of live entries after an entry before them got another token count.

-- entries_shift_retired(session, start, stop, shift): update entries set total = total + :shift where seq >= :start AND seq < :stop AND retired_by IS NOT NULL --

-- entries_retire(session, start, retired_by): update entries where seq >= :start AND retired_by IS NULL --

-- notes_retire(session, start, retired_by): update entries where seq >= :start AND retired_by IS NOT NULL AND retired_by = seq --
-- Retire the notes from a `seq` on that are not retired.

-- entries_count_from(session, start): select count(*) from entries where seq >= :start AND retired_by IS NULL --

-- entries_delete_live(session): delete entries where retired_by IS NULL --

-- entries_delete_retired(session): delete entries where retired_by IS NOT NULL --

-- entry_live(session, seq): select {entry_columns} from entries AS e where retired_by IS NULL --

-- entries_among(session, seqs ints): select {entry_columns} from entries AS e where seq IN :seqs AND retired_by IS NULL ORDER BY seq --

-- entry_is_live(session, seq): select 1 from entries where retired_by IS NULL --

-- unrated_among(session, seqs ints): select count(*) from entries where seq IN :seqs AND retired_by IS NULL AND importance IS NULL --

-- entry_rate(session, seq, importance): update entries where retired_by IS NULL AND importance IS NULL --
-- Set the importance of a live entry that has none.

-- entry_retired(session, seq): select {entry_columns} from entries AS e where retired_by IS NOT NULL --

-- entry_columns --
-- Used by other statements: the columns of an entry, in the order of `decode_entry`.
e.session, e.seq, e.turn_id, e.unit_back, e.timestamp, e.tokens, e.total, e.digest, e.agent, e.importance, e.pinned, e.retired_by, e.erased, e.metadata, e.payload

-- live_forward | live_backward(session, start, stop, limit): select {entry_columns} from entries AS e {use entries_live} where retired_by IS NULL AND seq >= :start AND seq < :stop ORDER BY seq --


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
SELECT {entry_columns} FROM entries AS e WHERE session = :session AND seq >= :start AND seq < :stop
[sqlite postgres] AND retired_by IS NULL
[sqlite postgres] UNION ALL
[sqlite postgres] SELECT {entry_columns} FROM entries AS e WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NOT NULL

-- log_forward | log_backward(session, start, stop, limit) --
-- Return a range of the whole log, live and retired entries merged.
{log_rows} ORDER BY seq LIMIT :limit

-- noted_rows(session, start, stop) --
-- Used by other statements: a range of the live path, merged with the notes that are not retired. These are stored as retired by their own `seq`.
SELECT {entry_columns} FROM entries AS e WHERE session = :session AND seq >= :start AND seq < :stop
[mysql] AND (retired_by IS NULL OR retired_by = seq)
[sqlite postgres] AND retired_by IS NULL
[sqlite postgres] UNION ALL
[sqlite postgres] SELECT {entry_columns} FROM entries AS e WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NOT NULL AND retired_by = seq

-- noted_forward | noted_backward(session, start, stop, limit) --
-- Return a range of the live path, merged with the notes that are not retired: those that are stored as retired by their own `seq`.
{noted_rows} ORDER BY seq LIMIT :limit

-- log_extent(session, stop) --
-- Measure the live path before a `seq`, with the notes that are not retired: number of entries and of messages, the `seq` after the last
-- entry, bytes of the messages.
SELECT count(*), sum(live), max(seq) + 1, sum(size) FROM (
    SELECT seq, 1 AS live, length(payload) AS size
    FROM entries WHERE session = :session AND seq < :stop AND retired_by IS NULL
    UNION ALL
    SELECT seq, 0, length(payload)
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

-- last_not_result(session, before): select seq from entries {use entries_live} where seq < :before AND retired_by IS NULL AND kind <> 4 ORDER BY seq DESC LIMIT 1 --
-- Return the `seq` where the last unit before a `seq` begins: results (kind 4) follow their calls.

-- last_visible(session, before): select digest from entries {use entries_live} where seq < :before AND retired_by IS NULL AND kind < 3 ORDER BY seq DESC LIMIT 1 --
-- Return the digest of the last message before a `seq` that clients see: neither calls (3) nor results (4).

-- idempotency_get(session, key): select fingerprint, version, first_seq, entries from idempotency --
-- idempotency_put(session, key, fingerprint, version, first_seq, entries): insert idempotency --
-- idempotency_delete(session): delete idempotency --

-- turn_key_get(id bytes) --
-- Return a key's turn, with the name of its session.
SELECT s.user_id, s.id, s.identity, k.fingerprint, k.first_seq, k.entries, k.made_at
FROM turn_keys AS k LEFT JOIN sessions AS s ON s.pk = k.session AND s.withdrawn = '' WHERE k.id = :id

-- turn_key_new(id, session, fingerprint, first_seq, entries, made_at, expires_at): insert turn_keys --
-- turn_key_put(id, session, fingerprint, first_seq, entries, made_at, expires_at): put turn_keys --
-- turn_keys_forget(session): delete turn_keys where expires_at IS NOT NULL --
-- Delete the keys that clients did not choose. They are hashes of what was sent.

-- turn_keys_release(session int): update turn_keys set session = 0 where session = :session AND expires_at IS NULL --
-- turn_keys_bury(expires_at int): update turn_keys set expires_at = :expires_at where session = 0 AND expires_at IS NULL --
-- turn_keys_expire(now int): delete turn_keys where expires_at <= :now --
-- call_insert(session, turn_id, data): insert model_calls --

-- calls_newest(session, limit): select data from model_calls ORDER BY pk DESC --


-- calls_forward | calls_backward(session, start, stop, limit): select data from model_calls where turn_id >= :start AND turn_id < :stop ORDER BY turn_id, pk --

-- calls_delete(session): delete model_calls --

-- prompt_text_put(session int, id int, source bytes, first_seq int, last_seq int, data bytes) --
INSERT INTO prompt_texts (session, id, source, first_seq, last_seq, data)
VALUES (:session, :id, :source, :first_seq, :last_seq, :data)
ON CONFLICT (session, id) DO NOTHING

-- prompt_texts_all(session): select id, data, source, first_seq, last_seq from prompt_texts ORDER BY id --

-- prompt_texts_among(session, ids ints): select id, data, source, first_seq, last_seq from prompt_texts where id IN :ids --

-- prompt_texts_quoting(session, seq): delete prompt_texts where source = '' AND first_seq <= :seq AND last_seq >= :seq --
-- Delete the texts that quote a message of their own session.

-- prompt_texts_of(tenant, user_id, source, seq) --
-- Delete the texts of a user's sessions that quote another session: one message, or any if `seq` is -1.
DELETE FROM prompt_texts
WHERE source = :source AND (:seq = -1 OR first_seq <= :seq AND last_seq >= :seq)
  AND session IN (SELECT pk FROM sessions WHERE tenant = :tenant AND user_id = :user_id)

-- prompt_texts_about(tenant, source) --
-- Delete the texts that quote a memory.
DELETE FROM prompt_texts WHERE source = :source AND session IN (SELECT pk FROM sessions WHERE tenant = :tenant)

-- prompt_texts_about_owned(tenant, owner) --
-- Delete the texts that quote any memory of an owner.
DELETE FROM prompt_texts
WHERE source IN (SELECT id FROM memories WHERE owner = :owner)
  AND session IN (SELECT pk FROM sessions WHERE tenant = :tenant)

-- prompt_texts_delete(session): delete prompt_texts --
