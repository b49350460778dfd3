-- The searchable text of records, in UTF-8. `number` identifies a searchable record among those of its owner, and is NULL for
-- all others. `numbers` counts the numbers that an owner has given.
ALTER TABLE records ADD COLUMN number INTEGER;
ALTER TABLE records ADD COLUMN words BLOB;
ALTER TABLE record_owners ADD COLUMN numbers INTEGER NOT NULL DEFAULT 0;

CREATE INDEX records_searchable ON records (owner, version, number) WHERE number IS NOT NULL;
