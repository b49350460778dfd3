-- State that sessions share: a user's, and with an empty user the tenant's own.

-- A scope. Whoever writes to it locks this row. It stays when all it held was deleted: a version never comes again.
CREATE TABLE state_scopes (
    tenant     VARBINARY(512) NOT NULL,
    user_id    VARBINARY(512) NOT NULL,
    version    BIGINT         NOT NULL,
    key_count  BIGINT         NOT NULL,
    bytes      BIGINT         NOT NULL,
    updated_at BIGINT         NOT NULL,
    PRIMARY KEY (tenant, user_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- What stands under each key, as JSON.
CREATE TABLE state_values (
    tenant  VARBINARY(512) NOT NULL,
    user_id VARBINARY(512) NOT NULL,
    name    VARBINARY(256) NOT NULL,
    data    MEDIUMBLOB     NOT NULL,
    PRIMARY KEY (tenant, user_id, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
