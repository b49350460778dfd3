-- Sessions, their logs, and everything that belongs to them. Identifiers are VARBINARY: they compare byte for byte,
-- trailing spaces and NUL included, which no collation that both MySQL and MariaDB have would do. MySQL commits each
-- of these statements by itself. If one is run again after an interruption, its error is ignored.

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
    -- the version before which a view was built from messages that have changed since
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
    -- the version before which a compaction was made from messages that were erased or dropped since
    compactions_from  BIGINT NOT NULL DEFAULT 0,
    -- life. `expires_at` is set for a session with a ttl of its own. A withdrawn session has lost its name, by the id of its
    -- ending, and waits to be deleted. `identity` differs from that of an earlier session with the same name.
    accessed_at       BIGINT NOT NULL DEFAULT 0,
    expires_at        BIGINT,
    ended_at          BIGINT,
    end_reason        VARBINARY(512),
    withdrawn         VARBINARY(512) NOT NULL DEFAULT '',
    identity          VARBINARY(512) NOT NULL DEFAULT '',
    -- which server runs a turn: none if `claim_holder` is empty
    claim_holder      VARBINARY(512) NOT NULL DEFAULT '',
    claim_until       BIGINT NOT NULL DEFAULT 0,
    claim_wanted      SMALLINT NOT NULL DEFAULT 0,
    -- by name, also without the user, for a lookup among all users of a tenant
    UNIQUE KEY sessions_name (tenant, id, user_id, withdrawn),
    KEY sessions_recent (tenant, updated_at, user_id, id),
    KEY sessions_recent_of_user (tenant, user_id, updated_at, id),
    KEY sessions_active (tenant, status, accessed_at),
    KEY sessions_expiring (tenant, status, expires_at),
    -- by the last visible message of the live path: an exact continuation is found in one step, however many sessions of a user
    -- begin alike
    KEY sessions_end (tenant, user_id, digest, updated_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The part that may be large and seldom changes. There is no row while all of it is empty.
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
       s.accessed_at, s.ended_at, s.end_reason, s.expires_at, s.withdrawn, s.identity, s.claim_holder, s.claim_until,
       s.claim_wanted, s.views_from
FROM sessions AS s LEFT JOIN profiles AS p ON p.session = s.pk;

-- The log, each session's entries together. `payload` is JSON as it was written. The second index contains the live
-- path separately, for logs of which much is retired: MySQL has no partial indexes.
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
    -- keys of 64 bits, see `holdfast.stores.matching`: of the digest of a visible entry, and of its alias
    mark       BIGINT,
    alias      BIGINT,
    PRIMARY KEY (session, seq),
    KEY entries_live (session, retired_by, seq),
    KEY entries_mark (mark, session, seq),
    KEY entries_alias (alias, session, seq)
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
    -- milliseconds since the epoch; only views that were saved lately are kept
    saved_at BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (session, `key`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The entries of a key are read from the log, so that no erased entry is stored here.
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
    turn_id           BIGINT NOT NULL DEFAULT 0,
    through           BIGINT NOT NULL DEFAULT -1,
    view_key          VARBINARY(512) NOT NULL DEFAULT '',
    hash              VARBINARY(16) NOT NULL DEFAULT '',
    build             BLOB    NOT NULL,
    KEY model_calls_session (session, pk),
    KEY model_calls_turn (session, turn_id, pk)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Compactions. The row with a session's highest id is never deleted before the session, because the next id follows
-- from it. At most one of a view is live, which the lock on the session ensures.
CREATE TABLE compactions (
    session           BIGINT NOT NULL,
    id                BIGINT NOT NULL,
    view_key          VARBINARY(512) NOT NULL,
    status            VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- the session's version when it was added: a view that was built before does not contain it
    laid_at           BIGINT NOT NULL,
    kind              VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    first_seq         BIGINT NOT NULL,
    last_seq          BIGINT NOT NULL,
    through           BIGINT NOT NULL,
    tokens            BIGINT NOT NULL,
    source_tokens     BIGINT NOT NULL,
    total             BIGINT NOT NULL,
    model             VARBINARY(512),
    created_at        BIGINT NOT NULL,
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    error             BLOB,
    report            LONGBLOB,
    text              LONGBLOB NOT NULL,
    PRIMARY KEY (session, id),
    KEY compactions_live (session, view_key, status)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE OR REPLACE VIEW compaction_rows AS
SELECT session, id, status, view_key, first_seq, last_seq, kind, tokens, source_tokens, total, model, created_at, through,
       prompt_tokens, completion_tokens, error, report, text
FROM compactions;

CREATE TABLE leases (
    tenant     VARBINARY(512) NOT NULL,
    name       VARBINARY(512) NOT NULL,
    holder     VARBINARY(512) NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE learned (
    tenant     VARBINARY(512) NOT NULL,
    model      VARBINARY(512) NOT NULL,
    updated_at BIGINT NOT NULL,
    data       MEDIUMBLOB NOT NULL,
    PRIMARY KEY (tenant, model)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Ends of sessions that some hooks have not been notified of; `hooks` are their names, as JSON.
CREATE TABLE endings (
    tenant     VARBINARY(512) NOT NULL,
    id         VARBINARY(512) NOT NULL,
    user_id    VARBINARY(512) NOT NULL,
    session_id VARBINARY(512) NOT NULL,
    identity   VARBINARY(512) NOT NULL,
    withdrawn  SMALLINT NOT NULL,
    reason     VARBINARY(512) NOT NULL,
    ended_at   BIGINT NOT NULL,
    due_at     BIGINT NOT NULL,
    attempts   BIGINT NOT NULL,
    hooks      LONGBLOB NOT NULL,
    error      BLOB,
    PRIMARY KEY (tenant, id),
    KEY endings_due (tenant, due_at, ended_at, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Artifacts: names, their versions, and contents if the database stores them.

-- A name. `session` is 0 for one that all sessions of a user share; `folded` is equal for names that differ in
-- case or Unicode form alone. A version's number is not used again while the name has any version.
CREATE TABLE artifact_names (
    session      BIGINT          NOT NULL,
    tenant       VARBINARY(512)  NOT NULL,
    user_id      VARBINARY(512)  NOT NULL,
    folded       VARBINARY(1024) NOT NULL,
    name         VARBINARY(512)  NOT NULL,
    next_version BIGINT          NOT NULL,
    newest       BIGINT          NOT NULL,
    versions     BIGINT          NOT NULL,
    bytes        BIGINT          NOT NULL,
    PRIMARY KEY (session, tenant, user_id, folded)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A version of a name. `blob_key` is the key of the content in the blob store.
CREATE TABLE artifacts (
    session      BIGINT          NOT NULL,
    tenant       VARBINARY(512)  NOT NULL,
    user_id      VARBINARY(512)  NOT NULL,
    folded       VARBINARY(1024) NOT NULL,
    version      BIGINT          NOT NULL,
    name         VARBINARY(512)  NOT NULL,
    blob_key     VARBINARY(64)   NOT NULL,
    mime_type    VARBINARY(512)  NOT NULL,
    size         BIGINT          NOT NULL,
    sha256       VARBINARY(32)   NOT NULL,
    author       VARBINARY(512),
    metadata     BLOB,
    created_at   BIGINT          NOT NULL,
    PRIMARY KEY (session, tenant, user_id, folded, version),
    UNIQUE KEY artifacts_blob (tenant, blob_key)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE OR REPLACE VIEW artifact_rows AS
SELECT name, version, blob_key, mime_type, size, sha256, author, metadata, created_at, session, tenant, user_id, folded
FROM artifacts;

-- Contents, in parts that fit into memory.
CREATE TABLE blobs (
    tenant       VARBINARY(512) NOT NULL,
    blob_key     VARBINARY(64)  NOT NULL,
    part         BIGINT         NOT NULL,
    written_at   BIGINT         NOT NULL,
    data         LONGBLOB       NOT NULL,
    PRIMARY KEY (tenant, blob_key, part)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Media that entries refer to, once per session.
CREATE TABLE media (
    session BIGINT        NOT NULL,
    sha256  VARBINARY(32) NOT NULL,
    size    BIGINT        NOT NULL,
    data    LONGBLOB      NOT NULL,
    PRIMARY KEY (session, sha256)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Which entries refer to them.
CREATE TABLE media_uses (
    session BIGINT        NOT NULL,
    seq     BIGINT        NOT NULL,
    sha256  VARBINARY(32) NOT NULL,
    PRIMARY KEY (session, seq, sha256),
    KEY media_uses_sha256 (session, sha256)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- API keys, stored by the tenant of a server; `opens` is the tenant whose sessions a key gives access to.
CREATE TABLE api_keys (
    tenant     VARBINARY(512) NOT NULL,
    id         VARBINARY(512) NOT NULL,
    hash       VARBINARY(32)  NOT NULL,
    name       VARBINARY(512) NOT NULL,
    opens      VARBINARY(512) NOT NULL,
    user_id    VARBINARY(512),
    `role`     VARBINARY(512) NOT NULL,
    created_at BIGINT         NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    used_at    BIGINT,
    rate       BIGINT,
    max_body   BIGINT,
    -- settings of chat requests with this key; NULL: the agent or the server decides
    session_mode VARBINARY(512),
    budget     BIGINT,
    PRIMARY KEY (tenant, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- State that sessions share: that of a user, and with an empty user that of the tenant.

-- A scope. Every write to it locks this row. The row stays when all values were deleted, so that no version is used
-- again.
CREATE TABLE state_scopes (
    tenant     VARBINARY(512) NOT NULL,
    user_id    VARBINARY(512) NOT NULL,
    version    BIGINT         NOT NULL,
    key_count  BIGINT         NOT NULL,
    bytes      BIGINT         NOT NULL,
    updated_at BIGINT         NOT NULL,
    PRIMARY KEY (tenant, user_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The value of each key, as JSON.
CREATE TABLE state_values (
    tenant  VARBINARY(512) NOT NULL,
    user_id VARBINARY(512) NOT NULL,
    name    VARBINARY(256) NOT NULL,
    data    MEDIUMBLOB     NOT NULL,
    PRIMARY KEY (tenant, user_id, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Memories, signals of their recalls, and a diary. They belong to a user, an agent or the tenant.

-- An owner. Every write to its memories locks this row. The row stays when all memories were deleted, so that no
-- version or number is used again. `held` is the number of memories; the `next_` columns are the next numbers of a
-- memory, a signal and a diary entry.
CREATE TABLE memory_owners (
    pk          BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant      VARBINARY(512) NOT NULL,
    kind        VARBINARY(16)  NOT NULL,
    id          VARBINARY(512) NOT NULL,
    version     BIGINT         NOT NULL,
    held        BIGINT         NOT NULL,
    next_memory BIGINT         NOT NULL,
    next_signal BIGINT         NOT NULL,
    next_entry  BIGINT         NOT NULL,
    updated_at  BIGINT         NOT NULL,
    UNIQUE KEY memory_owners_name (tenant, kind, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A memory as JSON, without its owner, number and version. `version` is the version of the owner at its last change.
CREATE TABLE memories (
    owner   BIGINT         NOT NULL,
    number  BIGINT         NOT NULL,
    tenant  VARBINARY(512) NOT NULL,
    id      VARBINARY(64)  NOT NULL,
    version BIGINT         NOT NULL,
    status  VARBINARY(16)  NOT NULL,
    data    MEDIUMBLOB     NOT NULL,
    PRIMARY KEY (owner, number),
    UNIQUE KEY memories_id (tenant, id),
    KEY memories_version (owner, version),
    KEY memories_status (owner, status, number)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A recall of a memory. `memory` is the memory's number.
CREATE TABLE memory_signals (
    owner       BIGINT         NOT NULL,
    memory      BIGINT         NOT NULL,
    seq         BIGINT         NOT NULL,
    recalled_at BIGINT         NOT NULL,
    asked       VARBINARY(64)  NOT NULL,
    score       DOUBLE         NOT NULL,
    session_id  VARBINARY(512) NOT NULL,
    PRIMARY KEY (owner, memory, seq),
    KEY memory_signals_at (owner, recalled_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A sweep over an owner's memories, with its report as JSON.
CREATE TABLE memory_diary (
    owner    BIGINT         NOT NULL,
    seq      BIGINT         NOT NULL,
    id       VARBINARY(512) NOT NULL,
    swept_at BIGINT         NOT NULL,
    report   MEDIUMBLOB     NOT NULL,
    PRIMARY KEY (owner, seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The search index: terms, their documents, and vectors, without text; see `holdfast.recall.base`.

-- A space, with the number and length of its documents. A space that is removed loses its name first, and then its
-- documents; `kind` is `gone` until then.
CREATE TABLE index_spaces (
    number         BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant         VARBINARY(512) NOT NULL,
    kind           VARBINARY(16) NOT NULL,
    name           VARBINARY(512) NOT NULL,
    talk_documents BIGINT NOT NULL,
    talk_length    BIGINT NOT NULL,
    tool_documents BIGINT NOT NULL,
    tool_length    BIGINT NOT NULL,
    UNIQUE KEY index_spaces_name (tenant, kind, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE index_sources (
    number    BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    space     BIGINT NOT NULL,
    id        VARBINARY(512) NOT NULL,
    identity  VARBINARY(512) NOT NULL,
    version   BIGINT NOT NULL,
    next_seq  BIGINT NOT NULL,
    talk      BIGINT NOT NULL,
    tool      BIGINT NOT NULL,
    epoch     BIGINT NOT NULL,
    complete  BIGINT NOT NULL,
    documents BIGINT NOT NULL,
    UNIQUE KEY index_sources_id (space, id),
    KEY index_sources_incomplete (complete, space, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- `id` is made of the source's number, the channel and the place, so that neighbours have neighbouring ids.
-- `model` is the model of its vector, or the tenant's model without a name until it has one; NULL if it gets no vector.
-- `terms` are the keys of its terms; those that occur more than once are repeated after a bar, with their count.
CREATE TABLE index_documents (
    id      BIGINT NOT NULL PRIMARY KEY,
    space   BIGINT NOT NULL,
    channel BIGINT NOT NULL,
    source  BIGINT NOT NULL,
    seq     BIGINT NOT NULL,
    at      BIGINT NOT NULL,
    length  BIGINT NOT NULL,
    traits  BIGINT NOT NULL,
    model   BIGINT,
    role    VARBINARY(512) NOT NULL,
    agent   VARBINARY(512),
    name    VARBINARY(1100),  -- of a record: its namespace and key
    digest  VARBINARY(16) NOT NULL,
    terms   MEDIUMBLOB NOT NULL,
    UNIQUE KEY index_documents_seq (source, seq),
    KEY index_documents_at (space, channel, at, id),
    KEY index_documents_model (model, space, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The number of documents of a space and channel that contain a term.
CREATE TABLE index_frequencies (
    space     BIGINT NOT NULL,
    channel   BIGINT NOT NULL,
    term      VARBINARY(64) NOT NULL,
    documents BIGINT NOT NULL,
    PRIMARY KEY (space, channel, term)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The posting lists. Each word begins with channel and space, so that a list contains documents of one space only.
-- This is no FULLTEXT key: such a key is outside of a transaction's snapshot, so a lookup during a write would miss
-- replaced documents, and it keeps words of erased documents until the table is rebuilt.
CREATE TABLE index_postings (
    word VARBINARY(64) NOT NULL,
    id   BIGINT NOT NULL,
    PRIMARY KEY (word, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE index_models (
    number     BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant     VARBINARY(512) NOT NULL,
    name       VARBINARY(512) NOT NULL,
    dimensions BIGINT NOT NULL,
    UNIQUE KEY index_models_name (tenant, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- By document; float32, little-endian. `mark` is the beginning of the document's digest, as a number.
CREATE TABLE index_vectors (
    id   BIGINT NOT NULL PRIMARY KEY,
    mark BIGINT NOT NULL,
    data MEDIUMBLOB NOT NULL,
    KEY index_vectors_mark (mark)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Other data of a tenant's index, such as the progress of a rebuild.
CREATE TABLE index_notes (
    tenant VARBINARY(512) NOT NULL,
    name   VARBINARY(512) NOT NULL,
    data   MEDIUMBLOB NOT NULL,
    PRIMARY KEY (tenant, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The highest version or number of names that were deleted with all their data. Later versions and numbers of any
-- name are higher.
CREATE TABLE floors (
    tenant VARBINARY(512) NOT NULL PRIMARY KEY,
    number BIGINT         NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Which entries of a session are copies, in ranges up to the next `first`. `source` is the identity of the session in
-- which they were written first, `source_first` their place there. A session without copies has no row.
CREATE TABLE entry_origins (
    session      BIGINT         NOT NULL,
    first        BIGINT         NOT NULL,
    source       VARBINARY(512) NOT NULL,
    source_first BIGINT         NOT NULL,
    PRIMARY KEY (session, first),
    KEY entry_origins_source (source, session)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Records: values under a namespace and a key. Their owner is a session, a user (session 0), or the tenant (without a
-- user too).

-- An owner. Every write to its records locks this row. Its version grows with each write.
CREATE TABLE record_owners (
    pk      BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant  VARBINARY(512) NOT NULL,
    user_id VARBINARY(512) NOT NULL,
    session BIGINT         NOT NULL,
    version BIGINT         NOT NULL,
    -- how many numbers the owner has given to searchable records
    numbers BIGINT         NOT NULL DEFAULT 0,
    UNIQUE KEY record_owners_name (tenant, user_id, session),
    KEY record_owners_session (session)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A record. `place` is its namespace and key as sortable bytes; `form` is 0 for JSON and 1 for bytes.
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
    -- the number of a searchable record among those of its owner, and its searchable text in UTF-8
    number     BIGINT,
    words      MEDIUMBLOB,
    -- the version of a searchable record: MySQL has no partial indexes
    searched   BIGINT GENERATED ALWAYS AS (IF(number IS NULL, NULL, version)) VIRTUAL,
    PRIMARY KEY (owner, place),
    KEY records_expires (tenant, expires_at),
    KEY records_searchable (owner, searched, number)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The journal of deletions.

-- A deletion. Ids of users and sessions are stored as keyed hashes only; empty if there is none. `counts` is the
-- receipt as JSON.
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
