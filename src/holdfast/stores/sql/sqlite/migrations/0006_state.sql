-- State that sessions share: a user's, and with an empty user the tenant's own.

-- A scope. Whoever writes to it locks this row. It stays when all it held was deleted: a version never comes again.
CREATE TABLE state_scopes (
    tenant     TEXT    NOT NULL,
    user_id    TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    key_count  INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, user_id)
) STRICT, WITHOUT ROWID;

-- What stands under each key, as JSON.
CREATE TABLE state_values (
    tenant  TEXT    NOT NULL,
    user_id TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    data    BLOB    NOT NULL,
    PRIMARY KEY (tenant, user_id, name)
) STRICT;
