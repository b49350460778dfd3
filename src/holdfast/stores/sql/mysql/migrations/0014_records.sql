-- Records: values under a namespace and a key. Their owner is a session, a user (session 0), or the tenant (without a user too).

-- An owner. Whoever writes to its records locks this row. Its version grows with each write.
CREATE TABLE record_owners (
    pk      BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant  VARBINARY(512) NOT NULL,
    user_id VARBINARY(512) NOT NULL,
    session BIGINT         NOT NULL,
    version BIGINT         NOT NULL,
    UNIQUE KEY record_owners_name (tenant, user_id, session),
    KEY record_owners_session (session)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A record. `place` are its namespace and key as sorted bytes; `form` is 0 for JSON and 1 for bytes.
CREATE TABLE records (
    owner      BIGINT          NOT NULL,
    place      VARBINARY(1100) NOT NULL,
    tenant     VARBINARY(512)  NOT NULL,
    version    BIGINT          NOT NULL,
    created_at BIGINT          NOT NULL,
    updated_at BIGINT          NOT NULL,
    expires_at BIGINT,
    form       BIGINT          NOT NULL,
    size       BIGINT          NOT NULL,
    data       LONGBLOB        NOT NULL,
    PRIMARY KEY (owner, place),
    KEY records_expires (tenant, expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
