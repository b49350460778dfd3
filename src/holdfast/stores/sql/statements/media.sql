-- Media that entries refer to.

-- media_known(session, sha256s hashes): select sha256 from media where sha256 IN :sha256s --

-- media_get(session, sha256s hashes): select sha256, data from media where sha256 IN :sha256s --

-- media_put(session, sha256, size, data): insert media --
-- media_use(session, seq, sha256): insert media_uses --

-- media_copy(target int, session int, stop int) --
-- Copy the contents to which entries before a `seq` refer to another session.
INSERT INTO media (session, sha256, size, data)
SELECT :target, sha256, size, data FROM media WHERE session = :session AND sha256 IN
       (SELECT sha256 FROM media_uses WHERE session = :session AND seq < :stop)

-- media_uses_copy(target int, session int, stop int) --
-- Copy the references of entries before a `seq` to another session.
INSERT INTO media_uses (session, seq, sha256)
SELECT :target, seq, sha256 FROM media_uses WHERE session = :session AND seq < :stop

-- media_of(session, seq): select sha256 from media_uses --
-- media_uses_drop(session, seq): delete media_uses --

-- media_drop_unused(session, sha256) --
-- Delete a content that no entry refers to any more.
DELETE FROM media WHERE session = :session AND sha256 = :sha256
  AND NOT EXISTS (SELECT 1 FROM media_uses WHERE session = :session AND sha256 = :sha256)

-- media_uses_delete(session): delete media_uses --
-- media_delete(session): delete media --
