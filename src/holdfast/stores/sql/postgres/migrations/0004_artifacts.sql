-- Artifacts: names, their versions, and contents where the database keeps them.

-- What is known of a name. `session` is 0 for one that all sessions of a user share; `folded` is equal for names that differ in
-- case or Unicode form alone. A number that was given to a version is not given again while there is any other.
CREATE TABLE artifact_names (
    session      bigint NOT NULL,
    tenant       bytea  NOT NULL,
    user_id      bytea  NOT NULL,
    folded       bytea  NOT NULL,
    name         bytea  NOT NULL,
    next_version bigint NOT NULL,
    newest       bigint NOT NULL,
    versions     bigint NOT NULL,
    bytes        bigint NOT NULL,
    PRIMARY KEY (session, tenant, user_id, folded)
);

-- `blob_key` is where the content lies, in whatever keeps it.
CREATE TABLE artifacts (
    session      bigint NOT NULL,
    tenant       bytea  NOT NULL,
    user_id      bytea  NOT NULL,
    folded       bytea  NOT NULL,
    version      bigint NOT NULL,
    name         bytea  NOT NULL,
    blob_key     bytea  NOT NULL,
    mime_type    bytea  NOT NULL,
    size         bigint NOT NULL,
    sha256       bytea  NOT NULL,
    author       bytea,
    metadata     bytea,
    created_at   bigint NOT NULL,
    PRIMARY KEY (session, tenant, user_id, folded, version)
);

-- No two have the same content's key; and which keys are in use.
CREATE UNIQUE INDEX artifacts_blob ON artifacts (tenant, blob_key);

CREATE VIEW artifact_rows AS
SELECT name, version, blob_key, mime_type, size, sha256, author, metadata, created_at, session, tenant, user_id, folded
FROM artifacts;

-- Contents, in parts that fit into memory.
CREATE TABLE blobs (
    tenant       bytea  NOT NULL,
    blob_key     bytea  NOT NULL,
    part         bigint NOT NULL,
    written_at   bigint NOT NULL,
    data         bytea  NOT NULL,
    PRIMARY KEY (tenant, blob_key, part)
);
