-- State that sessions share: a user's, and with an empty user the tenant's own.

-- A scope. Whoever writes to it locks this row. It stays when all it held was deleted: a version never comes again.
CREATE TABLE state_scopes (
    tenant     bytea  NOT NULL,
    user_id    bytea  NOT NULL,
    version    bigint NOT NULL,
    key_count  bigint NOT NULL,
    bytes      bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (tenant, user_id)
);

-- What stands under each key, as JSON.
CREATE TABLE state_values (
    tenant  bytea  NOT NULL,
    user_id bytea  NOT NULL,
    name    bytea  NOT NULL,
    data    bytea  NOT NULL,
    PRIMARY KEY (tenant, user_id, name)
);
