-- Artifacts: names, their versions, and contents where the database keeps them.

-- What is known of a name. `session` is 0 for one that all sessions of a user share; `folded` is equal for names that differ in
-- case or Unicode form alone. A number that was given to a version is not given again while there is any other.
CREATE TABLE artifact_names (
    session      INTEGER NOT NULL,
    tenant       TEXT    NOT NULL,
    user_id      TEXT    NOT NULL,
    folded       TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    next_version INTEGER NOT NULL,
    newest       INTEGER NOT NULL,
    versions     INTEGER NOT NULL,
    bytes        INTEGER NOT NULL,
    PRIMARY KEY (session, tenant, user_id, folded)
) STRICT, WITHOUT ROWID;

-- `blob_key` is where the content lies, in whatever keeps it.
CREATE TABLE artifacts (
    session      INTEGER NOT NULL,
    tenant       TEXT    NOT NULL,
    user_id      TEXT    NOT NULL,
    folded       TEXT    NOT NULL,
    version      INTEGER NOT NULL,
    name         TEXT    NOT NULL,
    blob_key     TEXT    NOT NULL,
    mime_type    TEXT    NOT NULL,
    size         INTEGER NOT NULL,
    sha256       BLOB    NOT NULL,
    author       TEXT,
    metadata     BLOB,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (session, tenant, user_id, folded, version)
) STRICT, WITHOUT ROWID;

-- No two have the same content's key; and which keys are in use.
CREATE UNIQUE INDEX artifacts_blob ON artifacts (tenant, blob_key);

CREATE VIEW artifact_rows AS
SELECT name, version, blob_key, mime_type, size, sha256, author, metadata, created_at, session, tenant, user_id, folded
FROM artifacts;

-- Contents, in parts that fit into memory.
CREATE TABLE blobs (
    tenant       TEXT    NOT NULL,
    blob_key     TEXT    NOT NULL,
    part         INTEGER NOT NULL,
    written_at   INTEGER NOT NULL,
    data         BLOB    NOT NULL,
    PRIMARY KEY (tenant, blob_key, part)
) STRICT;
