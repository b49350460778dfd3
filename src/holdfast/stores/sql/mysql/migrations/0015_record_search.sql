-- The searchable text of records, in UTF-8. `number` identifies a searchable record among those of its owner, and is NULL for
-- all others. `numbers` counts the numbers that an owner has given.
ALTER TABLE records ADD COLUMN number BIGINT;
ALTER TABLE records ADD COLUMN words MEDIUMBLOB;
ALTER TABLE record_owners ADD COLUMN numbers BIGINT NOT NULL DEFAULT 0;

-- The version of a searchable record: MySQL has no index of some rows only.
ALTER TABLE records ADD COLUMN searched BIGINT GENERATED ALWAYS AS (IF(number IS NULL, NULL, version)) VIRTUAL;
CREATE INDEX records_searchable ON records (owner, searched, number);

-- The name of a record's document is the record's namespace and key.
ALTER TABLE index_documents MODIFY COLUMN name VARBINARY(1100);
