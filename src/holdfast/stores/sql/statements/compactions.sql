-- Saved views and compactions.

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

-- views_stale(pk, views_from): update sessions --
-- Set a version; views that were built before it are not saved from now on.

-- compactions_stale(pk, compactions_from): update sessions --
-- Set a version; compactions that are based on an earlier one get the status "dead" when they are recorded.

-- views_delete(session): delete saved_views --

-- compaction_next(pk) --
-- Return the id of a session's next compaction, and the version that `compactions_stale` sets.
SELECT coalesce((SELECT max(id) FROM compactions WHERE session = :pk), 0) + 1, compactions_from
FROM sessions WHERE pk = :pk

-- compaction_live(session, view_key) --
-- Return the range of a view's live compaction, and the session's version when it was recorded.
SELECT first_seq, last_seq, laid_at FROM compactions WHERE session = :session AND view_key = :view_key AND status = 'live'

-- compaction_insert(session, id, status, view_key, laid_at, first_seq, last_seq, kind, tokens, source_tokens, total, model, created_at, through, prompt_tokens, completion_tokens, error, report, text): insert compactions --

-- compaction_supersede(session, view_key) --
-- Mark a view's live compaction as superseded by a new one.
UPDATE compactions SET status = 'superseded' WHERE session = :session AND view_key = :view_key AND status = 'live'

-- compaction_get(session, id): select * from compaction_rows --

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

-- compactions_delete(session): delete compactions --
