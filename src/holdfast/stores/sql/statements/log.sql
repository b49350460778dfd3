-- The log: entries, idempotency keys and model calls.

-- entry_insert(session, seq, turn_id, unit_back, timestamp, tokens, total, kind, digest, agent, importance, pinned, metadata, payload, mark, alias, retired_by, erased): insert entries --
-- Insert an entry. An imported one may be retired or erased.

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

-- last_not_result(session, before) --
-- Return the `seq` where the last unit before a `seq` begins: results (kind 4) follow their calls.
SELECT seq FROM entries {use entries_live}
WHERE session = :session AND seq < :before AND retired_by IS NULL AND kind <> 4 ORDER BY seq DESC LIMIT 1

-- last_visible(session, before) --
-- Return the digest of the last message before a `seq` that clients see: neither calls (3) nor results (4).
SELECT digest FROM entries {use entries_live}
WHERE session = :session AND seq < :before AND retired_by IS NULL AND kind < 3 ORDER BY seq DESC LIMIT 1

-- idempotency_get(session, key): select fingerprint, version, first_seq, entries from idempotency --
-- idempotency_put(session, key, fingerprint, version, first_seq, entries): insert idempotency --
-- idempotency_delete(session): delete idempotency --
-- call_insert(session, timestamp, model, prompt_tokens, completion_tokens, cached_tokens, turn_id, through, view_key, hash, build): insert model_calls --

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

-- calls_delete(session): delete model_calls --
