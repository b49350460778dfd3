-- When a view was saved last, in milliseconds since the epoch: of a session only those stay that were saved lately.
ALTER TABLE saved_views ADD COLUMN saved_at INTEGER NOT NULL DEFAULT 0;
