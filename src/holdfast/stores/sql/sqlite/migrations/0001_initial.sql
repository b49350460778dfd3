-- Sessions, their logs, and what hangs on them. Text compares byte for byte (BINARY is SQLite's default collation).

-- The part of a session that changes with every append: kept small, because SQLite rewrites a row whole.
CREATE TABLE sessions (
    pk                INTEGER PRIMARY KEY,
    tenant            TEXT    NOT NULL,
    user_id           TEXT    NOT NULL,
    id                TEXT    NOT NULL,
    agent             TEXT,
    version           INTEGER NOT NULL,
    created_at        INTEGER NOT NULL,
    updated_at        INTEGER NOT NULL,
    status            TEXT    NOT NULL,
    ttl               INTEGER,
    messages          INTEGER NOT NULL,
    bytes             INTEGER NOT NULL,
    -- the version before which a view was built on what has changed since
    views_from        INTEGER NOT NULL DEFAULT 0,
    -- usage
    calls             INTEGER NOT NULL,
    prompt_tokens     INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cached_tokens     INTEGER NOT NULL,
    -- tail
    next_seq          INTEGER NOT NULL,
    turn_id           INTEGER NOT NULL,
    total             INTEGER NOT NULL,
    digest            BLOB    NOT NULL,
    last_seq          INTEGER NOT NULL,
    last_kind         INTEGER,
    unit              INTEGER NOT NULL,
    open_calls        BLOB,
    anchor            INTEGER
) STRICT;

-- By name; without the user too, for a lookup among all users of a tenant.
CREATE UNIQUE INDEX sessions_name ON sessions (tenant, id, user_id);
CREATE INDEX sessions_recent ON sessions (tenant, updated_at, user_id, id);
CREATE INDEX sessions_recent_of_user ON sessions (tenant, user_id, updated_at, id);

-- The part that may be large and changes seldom; no row while all of it is empty.
CREATE TABLE profiles (
    session         INTEGER PRIMARY KEY,
    system_messages BLOB NOT NULL,
    state           BLOB NOT NULL,
    metadata        BLOB NOT NULL
) STRICT;

CREATE VIEW session_rows AS
SELECT s.pk, s.tenant, s.user_id, s.id, s.agent, s.version, s.created_at, s.updated_at, s.status, s.ttl, s.messages,
       s.bytes, s.calls, s.prompt_tokens, s.completion_tokens, s.cached_tokens, s.next_seq, s.turn_id, s.total,
       s.digest, s.last_seq, s.last_kind, s.unit, s.open_calls, s.anchor, p.system_messages, p.state, p.metadata,
       s.views_from
FROM sessions AS s LEFT JOIN profiles AS p ON p.session = s.pk;

-- The log. Rows are added at the end of the file's last page, whatever their session; `payload` stands last, so that
-- what comes before it is read without its overflow pages.
CREATE TABLE entries (
    pk         INTEGER PRIMARY KEY,
    session    INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    turn_id    INTEGER NOT NULL,
    unit_back  INTEGER NOT NULL,  -- seq - unit: nearly always 0, which takes no byte
    timestamp  INTEGER NOT NULL,
    tokens     INTEGER NOT NULL,
    total      INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    digest     BLOB    NOT NULL,
    agent      TEXT,
    importance REAL,
    pinned     INTEGER NOT NULL,
    retired_by INTEGER,
    erased     INTEGER NOT NULL,
    metadata   BLOB,
    payload    BLOB    NOT NULL
) STRICT;

-- Each entry stands in one of these two: reading the live path costs nothing for what was retired.
CREATE UNIQUE INDEX entries_live ON entries (session, seq) WHERE retired_by IS NULL;
CREATE UNIQUE INDEX entries_retired ON entries (session, seq) WHERE retired_by IS NOT NULL;

CREATE VIEW entry_rows AS
SELECT session, seq, turn_id, unit_back, timestamp, tokens, total, digest, agent, importance, pinned, retired_by,
       erased, metadata, payload
FROM entries;

CREATE TABLE saved_views (
    session  INTEGER NOT NULL,
    key      TEXT    NOT NULL,
    frontier INTEGER NOT NULL,
    kept     BLOB,  -- entries before the frontier that stay; NULL for none
    state    BLOB    NOT NULL,
    PRIMARY KEY (session, key)
) STRICT, WITHOUT ROWID;

-- What was written under a key is read again from the log: an erased entry is not kept here.
CREATE TABLE idempotency (
    session     INTEGER NOT NULL,
    key         TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL,
    version     INTEGER NOT NULL,
    first_seq   INTEGER NOT NULL,
    entries     INTEGER NOT NULL,
    PRIMARY KEY (session, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE model_calls (
    pk                INTEGER PRIMARY KEY,
    session           INTEGER NOT NULL,
    timestamp         INTEGER NOT NULL,
    model             TEXT    NOT NULL,
    prompt_tokens     INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cached_tokens     INTEGER NOT NULL
) STRICT;

CREATE INDEX model_calls_session ON model_calls (session, pk);
