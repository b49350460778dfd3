-- Artifacts: names, their versions, and contents where the database keeps them.

-- What is known of a name. `session` is 0 for one that all sessions of a user share; `folded` is equal for names that differ in
-- case or Unicode form alone. A number that was given to a version is not given again while there is any other.
CREATE TABLE artifact_names (
    session      BIGINT          NOT NULL,
    tenant       VARBINARY(512)  NOT NULL,
    user_id      VARBINARY(512)  NOT NULL,
    folded       VARBINARY(1024) NOT NULL,
    name         VARBINARY(512)  NOT NULL,
    next_version BIGINT          NOT NULL,
    newest       BIGINT          NOT NULL,
    versions     BIGINT          NOT NULL,
    bytes        BIGINT          NOT NULL,
    PRIMARY KEY (session, tenant, user_id, folded)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- `blob_key` is where the content lies, in whatever keeps it.
CREATE TABLE artifacts (
    session      BIGINT          NOT NULL,
    tenant       VARBINARY(512)  NOT NULL,
    user_id      VARBINARY(512)  NOT NULL,
    folded       VARBINARY(1024) NOT NULL,
    version      BIGINT          NOT NULL,
    name         VARBINARY(512)  NOT NULL,
    blob_key     VARBINARY(64)   NOT NULL,
    mime_type    VARBINARY(512)  NOT NULL,
    size         BIGINT          NOT NULL,
    sha256       VARBINARY(32)   NOT NULL,
    author       VARBINARY(512),
    metadata     BLOB,
    created_at   BIGINT          NOT NULL,
    PRIMARY KEY (session, tenant, user_id, folded, version),
    UNIQUE KEY artifacts_blob (tenant, blob_key)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE OR REPLACE VIEW artifact_rows AS
SELECT name, version, blob_key, mime_type, size, sha256, author, metadata, created_at, session, tenant, user_id, folded
FROM artifacts;

-- Contents, in parts that fit into memory.
CREATE TABLE blobs (
    tenant       VARBINARY(512) NOT NULL,
    blob_key     VARBINARY(64)  NOT NULL,
    part         BIGINT         NOT NULL,
    written_at   BIGINT         NOT NULL,
    data         LONGBLOB       NOT NULL,
    PRIMARY KEY (tenant, blob_key, part)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
