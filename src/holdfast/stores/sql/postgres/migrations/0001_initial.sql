-- Sessions, their logs, and what hangs on them. Identifiers are `bytea`: they compare byte for byte whatever the
-- database's encoding and collation, and may hold NUL, which `text` cannot. convert_from(id, 'UTF8') shows one.

-- The part of a session that changes with every append: kept small, because PostgreSQL writes a row anew.
CREATE TABLE sessions (
    pk                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version           bigint NOT NULL,
    created_at        bigint NOT NULL,
    updated_at        bigint NOT NULL,
    ttl               bigint,
    messages          bigint NOT NULL,
    bytes             bigint NOT NULL,
    -- the version before which a view was built on what has changed since
    views_from        bigint NOT NULL DEFAULT 0,
    -- usage
    calls             bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    -- tail
    next_seq          bigint NOT NULL,
    turn_id           bigint NOT NULL,
    total             bigint NOT NULL,
    last_seq          bigint NOT NULL,
    unit              bigint NOT NULL,
    anchor            bigint,
    last_kind         smallint,
    tenant            bytea NOT NULL,
    user_id           bytea NOT NULL,
    id                bytea NOT NULL,
    agent             bytea,
    status            text NOT NULL,
    digest            bytea NOT NULL,
    open_calls        bytea
);

-- By name; without the user too, for a lookup among all users of a tenant.
CREATE UNIQUE INDEX sessions_name ON sessions (tenant, id, user_id);
CREATE INDEX sessions_recent ON sessions (tenant, updated_at, user_id, id);
CREATE INDEX sessions_recent_of_user ON sessions (tenant, user_id, updated_at, id);

-- The part that may be large and changes seldom; no row while all of it is empty.
CREATE TABLE profiles (
    session         bigint PRIMARY KEY,
    system_messages bytea NOT NULL,
    state           bytea NOT NULL,
    metadata        bytea NOT NULL
);

CREATE VIEW session_rows AS
SELECT s.pk, s.tenant, s.user_id, s.id, s.agent, s.version, s.created_at, s.updated_at, s.status, s.ttl, s.messages,
       s.bytes, s.calls, s.prompt_tokens, s.completion_tokens, s.cached_tokens, s.next_seq, s.turn_id, s.total,
       s.digest, s.last_seq, s.last_kind, s.unit, s.open_calls, s.anchor, p.system_messages, p.state, p.metadata,
       s.views_from
FROM sessions AS s LEFT JOIN profiles AS p ON p.session = s.pk;

-- The log. `payload` is JSON as it was written; large ones are compressed and stored beside the row by PostgreSQL itself.
CREATE TABLE entries (
    session    bigint NOT NULL,
    seq        bigint NOT NULL,
    turn_id    bigint NOT NULL,
    unit_back  bigint NOT NULL,  -- seq - unit
    timestamp  bigint NOT NULL,
    tokens     bigint NOT NULL,
    total      bigint NOT NULL,
    retired_by bigint,
    importance double precision,
    kind       smallint NOT NULL,
    pinned     smallint NOT NULL,
    erased     smallint NOT NULL,
    digest     bytea NOT NULL,
    agent      bytea,
    metadata   bytea,
    payload    bytea NOT NULL
);

-- Each entry stands in one of these two: reading the live path costs nothing for what was retired.
CREATE UNIQUE INDEX entries_live ON entries (session, seq) WHERE retired_by IS NULL;
CREATE UNIQUE INDEX entries_retired ON entries (session, seq) WHERE retired_by IS NOT NULL;

CREATE VIEW entry_rows AS
SELECT session, seq, turn_id, unit_back, timestamp, tokens, total, digest, agent, importance, pinned, retired_by,
       erased, metadata, payload
FROM entries;

CREATE TABLE saved_views (
    session  bigint NOT NULL,
    key      bytea  NOT NULL,
    frontier bigint NOT NULL,
    kept     bytea,  -- entries before the frontier that stay; NULL for none
    state    bytea  NOT NULL,
    PRIMARY KEY (session, key)
);

-- What was written under a key is read again from the log: an erased entry is not kept here.
CREATE TABLE idempotency (
    session     bigint NOT NULL,
    key         bytea  NOT NULL,
    fingerprint bytea  NOT NULL,
    version     bigint NOT NULL,
    first_seq   bigint NOT NULL,
    entries     bigint NOT NULL,
    PRIMARY KEY (session, key)
);

CREATE TABLE model_calls (
    pk                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session           bigint NOT NULL,
    timestamp         bigint NOT NULL,
    model             bytea  NOT NULL,
    prompt_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cached_tokens     bigint NOT NULL
);

CREATE INDEX model_calls_session ON model_calls (session, pk);
