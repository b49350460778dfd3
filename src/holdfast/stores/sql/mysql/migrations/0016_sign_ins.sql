-- Sign-ins to the inspector, and the journal of deletions.

-- A sign-in, stored by the tenant of a server. `opens` is the tenant whose sessions it gives access to. `user_id` and `key_id` are
-- empty if there are none.
CREATE TABLE sign_ins (
    tenant     VARBINARY(512) NOT NULL,
    hash       VARBINARY(32)  NOT NULL,
    opens      VARBINARY(512) NOT NULL,
    user_id    VARBINARY(512) NOT NULL,
    `role`     VARBINARY(512) NOT NULL,
    key_id     VARBINARY(512) NOT NULL,
    created_at BIGINT         NOT NULL,
    expires_at BIGINT         NOT NULL,
    used_at    BIGINT,
    PRIMARY KEY (tenant, hash),
    KEY sign_ins_holder (tenant, key_id, opens, user_id, created_at),
    KEY sign_ins_created (tenant, created_at),
    KEY sign_ins_expires (tenant, expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A deletion. Ids of users and sessions are stored as keyed hashes only; empty if there is none. `counts` is the receipt as JSON.
CREATE TABLE deletions (
    tenant       VARBINARY(512) NOT NULL,
    deleted_at   BIGINT         NOT NULL,
    id           VARBINARY(512) NOT NULL,
    kind         VARBINARY(512) NOT NULL,
    user_hash    VARBINARY(32)  NOT NULL,
    session_hash VARBINARY(32)  NOT NULL,
    key_id       VARBINARY(512) NOT NULL,
    counts       BLOB           NOT NULL,
    PRIMARY KEY (tenant, deleted_at, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
