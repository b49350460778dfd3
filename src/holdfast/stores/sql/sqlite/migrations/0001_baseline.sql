-- Sessions, their logs, and everything that belongs to them. Text compares byte for byte (BINARY is SQLite's default
-- collation).

-- The part of a session that changes with every append. It is small, because SQLite rewrites the whole row.
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
    -- the version before which a view was built from messages that have changed since
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
    anchor            INTEGER,
    -- the version before which a compaction was made from messages that were erased or dropped since
    compactions_from  INTEGER NOT NULL DEFAULT 0,
    -- life. `expires_at` is set for a session with a ttl of its own. A withdrawn session has lost its name, by the id of its
    -- ending, and waits to be deleted. `identity` differs from that of an earlier session with the same name.
    accessed_at       INTEGER NOT NULL DEFAULT 0,
    expires_at        INTEGER,
    ended_at          INTEGER,
    end_reason        TEXT,
    withdrawn         TEXT    NOT NULL DEFAULT '',
    identity          TEXT    NOT NULL DEFAULT '',
    -- which server runs a turn: none if `claim_holder` is empty
    claim_holder      TEXT    NOT NULL DEFAULT '',
    claim_until       INTEGER NOT NULL DEFAULT 0,
    claim_wanted      INTEGER NOT NULL DEFAULT 0
) STRICT;

-- By name, also without the user, for a lookup among all users of a tenant.
CREATE UNIQUE INDEX sessions_name ON sessions (tenant, id, user_id, withdrawn);
CREATE INDEX sessions_recent ON sessions (tenant, updated_at, user_id, id);
CREATE INDEX sessions_recent_of_user ON sessions (tenant, user_id, updated_at, id);
CREATE INDEX sessions_active ON sessions (tenant, accessed_at) WHERE status = 'active';
CREATE INDEX sessions_expiring ON sessions (tenant, expires_at) WHERE status = 'active' AND expires_at IS NOT NULL;
-- By the last visible message of the live path: an exact continuation is found in one step, however many sessions of
-- a user begin alike.
CREATE INDEX sessions_end ON sessions (tenant, user_id, digest, updated_at);

-- The part that may be large and seldom changes. There is no row while all of it is empty.
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
       s.accessed_at, s.ended_at, s.end_reason, s.expires_at, s.withdrawn, s.identity, s.claim_holder, s.claim_until,
       s.claim_wanted, s.views_from
FROM sessions AS s LEFT JOIN profiles AS p ON p.session = s.pk;

-- The log. Rows are added at the end of the table, whatever their session; `payload` follows
-- the columns that most reads need, so that they are read without its overflow pages.
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
    payload    BLOB    NOT NULL,
    -- keys of 64 bits, see `holdfast.stores.matching`: of the digest of a visible entry, and of its alias
    mark       INTEGER,
    alias      INTEGER
) STRICT;

-- Each entry is in one of these two indexes, so that retired entries do not slow down reading the live path.
CREATE UNIQUE INDEX entries_live ON entries (session, seq) WHERE retired_by IS NULL;
CREATE UNIQUE INDEX entries_retired ON entries (session, seq) WHERE retired_by IS NOT NULL;
CREATE INDEX entries_mark ON entries (mark, session, seq) WHERE mark IS NOT NULL;
CREATE INDEX entries_alias ON entries (alias, session, seq) WHERE alias IS NOT NULL;

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
    -- milliseconds since the epoch; only views that were saved lately are kept
    saved_at INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (session, key)
) STRICT, WITHOUT ROWID;

-- The entries of a key are read from the log, so that no erased entry is stored here.
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
    cached_tokens     INTEGER NOT NULL,
    turn_id           INTEGER NOT NULL DEFAULT 0,
    through           INTEGER NOT NULL DEFAULT -1,
    view_key          TEXT    NOT NULL DEFAULT '',
    hash              BLOB    NOT NULL DEFAULT x'',
    build             BLOB    NOT NULL DEFAULT x''
) STRICT;

CREATE INDEX model_calls_session ON model_calls (session, pk);
CREATE INDEX model_calls_turn ON model_calls (session, turn_id, pk);

-- Compactions. The row with a session's highest id is never deleted before the session, because the next id follows
-- from it. `text` is the last column, so that the other columns are read without its overflow pages.
CREATE TABLE compactions (
    session           INTEGER NOT NULL,
    id                INTEGER NOT NULL,
    view_key          TEXT    NOT NULL,
    status            TEXT    NOT NULL,
    -- the session's version when it was added: a view that was built before does not contain it
    laid_at           INTEGER NOT NULL,
    kind              TEXT    NOT NULL,
    first_seq         INTEGER NOT NULL,
    last_seq          INTEGER NOT NULL,
    through           INTEGER NOT NULL,
    tokens            INTEGER NOT NULL,
    source_tokens     INTEGER NOT NULL,
    total             INTEGER NOT NULL,
    model             TEXT,
    created_at        INTEGER NOT NULL,
    prompt_tokens     INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    error             BLOB,
    report            BLOB,
    text              BLOB    NOT NULL,
    PRIMARY KEY (session, id)
) STRICT, WITHOUT ROWID;

-- At most one of a view is live.
CREATE UNIQUE INDEX compactions_live ON compactions (session, view_key) WHERE status = 'live';

CREATE VIEW compaction_rows AS
SELECT session, id, status, view_key, first_seq, last_seq, kind, tokens, source_tokens, total, model, created_at, through,
       prompt_tokens, completion_tokens, error, report, text
FROM compactions;

CREATE TABLE leases (
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    holder     TEXT    NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE learned (
    tenant     TEXT    NOT NULL,
    model      TEXT    NOT NULL,
    updated_at INTEGER NOT NULL,
    data       BLOB    NOT NULL,
    PRIMARY KEY (tenant, model)
) STRICT, WITHOUT ROWID;

-- Ends of sessions that some hooks have not been notified of; `hooks` are their names, as JSON.
CREATE TABLE endings (
    tenant     TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    user_id    TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    identity   TEXT    NOT NULL,
    withdrawn  INTEGER NOT NULL,
    reason     TEXT    NOT NULL,
    ended_at   INTEGER NOT NULL,
    due_at     INTEGER NOT NULL,
    attempts   INTEGER NOT NULL,
    hooks      BLOB    NOT NULL,
    error      TEXT,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX endings_due ON endings (tenant, due_at, ended_at, id);

-- Artifacts: names, their versions, and contents if the database stores them.

-- A name. `session` is 0 for one that all sessions of a user share; `folded` is equal for names that differ in
-- case or Unicode form alone. A version's number is not used again while the name has any version.
CREATE TABLE artifact_names (
    session      INTEGER NOT NULL,
    tenant       TEXT    NOT NULL,
    user_id      TEXT    NOT NULL,
    folded       TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    next_version INTEGER NOT NULL,
    newest       INTEGER NOT NULL,
    versions     INTEGER NOT NULL,
    bytes        INTEGER NOT NULL,
    PRIMARY KEY (session, tenant, user_id, folded)
) STRICT, WITHOUT ROWID;

-- A version of a name. `blob_key` is the key of the content in the blob store.
CREATE TABLE artifacts (
    session      INTEGER NOT NULL,
    tenant       TEXT    NOT NULL,
    user_id      TEXT    NOT NULL,
    folded       TEXT    NOT NULL,
    version      INTEGER NOT NULL,
    name         TEXT    NOT NULL,
    blob_key     TEXT    NOT NULL,
    mime_type    TEXT    NOT NULL,
    size         INTEGER NOT NULL,
    sha256       BLOB    NOT NULL,
    author       TEXT,
    metadata     BLOB,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (session, tenant, user_id, folded, version)
) STRICT, WITHOUT ROWID;

-- Each content belongs to one version. Also finds the keys that are in use.
CREATE UNIQUE INDEX artifacts_blob ON artifacts (tenant, blob_key);

CREATE VIEW artifact_rows AS
SELECT name, version, blob_key, mime_type, size, sha256, author, metadata, created_at, session, tenant, user_id, folded
FROM artifacts;

-- Contents, in parts that fit into memory.
CREATE TABLE blobs (
    tenant       TEXT    NOT NULL,
    blob_key     TEXT    NOT NULL,
    part         INTEGER NOT NULL,
    written_at   INTEGER NOT NULL,
    data         BLOB    NOT NULL,
    PRIMARY KEY (tenant, blob_key, part)
) STRICT;

-- Media that entries refer to, once per session. `data` is the last column, so that the other columns are read
-- without its overflow pages.
CREATE TABLE media (
    session INTEGER NOT NULL,
    sha256  BLOB    NOT NULL,
    size    INTEGER NOT NULL,
    data    BLOB    NOT NULL,
    PRIMARY KEY (session, sha256)
) STRICT;

-- Which entries refer to them.
CREATE TABLE media_uses (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    sha256  BLOB    NOT NULL,
    PRIMARY KEY (session, seq, sha256)
) STRICT, WITHOUT ROWID;
CREATE INDEX media_uses_sha256 ON media_uses (session, sha256);

-- API keys, stored by the tenant of a server; `opens` is the tenant whose sessions a key gives access to.
CREATE TABLE api_keys (
    tenant     TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    hash       BLOB    NOT NULL,
    name       TEXT    NOT NULL,
    opens      TEXT    NOT NULL,
    user_id    TEXT,
    role       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    used_at    INTEGER,
    rate       INTEGER,
    max_body   INTEGER,
    -- settings of chat requests with this key; NULL: the agent or the server decides
    session_mode TEXT,
    budget     INTEGER,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;

-- State that sessions share: that of a user, and with an empty user that of the tenant.

-- A scope. Every write to it locks this row. The row stays when all values were deleted, so that no version is used
-- again.
CREATE TABLE state_scopes (
    tenant     TEXT    NOT NULL,
    user_id    TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    key_count  INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, user_id)
) STRICT, WITHOUT ROWID;

-- The value of each key, as JSON.
CREATE TABLE state_values (
    tenant  TEXT    NOT NULL,
    user_id TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    data    BLOB    NOT NULL,
    PRIMARY KEY (tenant, user_id, name)
) STRICT;

-- Memories, signals of their recalls, and a diary. They belong to a user, an agent or the tenant.

-- An owner. Every write to its memories locks this row. The row stays when all memories were deleted, so that no
-- version or number is used again. `held` is the number of memories; the `next_` columns are the next numbers of a
-- memory, a signal and a diary entry.
CREATE TABLE memory_owners (
    pk          INTEGER PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    held        INTEGER NOT NULL,
    next_memory INTEGER NOT NULL,
    next_signal INTEGER NOT NULL,
    next_entry  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX memory_owners_name ON memory_owners (tenant, kind, id);

-- A memory as JSON, without its owner, number and version. `version` is the version of the owner at its last change.
CREATE TABLE memories (
    owner   INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    tenant  TEXT    NOT NULL,
    id      TEXT    NOT NULL,
    version INTEGER NOT NULL,
    status  TEXT    NOT NULL,
    data    BLOB    NOT NULL,
    PRIMARY KEY (owner, number)
) STRICT;

CREATE UNIQUE INDEX memories_id ON memories (tenant, id);
-- Finds the changes after a version.
CREATE INDEX memories_version ON memories (owner, version);
CREATE INDEX memories_status ON memories (owner, status, number);

-- A recall of a memory. `memory` is the memory's number.
CREATE TABLE memory_signals (
    owner       INTEGER NOT NULL,
    memory      INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    recalled_at INTEGER NOT NULL,
    asked       BLOB    NOT NULL,
    score       REAL    NOT NULL,
    session_id  TEXT    NOT NULL,
    PRIMARY KEY (owner, memory, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX memory_signals_at ON memory_signals (owner, recalled_at);

-- A sweep over an owner's memories, with its report as JSON.
CREATE TABLE memory_diary (
    owner    INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    id       TEXT    NOT NULL,
    swept_at INTEGER NOT NULL,
    report   BLOB    NOT NULL,
    PRIMARY KEY (owner, seq)
) STRICT;

-- The search index: terms, their documents, and vectors, without text; see `holdfast.recall.base`.

-- A space, with the number and length of its documents. A space that is removed loses its name first, and then its
-- documents; `kind` is `gone` until then.
CREATE TABLE index_spaces (
    number         INTEGER PRIMARY KEY,
    tenant         TEXT    NOT NULL,
    kind           TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    talk_documents INTEGER NOT NULL,
    talk_length    INTEGER NOT NULL,
    tool_documents INTEGER NOT NULL,
    tool_length    INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX index_spaces_name ON index_spaces (tenant, kind, name);

CREATE TABLE index_sources (
    number    INTEGER PRIMARY KEY,
    space     INTEGER NOT NULL,
    id        TEXT    NOT NULL,
    identity  TEXT    NOT NULL,
    version   INTEGER NOT NULL,
    next_seq  INTEGER NOT NULL,
    talk      INTEGER NOT NULL,
    tool      INTEGER NOT NULL,
    epoch     INTEGER NOT NULL,
    complete  INTEGER NOT NULL,
    documents INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX index_sources_id ON index_sources (space, id);
CREATE INDEX index_sources_incomplete ON index_sources (space, id) WHERE complete = 0;

-- `id` is made of the source's number, the channel and the place, so that neighbours have neighbouring ids.
-- `model` is the model of its vector, or the tenant's model without a name until it has one; NULL if it gets no vector.
-- `terms` are the keys of its terms; those that occur more than once are repeated after a bar, with their count.
CREATE TABLE index_documents (
    id      INTEGER PRIMARY KEY,
    space   INTEGER NOT NULL,
    channel INTEGER NOT NULL,
    source  INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    length  INTEGER NOT NULL,
    traits  INTEGER NOT NULL,
    model   INTEGER,
    role    TEXT    NOT NULL,
    agent   TEXT,
    name    TEXT,
    digest  BLOB    NOT NULL,
    terms   TEXT    NOT NULL
) STRICT;
CREATE UNIQUE INDEX index_documents_seq ON index_documents (source, seq);
CREATE INDEX index_documents_at ON index_documents (space, channel, at);
CREATE INDEX index_documents_model ON index_documents (model, space) WHERE model IS NOT NULL;

-- The number of documents of a space and channel that contain a term.
CREATE TABLE index_frequencies (
    space     INTEGER NOT NULL,
    channel   INTEGER NOT NULL,
    term      TEXT    NOT NULL,
    documents INTEGER NOT NULL,
    PRIMARY KEY (space, channel, term)
) STRICT, WITHOUT ROWID;

-- The posting lists. Each word begins with channel and space, so that a list contains documents of one space only.
CREATE VIRTUAL TABLE index_postings USING fts5 (
    tokens, content = '', columnsize = 0, detail = none, tokenize = "ascii tokenchars '_'"
);
INSERT INTO index_postings (index_postings, rank) VALUES ('secure-delete', 1);

-- `dimensions` below 0: vectors are stored as float16.
CREATE TABLE index_models (
    number     INTEGER PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    dimensions INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX index_models_name ON index_models (tenant, name);

-- By document; float32, little-endian. `mark` is the beginning of the document's digest, as a number.
CREATE TABLE index_vectors (
    id   INTEGER PRIMARY KEY,
    mark INTEGER NOT NULL,
    data BLOB    NOT NULL
) STRICT;
CREATE INDEX index_vectors_mark ON index_vectors (mark);

-- Other data of a tenant's index, such as the progress of a rebuild.
CREATE TABLE index_notes (
    tenant TEXT NOT NULL,
    name   TEXT NOT NULL,
    data   BLOB NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;

-- The highest version or number of names that were deleted with all their data. Later versions and numbers of any
-- name are higher.
CREATE TABLE floors (
    tenant TEXT    NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Which entries of a session are copies, in ranges up to the next `first`. `source` is the identity of the session in
-- which they were written first, `source_first` their place there. A session without copies has no row.
CREATE TABLE entry_origins (
    session      INTEGER NOT NULL,
    first        INTEGER NOT NULL,
    source       TEXT    NOT NULL,
    source_first INTEGER NOT NULL,
    PRIMARY KEY (session, first)
) STRICT, WITHOUT ROWID;
CREATE INDEX entry_origins_source ON entry_origins (source, session);

-- Records: values under a namespace and a key. Their owner is a session, a user (session 0), or the tenant (without a
-- user too).

-- An owner. Every write to its records locks this row. Its version grows with each write.
CREATE TABLE record_owners (
    pk      INTEGER PRIMARY KEY,
    tenant  TEXT    NOT NULL,
    user_id TEXT    NOT NULL,
    session INTEGER NOT NULL,
    version INTEGER NOT NULL,
    -- how many numbers the owner has given to searchable records
    numbers INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE UNIQUE INDEX record_owners_name ON record_owners (tenant, user_id, session);
CREATE INDEX record_owners_session ON record_owners (session);

-- A record. `place` is its namespace and key as sortable bytes; `form` is 0 for JSON and 1 for bytes.
CREATE TABLE records (
    owner      INTEGER NOT NULL,
    place      BLOB    NOT NULL,
    tenant     TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    expires_at INTEGER,
    form       INTEGER NOT NULL,
    size       INTEGER NOT NULL,
    data       BLOB    NOT NULL,
    -- the number of a searchable record among those of its owner, and its searchable text in UTF-8
    number     INTEGER,
    words      BLOB,
    PRIMARY KEY (owner, place)
) STRICT;

CREATE INDEX records_expires ON records (tenant, expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX records_searchable ON records (owner, version, number) WHERE number IS NOT NULL;

-- The journal of deletions.

-- A deletion. Ids of users and sessions are stored as keyed hashes only; empty if there is none. `counts` is the
-- receipt as JSON.
CREATE TABLE deletions (
    tenant       TEXT    NOT NULL,
    deleted_at   INTEGER NOT NULL,
    id           TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    user_hash    BLOB    NOT NULL,
    session_hash BLOB    NOT NULL,
    key_id       TEXT    NOT NULL,
    counts       BLOB    NOT NULL,
    PRIMARY KEY (tenant, deleted_at, id)
) STRICT, WITHOUT ROWID;
