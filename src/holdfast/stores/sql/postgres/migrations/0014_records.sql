-- Records: values under a namespace and a key. Their owner is a session, a user (session 0), or the tenant (without a user too).

-- An owner. Whoever writes to its records locks this row. Its version grows with each write.
CREATE TABLE record_owners (
    pk      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant  bytea  NOT NULL,
    user_id bytea  NOT NULL,
    session bigint NOT NULL,
    version bigint NOT NULL
);

CREATE UNIQUE INDEX record_owners_name ON record_owners (tenant, user_id, session);
CREATE INDEX record_owners_session ON record_owners (session);

-- A record. `place` are its namespace and key as sorted bytes; `form` is 0 for JSON and 1 for bytes.
CREATE TABLE records (
    owner      bigint NOT NULL,
    place      bytea  NOT NULL,
    tenant     bytea  NOT NULL,
    version    bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    expires_at bigint,
    form       bigint NOT NULL,
    size       bigint NOT NULL,
    data       bytea  NOT NULL,
    PRIMARY KEY (owner, place)
);

CREATE INDEX records_expires ON records (tenant, expires_at) WHERE expires_at IS NOT NULL;
