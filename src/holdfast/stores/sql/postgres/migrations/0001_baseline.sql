-- Sessions, their logs, and everything that belongs to them. Identifiers are `bytea`: they compare byte for byte
-- whatever the database's encoding and collation, and may contain NUL, which `text` cannot. convert_from(id, 'UTF8')
-- shows one.

-- The part of a session that changes with every append. It is small, because PostgreSQL writes the row again.
CREATE TABLE sessions (
    pk                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version           bigint NOT NULL,
    created_at        bigint NOT NULL,
    updated_at        bigint NOT NULL,
    ttl               bigint,
    messages          bigint NOT NULL,
    bytes             bigint NOT NULL,
    -- the version before which a view was built from messages that have changed since
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
    open_calls        bytea,
    -- the version before which a compaction was made from messages that were erased or dropped since
    compactions_from  bigint NOT NULL DEFAULT 0,
    -- life. `expires_at` is set for a session with a ttl of its own. A withdrawn session has lost its name, by the id of its
    -- ending, and waits to be deleted. `identity` differs from that of an earlier session with the same name.
    accessed_at       bigint NOT NULL DEFAULT 0,
    expires_at        bigint,
    ended_at          bigint,
    end_reason        bytea,
    withdrawn         bytea NOT NULL DEFAULT '',
    identity          bytea NOT NULL DEFAULT '',
    -- which server runs a turn: none if `claim_holder` is empty
    claim_holder      bytea NOT NULL DEFAULT '',
    claim_until       bigint NOT NULL DEFAULT 0,
    claim_wanted      smallint NOT NULL DEFAULT 0
);

-- By name, also without the user, for a lookup among all users of a tenant.
CREATE UNIQUE INDEX sessions_name ON sessions (tenant, id, user_id, withdrawn);
CREATE INDEX sessions_recent ON sessions (tenant, updated_at, user_id, id);
CREATE INDEX sessions_recent_of_user ON sessions (tenant, user_id, updated_at, id);
CREATE INDEX sessions_active ON sessions (tenant, accessed_at) WHERE status = 'active';
CREATE INDEX sessions_expiring ON sessions (tenant, expires_at) WHERE status = 'active' AND expires_at IS NOT NULL;
-- By the last visible message of the live path: an exact continuation is found in one step, however many sessions of
-- a user begin alike. An expression, which no other index has: otherwise the planner would use an index by name or by
-- time, and read all sessions of the user.
CREATE INDEX sessions_end ON sessions ((digest || tenant || user_id), updated_at);

-- The part that may be large and seldom changes. There is no row while all of it is empty.
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
       s.accessed_at, s.ended_at, s.end_reason, s.expires_at, s.withdrawn, s.identity, s.claim_holder, s.claim_until,
       s.claim_wanted, s.views_from
FROM sessions AS s LEFT JOIN profiles AS p ON p.session = s.pk;

-- The log. `payload` is JSON as it was written; PostgreSQL compresses large ones and stores them outside the row.
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
    payload    bytea NOT NULL,
    -- keys of 64 bits, see `holdfast.stores.matching`: of the digest of a visible entry, and of its alias
    mark       bigint,
    alias      bigint
);

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
    session  bigint NOT NULL,
    key      bytea  NOT NULL,
    frontier bigint NOT NULL,
    kept     bytea,  -- entries before the frontier that stay; NULL for none
    state    bytea  NOT NULL,
    -- milliseconds since the epoch; only views that were saved lately are kept
    saved_at bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (session, key)
);

-- The entries of a key are read from the log, so that no erased entry is stored here.
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
    cached_tokens     bigint NOT NULL,
    turn_id           bigint NOT NULL DEFAULT 0,
    through           bigint NOT NULL DEFAULT -1,
    view_key          bytea NOT NULL DEFAULT '',
    hash              bytea NOT NULL DEFAULT '',
    build             bytea NOT NULL DEFAULT ''
);

CREATE INDEX model_calls_session ON model_calls (session, pk);
CREATE INDEX model_calls_turn ON model_calls (session, turn_id, pk);

-- Compactions. The row with a session's highest id is never deleted before the session, because the next id follows
-- from it.
CREATE TABLE compactions (
    session           bigint NOT NULL,
    id                bigint NOT NULL,
    -- the session's version when it was added: a view that was built before does not contain it
    laid_at           bigint NOT NULL,
    first_seq         bigint NOT NULL,
    last_seq          bigint NOT NULL,
    through           bigint NOT NULL,
    tokens            bigint NOT NULL,
    source_tokens     bigint NOT NULL,
    total             bigint NOT NULL,
    created_at        bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    status            text   NOT NULL,
    kind              text   NOT NULL,
    view_key          bytea  NOT NULL,
    model             bytea,
    error             bytea,
    report            bytea,
    text              bytea  NOT NULL,
    PRIMARY KEY (session, id)
);

-- At most one of a view is live.
CREATE UNIQUE INDEX compactions_live ON compactions (session, view_key) WHERE status = 'live';

CREATE VIEW compaction_rows AS
SELECT session, id, status, view_key, first_seq, last_seq, kind, tokens, source_tokens, total, model, created_at, through,
       prompt_tokens, completion_tokens, error, report, text
FROM compactions;

CREATE TABLE leases (
    tenant     bytea  NOT NULL,
    name       bytea  NOT NULL,
    holder     bytea  NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (tenant, name)
);

CREATE TABLE learned (
    tenant     bytea  NOT NULL,
    model      bytea  NOT NULL,
    updated_at bigint NOT NULL,
    data       bytea  NOT NULL,
    PRIMARY KEY (tenant, model)
);

-- Ends of sessions that some hooks have not been notified of; `hooks` are their names, as JSON.
CREATE TABLE endings (
    ended_at   bigint   NOT NULL,
    due_at     bigint   NOT NULL,
    attempts   bigint   NOT NULL,
    withdrawn  smallint NOT NULL,
    tenant     bytea    NOT NULL,
    id         bytea    NOT NULL,
    user_id    bytea    NOT NULL,
    session_id bytea    NOT NULL,
    identity   bytea    NOT NULL,
    reason     bytea    NOT NULL,
    hooks      bytea    NOT NULL,
    error      bytea,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX endings_due ON endings (tenant, due_at, ended_at, id);

-- Artifacts: names, their versions, and contents if the database stores them.

-- A name. `session` is 0 for one that all sessions of a user share; `folded` is equal for names that differ in
-- case or Unicode form alone. A version's number is not used again while the name has any version.
CREATE TABLE artifact_names (
    session      bigint NOT NULL,
    tenant       bytea  NOT NULL,
    user_id      bytea  NOT NULL,
    folded       bytea  NOT NULL,
    name         bytea  NOT NULL,
    next_version bigint NOT NULL,
    newest       bigint NOT NULL,
    versions     bigint NOT NULL,
    bytes        bigint NOT NULL,
    PRIMARY KEY (session, tenant, user_id, folded)
);

-- A version of a name. `blob_key` is the key of the content in the blob store.
CREATE TABLE artifacts (
    session      bigint NOT NULL,
    tenant       bytea  NOT NULL,
    user_id      bytea  NOT NULL,
    folded       bytea  NOT NULL,
    version      bigint NOT NULL,
    name         bytea  NOT NULL,
    blob_key     bytea  NOT NULL,
    mime_type    bytea  NOT NULL,
    size         bigint NOT NULL,
    sha256       bytea  NOT NULL,
    author       bytea,
    metadata     bytea,
    created_at   bigint NOT NULL,
    PRIMARY KEY (session, tenant, user_id, folded, version)
);

-- Each content belongs to one version. Also finds the keys that are in use.
CREATE UNIQUE INDEX artifacts_blob ON artifacts (tenant, blob_key);

CREATE VIEW artifact_rows AS
SELECT name, version, blob_key, mime_type, size, sha256, author, metadata, created_at, session, tenant, user_id, folded
FROM artifacts;

-- Contents, in parts that fit into memory.
CREATE TABLE blobs (
    tenant       bytea  NOT NULL,
    blob_key     bytea  NOT NULL,
    part         bigint NOT NULL,
    written_at   bigint NOT NULL,
    data         bytea  NOT NULL,
    PRIMARY KEY (tenant, blob_key, part)
);

-- Media that entries refer to, once per session. Most are compressed already.
CREATE TABLE media (
    session bigint NOT NULL,
    size    bigint NOT NULL,
    sha256  bytea  NOT NULL,
    data    bytea  NOT NULL,
    PRIMARY KEY (session, sha256)
);
ALTER TABLE media ALTER COLUMN data SET STORAGE EXTERNAL;

-- Which entries refer to them.
CREATE TABLE media_uses (
    session bigint NOT NULL,
    seq     bigint NOT NULL,
    sha256  bytea  NOT NULL,
    PRIMARY KEY (session, seq, sha256)
);
CREATE INDEX media_uses_sha256 ON media_uses (session, sha256);

-- API keys, stored by the tenant of a server; `opens` is the tenant whose sessions a key gives access to.
CREATE TABLE api_keys (
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    used_at    bigint,
    rate       bigint,
    max_body   bigint,
    tenant     bytea  NOT NULL,
    id         bytea  NOT NULL,
    hash       bytea  NOT NULL,
    name       bytea  NOT NULL,
    opens      bytea  NOT NULL,
    user_id    bytea,
    role       bytea  NOT NULL,
    -- settings of chat requests with this key; NULL: the agent or the server decides
    session_mode bytea,
    budget     bigint,
    PRIMARY KEY (tenant, id)
);

-- State that sessions share: that of a user, and with an empty user that of the tenant.

-- A scope. Every write to it locks this row. The row stays when all values were deleted, so that no version is used
-- again.
CREATE TABLE state_scopes (
    tenant     bytea  NOT NULL,
    user_id    bytea  NOT NULL,
    version    bigint NOT NULL,
    key_count  bigint NOT NULL,
    bytes      bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (tenant, user_id)
);

-- The value of each key, as JSON.
CREATE TABLE state_values (
    tenant  bytea  NOT NULL,
    user_id bytea  NOT NULL,
    name    bytea  NOT NULL,
    data    bytea  NOT NULL,
    PRIMARY KEY (tenant, user_id, name)
);

-- Memories, signals of their recalls, and a diary. They belong to a user, an agent or the tenant.

-- An owner. Every write to its memories locks this row. The row stays when all memories were deleted, so that no
-- version or number is used again. `held` is the number of memories; the `next_` columns are the next numbers of a
-- memory, a signal and a diary entry.
CREATE TABLE memory_owners (
    pk          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant      bytea  NOT NULL,
    kind        bytea  NOT NULL,
    id          bytea  NOT NULL,
    version     bigint NOT NULL,
    held        bigint NOT NULL,
    next_memory bigint NOT NULL,
    next_signal bigint NOT NULL,
    next_entry  bigint NOT NULL,
    updated_at  bigint NOT NULL
);

CREATE UNIQUE INDEX memory_owners_name ON memory_owners (tenant, kind, id);

-- A memory as JSON, without its owner, number and version. `version` is the version of the owner at its last change.
CREATE TABLE memories (
    owner   bigint NOT NULL,
    number  bigint NOT NULL,
    tenant  bytea  NOT NULL,
    id      bytea  NOT NULL,
    version bigint NOT NULL,
    status  bytea  NOT NULL,
    data    bytea  NOT NULL,
    PRIMARY KEY (owner, number)
);

CREATE UNIQUE INDEX memories_id ON memories (tenant, id);
-- Finds the changes after a version.
CREATE INDEX memories_version ON memories (owner, version);
CREATE INDEX memories_status ON memories (owner, status, number);

-- A recall of a memory. `memory` is the memory's number.
CREATE TABLE memory_signals (
    owner       bigint           NOT NULL,
    memory      bigint           NOT NULL,
    seq         bigint           NOT NULL,
    recalled_at bigint           NOT NULL,
    asked       bytea            NOT NULL,
    score       double precision NOT NULL,
    session_id  bytea            NOT NULL,
    PRIMARY KEY (owner, memory, seq)
);

CREATE INDEX memory_signals_at ON memory_signals (owner, recalled_at);

-- A sweep over an owner's memories, with its report as JSON.
CREATE TABLE memory_diary (
    owner    bigint NOT NULL,
    seq      bigint NOT NULL,
    id       bytea  NOT NULL,
    swept_at bigint NOT NULL,
    report   bytea  NOT NULL,
    PRIMARY KEY (owner, seq)
);

-- The search index: terms, their documents, and vectors, without text; see `holdfast.recall.base`.

-- A space, with the number and length of its documents. A space that is removed loses its name first, and then its
-- documents; `kind` is `gone` until then.
CREATE TABLE index_spaces (
    number         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant         bytea NOT NULL,
    kind           bytea NOT NULL,
    name           bytea NOT NULL,
    talk_documents bigint NOT NULL,
    talk_length    bigint NOT NULL,
    tool_documents bigint NOT NULL,
    tool_length    bigint NOT NULL
);
CREATE UNIQUE INDEX index_spaces_name ON index_spaces (tenant, kind, name);

CREATE TABLE index_sources (
    number    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    space     bigint NOT NULL,
    id        bytea NOT NULL,
    identity  bytea NOT NULL,
    version   bigint NOT NULL,
    next_seq  bigint NOT NULL,
    talk      bigint NOT NULL,
    tool      bigint NOT NULL,
    epoch     bigint NOT NULL,
    complete  bigint NOT NULL,
    documents bigint NOT NULL
);
CREATE UNIQUE INDEX index_sources_id ON index_sources (space, id);
CREATE INDEX index_sources_incomplete ON index_sources (space, id) WHERE complete = 0;

-- `id` is made of the source's number, the channel and the place, so that neighbours have neighbouring ids.
-- `model` is the model of its vector, or the tenant's model without a name until it has one; NULL if it gets no vector.
-- `terms` are the keys of its terms; those that occur more than once are repeated after a bar, with their count.
CREATE TABLE index_documents (
    id      bigint PRIMARY KEY,
    space   bigint NOT NULL,
    channel bigint NOT NULL,
    source  bigint NOT NULL,
    seq     bigint NOT NULL,
    at      bigint NOT NULL,
    length  bigint NOT NULL,
    traits  bigint NOT NULL,
    model   bigint,
    role    bytea NOT NULL,
    agent   bytea,
    name    bytea,
    digest  bytea NOT NULL,
    terms   bytea NOT NULL
);
CREATE UNIQUE INDEX index_documents_seq ON index_documents (source, seq);
CREATE INDEX index_documents_at ON index_documents (space, channel, at, id);
CREATE INDEX index_documents_model ON index_documents (model, space, id) WHERE model IS NOT NULL;

-- The number of documents of a space and channel that contain a term.
CREATE TABLE index_frequencies (
    space     bigint NOT NULL,
    channel   bigint NOT NULL,
    term      bytea NOT NULL,
    documents bigint NOT NULL,
    PRIMARY KEY (space, channel, term)
) WITH (fillfactor = 80);

-- The posting lists. Each word begins with channel and space, so that a list contains documents of one space only.
CREATE TABLE index_postings (
    id     bigint   PRIMARY KEY,
    tokens tsvector NOT NULL
);
CREATE INDEX index_postings_tokens ON index_postings USING gin (tokens) WITH (fastupdate = off);

CREATE TABLE index_models (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     bytea NOT NULL,
    name       bytea NOT NULL,
    dimensions bigint NOT NULL
);
CREATE UNIQUE INDEX index_models_name ON index_models (tenant, name);

-- By document; float32, little-endian. `mark` is the beginning of the document's digest, as a number.
CREATE TABLE index_vectors (
    id   bigint PRIMARY KEY,
    mark bigint NOT NULL,
    data bytea NOT NULL
);
CREATE INDEX index_vectors_mark ON index_vectors (mark);

-- Other data of a tenant's index, such as the progress of a rebuild.
CREATE TABLE index_notes (
    tenant bytea NOT NULL,
    name   bytea NOT NULL,
    data   bytea NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- The highest version or number of names that were deleted with all their data. Later versions and numbers of any
-- name are higher.
CREATE TABLE floors (
    tenant bytea  NOT NULL PRIMARY KEY,
    number bigint NOT NULL
);

-- Which entries of a session are copies, in ranges up to the next `first`. `source` is the identity of the session in
-- which they were written first, `source_first` their place there. A session without copies has no row.
CREATE TABLE entry_origins (
    session      bigint NOT NULL,
    first        bigint NOT NULL,
    source       bytea  NOT NULL,
    source_first bigint NOT NULL,
    PRIMARY KEY (session, first)
);
CREATE INDEX entry_origins_source ON entry_origins (source, session);

-- Records: values under a namespace and a key. Their owner is a session, a user (session 0), or the tenant (without a
-- user too).

-- An owner. Every write to its records locks this row. Its version grows with each write.
CREATE TABLE record_owners (
    pk      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant  bytea  NOT NULL,
    user_id bytea  NOT NULL,
    session bigint NOT NULL,
    version bigint NOT NULL,
    -- how many numbers the owner has given to searchable records
    numbers bigint NOT NULL DEFAULT 0
);

CREATE UNIQUE INDEX record_owners_name ON record_owners (tenant, user_id, session);
CREATE INDEX record_owners_session ON record_owners (session);

-- A record. `place` is its namespace and key as sortable bytes; `form` is 0 for JSON and 1 for bytes.
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
    -- the number of a searchable record among those of its owner, and its searchable text in UTF-8
    number     bigint,
    words      bytea,
    PRIMARY KEY (owner, place)
);

CREATE INDEX records_expires ON records (tenant, expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX records_searchable ON records (owner, version, number) WHERE number IS NOT NULL;

-- The journal of deletions.

-- A deletion. Ids of users and sessions are stored as keyed hashes only; empty if there is none. `counts` is the
-- receipt as JSON.
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
