-- Sessions, their logs, and what hangs on them. Identifiers are VARBINARY: they compare byte for byte, trailing spaces
-- and NUL included, which no collation that both MySQL and MariaDB have would do.
-- MySQL commits each of these statements by itself: one that is run again after an interruption finds its work done.

CREATE TABLE sessions (
    pk                BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant            VARBINARY(512) NOT NULL,
    user_id           VARBINARY(512) NOT NULL,
    id                VARBINARY(512) NOT NULL,
    agent             VARBINARY(512),
    version           BIGINT NOT NULL,
    created_at        BIGINT NOT NULL,
    updated_at        BIGINT NOT NULL,
    status            VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ttl               BIGINT,
    messages          BIGINT NOT NULL,
    bytes             BIGINT NOT NULL,
    -- the version before which a view was built on what has changed since
    views_from        BIGINT NOT NULL DEFAULT 0,
    -- usage
    calls             BIGINT NOT NULL,
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    cached_tokens     BIGINT NOT NULL,
    -- tail
    next_seq          BIGINT NOT NULL,
    turn_id           BIGINT NOT NULL,
    total             BIGINT NOT NULL,
    digest            VARBINARY(64) NOT NULL,
    last_seq          BIGINT NOT NULL,
    last_kind         SMALLINT,
    unit              BIGINT NOT NULL,
    open_calls        LONGBLOB,
    anchor            BIGINT,
    -- by name; without the user too, for a lookup among all users of a tenant
    UNIQUE KEY sessions_name (tenant, id, user_id),
    KEY sessions_recent (tenant, updated_at, user_id, id),
    KEY sessions_recent_of_user (tenant, user_id, updated_at, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The part that may be large and changes seldom; no row while all of it is empty.
CREATE TABLE profiles (
    session         BIGINT NOT NULL PRIMARY KEY,
    system_messages LONGBLOB NOT NULL,
    state           LONGBLOB NOT NULL,
    metadata        LONGBLOB NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE OR REPLACE VIEW session_rows AS
SELECT s.pk, s.tenant, s.user_id, s.id, s.agent, s.version, s.created_at, s.updated_at, s.status, s.ttl, s.messages,
       s.bytes, s.calls, s.prompt_tokens, s.completion_tokens, s.cached_tokens, s.next_seq, s.turn_id, s.total,
       s.digest, s.last_seq, s.last_kind, s.unit, s.open_calls, s.anchor, p.system_messages, p.state, p.metadata,
       s.views_from
FROM sessions AS s LEFT JOIN profiles AS p ON p.session = s.pk;

-- The log, each session's entries together. `payload` is JSON as it was written. The second index has the live path by
-- itself, for where much of the log is retired: MySQL has no partial ones.
CREATE TABLE entries (
    session    BIGINT NOT NULL,
    seq        BIGINT NOT NULL,
    turn_id    BIGINT NOT NULL,
    unit_back  BIGINT NOT NULL,
    timestamp  BIGINT NOT NULL,
    tokens     BIGINT NOT NULL,
    total      BIGINT NOT NULL,
    kind       SMALLINT NOT NULL,
    digest     VARBINARY(64) NOT NULL,
    agent      VARBINARY(512),
    importance DOUBLE,
    pinned     SMALLINT NOT NULL,
    retired_by BIGINT,
    erased     SMALLINT NOT NULL,
    metadata   LONGBLOB,
    payload    LONGBLOB NOT NULL,
    PRIMARY KEY (session, seq),
    KEY entries_live (session, retired_by, seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE OR REPLACE VIEW entry_rows AS
SELECT session, seq, turn_id, unit_back, timestamp, tokens, total, digest, agent, importance, pinned, retired_by,
       erased, metadata, payload
FROM entries;

CREATE TABLE saved_views (
    session  BIGINT NOT NULL,
    `key`    VARBINARY(512) NOT NULL,
    frontier BIGINT NOT NULL,
    kept     LONGBLOB,
    state    LONGBLOB NOT NULL,
    PRIMARY KEY (session, `key`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- What was written under a key is read again from the log: an erased entry is not kept here.
CREATE TABLE idempotency (
    session     BIGINT NOT NULL,
    `key`       VARBINARY(512) NOT NULL,
    fingerprint LONGBLOB NOT NULL,
    version     BIGINT NOT NULL,
    first_seq   BIGINT NOT NULL,
    entries     BIGINT NOT NULL,
    PRIMARY KEY (session, `key`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE model_calls (
    pk                BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    session           BIGINT NOT NULL,
    timestamp         BIGINT NOT NULL,
    model             VARBINARY(512) NOT NULL,
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    cached_tokens     BIGINT NOT NULL,
    KEY model_calls_session (session, pk)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
