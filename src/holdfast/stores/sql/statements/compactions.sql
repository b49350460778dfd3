-- Saved views and compactions.

-- view_get(pk, key) --
-- Return a saved view and its live compaction: always one row, with NULL for what does not exist.
SELECT v.data, c.id, c.status, c.data
FROM sessions AS s
LEFT JOIN saved_views AS v ON v.session = s.pk AND v."key" = :key
LEFT JOIN compactions AS c ON c.session = s.pk AND c.view_key = :key AND c.status = 'live'
WHERE s.pk = :pk

-- view_put(session int, key bytes, data bytes, saved_at int, known int) --
-- Save the state of a view, unless a compaction of the view was recorded after the state was built.
INSERT INTO saved_views (session, "key", data, saved_at)
SELECT :session, :key, :data, :saved_at
[mysql] FROM DUAL
WHERE NOT EXISTS
      (SELECT 1 FROM compactions WHERE session = :session AND view_key = :key AND status = 'live' AND laid_at > :known)
ON CONFLICT (session, "key") DO UPDATE SET data = excluded.data, saved_at = excluded.saved_at

-- views_trim(session, kept) --
-- Delete all but the views that were saved last.
DELETE FROM saved_views
WHERE session = :session
  AND "key" NOT IN (SELECT "key" FROM (SELECT "key" FROM saved_views WHERE session = :session
                                       ORDER BY saved_at DESC, "key" LIMIT :kept) AS saved_last)

-- views_stale(pk, views_from): update sessions --
-- Set a version; views that were built before it are not saved from now on.

-- compactions_stale(pk, compactions_from): update sessions --
-- Set a version; compactions that are based on an earlier one get the status "dead" when they are recorded.

-- views_delete(session): delete saved_views --

-- compactions_from(pk): select compactions_from from sessions --
-- Return the version that `compactions_stale` sets.

-- compactions_read(session): select id, view_key, status, first_seq, last_seq, laid_at from compactions ORDER BY id --
-- compactions_list(session, view_key bytes, live_only int): select id, status, data from compactions where (:view_key IS NULL OR view_key = :view_key) AND (:live_only = 0 OR status = 'live') ORDER BY id --
-- compaction_insert(session, id, status, view_key, first_seq, last_seq, laid_at, data): insert compactions --
-- compaction_mark(session, id, status): update compactions --
-- compaction_put(session, id, status, data): update compactions --
-- compaction_delete(session, id): delete compactions --
-- compactions_delete(session): delete compactions --
