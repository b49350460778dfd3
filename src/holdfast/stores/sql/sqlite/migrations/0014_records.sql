-- Records: values under a namespace and a key. Their owner is a session, a user (session 0), or the tenant (without a user too).

-- An owner. Whoever writes to its records locks this row. Its version grows with each write.
CREATE TABLE record_owners (
    pk      INTEGER PRIMARY KEY,
    tenant  TEXT    NOT NULL,
    user_id TEXT    NOT NULL,
    session INTEGER NOT NULL,
    version INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX record_owners_name ON record_owners (tenant, user_id, session);
CREATE INDEX record_owners_session ON record_owners (session);

-- A record. `place` are its namespace and key as sorted bytes; `form` is 0 for JSON and 1 for bytes.
CREATE TABLE records (
    owner      INTEGER NOT NULL,
    place      BLOB    NOT NULL,
    tenant     TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    expires_at INTEGER,
    form       INTEGER NOT NULL,
    size       INTEGER NOT NULL,
    data       BLOB    NOT NULL,
    PRIMARY KEY (owner, place)
) STRICT;

CREATE INDEX records_expires ON records (tenant, expires_at) WHERE expires_at IS NOT NULL;
