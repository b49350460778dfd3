-- Every statement the SQL stores run, the dialect of MySQL and MariaDB. `-- name --`, then what it is for, then the statement.
-- The columns of session_rows and entry_rows, in order, are what `holdfast.stores.logic.rows` decodes. Text comes as bytes.
-- `name_lock` is run before `name` within a write.

-- session_get --
-- One session by its name; a withdrawn one by what it is withdrawn for, else that is empty.
SELECT * FROM session_rows WHERE tenant = ?1 AND id = ?2 AND user_id = ?3 AND withdrawn = ?4

-- session_get_lock --
-- Nobody else writes to the session until the transaction ends.
SELECT 1 FROM sessions WHERE tenant = ?1 AND id = ?2 AND user_id = ?3 AND withdrawn = ?4 FOR UPDATE

-- session_find --
-- Sessions of that id among all users of a tenant; two are enough to know that it is ambiguous.
SELECT * FROM session_rows WHERE tenant = ?1 AND id = ?2 AND withdrawn = '' LIMIT 2

-- session_insert --
-- A new session. Its pk is what AUTO_INCREMENT gave: MySQL has no RETURNING.
INSERT INTO sessions (tenant, user_id, id, agent, version, created_at, updated_at, status, ttl, messages, bytes, calls,
                      prompt_tokens, completion_tokens, cached_tokens, next_seq, turn_id, total, digest, last_seq,
                      last_kind, unit, open_calls, anchor, accessed_at, expires_at, identity)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?7,
        ?7 + nullif(?9, 0), ?25)

-- session_advance --
-- A session after its log grew: everything that an append changes.
UPDATE sessions
SET version = ?2, updated_at = ?3, status = ?4, messages = ?5, bytes = ?6, calls = ?7, prompt_tokens = ?8,
    completion_tokens = ?9, cached_tokens = ?10, next_seq = ?11, turn_id = ?12, total = ?13, digest = ?14,
    last_seq = ?15, last_kind = ?16, unit = ?17, open_calls = ?18, anchor = ?19, accessed_at = ?3, expires_at = ?3 + nullif(ttl, 0),
    ended_at = CASE WHEN ?4 = 'active' THEN NULL ELSE ended_at END,
    end_reason = CASE WHEN ?4 = 'active' THEN NULL ELSE end_reason END,
    claim_holder = ?20, claim_until = ?21, claim_wanted = ?22
WHERE pk = ?1

-- session_claim --
-- Who has a turn of a session open, where nothing else of it changes.
UPDATE sessions SET claim_holder = ?2, claim_until = ?3, claim_wanted = ?4 WHERE pk = ?1

-- claim_want --
-- Somebody asks the holder of a turn to stop.
UPDATE sessions SET claim_wanted = 1 WHERE pk = ?1 AND claim_holder = ?2

-- session_patch --
-- A session's own fields.
UPDATE sessions
SET version = ?2, updated_at = ?3, agent = ?4, ttl = ?5, accessed_at = ?3,
    expires_at = ?3 + nullif(?5, 0)
WHERE pk = ?1

-- session_touch --
-- A session one of whose entries changed.
UPDATE sessions SET version = ?2, total = ?3, bytes = ?4 WHERE pk = ?1

-- session_used --
-- A session that somebody used without writing to it.
UPDATE sessions SET accessed_at = ?2, expires_at = ?2 + nullif(ttl, 0) WHERE pk = ?1 AND accessed_at < ?2

-- session_end --
-- A session that has ended, and keeps its name.
UPDATE sessions SET version = ?2, status = 'closed', ended_at = ?3, end_reason = ?4 WHERE pk = ?1

-- session_withdraw --
-- A session that has ended, and loses its name.
UPDATE sessions SET version = ?2, status = 'closed', ended_at = ?3, end_reason = ?4, withdrawn = ?5 WHERE pk = ?1

-- sessions_idle --
-- Active sessions without a ttl of their own that were not used since, the longest idle first.
SELECT * FROM session_rows
WHERE tenant = ?1 AND status = 'active' AND accessed_at <= ?2 AND ttl IS NULL ORDER BY accessed_at LIMIT ?3

-- sessions_expired --
-- Active sessions whose own ttl is over.
SELECT * FROM session_rows
WHERE tenant = ?1 AND status = 'active' AND expires_at IS NOT NULL AND expires_at <= ?2 ORDER BY expires_at LIMIT ?3

-- sessions_oldest --
-- Active sessions, the longest idle first.
SELECT * FROM session_rows WHERE tenant = ?1 AND status = 'active' ORDER BY accessed_at LIMIT ?2

-- sessions_active --
-- How many sessions are active.
SELECT count(*) FROM sessions WHERE tenant = ?1 AND status = 'active'

-- tenant_after --
-- The next tenant that has sessions, or owners of memories.
SELECT tenant FROM (
    SELECT * FROM (SELECT tenant FROM sessions WHERE tenant > ?1 ORDER BY tenant LIMIT 1) AS one
    UNION ALL SELECT * FROM (SELECT tenant FROM memory_owners WHERE tenant > ?1 ORDER BY tenant LIMIT 1) AS other
) AS found ORDER BY tenant LIMIT 1

-- ending_insert --
-- An end that hooks are to be told of.
INSERT INTO endings (tenant, id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)

-- ending_get --
-- One of them.
SELECT id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error
FROM endings WHERE tenant = ?1 AND id = ?2

-- endings_due --
-- Those that are due, in the order in which they are.
SELECT id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error
FROM endings WHERE tenant = ?1 AND due_at <= ?2 ORDER BY due_at, ended_at, id LIMIT ?3

-- endings_of_user --
-- Those of a user's sessions, in order of id, behind one of them.
SELECT id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error
FROM endings WHERE tenant = ?1 AND user_id = ?2 AND id > ?3 ORDER BY id LIMIT ?4

-- ending_put --
-- What became of telling one.
UPDATE endings SET due_at = ?3, attempts = ?4, hooks = ?5, error = ?6 WHERE tenant = ?1 AND id = ?2

-- ending_delete --
-- One that everybody was told of.
DELETE FROM endings WHERE tenant = ?1 AND id = ?2

-- ending_get_lock --
-- Nobody else notes what became of it until the transaction ends.
SELECT 1 FROM endings WHERE tenant = ?1 AND id = ?2 FOR UPDATE

-- session_holds --
-- How much hangs on a session: compactions, saved views, model calls, idempotency keys, artifacts and media with their bytes.
SELECT (SELECT count(*) FROM compactions WHERE session = ?1), (SELECT count(*) FROM saved_views WHERE session = ?1),
       (SELECT count(*) FROM model_calls WHERE session = ?1), (SELECT count(*) FROM idempotency WHERE session = ?1),
       (SELECT count(*) FROM artifacts WHERE session = ?1),
       (SELECT CAST(coalesce(sum(size), 0) AS SIGNED) FROM artifacts WHERE session = ?1),
       (SELECT count(*) FROM media WHERE session = ?1),
       (SELECT CAST(coalesce(sum(size), 0) AS SIGNED) FROM media WHERE session = ?1)

-- session_delete --
-- The session's row; what hangs on it is deleted by the statements below.
DELETE FROM sessions WHERE pk = ?1

-- profile_put --
-- The large fields of a session.
INSERT INTO profiles (session, system_messages, state, metadata) VALUES (?1, ?2, ?3, ?4)
ON DUPLICATE KEY UPDATE
system_messages = VALUES(system_messages), state = VALUES(state), metadata = VALUES(metadata)

-- profile_delete --
-- With its session.
DELETE FROM profiles WHERE session = ?1

-- list_newest --
-- A tenant's sessions, newest first, behind a place.
-- Spelled out and with its index named: else it would be read from its beginning up to the place.
SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
WHERE w.tenant = ?1 AND (w.updated_at < ?2 OR w.updated_at = ?2 AND w.user_id < ?3 OR w.updated_at = ?2 AND w.user_id = ?3 AND w.id < ?4)
  AND (?5 IS NULL OR w.agent = ?5) AND w.withdrawn = ''
  AND (?6 IS NULL OR ?6 = CASE
       WHEN w.status = 'active' AND (w.expires_at <= ?8 OR w.ttl IS NULL AND w.accessed_at <= ?9) THEN 'closed'
       ELSE w.status END)
ORDER BY w.updated_at DESC, w.user_id DESC, w.id DESC LIMIT ?7

-- list_oldest --
-- A tenant's sessions, oldest first, behind a place.
SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
WHERE w.tenant = ?1 AND (w.updated_at > ?2 OR w.updated_at = ?2 AND w.user_id > ?3 OR w.updated_at = ?2 AND w.user_id = ?3 AND w.id > ?4)
  AND (?5 IS NULL OR w.agent = ?5) AND w.withdrawn = ''
  AND (?6 IS NULL OR ?6 = CASE
       WHEN w.status = 'active' AND (w.expires_at <= ?8 OR w.ttl IS NULL AND w.accessed_at <= ?9) THEN 'closed'
       ELSE w.status END)
ORDER BY w.updated_at, w.user_id, w.id LIMIT ?7

-- list_newest_of_user --
-- A user's sessions, newest first, behind a place.
SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent_of_user) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
WHERE w.tenant = ?1 AND w.user_id = ?3 AND (w.updated_at < ?2 OR w.updated_at = ?2 AND w.id < ?4)
  AND (?5 IS NULL OR w.agent = ?5) AND w.withdrawn = ''
  AND (?6 IS NULL OR ?6 = CASE
       WHEN w.status = 'active' AND (w.expires_at <= ?8 OR w.ttl IS NULL AND w.accessed_at <= ?9) THEN 'closed'
       ELSE w.status END)
ORDER BY w.updated_at DESC, w.id DESC LIMIT ?7

-- list_oldest_of_user --
-- A user's sessions, oldest first, behind a place.
SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent_of_user) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
WHERE w.tenant = ?1 AND w.user_id = ?3 AND (w.updated_at > ?2 OR w.updated_at = ?2 AND w.id > ?4)
  AND (?5 IS NULL OR w.agent = ?5) AND w.withdrawn = ''
  AND (?6 IS NULL OR ?6 = CASE
       WHEN w.status = 'active' AND (w.expires_at <= ?8 OR w.ttl IS NULL AND w.accessed_at <= ?9) THEN 'closed'
       ELSE w.status END)
ORDER BY w.updated_at, w.id LIMIT ?7

-- entry_insert --
-- One entry at the end of the log.
INSERT INTO entries (session, seq, turn_id, unit_back, timestamp, tokens, total, kind, digest, agent, importance, pinned,
                     retired_by, erased, metadata, payload, mark, alias)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, NULL, 0, ?13, ?14, ?15, ?16)

-- entry_install --
-- One entry of a log that has a past: retired, erased, or both.
INSERT INTO entries (session, seq, turn_id, unit_back, timestamp, tokens, total, kind, digest, agent, importance, pinned,
                     retired_by, erased, metadata, payload, mark, alias)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?17, ?18, ?13, ?14, ?15, ?16)

-- entry_annotate --
-- Pin, importance and metadata of a live entry.
UPDATE entries SET pinned = ?3, importance = ?4, metadata = ?5
WHERE session = ?1 AND seq = ?2 AND retired_by IS NULL

-- entry_erase_live --
-- What stays of an erased entry of the live path; its total follows by `entries_shift`.
UPDATE entries SET payload = ?3, tokens = ?4, erased = 1, metadata = NULL, alias = NULL
WHERE session = ?1 AND seq = ?2 AND retired_by IS NULL

-- entry_erase_retired --
-- What stays of an erased entry that is retired.
UPDATE entries SET payload = ?3, tokens = ?4, erased = 1, metadata = NULL, alias = NULL
WHERE session = ?1 AND seq = ?2 AND retired_by IS NOT NULL

-- entries_shift_live --
-- Running totals of live entries, after an entry on their path got another count.
UPDATE entries SET total = total + ?4 WHERE session = ?1 AND seq >= ?2 AND seq < ?3 AND retired_by IS NULL

-- entries_shift_retired --
-- Running totals of retired entries, after an entry on their path got another count.
UPDATE entries SET total = total + ?4 WHERE session = ?1 AND seq >= ?2 AND seq < ?3 AND retired_by IS NOT NULL

-- entries_retire --
-- The end of the live path leaves it.
UPDATE entries SET retired_by = ?3 WHERE session = ?1 AND seq >= ?2 AND retired_by IS NULL

-- entries_count_from --
-- How many live entries would be retired.
SELECT count(*) FROM entries WHERE session = ?1 AND seq >= ?2 AND retired_by IS NULL

-- entries_delete_live --
-- With their session.
DELETE FROM entries WHERE session = ?1 AND retired_by IS NULL

-- entries_delete_retired --
-- With their session.
DELETE FROM entries WHERE session = ?1 AND retired_by IS NOT NULL

-- entry_live --
-- One live entry.
SELECT * FROM entry_rows WHERE session = ?1 AND seq = ?2 AND retired_by IS NULL

-- entries_among --
-- The live ones among some entries, whose places come as a JSON array.
SELECT * FROM entry_rows
WHERE session = ?1 AND seq IN
      (SELECT place FROM JSON_TABLE(CONVERT(?2 USING utf8mb4), '$[*]' COLUMNS (place BIGINT PATH '$')) AS places) AND retired_by IS NULL ORDER BY seq

-- entry_is_live --
-- Whether an entry stands on the live path.
SELECT 1 FROM entries WHERE session = ?1 AND seq = ?2 AND retired_by IS NULL

-- unrated_among --
-- How many of some entries are live and have no importance yet.
SELECT count(*) FROM entries
WHERE session = ?1 AND seq IN
      (SELECT place FROM JSON_TABLE(CONVERT(?2 USING utf8mb4), '$[*]' COLUMNS (place BIGINT PATH '$')) AS places) AND retired_by IS NULL AND importance IS NULL

-- entry_rate --
-- The importance of a live entry that has none.
UPDATE entries SET importance = ?3 WHERE session = ?1 AND seq = ?2 AND retired_by IS NULL AND importance IS NULL

-- entry_retired --
-- One retired entry.
SELECT * FROM entry_rows WHERE session = ?1 AND seq = ?2 AND retired_by IS NOT NULL

-- live_forward --
-- A range of the live path, by its own index: the other one would pass by everything that was retired there.
SELECT session, seq, turn_id, unit_back, timestamp, tokens, total, digest, agent, importance, pinned, retired_by, erased,
       metadata, payload
FROM entries FORCE INDEX (entries_live)
WHERE session = ?1 AND retired_by IS NULL AND seq >= ?2 AND seq < ?3 ORDER BY seq LIMIT ?4

-- live_backward --
-- A range of the live path, newest first.
SELECT session, seq, turn_id, unit_back, timestamp, tokens, total, digest, agent, importance, pinned, retired_by, erased,
       metadata, payload
FROM entries FORCE INDEX (entries_live)
WHERE session = ?1 AND retired_by IS NULL AND seq >= ?2 AND seq < ?3 ORDER BY seq DESC LIMIT ?4

-- log_forward --
-- A range of the whole log.
SELECT * FROM entry_rows WHERE session = ?1 AND seq >= ?2 AND seq < ?3 ORDER BY seq LIMIT ?4

-- log_backward --
-- A range of the whole log, newest first.
SELECT * FROM entry_rows WHERE session = ?1 AND seq >= ?2 AND seq < ?3 ORDER BY seq DESC LIMIT ?4

-- mark_last --
-- The last of some digests, which come with their keys as a JSON array, that stands in a user's logs, or in one session: its index.
-- Each is looked up by itself, and in this order: LIMIT 1 and STRAIGHT_JOIN keep the planner from reading all that a user has.
SELECT max(place) - 1
FROM JSON_TABLE(CONVERT(?4 USING utf8mb4), '$[*]' COLUMNS
     (place FOR ORDINALITY, number BIGINT PATH '$[0]', digest VARCHAR(64) PATH '$[1]')) AS wanted
WHERE (SELECT 1 FROM entries AS e FORCE INDEX (entries_mark) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
       WHERE e.mark = wanted.number AND (?3 IS NULL OR e.session = ?3) AND e.digest = UNHEX(wanted.digest)
         AND s.tenant = ?1 AND s.user_id = ?2 AND s.withdrawn = '' LIMIT 1) = 1

-- mark_places --
-- Where a digest stands, in the sessions that were made last first; with what tells whether it is the last of the live path.
SELECT s.id, s.identity, s.updated_at, s.digest, e.seq, e.digest, e.retired_by
FROM entries AS e FORCE INDEX (entries_mark) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
WHERE e.mark = ?4 AND (?3 IS NULL OR e.session = ?3) AND e.digest = ?6 AND s.tenant = ?1 AND s.user_id = ?2 AND s.withdrawn = ''
ORDER BY e.session DESC, e.seq DESC LIMIT ?5

-- alias_last --
-- The last of some aliases, whose keys come as a JSON array, that stands in a user's logs, or in one session: its index.
SELECT max(place) - 1
FROM JSON_TABLE(CONVERT(?4 USING utf8mb4), '$[*]' COLUMNS
     (place FOR ORDINALITY, number BIGINT PATH '$')) AS wanted
WHERE (SELECT 1 FROM entries AS e FORCE INDEX (entries_alias) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
       WHERE e.alias = wanted.number AND (?3 IS NULL OR e.session = ?3)
         AND s.tenant = ?1 AND s.user_id = ?2 AND s.withdrawn = '' LIMIT 1) = 1

-- alias_places --
-- Where an alias stands; the rest is as above.
SELECT s.id, s.identity, s.updated_at, s.digest, e.seq, e.digest, e.retired_by
FROM entries AS e FORCE INDEX (entries_alias) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
WHERE e.alias = ?4 AND (?3 IS NULL OR e.session = ?3) AND s.tenant = ?1 AND s.user_id = ?2 AND s.withdrawn = ''
ORDER BY e.session DESC, e.seq DESC LIMIT ?5

-- end_last --
-- The last of some digests, which come as a JSON array, that the live path of a session of a user ends with.
SELECT max(place) - 1
FROM JSON_TABLE(CONVERT(?3 USING utf8mb4), '$[*]' COLUMNS
     (place FOR ORDINALITY, digest VARCHAR(64) PATH '$')) AS wanted
WHERE (SELECT 1 FROM sessions AS s FORCE INDEX (sessions_end)
       WHERE s.tenant = ?1 AND s.user_id = ?2 AND s.digest = UNHEX(wanted.digest) AND s.withdrawn = '' LIMIT 1) = 1

-- end_places --
-- The sessions of a user whose live path ends with a digest, most recently used first.
SELECT s.id, s.identity, s.updated_at, s.digest, s.last_seq, s.digest, NULL
FROM sessions AS s FORCE INDEX (sessions_end)
WHERE s.tenant = ?1 AND s.user_id = ?2 AND s.digest = ?3 AND s.withdrawn = '' ORDER BY s.updated_at DESC LIMIT ?4

-- unmarked_live --
-- Visible live entries that were written before there were marks, with what their keys are made of, behind a place.
SELECT * FROM (
(SELECT e.session, e.seq, s.tenant, s.user_id, e.digest
 FROM entries AS e FORCE INDEX (PRIMARY) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
 WHERE e.session = ?1 AND e.seq > ?2 AND e.retired_by IS NULL AND e.kind < 3 AND e.mark IS NULL
 ORDER BY e.session, e.seq LIMIT ?3)
UNION ALL
(SELECT e.session, e.seq, s.tenant, s.user_id, e.digest
 FROM entries AS e FORCE INDEX (PRIMARY) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
 WHERE e.session > ?1 AND e.retired_by IS NULL AND e.kind < 3 AND e.mark IS NULL
 ORDER BY e.session, e.seq LIMIT ?3)
) AS behind ORDER BY session, seq LIMIT ?3

-- entry_mark_live --
-- The key of the digest of a live entry.
UPDATE entries SET mark = ?3 WHERE session = ?1 AND seq = ?2 AND retired_by IS NULL

-- unmarked_retired --
-- Visible retired entries that were written before there were marks, with what their keys are made of, behind a place.
SELECT * FROM (
(SELECT e.session, e.seq, s.tenant, s.user_id, e.digest
 FROM entries AS e FORCE INDEX (PRIMARY) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
 WHERE e.session = ?1 AND e.seq > ?2 AND e.retired_by IS NOT NULL AND e.kind < 3 AND e.mark IS NULL
 ORDER BY e.session, e.seq LIMIT ?3)
UNION ALL
(SELECT e.session, e.seq, s.tenant, s.user_id, e.digest
 FROM entries AS e FORCE INDEX (PRIMARY) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
 WHERE e.session > ?1 AND e.retired_by IS NOT NULL AND e.kind < 3 AND e.mark IS NULL
 ORDER BY e.session, e.seq LIMIT ?3)
) AS behind ORDER BY session, seq LIMIT ?3

-- entry_mark_retired --
-- The key of the digest of a retired entry.
UPDATE entries SET mark = ?3 WHERE session = ?1 AND seq = ?2 AND retired_by IS NOT NULL

-- last_not_result --
-- Where the last unit before a place begins: results (kind 4) stand behind their calls.
SELECT seq FROM entries FORCE INDEX (entries_live) WHERE session = ?1 AND seq < ?2 AND retired_by IS NULL AND kind <> 4 ORDER BY seq DESC LIMIT 1

-- last_visible --
-- The digest of the last message before a place that clients see: not calls (3), not results (4).
SELECT digest FROM entries FORCE INDEX (entries_live) WHERE session = ?1 AND seq < ?2 AND retired_by IS NULL AND kind < 3 ORDER BY seq DESC LIMIT 1

-- view_get --
-- A saved view and its live compaction: always one row, with NULL for what there is not.
SELECT v.frontier, v.state, v.kept, c.*
FROM sessions AS s
LEFT JOIN saved_views AS v ON v.session = s.pk AND v.`key` = ?2
LEFT JOIN compaction_rows AS c ON c.session = s.pk AND c.view_key = ?2 AND c.status = 'live'
WHERE s.pk = ?1

-- view_put --
-- A view's state, in place of the one before; not when a compaction of the view was laid after it was built.
INSERT INTO saved_views (session, `key`, frontier, state, kept)
SELECT ?1, ?2, ?3, ?4, ?5 FROM DUAL
WHERE NOT EXISTS
      (SELECT 1 FROM compactions WHERE session = ?1 AND view_key = ?2 AND status = 'live' AND laid_at > ?6)
ON DUPLICATE KEY UPDATE frontier = VALUES(frontier), state = VALUES(state), kept = VALUES(kept)

-- views_stale --
-- From now on views that were built before this version are not saved.
UPDATE sessions SET views_from = ?2 WHERE pk = ?1

-- compactions_stale --
-- From now on compactions that were made from what was read before this version are dead on arrival.
UPDATE sessions SET compactions_from = ?2 WHERE pk = ?1

-- views_delete --
-- All views of a session.
DELETE FROM saved_views WHERE session = ?1

-- idempotency_get --
-- What a key stood for.
SELECT fingerprint, version, first_seq, entries FROM idempotency WHERE session = ?1 AND `key` = ?2

-- idempotency_put --
-- A key that was used.
INSERT INTO idempotency (session, `key`, fingerprint, version, first_seq, entries) VALUES (?1, ?2, ?3, ?4, ?5, ?6)

-- idempotency_delete --
-- With their session.
DELETE FROM idempotency WHERE session = ?1

-- compaction_next --
-- The id of a session's next compaction, and the version before which one was made from what has gone since.
SELECT coalesce((SELECT max(id) FROM compactions WHERE session = ?1), 0) + 1, compactions_from
FROM sessions WHERE pk = ?1

-- compaction_live --
-- The range of a view's live compaction, and the version it was laid at.
SELECT first_seq, last_seq, laid_at FROM compactions WHERE session = ?1 AND view_key = ?2 AND status = 'live'

-- compaction_insert --
-- A compaction.
INSERT INTO compactions (session, id, status, view_key, laid_at, first_seq, last_seq, kind, tokens, source_tokens, total,
                         model, created_at, through, prompt_tokens, completion_tokens, error, report, text)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)

-- compaction_supersede --
-- A view's live compaction, when another one takes its place.
UPDATE compactions SET status = 'superseded' WHERE session = ?1 AND view_key = ?2 AND status = 'live'

-- compaction_get --
-- One compaction.
SELECT * FROM compaction_rows WHERE session = ?1 AND id = ?2

-- compaction_drop --
-- One that is not to be used any more.
UPDATE compactions SET status = 'dropped' WHERE session = ?1 AND id = ?2

-- compactions_retire --
-- Those that reach into what leaves the live path.
UPDATE compactions SET status = 'dead' WHERE session = ?1 AND last_seq >= ?2 AND status IN ('live', 'superseded')

-- compactions_erase --
-- Those, of every status, that may tell what an erased entry said: nothing of it stays.
UPDATE compactions
SET status = CASE WHEN status IN ('live', 'superseded') THEN 'dead' ELSE status END, text = '', report = NULL,
    error = CASE WHEN error IS NULL THEN NULL ELSE ?3 END
WHERE session = ?1 AND first_seq <= ?2 AND last_seq >= ?2

-- compactions_revive --
-- The newest superseded one of each view that has no live one any more: a live one would be newer.
UPDATE compactions SET status = 'live'
WHERE session = ?1 AND status = 'superseded'
  AND id IN (SELECT newest FROM (SELECT max(id) AS newest FROM compactions
             WHERE session = ?1 AND status IN ('live', 'superseded') GROUP BY view_key) AS of_views)

-- compactions_shift --
-- Running totals of compactions on the live path, after an entry on it got another count.
UPDATE compactions SET total = total + ?3 WHERE session = ?1 AND last_seq >= ?2 AND status <> 'dead'

-- compactions_list --
-- A session's compactions, or a view's; all or the live ones.
SELECT * FROM compaction_rows
WHERE session = ?1 AND (?2 IS NULL OR view_key = ?2) AND (?3 = 0 OR status = 'live') ORDER BY id

-- compactions_trim --
-- All but the newest of those that are history.
DELETE FROM compactions
WHERE session = ?1 AND status IN ('superseded', 'dropped', 'dead')
  AND id <= (SELECT id FROM
             (SELECT id FROM compactions WHERE session = ?1 AND status IN ('superseded', 'dropped', 'dead')
              ORDER BY id DESC LIMIT 1 OFFSET ?2) AS last_to_go)

-- compactions_trim_failed --
-- All but the newest failed attempts.
DELETE FROM compactions
WHERE session = ?1 AND status = 'failed'
  AND id <= (SELECT id FROM (SELECT id FROM compactions WHERE session = ?1 AND status = 'failed'
             ORDER BY id DESC LIMIT 1 OFFSET ?2) AS last_to_go)

-- compactions_delete --
-- With their session.
DELETE FROM compactions WHERE session = ?1

-- call_insert --
-- A model call.
INSERT INTO model_calls (session, timestamp, model, prompt_tokens, completion_tokens, cached_tokens, turn_id, through,
                         view_key, hash, build)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)

-- calls_newest --
-- A session's model calls.
SELECT model, timestamp, prompt_tokens, completion_tokens, cached_tokens, turn_id, through, view_key, hash, build
FROM model_calls WHERE session = ?1 ORDER BY pk DESC LIMIT ?2

-- calls_of_turn --
-- The model calls of one turn.
SELECT model, timestamp, prompt_tokens, completion_tokens, cached_tokens, turn_id, through, view_key, hash, build
FROM model_calls WHERE session = ?1 AND turn_id = ?3 ORDER BY pk DESC LIMIT ?2

-- calls_delete --
-- With their session.
DELETE FROM model_calls WHERE session = ?1

-- artifact_name_get --
-- What is known of an artifact's name in its scope: a session, or with session 0 the user.
SELECT name, next_version, newest, versions, bytes FROM artifact_names
WHERE session = ?1 AND tenant = ?2 AND user_id = ?3 AND folded = ?4

-- artifact_name_get_lock --
-- Nobody else changes what is known of a name until the transaction ends.
SELECT 1 FROM artifact_names WHERE session = ?1 AND tenant = ?2 AND user_id = ?3 AND folded = ?4 FOR UPDATE

-- artifact_name_put --
-- A name, in place of what was known of it.
INSERT INTO artifact_names (session, tenant, user_id, folded, name, next_version, newest, versions, bytes)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON DUPLICATE KEY UPDATE name = VALUES(name), next_version = VALUES(next_version), newest = VALUES(newest),
versions = VALUES(versions), bytes = VALUES(bytes)

-- artifact_name_delete --
-- A name that has no version left.
DELETE FROM artifact_names WHERE session = ?1 AND tenant = ?2 AND user_id = ?3 AND folded = ?4

-- artifact_totals --
-- How many names, versions and bytes a scope has.
SELECT count(*), CAST(coalesce(sum(versions), 0) AS SIGNED), CAST(coalesce(sum(bytes), 0) AS SIGNED) FROM artifact_names
WHERE session = ?1 AND tenant = ?2 AND user_id = ?3

-- artifact_insert --
-- A version. Two that get the same number at once, and two with the same content, collide.
INSERT INTO artifacts (session, tenant, user_id, folded, version, name, blob_key, mime_type, size, sha256, author, metadata,
                       created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)

-- artifact_get --
-- One version.
SELECT * FROM artifact_rows WHERE session = ?1 AND tenant = ?2 AND user_id = ?3 AND folded = ?4 AND version = ?5

-- artifact_of_blob --
-- The version that has this content.
SELECT * FROM artifact_rows WHERE tenant = ?1 AND blob_key = ?2

-- artifact_versions --
-- A name's versions, behind one of them.
SELECT * FROM artifact_rows
WHERE session = ?1 AND tenant = ?2 AND user_id = ?3 AND folded = ?4 AND version > ?5 ORDER BY version LIMIT ?6

-- artifact_last --
-- The number of a name's newest version.
SELECT max(version) FROM artifacts WHERE session = ?1 AND tenant = ?2 AND user_id = ?3 AND folded = ?4

-- artifacts_newest --
-- The newest version of each name in a scope, in order of the folded names, behind one of them.
SELECT a.* FROM artifact_names AS n
JOIN artifact_rows AS a ON a.session = n.session AND a.tenant = n.tenant AND a.user_id = n.user_id
                       AND a.folded = n.folded AND a.version = n.newest
WHERE n.session = ?1 AND n.tenant = ?2 AND n.user_id = ?3 AND n.folded > ?4 ORDER BY n.folded LIMIT ?5

-- artifacts_all --
-- All versions of all names in a scope.
SELECT * FROM artifact_rows WHERE session = ?1 AND tenant = ?2 AND user_id = ?3 ORDER BY folded, version

-- artifact_delete --
-- One version.
DELETE FROM artifacts WHERE session = ?1 AND tenant = ?2 AND user_id = ?3 AND folded = ?4 AND version = ?5

-- artifact_versions_delete --
-- All versions of a name.
DELETE FROM artifacts WHERE session = ?1 AND tenant = ?2 AND user_id = ?3 AND folded = ?4

-- artifacts_delete --
-- With their session.
DELETE FROM artifacts WHERE session = ?1

-- artifact_names_delete --
-- With their session.
DELETE FROM artifact_names WHERE session = ?1

-- blobs_in_use --
-- Those of some contents, whose keys come as a JSON array, that a version has.
SELECT blob_key FROM artifacts WHERE tenant = ?1 AND blob_key IN
      (SELECT CAST(one AS BINARY) FROM JSON_TABLE(CONVERT(?2 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS found)

-- blob_put --
-- A part of a content that the database keeps.
INSERT INTO blobs (tenant, blob_key, part, written_at, data) VALUES (?1, ?2, ?3, ?4, ?5)
ON DUPLICATE KEY UPDATE written_at = VALUES(written_at), data = VALUES(data)

-- blob_get --
-- A part of a content.
SELECT data FROM blobs WHERE tenant = ?1 AND blob_key = ?2 AND part = ?3

-- blob_delete --
-- A content, all parts of it.
DELETE FROM blobs WHERE tenant = ?1 AND blob_key = ?2

-- blobs_before --
-- Contents of which nothing was written since, behind a key.
SELECT blob_key FROM blobs WHERE tenant = ?1 AND blob_key > ?3
GROUP BY blob_key HAVING max(written_at) < ?2 ORDER BY blob_key LIMIT ?4

-- media_known --
-- Those of some contents, whose hashes come as a JSON array, that a session has.
SELECT sha256 FROM media WHERE session = ?1 AND sha256 IN
      (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?2 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS found)

-- media_get --
-- Contents, whose hashes come as a JSON array.
SELECT sha256, data FROM media WHERE session = ?1 AND sha256 IN
      (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?2 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS found)

-- media_put --
-- A content that a session did not have.
INSERT INTO media (session, sha256, size, data) VALUES (?1, ?2, ?3, ?4)

-- media_use --
-- An entry that names a content.
INSERT INTO media_uses (session, seq, sha256) VALUES (?1, ?2, ?3)

-- media_of --
-- What an entry names.
SELECT sha256 FROM media_uses WHERE session = ?1 AND seq = ?2

-- media_uses_drop --
-- An entry names nothing any more.
DELETE FROM media_uses WHERE session = ?1 AND seq = ?2

-- media_drop_unused --
-- A content that no entry names any more.
DELETE FROM media WHERE session = ?1 AND sha256 = ?2
  AND NOT EXISTS (SELECT 1 FROM media_uses WHERE session = ?1 AND sha256 = ?2)

-- media_uses_delete --
-- With their session.
DELETE FROM media_uses WHERE session = ?1

-- media_delete --
-- With their session.
DELETE FROM media WHERE session = ?1

-- origin_insert --
-- Where entries of a session come from, up to the next range of it.
INSERT INTO entry_origins (session, first, source, source_first) VALUES (?1, ?2, ?3, ?4)

-- origins_named --
-- The origins of some sessions of a user, whose ids come in hexadecimal as a JSON array.
SELECT s.id, o.first, o.source, o.source_first FROM sessions AS s JOIN entry_origins AS o ON o.session = s.pk
WHERE s.tenant = ?1 AND s.user_id = ?2 AND s.withdrawn = '' AND s.id IN
      (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?3 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(1024) PATH '$')) AS found)
ORDER BY s.pk, o.first

-- origins_sharing --
-- The origins of all sessions of a user that have entries of one session, which is known by its identity.
SELECT s.id, o.first, o.source, o.source_first FROM entry_origins AS o JOIN sessions AS s ON s.pk = o.session
WHERE s.tenant = ?1 AND s.user_id = ?2 AND s.withdrawn = '' AND o.session IN
      (SELECT session FROM entry_origins WHERE source = ?3)
ORDER BY s.pk, o.first

-- origins_delete --
-- With their session.
DELETE FROM entry_origins WHERE session = ?1

-- scope_get --
-- What a scope of the state has: its version, keys, their bytes, and when it was changed last; and the floor. Of no user: the tenant's.
SELECT s.version, s.key_count, s.bytes, s.updated_at, coalesce(f.number, 0)
FROM state_scopes AS s LEFT JOIN floors AS f ON f.tenant = s.tenant WHERE s.tenant = ?1 AND s.user_id = ?2

-- scope_get_lock --
-- Nobody else writes to the scope until the transaction ends.
SELECT 1 FROM state_scopes WHERE tenant = ?1 AND user_id = ?2 FOR UPDATE

-- scope_new --
-- A scope that was never written to; another one may be making it.
INSERT INTO state_scopes (tenant, user_id, version, key_count, bytes, updated_at) VALUES (?1, ?2, 0, 0, 0, 0)
ON DUPLICATE KEY UPDATE version = version

-- scope_put --
-- A scope behind a write.
UPDATE state_scopes SET version = ?3, key_count = ?4, bytes = ?5, updated_at = ?6 WHERE tenant = ?1 AND user_id = ?2

-- scope_delete --
-- A scope that is dropped: its user's name goes with it.
DELETE FROM state_scopes WHERE tenant = ?1 AND user_id = ?2

-- state_named --
-- What stands under some keys of a scope, which come in hexadecimal as a JSON array.
SELECT name, data FROM state_values WHERE tenant = ?1 AND user_id = ?2 AND name IN
      (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?3 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(512) PATH '$')) AS found)

-- state_read --
-- A scope's version and all it holds; of a version that is known no values.
SELECT s.version, v.name, v.data
FROM state_scopes AS s
LEFT JOIN state_values AS v ON v.tenant = s.tenant AND v.user_id = s.user_id AND s.version <> ?3
WHERE s.tenant = ?1 AND s.user_id = ?2

-- state_read_named --
-- The same, and of some keys alone, which come in hexadecimal as a JSON array.
SELECT s.version, v.name, v.data
FROM state_scopes AS s
LEFT JOIN JSON_TABLE(CONVERT(?4 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(512) PATH '$')) AS n ON s.version <> ?3
LEFT JOIN state_values AS v ON v.tenant = s.tenant AND v.user_id = s.user_id AND v.name = UNHEX(n.one)
WHERE s.tenant = ?1 AND s.user_id = ?2

-- state_put --
-- What stands under a key.
INSERT INTO state_values (tenant, user_id, name, data) VALUES (?1, ?2, ?3, ?4)
ON DUPLICATE KEY UPDATE data = VALUES(data)

-- state_drop --
-- A key that goes.
DELETE FROM state_values WHERE tenant = ?1 AND user_id = ?2 AND name = ?3

-- state_clear --
-- All keys of a scope.
DELETE FROM state_values WHERE tenant = ?1 AND user_id = ?2

-- key_get --
-- One API key.
SELECT id, hash, name, opens, user_id, `role`, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget
FROM api_keys WHERE tenant = ?1 AND id = ?2

-- key_of_hash --
-- An API key by its hash.
SELECT id, hash, name, opens, user_id, `role`, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget
FROM api_keys WHERE tenant = ?1 AND hash = ?2

-- keys_after --
-- API keys in order of id, behind one of them.
SELECT id, hash, name, opens, user_id, `role`, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget
FROM api_keys WHERE tenant = ?1 AND id > ?2 ORDER BY id LIMIT ?3

-- key_insert --
-- A new API key. Two with the same id, and two with the same hash, collide.
INSERT INTO api_keys (tenant, id, hash, name, opens, user_id, `role`, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)

-- key_revoke --
-- An API key that is not valid any more.
UPDATE api_keys SET revoked_at = ?3 WHERE tenant = ?1 AND id = ?2 AND revoked_at IS NULL

-- key_use --
-- When an API key was used last.
UPDATE api_keys SET used_at = ?3 WHERE tenant = ?1 AND id = ?2 AND (used_at IS NULL OR used_at < ?3)

-- lease_put --
-- A lease, taken when nobody holds it any more, or renewed. What is set first, is set when the second looks.
INSERT INTO leases (tenant, name, holder, expires_at) VALUES (?1, ?2, ?3, ?4)
ON DUPLICATE KEY UPDATE
holder = IF(holder = VALUES(holder) OR expires_at <= ?5, VALUES(holder), holder),
expires_at = IF(holder = VALUES(holder), VALUES(expires_at), expires_at)

-- lease_get --
-- Who holds a lease, and until when.
SELECT holder, expires_at FROM leases WHERE tenant = ?1 AND name = ?2

-- lease_delete --
-- A lease that its holder gives back.
DELETE FROM leases WHERE tenant = ?1 AND name = ?2 AND holder = ?3

-- leases_clean --
-- Leases that were left to expire.
DELETE FROM leases WHERE tenant = ?1 AND expires_at <= ?2

-- learned_get --
-- What was learned of a model.
SELECT data FROM learned WHERE tenant = ?1 AND model = ?2

-- learned_get_lock --
-- Nobody else learns of the model until the transaction ends.
SELECT 1 FROM learned WHERE tenant = ?1 AND model = ?2 FOR UPDATE

-- learned_new --
-- What was learned of a model of which nothing was known: two that learn it at once do not overwrite each other.
INSERT INTO learned (tenant, model, updated_at, data) VALUES (?1, ?2, ?3, ?4)

-- learned_put --
-- What was learned of a model, in place of what stood there.
INSERT INTO learned (tenant, model, updated_at, data) VALUES (?1, ?2, ?3, ?4)
ON DUPLICATE KEY UPDATE updated_at = VALUES(updated_at), data = VALUES(data)

-- learned_trim --
-- All but the models that were written last.
DELETE FROM learned
WHERE tenant = ?1 AND (updated_at, model) <=
      (SELECT updated_at, model FROM (SELECT updated_at, model FROM learned WHERE tenant = ?1
                                      ORDER BY updated_at DESC, model DESC LIMIT 1 OFFSET ?2) AS last_to_go)

-- ping --
-- Anything that reads.
SELECT max(number) FROM holdfast_migrations

-- ping_put --
-- Undone in the same transaction by ping_delete.
INSERT INTO holdfast_migrations (number, name, checksum) VALUES (0, 'ping', left(?1, 1))

-- ping_delete --
DELETE FROM holdfast_migrations WHERE number = 0

-- memory_owner_get --
-- What an owner of memories has: its version, how many memories, the next numbers, and when it was written to last; and the floor.
SELECT o.pk, o.version, o.held, o.next_memory, o.next_signal, o.next_entry, o.updated_at, coalesce(f.number, 0)
FROM memory_owners AS o LEFT JOIN floors AS f ON f.tenant = o.tenant
WHERE o.tenant = ?1 AND o.kind = ?2 AND o.id = ?3

-- memory_owner_get_lock --
-- Nobody else writes to the owner's memories until the transaction ends.
SELECT 1 FROM memory_owners WHERE tenant = ?1 AND kind = ?2 AND id = ?3 FOR UPDATE

-- memory_owner_new --
-- An owner for whom nothing was ever written; another one may be making it.
INSERT INTO memory_owners (tenant, kind, id, version, held, next_memory, next_signal, next_entry, updated_at)
VALUES (?1, ?2, ?3, 0, 0, 1, 1, 1, 0)
ON DUPLICATE KEY UPDATE version = version

-- memory_owner_put --
-- An owner behind a write.
UPDATE memory_owners SET version = ?2, held = ?3, next_memory = ?4, next_signal = ?5, next_entry = ?6, updated_at = ?7
WHERE pk = ?1

-- memory_owner_delete --
-- An owner that is dropped: its name goes with it.
DELETE FROM memory_owners WHERE pk = ?1

-- floor_raise --
-- What the tenant keeps of those that were dropped: neither a version nor a number of theirs was above it.
INSERT INTO floors (tenant, number) VALUES (?1, ?2)
ON DUPLICATE KEY UPDATE number = GREATEST(number, ?2)

-- memory_owners_after --
-- Owners in order of kind and id, behind one of them.
SELECT kind, id, updated_at FROM memory_owners FORCE INDEX (memory_owners_name)
WHERE tenant = ?1 AND (kind > ?2 OR (kind = ?2 AND id > ?3))
ORDER BY kind, id LIMIT ?4

-- memories_forward --
-- An owner with its memories behind a number; without any, one row.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN (SELECT number, id, version, data FROM memories
           WHERE owner = (SELECT pk FROM memory_owners WHERE tenant = ?1 AND kind = ?2 AND id = ?3) AND number > ?4
           ORDER BY number LIMIT ?5) AS m ON TRUE
WHERE o.tenant = ?1 AND o.kind = ?2 AND o.id = ?3 ORDER BY m.number

-- memories_backward --
-- The same, before a number, the last first.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN (SELECT number, id, version, data FROM memories
           WHERE owner = (SELECT pk FROM memory_owners WHERE tenant = ?1 AND kind = ?2 AND id = ?3) AND number < ?4
           ORDER BY number DESC LIMIT ?5) AS m ON TRUE
WHERE o.tenant = ?1 AND o.kind = ?2 AND o.id = ?3 ORDER BY m.number DESC

-- memories_forward_of --
-- The same of a status, behind a number.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN (SELECT number, id, version, data FROM memories
           WHERE owner = (SELECT pk FROM memory_owners WHERE tenant = ?1 AND kind = ?2 AND id = ?3) AND status = ?4 AND number > ?5
           ORDER BY number LIMIT ?6) AS m ON TRUE
WHERE o.tenant = ?1 AND o.kind = ?2 AND o.id = ?3 ORDER BY m.number

-- memories_backward_of --
-- The same of a status, before a number, the last first.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN (SELECT number, id, version, data FROM memories
           WHERE owner = (SELECT pk FROM memory_owners WHERE tenant = ?1 AND kind = ?2 AND id = ?3) AND status = ?4 AND number < ?5
           ORDER BY number DESC LIMIT ?6) AS m ON TRUE
WHERE o.tenant = ?1 AND o.kind = ?2 AND o.id = ?3 ORDER BY m.number DESC

-- memories_since --
-- The same, changed behind a version, of a status or any, behind a place in a direction: numbers count times 1 or -1.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN memories AS m ON m.owner = o.pk AND m.version > ?4 AND (?5 = '' OR m.status = ?5) AND m.number * ?6 > ?7
WHERE o.tenant = ?1 AND o.kind = ?2 AND o.id = ?3 ORDER BY m.number * ?6 LIMIT ?8

-- memories_of_ids --
-- The same, those of some ids, which come as a JSON array.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN JSON_TABLE(CONVERT(?4 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS n ON TRUE
LEFT JOIN memories AS m ON m.tenant = o.tenant AND m.id = CAST(n.one AS BINARY) AND m.owner = o.pk AND m.version > ?5 AND (?6 = '' OR m.status = ?6) AND m.number * ?7 > ?8
WHERE o.tenant = ?1 AND o.kind = ?2 AND o.id = ?3 ORDER BY m.number IS NULL, m.number * ?7 LIMIT ?9

-- memories_of_numbers --
-- The same, those of some numbers, which come as a JSON array.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN JSON_TABLE(CONVERT(?4 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS n ON TRUE
LEFT JOIN memories AS m ON m.number = n.one AND m.owner = o.pk AND m.version > ?5 AND (?6 = '' OR m.status = ?6) AND m.number * ?7 > ?8
WHERE o.tenant = ?1 AND o.kind = ?2 AND o.id = ?3 ORDER BY m.number IS NULL, m.number * ?7 LIMIT ?9

-- memory_find --
-- The memory of an id, with its owner.
SELECT o.kind, o.id, m.number, m.id, m.version, m.data
FROM memories AS m JOIN memory_owners AS o ON o.pk = m.owner WHERE m.tenant = ?1 AND m.id = ?2

-- memories_named --
-- Which numbers some ids have, and of which owner; they come as a JSON array.
SELECT id, owner, number FROM memories WHERE tenant = ?1 AND id IN
      (SELECT CAST(one AS BINARY) FROM JSON_TABLE(CONVERT(?2 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS found)

-- memory_insert --
-- A memory that was not there. Two of the same id collide.
INSERT INTO memories (owner, number, tenant, id, version, status, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)

-- memory_put --
-- A memory in place of what it was.
UPDATE memories SET version = ?3, status = ?4, data = ?5 WHERE owner = ?1 AND number = ?2

-- memory_delete --
-- A memory that goes.
DELETE FROM memories WHERE owner = ?1 AND number = ?2

-- memories_clear --
-- All memories of an owner.
DELETE FROM memories WHERE owner = ?1

-- signal_insert --
-- A recall of a memory.
INSERT INTO memory_signals (owner, memory, seq, recalled_at, asked, score, session_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)

-- signals_trim --
-- All but the newest of a memory's signals.
DELETE FROM memory_signals
WHERE owner = ?1 AND memory = ?2
  AND seq <= (SELECT seq FROM (SELECT seq FROM memory_signals WHERE owner = ?1 AND memory = ?2
             ORDER BY seq DESC LIMIT 1 OFFSET ?3) AS last_to_go)

-- signals_before --
-- Signals of an owner's memories that are too old.
DELETE FROM memory_signals WHERE owner = ?1 AND recalled_at < ?2

-- signals_delete --
-- With their memory.
DELETE FROM memory_signals WHERE owner = ?1 AND memory = ?2

-- signals_clear --
-- All signals of an owner's memories.
DELETE FROM memory_signals WHERE owner = ?1

-- signals_all --
-- Signals of an owner's memories, from a time on, in the order in which they came.
SELECT m.id, s.recalled_at, s.asked, s.score, s.session_id
FROM memory_owners AS o
JOIN memory_signals AS s ON s.owner = o.pk
JOIN memories AS m ON m.owner = s.owner AND m.number = s.memory
WHERE o.tenant = ?1 AND o.kind = ?2 AND o.id = ?3 AND s.recalled_at >= ?4 ORDER BY s.seq

-- signals_of --
-- Those of some memories, whose ids come as a JSON array.
SELECT m.id, s.recalled_at, s.asked, s.score, s.session_id
FROM memory_owners AS o
JOIN JSON_TABLE(CONVERT(?4 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS n
JOIN memories AS m ON m.tenant = o.tenant AND m.id = CAST(n.one AS BINARY) AND m.owner = o.pk
JOIN memory_signals AS s ON s.owner = m.owner AND s.memory = m.number
WHERE o.tenant = ?1 AND o.kind = ?2 AND o.id = ?3 AND s.recalled_at >= ?5 ORDER BY s.seq

-- diary_insert --
-- A sweep over an owner's memories.
INSERT INTO memory_diary (owner, seq, id, swept_at, report) VALUES (?1, ?2, ?3, ?4, ?5)

-- diary_trim --
-- Those before a place.
DELETE FROM memory_diary WHERE owner = ?1 AND seq < ?2

-- diary_newest --
-- The newest of an owner, newest first.
SELECT d.id, d.swept_at, d.report
FROM memory_owners AS o JOIN memory_diary AS d ON d.owner = o.pk
WHERE o.tenant = ?1 AND o.kind = ?2 AND o.id = ?3 ORDER BY d.seq DESC LIMIT ?4

-- diary_clear --
-- All of an owner.
DELETE FROM memory_diary WHERE owner = ?1

-- index_space_get --
-- A space of an index, and how much it has in each channel.
SELECT number, talk_documents, talk_length, tool_documents, tool_length FROM index_spaces
WHERE tenant = ?1 AND kind = ?2 AND name = ?3

-- index_space_get_lock --
-- Writers of a space come one after the other.
SELECT 1 FROM index_spaces WHERE tenant = ?1 AND kind = ?2 AND name = ?3 FOR UPDATE

-- index_space_new --
-- A space that has nothing yet. Two that make it at once collide.
INSERT INTO index_spaces (tenant, kind, name, talk_documents, talk_length, tool_documents, tool_length)
VALUES (?1, ?2, ?3, 0, 0, 0, 0)

-- index_space_add --
-- What came and went of a space, by channel.
UPDATE index_spaces
SET talk_documents = talk_documents + ?2, talk_length = talk_length + ?3,
    tool_documents = tool_documents + ?4, tool_length = tool_length + ?5
WHERE number = ?1

-- index_space_rename --
-- A space that is to go loses its name, and nobody finds it any more.
UPDATE index_spaces SET kind = ?2, name = ?3 WHERE number = ?1

-- index_space_delete --
-- A space that has no source left.
DELETE FROM index_spaces WHERE number = ?1

-- index_spaces --
-- Spaces of a tenant; of one kind, or of all.
SELECT number, kind, name FROM index_spaces
WHERE tenant = ?1 AND (?2 IS NULL OR kind = ?2) ORDER BY kind, name LIMIT ?3

-- index_spaces_lock --
-- The same of several.
SELECT 1 FROM index_spaces WHERE tenant = ?1 AND (?2 IS NULL OR kind = ?2) ORDER BY kind, name LIMIT ?3 FOR UPDATE

-- index_source_get --
-- How far a source of a space is.
SELECT number, identity, version, next_seq, talk, tool, epoch, complete, documents FROM index_sources
WHERE space = ?1 AND id = ?2

-- index_source_new --
-- A source that has nothing yet.
INSERT INTO index_sources (space, id, identity, version, next_seq, talk, tool, epoch, complete, documents)
VALUES (?1, ?2, ?3, 0, 0, 0, 0, 0, 0, 0)

-- index_source_put --
-- How far a source is; the last parameter is how many documents came, less those that went.
UPDATE index_sources
SET version = ?2, next_seq = ?3, talk = ?4, tool = ?5, epoch = ?6, complete = ?7, documents = documents + ?8
WHERE number = ?1

-- index_source_delete --
-- A source that has no documents left.
DELETE FROM index_sources WHERE number = ?1

-- index_sources_named --
-- Numbers of the sources of a space with these ids, and how many documents each has; ids in hexadecimal.
SELECT number, documents FROM index_sources
WHERE space = ?1 AND id IN (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?2 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(2048) PATH '$')) AS found)

-- index_sources_of --
-- Some sources of a space.
SELECT number, id FROM index_sources WHERE space = ?1 ORDER BY id LIMIT ?2

-- index_sources_after --
-- Sources of some spaces, those next behind one, in order of space and id; a space that has none has a row without a source.
SELECT p.kind, p.name, s.id, s.identity, s.version, s.next_seq, s.talk, s.tool, s.epoch, s.complete
FROM (SELECT number, kind, name FROM index_spaces FORCE INDEX (index_spaces_name)
      WHERE tenant = ?1 AND (kind > ?2 OR kind = ?2 AND name > ?3) AND kind <> 'gone' ORDER BY kind, name LIMIT ?4) AS p
     LEFT JOIN index_sources AS s FORCE INDEX (index_sources_id) ON s.space = p.number
ORDER BY p.kind, p.name, s.id LIMIT ?5

-- index_sources_of_after --
-- Those of one space, from an id on or behind it.
SELECT p.kind, p.name, s.id, s.identity, s.version, s.next_seq, s.talk, s.tool, s.epoch, s.complete
FROM index_spaces AS p STRAIGHT_JOIN index_sources AS s FORCE INDEX (index_sources_id) ON s.space = p.number
WHERE p.number = ?1 AND s.id >= ?2 AND (?3 = 1 OR s.id > ?2)
ORDER BY s.id LIMIT ?4

-- index_sources_incomplete --
-- Incomplete sources of some spaces from a place on, in order of space and id.
SELECT p.kind, p.name, s.id, s.identity, s.version, s.next_seq, s.talk, s.tool, s.epoch, s.complete
FROM index_sources AS s FORCE INDEX (index_sources_incomplete) STRAIGHT_JOIN index_spaces AS p FORCE INDEX (PRIMARY) ON p.number = s.space
WHERE p.tenant = ?1 AND s.complete = 0 AND s.space BETWEEN ?2 AND ?3
      AND (p.kind, p.name) >= (?4, ?5) AND ((p.kind, p.name) > (?4, ?5) OR ?6 IS NULL OR s.id > ?6)
      AND p.kind <> 'gone'
ORDER BY p.kind, p.name, s.id LIMIT ?7

-- index_sources_count --
-- Sources of the spaces of a tenant, or of one of them, how many are incomplete, and all their documents.
SELECT count(*), coalesce(sum(1 - s.complete), 0), coalesce(sum(s.documents), 0)
FROM index_spaces AS p JOIN index_sources AS s ON s.space = p.number
WHERE p.tenant = ?1 AND p.number BETWEEN ?2 AND ?3 AND p.kind <> 'gone'

-- index_documents_at --
-- Documents of a source with these numbers or ids, as they are to be taken away.
SELECT d.id, d.seq, d.channel, d.digest, d.length, d.terms, d.model
FROM JSON_TABLE(CONVERT(?2 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (index_documents_seq) ON d.source = ?1 AND d.seq = wanted.one
UNION
SELECT d.id, d.seq, d.channel, d.digest, d.length, d.terms, d.model
FROM JSON_TABLE(CONVERT(?3 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = wanted.one
WHERE d.source = ?1

-- index_documents_first --
-- Some documents of a source, as they are to be taken away.
SELECT id, seq, channel, digest, length, terms, model FROM index_documents WHERE source = ?1 ORDER BY seq LIMIT ?2

-- index_documents_delete --
-- Documents, by id.
DELETE d FROM JSON_TABLE(CONVERT(?1 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = wanted.one

-- index_document_put --
-- A document; in place of what it was before.
INSERT INTO index_documents (id, space, channel, source, seq, at, length, traits, model, role, agent, name, digest, terms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
ON DUPLICATE KEY UPDATE
    seq = VALUES(seq), at = VALUES(at), role = VALUES(role), agent = VALUES(agent), name = VALUES(name),
    traits = VALUES(traits)

-- index_documents_held --
-- Numbers and digests of the documents of a source.
SELECT seq, digest FROM index_documents WHERE source = ?1 AND seq >= ?2 ORDER BY seq LIMIT ?3

-- index_posting_put --
-- The words of a new document.
INSERT INTO index_postings (word, id)
SELECT CAST(wanted.one AS BINARY), ?1
FROM JSON_TABLE(CONVERT(CONCAT('["', REPLACE(?2, ' ', '","'), '"]') USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS wanted
WHERE wanted.one <> ''

-- index_posting_delete --
-- The words that a document had.
DELETE p FROM JSON_TABLE(CONVERT(CONCAT('["', REPLACE(?2, ' ', '","'), '"]') USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS wanted
     STRAIGHT_JOIN index_postings AS p FORCE INDEX (PRIMARY) ON p.word = CAST(wanted.one AS BINARY) AND p.id = ?1

-- index_frequencies_add --
-- More or fewer documents with these terms; pairs in order of the terms.
INSERT INTO index_frequencies (space, channel, term, documents)
SELECT ?1, ?2, one.term, one.more
FROM JSON_TABLE(CONVERT(?3 USING utf8mb4), '$[*]' COLUMNS (term VARCHAR(64) PATH '$[0]', more BIGINT PATH '$[1]')) AS one
ON DUPLICATE KEY UPDATE documents = index_frequencies.documents + VALUES(documents)

-- index_frequencies_clean --
-- Those of these terms that no document has any more.
DELETE f FROM JSON_TABLE(CONVERT(?3 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS wanted
     STRAIGHT_JOIN index_frequencies AS f FORCE INDEX (PRIMARY) ON f.space = ?1 AND f.channel = ?2 AND f.term = CAST(wanted.one AS BINARY)
WHERE f.documents <= 0

-- index_frequencies --
-- In how many documents these terms stand.
SELECT f.term, f.documents
FROM JSON_TABLE(CONVERT(?3 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS wanted
     STRAIGHT_JOIN index_frequencies AS f FORCE INDEX (PRIMARY) ON f.space = ?1 AND f.channel = ?2 AND f.term = CAST(wanted.one AS BINARY)

-- index_postings_read --
-- All documents that have a word, for up to eight words at once: which one, and the document's id.
SELECT 0, id FROM index_postings WHERE word = ?1 UNION ALL
SELECT 1, id FROM index_postings WHERE word = ?2 UNION ALL
SELECT 2, id FROM index_postings WHERE word = ?3 UNION ALL
SELECT 3, id FROM index_postings WHERE word = ?4 UNION ALL
SELECT 4, id FROM index_postings WHERE word = ?5 UNION ALL
SELECT 5, id FROM index_postings WHERE word = ?6 UNION ALL
SELECT 6, id FROM index_postings WHERE word = ?7 UNION ALL
SELECT 7, id FROM index_postings WHERE word = ?8

-- index_postings_newest --
-- The newest documents that have two words, or one that is given twice.
SELECT id FROM index_postings AS w
WHERE word = ?1 AND (?1 = ?2 OR EXISTS (SELECT 1 FROM index_postings AS o WHERE o.word = ?2 AND o.id = w.id))
ORDER BY id DESC LIMIT ?3

-- index_postings_passing --
-- The same of those that pass filters.
SELECT d.id FROM index_postings AS w STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = w.id
WHERE w.word = ?1 AND (?1 = ?2 OR EXISTS (SELECT 1 FROM index_postings AS o WHERE o.word = ?2 AND o.id = w.id))
      AND (?4 IS NULL OR d.source IN (SELECT one FROM JSON_TABLE(CONVERT(?4 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS found))
      AND (?5 IS NULL OR d.source NOT IN (SELECT one FROM JSON_TABLE(CONVERT(?5 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS found))
      AND (?6 IS NULL OR d.agent IN (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?6 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(2048) PATH '$')) AS found))
      AND (?7 IS NULL OR d.role IN (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?7 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(2048) PATH '$')) AS found))
      AND d.at >= ?8 AND d.at < ?9
ORDER BY w.id DESC LIMIT ?3

-- index_documents_counted --
-- How many documents a space has in a time, up to a number.
SELECT count(*) FROM (SELECT 1 FROM index_documents WHERE space = ?1 AND channel = ?2 AND at >= ?3 AND at < ?4 LIMIT ?5) AS counted

-- index_candidates --
-- Documents by id that pass filters.
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM JSON_TABLE(CONVERT(?1 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = wanted.one
     STRAIGHT_JOIN index_sources AS s FORCE INDEX (PRIMARY) ON s.number = d.source
WHERE d.space = ?2 AND d.channel = ?3
      AND (?4 IS NULL OR d.source IN (SELECT one FROM JSON_TABLE(CONVERT(?4 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS found))
      AND (?5 IS NULL OR d.source NOT IN (SELECT one FROM JSON_TABLE(CONVERT(?5 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS found))
      AND (?6 IS NULL OR d.agent IN (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?6 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(2048) PATH '$')) AS found))
      AND (?7 IS NULL OR d.role IN (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?7 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(2048) PATH '$')) AS found))
      AND d.at >= ?8 AND d.at < ?9

-- index_candidates_newest --
-- The newest documents of a space that pass filters.
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM index_documents AS d FORCE INDEX (index_documents_at) STRAIGHT_JOIN index_sources AS s FORCE INDEX (PRIMARY) ON s.number = d.source
WHERE d.space = ?2 AND d.channel = ?3
      AND (?4 IS NULL OR d.source IN (SELECT one FROM JSON_TABLE(CONVERT(?4 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS found))
      AND (?5 IS NULL OR d.source NOT IN (SELECT one FROM JSON_TABLE(CONVERT(?5 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS found))
      AND (?6 IS NULL OR d.agent IN (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?6 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(2048) PATH '$')) AS found))
      AND (?7 IS NULL OR d.role IN (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?7 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(2048) PATH '$')) AS found))
      AND d.at >= ?8 AND d.at < ?9
ORDER BY d.at DESC, d.id DESC LIMIT ?1

-- index_candidates_of --
-- The same where the sources are named, which have few documents beside those of the space.
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM JSON_TABLE(CONVERT(?4 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted STRAIGHT_JOIN index_sources AS s FORCE INDEX (PRIMARY) ON s.number = wanted.one
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (index_documents_seq) ON d.source = s.number
WHERE d.space = ?2 AND d.channel = ?3
      AND (?5 IS NULL OR d.source NOT IN (SELECT one FROM JSON_TABLE(CONVERT(?5 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS found))
      AND (?6 IS NULL OR d.agent IN (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?6 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(2048) PATH '$')) AS found))
      AND (?7 IS NULL OR d.role IN (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?7 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(2048) PATH '$')) AS found))
      AND d.at >= ?8 AND d.at < ?9
ORDER BY d.at DESC, d.id DESC LIMIT ?1

-- index_candidates_at --
-- Documents of a source by their numbers.
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM JSON_TABLE(CONVERT(?2 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (index_documents_seq) ON d.source = ?1 AND d.seq = wanted.one
     STRAIGHT_JOIN index_sources AS s FORCE INDEX (PRIMARY) ON s.number = d.source
ORDER BY d.id

-- index_models --
-- The models of a tenant's vectors; the nameless one is that of documents that have none.
SELECT number, name, dimensions FROM index_models WHERE tenant = ?1

-- index_models_lock --
-- None of them goes while documents get vectors of it.
SELECT 1 FROM index_models WHERE tenant = ?1 LOCK IN SHARE MODE

-- index_model_new --
-- A model of which nothing was there. Two that make it at once collide.
INSERT INTO index_models (tenant, name, dimensions) VALUES (?1, ?2, ?3)

-- index_model_delete --
-- A model of which nothing is there any more.
DELETE FROM index_models WHERE number = ?1 AND NOT EXISTS (SELECT 1 FROM index_documents WHERE model = ?1)

-- index_model_delete_lock --
-- Whoever puts vectors of it has done so before it is looked at.
SELECT 1 FROM index_models WHERE number = ?1 FOR UPDATE

-- index_model_of --
-- Some documents that have a vector of a model.
SELECT id FROM index_documents WHERE model = ?1 ORDER BY space, id LIMIT ?2

-- index_model_count --
-- How many documents have a vector of a model, of all spaces or of one.
SELECT count(*) FROM index_documents WHERE model = ?1 AND space BETWEEN ?2 AND ?3

-- index_pending --
-- Documents of a model, or without a vector, space by space, the oldest of each first; each with the one at the place before.
SELECT p.kind, p.name, s.id, s.identity, d.seq, d.digest, b.seq, b.digest
FROM index_documents AS d FORCE INDEX (index_documents_model) STRAIGHT_JOIN index_sources AS s FORCE INDEX (PRIMARY) ON s.number = d.source
     STRAIGHT_JOIN index_spaces AS p FORCE INDEX (PRIMARY) ON p.number = d.space
     LEFT JOIN index_documents AS b FORCE INDEX (PRIMARY) ON b.id = d.id - 1 AND b.source = d.source AND b.channel = d.channel
WHERE d.model = ?1 AND d.space BETWEEN ?2 AND ?3 AND p.kind <> 'gone' ORDER BY d.space, d.id LIMIT ?4

-- index_documents_model --
-- Documents whose vector is of another model from now on.
UPDATE JSON_TABLE(CONVERT(?1 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = wanted.one
SET d.model = ?2

-- index_vector_put --
-- A document's vector, in place of another.
INSERT INTO index_vectors (id, mark, data) VALUES (?1, ?2, ?3)
ON DUPLICATE KEY UPDATE mark = VALUES(mark), data = VALUES(data)

-- index_vectors_delete --
-- Vectors of documents.
DELETE v FROM JSON_TABLE(CONVERT(?1 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_vectors AS v FORCE INDEX (PRIMARY) ON v.id = wanted.one

-- index_vectors_at --
-- Vectors of documents, of those that have one of a model.
SELECT d.id, v.data FROM JSON_TABLE(CONVERT(?1 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = wanted.one
     STRAIGHT_JOIN index_vectors AS v FORCE INDEX (PRIMARY) ON v.id = d.id
WHERE d.model = ?2

-- index_vectors_like --
-- Vectors of a model in a space whose documents' digests begin with these eight bytes, as a number.
SELECT d.digest, v.data
FROM JSON_TABLE(CONVERT(?3 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_vectors AS v FORCE INDEX (index_vectors_mark) ON v.mark = wanted.one
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = v.id
WHERE d.model = ?1 AND d.space = ?2

-- index_vectors_read --
-- Vectors of a model in a space, from an id on, of documents that pass filters.
SELECT d.id, v.data FROM index_documents AS d FORCE INDEX (index_documents_model) STRAIGHT_JOIN index_vectors AS v FORCE INDEX (PRIMARY) ON v.id = d.id
WHERE d.model = ?1 AND d.space = ?2 AND d.id > ?10 AND d.channel = ?3
      AND (?4 IS NULL OR d.source IN (SELECT one FROM JSON_TABLE(CONVERT(?4 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS found))
      AND (?5 IS NULL OR d.source NOT IN (SELECT one FROM JSON_TABLE(CONVERT(?5 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS found))
      AND (?6 IS NULL OR d.agent IN (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?6 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(2048) PATH '$')) AS found))
      AND (?7 IS NULL OR d.role IN (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?7 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(2048) PATH '$')) AS found))
      AND d.at >= ?8 AND d.at < ?9
ORDER BY d.id LIMIT ?11

-- index_nearest --
-- Never asked: vectors are compared outside of the server, see `index_vectors_read`.
SELECT d.id, LENGTH(?10) AS near
FROM index_documents AS d FORCE INDEX (index_documents_model) STRAIGHT_JOIN index_vectors AS v FORCE INDEX (PRIMARY) ON v.id = d.id
WHERE d.model = ?1 AND d.space = ?2 AND d.channel = ?3
      AND (?4 IS NULL OR d.source IN (SELECT one FROM JSON_TABLE(CONVERT(?4 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS found))
      AND (?5 IS NULL OR d.source NOT IN (SELECT one FROM JSON_TABLE(CONVERT(?5 USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS found))
      AND (?6 IS NULL OR d.agent IN (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?6 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(2048) PATH '$')) AS found))
      AND (?7 IS NULL OR d.role IN (SELECT UNHEX(one) FROM JSON_TABLE(CONVERT(?7 USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(2048) PATH '$')) AS found))
      AND d.at >= ?8 AND d.at < ?9
ORDER BY near DESC, d.id DESC LIMIT ?11

-- index_note_get --
-- What a tenant keeps under a name.
SELECT data FROM index_notes WHERE tenant = ?1 AND name = ?2

-- index_note_put --
-- The same, in place of what stood there.
INSERT INTO index_notes (tenant, name, data) VALUES (?1, ?2, ?3)
ON DUPLICATE KEY UPDATE data = VALUES(data)

-- index_note_new --
-- The same, where nothing stands there.
INSERT INTO index_notes (tenant, name, data) VALUES (?1, ?2, ?3)
ON DUPLICATE KEY UPDATE name = name

-- index_note_delete --
DELETE FROM index_notes WHERE tenant = ?1 AND name = ?2
