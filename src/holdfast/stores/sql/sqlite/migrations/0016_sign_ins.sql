-- Sign-ins to the inspector, and the journal of deletions.

-- A sign-in, stored by the tenant of a server. `opens` is the tenant whose sessions it gives access to. `user_id` and `key_id` are
-- empty if there are none.
CREATE TABLE sign_ins (
    tenant     TEXT    NOT NULL,
    hash       BLOB    NOT NULL,
    opens      TEXT    NOT NULL,
    user_id    TEXT    NOT NULL,
    role       TEXT    NOT NULL,
    key_id     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    used_at    INTEGER,
    PRIMARY KEY (tenant, hash)
) STRICT, WITHOUT ROWID;

CREATE INDEX sign_ins_holder ON sign_ins (tenant, key_id, opens, user_id, created_at);
CREATE INDEX sign_ins_created ON sign_ins (tenant, created_at);
CREATE INDEX sign_ins_expires ON sign_ins (tenant, expires_at);

-- A deletion. Ids of users and sessions are stored as keyed hashes only; empty if there is none. `counts` is the receipt as JSON.
CREATE TABLE deletions (
    tenant       TEXT    NOT NULL,
    deleted_at   INTEGER NOT NULL,
    id           TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    user_hash    BLOB    NOT NULL,
    session_hash BLOB    NOT NULL,
    key_id       TEXT    NOT NULL,
    counts       BLOB    NOT NULL,
    PRIMARY KEY (tenant, deleted_at, id)
) STRICT, WITHOUT ROWID;
