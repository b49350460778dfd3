-- Sign-ins to the inspector, and the journal of deletions.

-- A sign-in, stored by the tenant of a server. `opens` is the tenant whose sessions it gives access to. `user_id` and `key_id` are
-- empty if there are none.
CREATE TABLE sign_ins (
    tenant     bytea  NOT NULL,
    hash       bytea  NOT NULL,
    opens      bytea  NOT NULL,
    user_id    bytea  NOT NULL,
    role       bytea  NOT NULL,
    key_id     bytea  NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    used_at    bigint,
    PRIMARY KEY (tenant, hash)
);

CREATE INDEX sign_ins_holder ON sign_ins (tenant, key_id, opens, user_id, created_at);
CREATE INDEX sign_ins_created ON sign_ins (tenant, created_at);
CREATE INDEX sign_ins_expires ON sign_ins (tenant, expires_at);

-- A deletion. Ids of users and sessions are stored as keyed hashes only; empty if there is none. `counts` is the receipt as JSON.
CREATE TABLE deletions (
    tenant       bytea  NOT NULL,
    deleted_at   bigint NOT NULL,
    id           bytea  NOT NULL,
    kind         bytea  NOT NULL,
    user_hash    bytea  NOT NULL,
    session_hash bytea  NOT NULL,
    key_id       bytea  NOT NULL,
    counts       bytea  NOT NULL,
    PRIMARY KEY (tenant, deleted_at, id)
);
