-- Every statement of the SQL stores: `-- name(parameters) --`, what it is for, and its text where two dialects or more share it.
-- A dialect's `overrides.sql` has the text of the others. `holdfast.stores.sql.statements` compiles both.
--
-- Callers pass values in the order of the parameters in the header. A parameter may have a type, for the dialects that need one:
-- int, float, bytes, text, or after IN a JSON array: ints, texts, names (texts in hexadecimal), hashes (bytes in hexadecimal).
-- `{name}` stands for the text of another statement. `ON CONFLICT` is written as SQLite and PostgreSQL have it.
-- The columns of session_rows and entry_rows, in order, are what `holdfast.stores.logic.rows` decodes.

-- filters(sources ints, without ints, agents names, roles names, since, until) --
-- Part of others: which documents of an index a search may find.
(:sources IS NULL OR d.source IN :sources) AND (:without IS NULL OR d.source NOT IN :without)
      AND (:agents IS NULL OR d.agent IN :agents) AND (:roles IS NULL OR d.role IN :roles) AND d.at >= :since AND d.at < :until

-- session_get(tenant, id, user_id, withdrawn) --
-- One session by its name; a withdrawn one by what it is withdrawn for, else that is empty.
SELECT * FROM session_rows WHERE tenant = :tenant AND id = :id AND user_id = :user_id AND withdrawn = :withdrawn

-- session_find(tenant, id) --
-- Sessions of that id among all users of a tenant; two are enough to know that it is ambiguous.
SELECT * FROM session_rows WHERE tenant = :tenant AND id = :id AND withdrawn = '' LIMIT 2

-- session_insert(tenant, user_id, id, agent, version, created_at, accessed_at int, status text, ttl int, messages, bytes, calls, prompt_tokens, completion_tokens, cached_tokens, next_seq, turn_id, total, digest, last_seq, last_kind, unit, open_calls, anchor, identity) --
-- A new session.
INSERT INTO sessions (tenant, user_id, id, agent, version, created_at, updated_at, status, ttl, messages, bytes, calls,
                      prompt_tokens, completion_tokens, cached_tokens, next_seq, turn_id, total, digest, last_seq,
                      last_kind, unit, open_calls, anchor, accessed_at, expires_at, identity)
VALUES (:tenant, :user_id, :id, :agent, :version, :created_at, :accessed_at, :status, :ttl, :messages, :bytes, :calls, :prompt_tokens, :completion_tokens, :cached_tokens, :next_seq, :turn_id, :total, :digest, :last_seq, :last_kind, :unit, :open_calls, :anchor, :accessed_at,
        :accessed_at + nullif(:ttl, 0), :identity)
RETURNING pk

-- session_advance(pk, version, accessed_at int, status text, messages, bytes, calls, prompt_tokens, completion_tokens, cached_tokens, next_seq, turn_id, total, digest, last_seq, last_kind, unit, open_calls, anchor, claim_holder, claim_until, claim_wanted) --
-- A session after its log grew: everything that an append changes.
UPDATE sessions
SET version = :version, updated_at = :accessed_at, status = :status, messages = :messages, bytes = :bytes, calls = :calls, prompt_tokens = :prompt_tokens,
    completion_tokens = :completion_tokens, cached_tokens = :cached_tokens, next_seq = :next_seq, turn_id = :turn_id, total = :total, digest = :digest,
    last_seq = :last_seq, last_kind = :last_kind, unit = :unit, open_calls = :open_calls, anchor = :anchor, accessed_at = :accessed_at, expires_at = :accessed_at + nullif(ttl, 0),
    ended_at = CASE WHEN :status = 'active' THEN NULL ELSE ended_at END,
    end_reason = CASE WHEN :status = 'active' THEN NULL ELSE end_reason END,
    claim_holder = :claim_holder, claim_until = :claim_until, claim_wanted = :claim_wanted
WHERE pk = :pk

-- session_claim(pk, claim_holder, claim_until, claim_wanted) --
-- Who has a turn of a session open, where nothing else of it changes.
UPDATE sessions SET claim_holder = :claim_holder, claim_until = :claim_until, claim_wanted = :claim_wanted WHERE pk = :pk

-- claim_want(pk, claim_holder) --
-- Somebody asks the holder of a turn to stop.
UPDATE sessions SET claim_wanted = 1 WHERE pk = :pk AND claim_holder = :claim_holder

-- session_patch(pk, version, accessed_at int, agent, ttl int) --
-- A session's own fields.
UPDATE sessions
SET version = :version, updated_at = :accessed_at, agent = :agent, ttl = :ttl, accessed_at = :accessed_at,
    expires_at = :accessed_at + nullif(:ttl, 0)
WHERE pk = :pk

-- session_touch(pk, version, total, bytes) --
-- A session one of whose entries changed.
UPDATE sessions SET version = :version, total = :total, bytes = :bytes WHERE pk = :pk

-- session_used(pk, accessed_at int) --
-- A session that somebody used without writing to it.
UPDATE sessions SET accessed_at = :accessed_at, expires_at = :accessed_at + nullif(ttl, 0) WHERE pk = :pk AND accessed_at < :accessed_at

-- session_end(pk, version, ended_at, end_reason) --
-- A session that has ended, and keeps its name.
UPDATE sessions SET version = :version, status = 'closed', ended_at = :ended_at, end_reason = :end_reason WHERE pk = :pk

-- session_withdraw(pk, version, ended_at, end_reason, withdrawn) --
-- A session that has ended, and loses its name.
UPDATE sessions SET version = :version, status = 'closed', ended_at = :ended_at, end_reason = :end_reason, withdrawn = :withdrawn WHERE pk = :pk

-- sessions_idle(tenant, idle_since, limit) --
-- Active sessions without a ttl of their own that were not used since, the longest idle first.
SELECT * FROM session_rows
WHERE tenant = :tenant AND status = 'active' AND accessed_at <= :idle_since AND ttl IS NULL ORDER BY accessed_at LIMIT :limit

-- sessions_expired(tenant, now, limit) --
-- Active sessions whose own ttl is over.
SELECT * FROM session_rows
WHERE tenant = :tenant AND status = 'active' AND expires_at IS NOT NULL AND expires_at <= :now ORDER BY expires_at LIMIT :limit

-- sessions_oldest(tenant, limit) --
-- Active sessions, the longest idle first.
SELECT * FROM session_rows WHERE tenant = :tenant AND status = 'active' ORDER BY accessed_at LIMIT :limit

-- sessions_active(tenant) --
-- How many sessions are active.
SELECT count(*) FROM sessions WHERE tenant = :tenant AND status = 'active'

-- tenant_after(after) --
-- The next tenant that has sessions, or owners of memories.
SELECT tenant FROM (
    SELECT * FROM (SELECT tenant FROM sessions WHERE tenant > :after ORDER BY tenant LIMIT 1) AS one
    UNION ALL SELECT * FROM (SELECT tenant FROM memory_owners WHERE tenant > :after ORDER BY tenant LIMIT 1) AS other
) AS found ORDER BY tenant LIMIT 1

-- ending_insert(tenant, id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error) --
-- An end that hooks are to be told of.
INSERT INTO endings (tenant, id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error)
VALUES (:tenant, :id, :user_id, :session_id, :identity, :withdrawn, :reason, :ended_at, :due_at, :attempts, :hooks, :error)

-- ending_get(tenant, id) --
-- One of them.
SELECT id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error
FROM endings WHERE tenant = :tenant AND id = :id

-- endings_due(tenant, due, limit) --
-- Those that are due, in the order in which they are.
SELECT id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error
FROM endings WHERE tenant = :tenant AND due_at <= :due ORDER BY due_at, ended_at, id LIMIT :limit

-- endings_of_user(tenant, user_id, after, limit) --
-- Those of a user's sessions, in order of id, behind one of them.
SELECT id, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error
FROM endings WHERE tenant = :tenant AND user_id = :user_id AND id > :after ORDER BY id LIMIT :limit

-- ending_put(tenant, id, due_at, attempts, hooks, error) --
-- What became of telling one.
UPDATE endings SET due_at = :due_at, attempts = :attempts, hooks = :hooks, error = :error WHERE tenant = :tenant AND id = :id

-- ending_delete(tenant, id) --
-- One that everybody was told of.
DELETE FROM endings WHERE tenant = :tenant AND id = :id

-- session_holds(session) --
-- How much hangs on a session: compactions, saved views, model calls, idempotency keys, artifacts and media with their bytes.

-- session_delete(pk) --
-- The session's row; what hangs on it is deleted by the statements below.
DELETE FROM sessions WHERE pk = :pk

-- profile_put(session int, system_messages bytes, state bytes, metadata bytes) --
-- The large fields of a session.
INSERT INTO profiles (session, system_messages, state, metadata) VALUES (:session, :system_messages, :state, :metadata)
ON CONFLICT (session) DO UPDATE
SET system_messages = excluded.system_messages, state = excluded.state, metadata = excluded.metadata

-- profile_delete(session) --
-- With its session.
DELETE FROM profiles WHERE session = :session

-- list_newest(tenant, at, user_id, id, agent bytes, status text, limit, now int, idle_since int) --
-- A tenant's sessions, newest first, behind a place.
SELECT * FROM session_rows
WHERE tenant = :tenant AND (updated_at, user_id, id) < (:at, :user_id, :id)
  AND (:agent IS NULL OR agent = :agent) AND withdrawn = ''
  AND (:status IS NULL OR :status = CASE
       WHEN status = 'active' AND (expires_at <= :now OR ttl IS NULL AND accessed_at <= :idle_since) THEN 'closed'
       ELSE status END)
ORDER BY updated_at DESC, user_id DESC, id DESC LIMIT :limit

-- list_oldest(tenant, at, user_id, id, agent bytes, status text, limit, now int, idle_since int) --
-- A tenant's sessions, oldest first, behind a place.
SELECT * FROM session_rows
WHERE tenant = :tenant AND (updated_at, user_id, id) > (:at, :user_id, :id)
  AND (:agent IS NULL OR agent = :agent) AND withdrawn = ''
  AND (:status IS NULL OR :status = CASE
       WHEN status = 'active' AND (expires_at <= :now OR ttl IS NULL AND accessed_at <= :idle_since) THEN 'closed'
       ELSE status END)
ORDER BY updated_at, user_id, id LIMIT :limit

-- list_newest_of_user(tenant, at, user_id, id, agent bytes, status text, limit, now int, idle_since int) --
-- A user's sessions, newest first, behind a place.
SELECT * FROM session_rows
WHERE tenant = :tenant AND user_id = :user_id AND (updated_at, id) < (:at, :id)
  AND (:agent IS NULL OR agent = :agent) AND withdrawn = ''
  AND (:status IS NULL OR :status = CASE
       WHEN status = 'active' AND (expires_at <= :now OR ttl IS NULL AND accessed_at <= :idle_since) THEN 'closed'
       ELSE status END)
ORDER BY updated_at DESC, id DESC LIMIT :limit

-- list_oldest_of_user(tenant, at, user_id, id, agent bytes, status text, limit, now int, idle_since int) --
-- A user's sessions, oldest first, behind a place.
SELECT * FROM session_rows
WHERE tenant = :tenant AND user_id = :user_id AND (updated_at, id) > (:at, :id)
  AND (:agent IS NULL OR agent = :agent) AND withdrawn = ''
  AND (:status IS NULL OR :status = CASE
       WHEN status = 'active' AND (expires_at <= :now OR ttl IS NULL AND accessed_at <= :idle_since) THEN 'closed'
       ELSE status END)
ORDER BY updated_at, id LIMIT :limit

-- entry_insert(session int, seq int, turn_id int, unit_back int, timestamp int, tokens int, total int, kind int, digest bytes, agent bytes, importance float, pinned int, metadata bytes, payload bytes, mark int, alias int) --
-- One entry at the end of the log.
INSERT INTO entries (session, seq, turn_id, unit_back, timestamp, tokens, total, kind, digest, agent, importance, pinned,
                     retired_by, erased, metadata, payload, mark, alias)
VALUES (:session, :seq, :turn_id, :unit_back, :timestamp, :tokens, :total, :kind, :digest, :agent, :importance, :pinned, NULL, 0, :metadata, :payload, :mark, :alias)

-- entry_install(session int, seq int, turn_id int, unit_back int, timestamp int, tokens int, total int, kind int, digest bytes, agent bytes, importance float, pinned int, metadata bytes, payload bytes, mark int, alias int, retired_by int, erased int) --
-- One entry of a log that has a past: retired, erased, or both.
INSERT INTO entries (session, seq, turn_id, unit_back, timestamp, tokens, total, kind, digest, agent, importance, pinned,
                     retired_by, erased, metadata, payload, mark, alias)
VALUES (:session, :seq, :turn_id, :unit_back, :timestamp, :tokens, :total, :kind, :digest, :agent, :importance, :pinned, :retired_by, :erased, :metadata, :payload, :mark, :alias)

-- entry_annotate(session, seq, pinned, importance, metadata) --
-- Pin, importance and metadata of a live entry.
UPDATE entries SET pinned = :pinned, importance = :importance, metadata = :metadata
WHERE session = :session AND seq = :seq AND retired_by IS NULL

-- entry_erase_live(session, seq, payload, tokens) --
-- What stays of an erased entry of the live path; its total follows by `entries_shift`.
UPDATE entries SET payload = :payload, tokens = :tokens, erased = 1, metadata = NULL, alias = NULL
WHERE session = :session AND seq = :seq AND retired_by IS NULL

-- entry_erase_retired(session, seq, payload, tokens) --
-- What stays of an erased entry that is retired.
UPDATE entries SET payload = :payload, tokens = :tokens, erased = 1, metadata = NULL, alias = NULL
WHERE session = :session AND seq = :seq AND retired_by IS NOT NULL

-- entries_shift_live(session, start, stop, shift) --
-- Running totals of live entries, after an entry on their path got another count.
UPDATE entries SET total = total + :shift WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NULL

-- entries_shift_retired(session, start, stop, shift) --
-- Running totals of retired entries, after an entry on their path got another count.
UPDATE entries SET total = total + :shift WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NOT NULL

-- entries_retire(session, start, retired_by) --
-- The end of the live path leaves it.
UPDATE entries SET retired_by = :retired_by WHERE session = :session AND seq >= :start AND retired_by IS NULL

-- entries_count_from(session, start) --
-- How many live entries would be retired.
SELECT count(*) FROM entries WHERE session = :session AND seq >= :start AND retired_by IS NULL

-- entries_delete_live(session) --
-- With their session.
DELETE FROM entries WHERE session = :session AND retired_by IS NULL

-- entries_delete_retired(session) --
-- With their session.
DELETE FROM entries WHERE session = :session AND retired_by IS NOT NULL

-- entry_live(session, seq) --
-- One live entry.
SELECT * FROM entry_rows WHERE session = :session AND seq = :seq AND retired_by IS NULL

-- entries_among(session, seqs ints) --
-- The live ones among some entries, whose places come as a JSON array.
SELECT * FROM entry_rows
WHERE session = :session AND seq IN :seqs AND retired_by IS NULL ORDER BY seq

-- entry_is_live(session, seq) --
-- Whether an entry stands on the live path.
SELECT 1 FROM entries WHERE session = :session AND seq = :seq AND retired_by IS NULL

-- unrated_among(session, seqs ints) --
-- How many of some entries are live and have no importance yet.
SELECT count(*) FROM entries
WHERE session = :session AND seq IN :seqs AND retired_by IS NULL AND importance IS NULL

-- entry_rate(session, seq, importance) --
-- The importance of a live entry that has none.
UPDATE entries SET importance = :importance WHERE session = :session AND seq = :seq AND retired_by IS NULL AND importance IS NULL

-- entry_retired(session, seq) --
-- One retired entry.
SELECT * FROM entry_rows WHERE session = :session AND seq = :seq AND retired_by IS NOT NULL

-- live_forward(session, start, stop, limit) --
-- A range of the live path.
SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NULL ORDER BY seq LIMIT :limit

-- live_backward(session, start, stop, limit) --
-- A range of the live path, newest first.
SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NULL ORDER BY seq DESC LIMIT :limit

-- log_forward(session, start, stop, limit) --
-- A range of the whole log, merged from its two indexes.
SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NULL
UNION ALL
SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NOT NULL
ORDER BY seq LIMIT :limit

-- log_backward(session, start, stop, limit) --
-- A range of the whole log, newest first.
SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NULL
UNION ALL
SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop AND retired_by IS NOT NULL
ORDER BY seq DESC LIMIT :limit

-- mark_last(tenant, user_id, session int, wanted) --
-- The last of some digests, which come with their keys as a JSON array, that stands in a user's logs, or in one session: its index.

-- mark_places(tenant, user_id, session int, mark, limit, digest) --
-- Where a digest stands, in the sessions that were made last first; with what tells whether it is the last of the live path.

-- alias_last(tenant, user_id, session int, wanted) --
-- The last of some aliases, whose keys come as a JSON array, that stands in a user's logs, or in one session: its index.

-- alias_places(tenant, user_id, session int, alias, limit) --
-- Where an alias stands; the rest is as above.

-- end_last(tenant bytes, user_id bytes, digests) --
-- The last of some digests, which come as a JSON array, that the live path of a session of a user ends with.

-- end_places(tenant bytes, user_id bytes, digest bytes, limit) --
-- The sessions of a user whose live path ends with a digest, most recently used first.

-- unmarked_live(session, seq, limit) --
-- Visible live entries that were written before there were marks, with what their keys are made of, behind a place.

-- entry_mark_live(session, seq, mark) --
-- The key of the digest of a live entry.
UPDATE entries SET mark = :mark WHERE session = :session AND seq = :seq AND retired_by IS NULL

-- unmarked_retired(session, seq, limit) --
-- Visible retired entries that were written before there were marks, with what their keys are made of, behind a place.

-- entry_mark_retired(session, seq, mark) --
-- The key of the digest of a retired entry.
UPDATE entries SET mark = :mark WHERE session = :session AND seq = :seq AND retired_by IS NOT NULL

-- last_not_result(session, before) --
-- Where the last unit before a place begins: results (kind 4) stand behind their calls.
SELECT seq FROM entries WHERE session = :session AND seq < :before AND retired_by IS NULL AND kind <> 4 ORDER BY seq DESC LIMIT 1

-- last_visible(session, before) --
-- The digest of the last message before a place that clients see: not calls (3), not results (4).
SELECT digest FROM entries WHERE session = :session AND seq < :before AND retired_by IS NULL AND kind < 3 ORDER BY seq DESC LIMIT 1

-- view_get(pk, key) --
-- A saved view and its live compaction: always one row, with NULL for what there is not.
SELECT v.frontier, v.state, v.kept, c.*
FROM sessions AS s
LEFT JOIN saved_views AS v ON v.session = s.pk AND v.key = :key
LEFT JOIN compaction_rows AS c ON c.session = s.pk AND c.view_key = :key AND c.status = 'live'
WHERE s.pk = :pk

-- view_put(session int, key bytes, frontier int, state bytes, kept bytes, saved_at int, known int) --
-- A view's state, in place of the one before; not when a compaction of the view was laid after it was built.
INSERT INTO saved_views (session, key, frontier, state, kept, saved_at)
SELECT :session, :key, :frontier, :state, :kept, :saved_at
WHERE NOT EXISTS
      (SELECT 1 FROM compactions WHERE session = :session AND view_key = :key AND status = 'live' AND laid_at > :known)
ON CONFLICT (session, key) DO UPDATE
SET frontier = excluded.frontier, state = excluded.state, kept = excluded.kept, saved_at = excluded.saved_at

-- views_trim(session, kept) --
-- All but the views that were saved last.
DELETE FROM saved_views
WHERE session = :session
  AND key NOT IN (SELECT key FROM saved_views WHERE session = :session ORDER BY saved_at DESC, frontier DESC, key LIMIT :kept)

-- views_stale(pk, views_from) --
-- From now on views that were built before this version are not saved.
UPDATE sessions SET views_from = :views_from WHERE pk = :pk

-- compactions_stale(pk, compactions_from) --
-- From now on compactions that were made from what was read before this version are dead on arrival.
UPDATE sessions SET compactions_from = :compactions_from WHERE pk = :pk

-- views_delete(session) --
-- All views of a session.
DELETE FROM saved_views WHERE session = :session

-- idempotency_get(session, key) --
-- What a key stood for.
SELECT fingerprint, version, first_seq, entries FROM idempotency WHERE session = :session AND key = :key

-- idempotency_put(session int, key bytes, fingerprint bytes, version int, first_seq int, entries int) --
-- A key that was used.
INSERT INTO idempotency (session, key, fingerprint, version, first_seq, entries) VALUES (:session, :key, :fingerprint, :version, :first_seq, :entries)

-- idempotency_delete(session) --
-- With their session.
DELETE FROM idempotency WHERE session = :session

-- compaction_next(pk) --
-- The id of a session's next compaction, and the version before which one was made from what has gone since.
SELECT coalesce((SELECT max(id) FROM compactions WHERE session = :pk), 0) + 1, compactions_from
FROM sessions WHERE pk = :pk

-- compaction_live(session, view_key) --
-- The range of a view's live compaction, and the version it was laid at.
SELECT first_seq, last_seq, laid_at FROM compactions WHERE session = :session AND view_key = :view_key AND status = 'live'

-- compaction_insert(session, id, status text, view_key, laid_at, first_seq, last_seq, kind text, tokens, source_tokens, total, model, created_at, through, prompt_tokens, completion_tokens, error, report, text) --
-- A compaction.
INSERT INTO compactions (session, id, status, view_key, laid_at, first_seq, last_seq, kind, tokens, source_tokens, total,
                         model, created_at, through, prompt_tokens, completion_tokens, error, report, text)
VALUES (:session, :id, :status, :view_key, :laid_at, :first_seq, :last_seq, :kind, :tokens, :source_tokens, :total, :model, :created_at, :through, :prompt_tokens, :completion_tokens, :error, :report, :text)

-- compaction_supersede(session, view_key) --
-- A view's live compaction, when another one takes its place.
UPDATE compactions SET status = 'superseded' WHERE session = :session AND view_key = :view_key AND status = 'live'

-- compaction_get(session, id) --
-- One compaction.
SELECT * FROM compaction_rows WHERE session = :session AND id = :id

-- compaction_drop(session, id) --
-- One that is not to be used any more.
UPDATE compactions SET status = 'dropped' WHERE session = :session AND id = :id

-- compactions_retire(session, start) --
-- Those that reach into what leaves the live path.
UPDATE compactions SET status = 'dead' WHERE session = :session AND last_seq >= :start AND status IN ('live', 'superseded')

-- compactions_erase(session, seq, error bytes) --
-- Those, of every status, that may tell what an erased entry said: nothing of it stays.
UPDATE compactions
SET status = CASE WHEN status IN ('live', 'superseded') THEN 'dead' ELSE status END, text = '', report = NULL,
    error = CASE WHEN error IS NULL THEN NULL ELSE :error END
WHERE session = :session AND first_seq <= :seq AND last_seq >= :seq

-- compactions_revive(session) --
-- The newest superseded one of each view that has no live one any more: a live one would be newer.
UPDATE compactions SET status = 'live'
WHERE session = :session AND status = 'superseded'
  AND id IN (SELECT max(id) FROM compactions
             WHERE session = :session AND status IN ('live', 'superseded') GROUP BY view_key)

-- compactions_shift(session, seq, shift) --
-- Running totals of compactions on the live path, after an entry on it got another count.
UPDATE compactions SET total = total + :shift WHERE session = :session AND last_seq >= :seq AND status <> 'dead'

-- compactions_list(session, view_key bytes, live_only) --
-- A session's compactions, or a view's; all or the live ones.
SELECT * FROM compaction_rows
WHERE session = :session AND (:view_key IS NULL OR view_key = :view_key) AND (:live_only = 0 OR status = 'live') ORDER BY id

-- compactions_trim(session, kept) --
-- All but the newest of those that are history.
DELETE FROM compactions
WHERE session = :session AND status IN ('superseded', 'dropped', 'dead')
  AND id <= (SELECT id FROM compactions WHERE session = :session AND status IN ('superseded', 'dropped', 'dead')
             ORDER BY id DESC LIMIT 1 OFFSET :kept)

-- compactions_trim_failed(session, kept) --
-- All but the newest failed attempts.
DELETE FROM compactions
WHERE session = :session AND status = 'failed'
  AND id <= (SELECT id FROM compactions WHERE session = :session AND status = 'failed' ORDER BY id DESC LIMIT 1 OFFSET :kept)

-- compactions_delete(session) --
-- With their session.
DELETE FROM compactions WHERE session = :session

-- call_insert(session int, timestamp int, model bytes, prompt_tokens int, completion_tokens int, cached_tokens int, turn_id int, through int, view_key bytes, hash bytes, build bytes) --
-- A model call.
INSERT INTO model_calls (session, timestamp, model, prompt_tokens, completion_tokens, cached_tokens, turn_id, through,
                         view_key, hash, build)
VALUES (:session, :timestamp, :model, :prompt_tokens, :completion_tokens, :cached_tokens, :turn_id, :through, :view_key, :hash, :build)

-- calls_newest(session, limit) --
-- A session's model calls.
SELECT model, timestamp, prompt_tokens, completion_tokens, cached_tokens, turn_id, through, view_key, hash, build
FROM model_calls WHERE session = :session ORDER BY pk DESC LIMIT :limit

-- calls_of_turn(session, limit, turn_id) --
-- The model calls of one turn.
SELECT model, timestamp, prompt_tokens, completion_tokens, cached_tokens, turn_id, through, view_key, hash, build
FROM model_calls WHERE session = :session AND turn_id = :turn_id ORDER BY pk DESC LIMIT :limit

-- calls_delete(session) --
-- With their session.
DELETE FROM model_calls WHERE session = :session

-- artifact_name_get(session, tenant, user_id, folded) --
-- What is known of an artifact's name in its scope: a session, or with session 0 the user.
SELECT name, next_version, newest, versions, bytes FROM artifact_names
WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded

-- artifact_name_put(session, tenant, user_id, folded, name, next_version, newest, versions, bytes) --
-- A name, in place of what was known of it.
INSERT INTO artifact_names (session, tenant, user_id, folded, name, next_version, newest, versions, bytes)
VALUES (:session, :tenant, :user_id, :folded, :name, :next_version, :newest, :versions, :bytes)
ON CONFLICT (session, tenant, user_id, folded) DO UPDATE
SET name = excluded.name, next_version = excluded.next_version, newest = excluded.newest, versions = excluded.versions,
    bytes = excluded.bytes

-- artifact_name_delete(session, tenant, user_id, folded) --
-- A name that has no version left.
DELETE FROM artifact_names WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded

-- artifact_totals(session, tenant, user_id) --
-- How many names, versions and bytes a scope has.

-- artifact_insert(session, tenant, user_id, folded, version, name, blob_key, mime_type, size, sha256, author, metadata, created_at) --
-- A version. Two that get the same number at once, and two with the same content, collide.
INSERT INTO artifacts (session, tenant, user_id, folded, version, name, blob_key, mime_type, size, sha256, author, metadata,
                       created_at)
VALUES (:session, :tenant, :user_id, :folded, :version, :name, :blob_key, :mime_type, :size, :sha256, :author, :metadata, :created_at)

-- artifact_get(session, tenant, user_id, folded, version) --
-- One version.
SELECT * FROM artifact_rows WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded AND version = :version

-- artifact_of_blob(tenant, blob_key) --
-- The version that has this content.
SELECT * FROM artifact_rows WHERE tenant = :tenant AND blob_key = :blob_key

-- artifact_versions(session, tenant, user_id, folded, after, limit) --
-- A name's versions, behind one of them.
SELECT * FROM artifact_rows
WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded AND version > :after ORDER BY version LIMIT :limit

-- artifact_last(session, tenant, user_id, folded) --
-- The number of a name's newest version.
SELECT max(version) FROM artifacts WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded

-- artifacts_newest(session, tenant, user_id, after, limit) --
-- The newest version of each name in a scope, in order of the folded names, behind one of them.
SELECT a.* FROM artifact_names AS n
JOIN artifact_rows AS a ON a.session = n.session AND a.tenant = n.tenant AND a.user_id = n.user_id
                       AND a.folded = n.folded AND a.version = n.newest
WHERE n.session = :session AND n.tenant = :tenant AND n.user_id = :user_id AND n.folded > :after ORDER BY n.folded LIMIT :limit

-- artifacts_all(session, tenant, user_id) --
-- All versions of all names in a scope.
SELECT * FROM artifact_rows WHERE session = :session AND tenant = :tenant AND user_id = :user_id ORDER BY folded, version

-- artifact_delete(session, tenant, user_id, folded, version) --
-- One version.
DELETE FROM artifacts WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded AND version = :version

-- artifact_versions_delete(session, tenant, user_id, folded) --
-- All versions of a name.
DELETE FROM artifacts WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded

-- artifacts_delete(session) --
-- With their session.
DELETE FROM artifacts WHERE session = :session

-- artifact_names_delete(session) --
-- With their session.
DELETE FROM artifact_names WHERE session = :session

-- blobs_in_use(tenant, blob_keys texts) --
-- Those of some contents, whose keys come as a JSON array, that a version has.
SELECT blob_key FROM artifacts WHERE tenant = :tenant AND blob_key IN :blob_keys

-- blob_put(tenant, blob_key, part, written_at, data) --
-- A part of a content that the database keeps.
INSERT INTO blobs (tenant, blob_key, part, written_at, data) VALUES (:tenant, :blob_key, :part, :written_at, :data)
ON CONFLICT (tenant, blob_key, part) DO UPDATE SET written_at = excluded.written_at, data = excluded.data

-- blob_get(tenant, blob_key, part) --
-- A part of a content.
SELECT data FROM blobs WHERE tenant = :tenant AND blob_key = :blob_key AND part = :part

-- blob_delete(tenant, blob_key) --
-- A content, all parts of it.
DELETE FROM blobs WHERE tenant = :tenant AND blob_key = :blob_key

-- blobs_before(tenant, before, after_key, limit) --
-- Contents of which nothing was written since, behind a key.
SELECT blob_key FROM blobs WHERE tenant = :tenant AND blob_key > :after_key
GROUP BY blob_key HAVING max(written_at) < :before ORDER BY blob_key LIMIT :limit

-- media_known(session, sha256s hashes) --
-- Those of some contents, whose hashes come as a JSON array, that a session has.
SELECT sha256 FROM media WHERE session = :session AND sha256 IN
      :sha256s

-- media_get(session, sha256s hashes) --
-- Contents, whose hashes come as a JSON array.
SELECT sha256, data FROM media WHERE session = :session AND sha256 IN
      :sha256s

-- media_put(session, sha256, size, data) --
-- A content that a session did not have.
INSERT INTO media (session, sha256, size, data) VALUES (:session, :sha256, :size, :data)

-- media_use(session, seq, sha256) --
-- An entry that names a content.
INSERT INTO media_uses (session, seq, sha256) VALUES (:session, :seq, :sha256)

-- media_of(session, seq) --
-- What an entry names.
SELECT sha256 FROM media_uses WHERE session = :session AND seq = :seq

-- media_uses_drop(session, seq) --
-- An entry names nothing any more.
DELETE FROM media_uses WHERE session = :session AND seq = :seq

-- media_drop_unused(session, sha256) --
-- A content that no entry names any more.
DELETE FROM media WHERE session = :session AND sha256 = :sha256
  AND NOT EXISTS (SELECT 1 FROM media_uses WHERE session = :session AND sha256 = :sha256)

-- media_uses_delete(session) --
-- With their session.
DELETE FROM media_uses WHERE session = :session

-- media_delete(session) --
-- With their session.
DELETE FROM media WHERE session = :session

-- origin_insert(session, first, source, source_first) --
-- Where entries of a session come from, up to the next range of it.
INSERT INTO entry_origins (session, first, source, source_first) VALUES (:session, :first, :source, :source_first)

-- origins_named(tenant, user_id, ids names) --
-- The origins of some sessions of a user, whose ids come in hexadecimal as a JSON array.
SELECT s.id, o.first, o.source, o.source_first FROM sessions AS s JOIN entry_origins AS o ON o.session = s.pk
WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = '' AND s.id IN
      :ids
ORDER BY s.pk, o.first

-- origins_sharing(tenant, user_id, source) --
-- The origins of all sessions of a user that have entries of one session, which is known by its identity.
SELECT s.id, o.first, o.source, o.source_first FROM entry_origins AS o JOIN sessions AS s ON s.pk = o.session
WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = '' AND o.session IN
      (SELECT session FROM entry_origins WHERE source = :source)
ORDER BY s.pk, o.first

-- origins_delete(session) --
-- With their session.
DELETE FROM entry_origins WHERE session = :session

-- scope_get(tenant, user_id) --
-- What a scope of the state has: its version, keys, their bytes, and when it was changed last; and the floor. Of no user: the tenant's.
SELECT s.version, s.key_count, s.bytes, s.updated_at, coalesce(f.number, 0)
FROM state_scopes AS s LEFT JOIN floors AS f ON f.tenant = s.tenant WHERE s.tenant = :tenant AND s.user_id = :user_id

-- scope_new(tenant, user_id) --
-- A scope that was never written to; another one may be making it.
INSERT INTO state_scopes (tenant, user_id, version, key_count, bytes, updated_at) VALUES (:tenant, :user_id, 0, 0, 0, 0)
ON CONFLICT (tenant, user_id) DO NOTHING

-- scope_put(tenant, user_id, version, key_count, bytes, updated_at) --
-- A scope behind a write.
UPDATE state_scopes SET version = :version, key_count = :key_count, bytes = :bytes, updated_at = :updated_at WHERE tenant = :tenant AND user_id = :user_id

-- scope_delete(tenant, user_id) --
-- A scope that is dropped: its user's name goes with it.
DELETE FROM state_scopes WHERE tenant = :tenant AND user_id = :user_id

-- state_named(tenant, user_id, names names) --
-- What stands under some keys of a scope, which come in hexadecimal as a JSON array.
SELECT name, data FROM state_values WHERE tenant = :tenant AND user_id = :user_id AND name IN
      :names

-- state_read(tenant, user_id, known_version) --
-- A scope's version and all it holds; of a version that is known no values.
SELECT s.version, v.name, v.data
FROM state_scopes AS s
LEFT JOIN state_values AS v ON v.tenant = s.tenant AND v.user_id = s.user_id AND s.version <> :known_version
WHERE s.tenant = :tenant AND s.user_id = :user_id

-- state_read_named(tenant, user_id, known_version, names) --
-- The same, and of some keys alone, which come in hexadecimal as a JSON array.

-- state_put(tenant, user_id, name, data) --
-- What stands under a key.
INSERT INTO state_values (tenant, user_id, name, data) VALUES (:tenant, :user_id, :name, :data)
ON CONFLICT (tenant, user_id, name) DO UPDATE SET data = excluded.data

-- state_drop(tenant, user_id, name) --
-- A key that goes.
DELETE FROM state_values WHERE tenant = :tenant AND user_id = :user_id AND name = :name

-- state_clear(tenant, user_id) --
-- All keys of a scope.
DELETE FROM state_values WHERE tenant = :tenant AND user_id = :user_id

-- key_get(tenant, id) --
-- One API key.
SELECT id, hash, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget
FROM api_keys WHERE tenant = :tenant AND id = :id

-- key_of_hash(tenant, hash) --
-- An API key by its hash.
SELECT id, hash, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget
FROM api_keys WHERE tenant = :tenant AND hash = :hash

-- keys_after(tenant, after, limit) --
-- API keys in order of id, behind one of them.
SELECT id, hash, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget
FROM api_keys WHERE tenant = :tenant AND id > :after ORDER BY id LIMIT :limit

-- key_insert(tenant, id, hash, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget) --
-- A new API key. Two with the same id, and two with the same hash, collide.
INSERT INTO api_keys (tenant, id, hash, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, rate, max_body, session_mode, budget)
VALUES (:tenant, :id, :hash, :name, :opens, :user_id, :role, :created_at, :expires_at, :revoked_at, :used_at, :rate, :max_body, :session_mode, :budget)

-- key_revoke(tenant, id, revoked_at) --
-- An API key that is not valid any more.
UPDATE api_keys SET revoked_at = :revoked_at WHERE tenant = :tenant AND id = :id AND revoked_at IS NULL

-- key_use(tenant, id, used_at) --
-- When an API key was used last.
UPDATE api_keys SET used_at = :used_at WHERE tenant = :tenant AND id = :id AND (used_at IS NULL OR used_at < :used_at)

-- lease_put(tenant, name, holder, expires_at, now) --
-- A lease, taken when nobody holds it any more, or renewed.
INSERT INTO leases (tenant, name, holder, expires_at) VALUES (:tenant, :name, :holder, :expires_at)
ON CONFLICT (tenant, name) DO UPDATE
SET holder = excluded.holder, expires_at = excluded.expires_at
WHERE leases.holder = excluded.holder OR leases.expires_at <= :now

-- lease_get(tenant, name) --
-- Who holds a lease, and until when.
SELECT holder, expires_at FROM leases WHERE tenant = :tenant AND name = :name

-- lease_delete(tenant, name, holder) --
-- A lease that its holder gives back.
DELETE FROM leases WHERE tenant = :tenant AND name = :name AND holder = :holder

-- leases_clean(tenant, now) --
-- Leases that were left to expire.
DELETE FROM leases WHERE tenant = :tenant AND expires_at <= :now

-- learned_get(tenant, model) --
-- What was learned of a model.
SELECT data FROM learned WHERE tenant = :tenant AND model = :model

-- learned_new(tenant, model, updated_at, data) --
-- What was learned of a model of which nothing was known: two that learn it at once do not overwrite each other.
INSERT INTO learned (tenant, model, updated_at, data) VALUES (:tenant, :model, :updated_at, :data)

-- learned_put(tenant, model, updated_at, data) --
-- What was learned of a model, in place of what stood there.
INSERT INTO learned (tenant, model, updated_at, data) VALUES (:tenant, :model, :updated_at, :data)
ON CONFLICT (tenant, model) DO UPDATE SET updated_at = excluded.updated_at, data = excluded.data

-- learned_trim(tenant, kept) --
-- All but the models that were written last.
DELETE FROM learned
WHERE tenant = :tenant AND (updated_at, model) <= (SELECT updated_at, model FROM learned WHERE tenant = :tenant
                                              ORDER BY updated_at DESC, model DESC LIMIT 1 OFFSET :kept)

-- ping() --
-- Anything that reads.
SELECT max(number) FROM holdfast_migrations

-- ping_put(padding bytes) --
-- Undone in the same transaction by ping_delete.

-- ping_delete() --
DELETE FROM holdfast_migrations WHERE number = 0

-- index_space_get(tenant, kind, name) --
-- A space of an index, and how much it has in each channel.
SELECT number, talk_documents, talk_length, tool_documents, tool_length FROM index_spaces
WHERE tenant = :tenant AND kind = :kind AND name = :name

-- index_space_new(tenant, kind, name) --
-- A space that has nothing yet. Two that make it at once collide.
INSERT INTO index_spaces (tenant, kind, name, talk_documents, talk_length, tool_documents, tool_length)
VALUES (:tenant, :kind, :name, 0, 0, 0, 0)

-- index_space_add(number, more_talk_documents, more_talk_length, more_tool_documents, more_tool_length) --
-- What came and went of a space, by channel.
UPDATE index_spaces
SET talk_documents = talk_documents + :more_talk_documents, talk_length = talk_length + :more_talk_length,
    tool_documents = tool_documents + :more_tool_documents, tool_length = tool_length + :more_tool_length
WHERE number = :number

-- index_space_rename(number, kind, name) --
-- A space that is to go loses its name, and nobody finds it any more.
UPDATE index_spaces SET kind = :kind, name = :name WHERE number = :number

-- index_space_delete(number) --
-- A space that has no source left.
DELETE FROM index_spaces WHERE number = :number

-- index_spaces(tenant, kind bytes, limit) --
-- Spaces of a tenant; of one kind, or of all.
SELECT number, kind, name FROM index_spaces
WHERE tenant = :tenant AND (:kind IS NULL OR kind = :kind) ORDER BY kind, name LIMIT :limit

-- index_source_get(space, id) --
-- How far a source of a space is.
SELECT number, identity, version, next_seq, talk, tool, epoch, complete, documents FROM index_sources
WHERE space = :space AND id = :id

-- index_source_new(space, id, identity) --
-- A source that has nothing yet.
INSERT INTO index_sources (space, id, identity, version, next_seq, talk, tool, epoch, complete, documents)
VALUES (:space, :id, :identity, 0, 0, 0, 0, 0, 0, 0)

-- index_source_put(number, version, next_seq, talk, tool, epoch, complete, more_documents) --
-- How far a source is; the last parameter is how many documents came, less those that went.
UPDATE index_sources
SET version = :version, next_seq = :next_seq, talk = :talk, tool = :tool, epoch = :epoch, complete = :complete, documents = documents + :more_documents
WHERE number = :number

-- index_source_delete(number) --
-- A source that has no documents left.
DELETE FROM index_sources WHERE number = :number

-- index_sources_named(space, ids names) --
-- Numbers of the sources of a space with these ids, and how many documents each has; ids in hexadecimal.
SELECT number, documents FROM index_sources
WHERE space = :space AND id IN :ids

-- index_sources_of(space, limit) --
-- Some sources of a space.
SELECT number, id FROM index_sources WHERE space = :space ORDER BY id LIMIT :limit

-- index_sources_after(tenant, kind, name, spaces, limit) --
-- Sources of some spaces, those next behind one, in order of space and id; a space that has none has a row without a source.
SELECT p.kind, p.name, s.id, s.identity, s.version, s.next_seq, s.talk, s.tool, s.epoch, s.complete
FROM (SELECT number, kind, name FROM index_spaces
      WHERE tenant = :tenant AND (kind, name) > (:kind, :name) AND kind <> 'gone' ORDER BY kind, name LIMIT :spaces) AS p
     LEFT JOIN index_sources AS s ON s.space = p.number
ORDER BY p.kind, p.name, s.id LIMIT :limit

-- index_sources_of_after(space, id, inclusive int, limit) --
-- Those of one space, from an id on or behind it.

-- index_sources_incomplete(tenant, first_space, last_space, kind, name, after_id bytes, limit) --
-- Incomplete sources of some spaces from a place on, in order of space and id.

-- index_sources_count(tenant, first_space, last_space) --
-- Sources of the spaces of a tenant, or of one of them, how many are incomplete, and all their documents.
SELECT count(*), coalesce(sum(1 - s.complete), 0), coalesce(sum(s.documents), 0)
FROM index_spaces AS p JOIN index_sources AS s ON s.space = p.number
WHERE p.tenant = :tenant AND p.number BETWEEN :first_space AND :last_space AND p.kind <> 'gone'

-- index_documents_at(source, seqs ints, ids ints) --
-- Documents of a source with these numbers or ids, as they are to be taken away.
SELECT id, seq, channel, digest, length, terms, model FROM index_documents
WHERE source = :source AND seq IN :seqs
UNION
SELECT id, seq, channel, digest, length, terms, model FROM index_documents
WHERE source = :source AND id IN :ids

-- index_documents_first(source, limit) --
-- Some documents of a source, as they are to be taken away.
SELECT id, seq, channel, digest, length, terms, model FROM index_documents WHERE source = :source ORDER BY seq LIMIT :limit

-- index_documents_delete(ids ints) --
-- Documents, by id.
DELETE FROM index_documents WHERE id IN :ids

-- index_document_put(id, space, channel, source, seq, at, length, traits, model, role, agent, name, digest, terms) --
-- A document; in place of what it was before.
INSERT INTO index_documents (id, space, channel, source, seq, at, length, traits, model, role, agent, name, digest, terms)
VALUES (:id, :space, :channel, :source, :seq, :at, :length, :traits, :model, :role, :agent, :name, :digest, :terms)
ON CONFLICT (id) DO UPDATE
SET seq = excluded.seq, at = excluded.at, role = excluded.role, agent = excluded.agent, name = excluded.name,
    traits = excluded.traits

-- index_documents_held(source, start, limit) --
-- Numbers and digests of the documents of a source.
SELECT seq, digest FROM index_documents WHERE source = :source AND seq >= :start ORDER BY seq LIMIT :limit

-- index_posting_put(rowid, tokens text) --
-- The words of a new document.

-- index_posting_delete(rowid, tokens bytes) --
-- The words that a document had.

-- index_frequencies_add(space int, channel, pairs) --
-- More or fewer documents with these terms; pairs in order of the terms.

-- index_frequencies_clean(space, channel, terms texts) --
-- Those of these terms that no document has any more.
DELETE FROM index_frequencies
WHERE space = :space AND channel = :channel AND term IN :terms AND documents <= 0

-- index_frequencies(space, channel, terms texts) --
-- In how many documents these terms stand.

-- index_postings_read(w0 text, w1 text, w2 text, w3 text, w4 text, w5 text, w6 text, w7 text) --
-- All documents that have a word, for up to eight words at once: which one, and the ids as one JSON array, which is quicker.

-- index_postings_newest(word text, other text, limit) --
-- The newest documents that have two words, or one that is given twice.

-- index_postings_passing(word text, other text, limit, sources ints, without ints, agents names, roles names, since, until) --
-- The same of those that pass filters.

-- index_documents_counted(space, channel, since, until, limit) --
-- How many documents a space has in a time, up to a number.
SELECT count(*) FROM (SELECT 1 FROM index_documents WHERE space = :space AND channel = :channel AND at >= :since AND at < :until LIMIT :limit) AS counted

-- index_candidates(ids, space, channel, sources ints, without ints, agents names, roles names, since, until) --
-- Documents by id that pass filters.

-- index_candidates_newest(limit, space, channel, sources ints, without ints, agents names, roles names, since, until) --
-- The newest documents of a space that pass filters.

-- index_candidates_of(limit, space, channel, sources, without ints, agents names, roles names, since, until) --
-- The same where the sources are named, which have few documents beside those of the space.

-- index_candidates_at(source, seqs ints) --
-- Documents of a source by their numbers.
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM index_documents AS d JOIN index_sources AS s ON s.number = d.source
WHERE d.source = :source AND d.seq IN :seqs ORDER BY d.id

-- index_models(tenant) --
-- The models of a tenant's vectors; the nameless one is that of documents that have none.
SELECT number, name, dimensions FROM index_models WHERE tenant = :tenant

-- index_model_new(tenant, name, dimensions) --
-- A model of which nothing was there. Two that make it at once collide.
INSERT INTO index_models (tenant, name, dimensions) VALUES (:tenant, :name, :dimensions)

-- index_model_delete(number) --
-- A model of which nothing is there any more.
DELETE FROM index_models WHERE number = :number AND NOT EXISTS (SELECT 1 FROM index_documents WHERE model = :number)

-- index_model_of(model, limit) --
-- Some documents that have a vector of a model.
SELECT id FROM index_documents WHERE model = :model ORDER BY space, id LIMIT :limit

-- index_model_count(model, first_space, last_space) --
-- How many documents have a vector of a model, of all spaces or of one.
SELECT count(*) FROM index_documents WHERE model = :model AND space BETWEEN :first_space AND :last_space

-- index_pending(model, first_space, last_space, limit) --
-- Documents of a model, or without a vector, space by space, the oldest of each first; each with the one at the place before.

-- index_documents_model(ids ints, model) --
-- Documents whose vector is of another model from now on.
UPDATE index_documents SET model = :model WHERE id IN :ids

-- index_vector_put(id, mark, data) --
-- A document's vector, in place of another.
INSERT INTO index_vectors (id, mark, data) VALUES (:id, :mark, :data)
ON CONFLICT (id) DO UPDATE SET mark = excluded.mark, data = excluded.data

-- index_vectors_delete(ids ints) --
-- Vectors of documents.
DELETE FROM index_vectors WHERE id IN :ids

-- index_vectors_at(ids, model) --
-- Vectors of documents, of those that have one of a model.

-- index_vectors_like(model, space, marks ints) --
-- Vectors of a model in a space whose documents' digests begin with these eight bytes, as a number.

-- index_vectors_read(model, space, channel, sources ints, without ints, agents names, roles names, since, until, after_id, limit) --
-- Vectors of a model in a space, from an id on, of documents that pass filters.

-- index_nearest(model, space, channel, sources ints, without ints, agents names, roles names, since, until, vector bytes, limit) --
-- The documents that pass filters whose vectors are nearest, and how near they are.

-- index_note_get(tenant, name) --
-- What a tenant keeps under a name.
SELECT data FROM index_notes WHERE tenant = :tenant AND name = :name

-- index_note_put(tenant, name, data) --
-- The same, in place of what stood there.
INSERT INTO index_notes (tenant, name, data) VALUES (:tenant, :name, :data)
ON CONFLICT (tenant, name) DO UPDATE SET data = excluded.data

-- index_note_new(tenant, name, data) --
-- The same, where nothing stands there.
INSERT INTO index_notes (tenant, name, data) VALUES (:tenant, :name, :data)
ON CONFLICT (tenant, name) DO NOTHING

-- index_note_delete(tenant, name) --
DELETE FROM index_notes WHERE tenant = :tenant AND name = :name

-- memory_owner_get(tenant, kind, id) --
-- What an owner of memories has: its version, how many memories, the next numbers, and when it was written to last; and the floor.
SELECT o.pk, o.version, o.held, o.next_memory, o.next_signal, o.next_entry, o.updated_at, coalesce(f.number, 0)
FROM memory_owners AS o LEFT JOIN floors AS f ON f.tenant = o.tenant
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id

-- memory_owner_new(tenant, kind, id) --
-- An owner for whom nothing was ever written; another one may be making it.
INSERT INTO memory_owners (tenant, kind, id, version, held, next_memory, next_signal, next_entry, updated_at)
VALUES (:tenant, :kind, :id, 0, 0, 1, 1, 1, 0)
ON CONFLICT (tenant, kind, id) DO NOTHING

-- memory_owner_put(pk, version, held, next_memory, next_signal, next_entry, updated_at) --
-- An owner behind a write.
UPDATE memory_owners SET version = :version, held = :held, next_memory = :next_memory, next_signal = :next_signal, next_entry = :next_entry, updated_at = :updated_at
WHERE pk = :pk

-- memory_owner_delete(pk) --
-- An owner that is dropped: its name goes with it.
DELETE FROM memory_owners WHERE pk = :pk

-- floor_raise(tenant, number) --
-- What the tenant keeps of those that were dropped: neither a version nor a number of theirs was above it.

-- memory_owners_after(tenant, kind, id, limit) --
-- Owners in order of kind and id, behind one of them.
SELECT kind, id, updated_at FROM memory_owners WHERE tenant = :tenant AND (kind, id) > (:kind, :id)
ORDER BY kind, id LIMIT :limit

-- memories_forward(tenant, kind, id, place, limit) --
-- An owner with its memories behind a number; without any, one row.

-- memories_backward(tenant, kind, id, place, limit) --
-- The same, before a number, the last first.

-- memories_forward_of(tenant, kind, id, status, place, limit) --
-- The same of a status, behind a number.

-- memories_backward_of(tenant, kind, id, status, place, limit) --
-- The same of a status, before a number, the last first.

-- memories_since(tenant, kind, id, after_version, status, direction, place, limit) --
-- The same, changed behind a version, of a status or any, behind a place in a direction: numbers count times 1 or -1.
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN memories AS m ON m.owner = o.pk AND m.version > :after_version AND (:status = '' OR m.status = :status) AND m.number * :direction > :place
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number * :direction LIMIT :limit

-- memories_of_ids(tenant, kind, id, wanted texts, after_version, status, direction, place, limit) --
-- The same, those of some ids, which come as a JSON array.

-- memories_of_numbers(tenant, kind, id, wanted, after_version, status, direction, place, limit) --
-- The same, those of some numbers, which come as a JSON array.

-- memory_find(tenant, id) --
-- The memory of an id, with its owner.
SELECT o.kind, o.id, m.number, m.id, m.version, m.data
FROM memories AS m JOIN memory_owners AS o ON o.pk = m.owner WHERE m.tenant = :tenant AND m.id = :id

-- memories_named(tenant, ids texts) --
-- Which numbers some ids have, and of which owner; they come as a JSON array.

-- memory_insert(owner, number, tenant, id, version, status, data) --
-- A memory that was not there. Two of the same id collide.
INSERT INTO memories (owner, number, tenant, id, version, status, data) VALUES (:owner, :number, :tenant, :id, :version, :status, :data)

-- memory_put(owner, number, version, status, data) --
-- A memory in place of what it was.
UPDATE memories SET version = :version, status = :status, data = :data WHERE owner = :owner AND number = :number

-- memory_delete(owner, number) --
-- A memory that goes.
DELETE FROM memories WHERE owner = :owner AND number = :number

-- memories_clear(owner) --
-- All memories of an owner.
DELETE FROM memories WHERE owner = :owner

-- signal_insert(owner, memory, seq, recalled_at, asked, score, session_id) --
-- A recall of a memory.
INSERT INTO memory_signals (owner, memory, seq, recalled_at, asked, score, session_id) VALUES (:owner, :memory, :seq, :recalled_at, :asked, :score, :session_id)

-- signals_trim(owner, memory, kept) --
-- All but the newest of a memory's signals.
DELETE FROM memory_signals
WHERE owner = :owner AND memory = :memory
  AND seq <= (SELECT seq FROM memory_signals WHERE owner = :owner AND memory = :memory
             ORDER BY seq DESC LIMIT 1 OFFSET :kept)

-- signals_before(owner, before) --
-- Signals of an owner's memories that are too old.
DELETE FROM memory_signals WHERE owner = :owner AND recalled_at < :before

-- signals_delete(owner, memory) --
-- With their memory.
DELETE FROM memory_signals WHERE owner = :owner AND memory = :memory

-- signals_clear(owner) --
-- All signals of an owner's memories.
DELETE FROM memory_signals WHERE owner = :owner

-- signals_all(tenant, kind, id, since) --
-- Signals of an owner's memories, from a time on, in the order in which they came.
SELECT m.id, s.recalled_at, s.asked, s.score, s.session_id
FROM memory_owners AS o
JOIN memory_signals AS s ON s.owner = o.pk
JOIN memories AS m ON m.owner = s.owner AND m.number = s.memory
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id AND s.recalled_at >= :since ORDER BY s.seq

-- signals_of(tenant, kind, id, memory_ids texts, since) --
-- Those of some memories, whose ids come as a JSON array.

-- diary_insert(owner, seq, id, swept_at, report) --
-- A sweep over an owner's memories.
INSERT INTO memory_diary (owner, seq, id, swept_at, report) VALUES (:owner, :seq, :id, :swept_at, :report)

-- diary_trim(owner, before) --
-- Those before a place.
DELETE FROM memory_diary WHERE owner = :owner AND seq < :before

-- diary_newest(tenant, kind, id, limit) --
-- The newest of an owner, newest first.
SELECT d.id, d.swept_at, d.report
FROM memory_owners AS o JOIN memory_diary AS d ON d.owner = o.pk
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY d.seq DESC LIMIT :limit

-- diary_clear(owner) --
-- All of an owner.
DELETE FROM memory_diary WHERE owner = :owner
