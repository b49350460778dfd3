-- Sessions, their logs, and everything that belongs to them, in all dialects. A line that begins with names of dialects, such as
-- `[sqlite postgres]`, belongs only to these. `holdfast.stores.sql.migrations` replaces the types and the words in braces.
--
-- An ID compares byte for byte, trailing spaces and NUL included, whatever the database's encoding and collation. In PostgreSQL,
-- convert_from(id, 'UTF8') shows one. MySQL has no partial indexes, so it has the column of their condition in the index. It commits
-- each of these statements by itself. If one is run again after an interruption, its error is ignored.

-- The part of a session that changes with every append. It is small, because SQLite and PostgreSQL write the row again.
CREATE TABLE sessions (
    pk                SERIAL,
    version           INT NOT NULL,
    created_at        INT NOT NULL,
    updated_at        INT NOT NULL,
    ttl               INT,
    messages          INT NOT NULL,
    bytes             INT NOT NULL,
    -- the version before which a view was built from messages that have changed since
    views_from        INT NOT NULL DEFAULT 0,
    next_seq          INT NOT NULL,
    total             INT NOT NULL,
    last_seq          INT NOT NULL,
    tenant            ID NOT NULL,
    user_id           ID NOT NULL,
    id                ID NOT NULL,
    agent             ID,
    status            WORD NOT NULL,
    digest            VARBINARY(64) NOT NULL,
    -- usage, and the rest of the tail, as JSON
    counts            LONGBLOB NOT NULL,
    -- the version before which a compaction was made from messages that were erased or dropped since
    compactions_from  INT NOT NULL DEFAULT 0,
    -- life. `expires_at` is set for a session with a ttl of its own. A withdrawn session has lost its name, by the id of its
    -- ending, and waits to be deleted. `identity` differs from that of an earlier session with the same name.
    accessed_at       INT NOT NULL DEFAULT 0,
    expires_at        INT,
    ended_at          INT,
    end_reason        ID,
    withdrawn         ID NOT NULL DEFAULT '',
    identity          ID NOT NULL DEFAULT '',
    -- which server runs a turn: none if `claim_holder` is empty
    claim_holder      ID NOT NULL DEFAULT '',
    claim_until       INT NOT NULL DEFAULT 0,
    claim_wanted      FLAG NOT NULL DEFAULT 0
) {table};

-- By name, also without the user, for a lookup among all users of a tenant.
CREATE UNIQUE INDEX sessions_name ON sessions (tenant, id, user_id, withdrawn);
CREATE INDEX sessions_recent ON sessions (tenant, updated_at, user_id, id);
CREATE INDEX sessions_recent_of_user ON sessions (tenant, user_id, updated_at, id);
[sqlite postgres] CREATE INDEX sessions_active ON sessions (tenant, accessed_at) WHERE status = 'active' AND substr(id, 1, 9) <> 'unplaced_';
[sqlite postgres] CREATE INDEX sessions_expiring ON sessions (tenant, expires_at) WHERE status = 'active' AND expires_at IS NOT NULL;
[mysql] CREATE INDEX sessions_active ON sessions (tenant, status, accessed_at);
[mysql] CREATE INDEX sessions_expiring ON sessions (tenant, status, expires_at);
-- By the last visible message of the live path: an exact continuation is found in one step, however many sessions of
-- a user begin alike. In PostgreSQL it is an expression, which no other index has: otherwise the planner would use an index by name or
-- by time, and read all sessions of the user.
[sqlite mysql] CREATE INDEX sessions_end ON sessions (tenant, user_id, digest, updated_at);
[postgres] CREATE INDEX sessions_end ON sessions ((digest || tenant || user_id), updated_at);

-- The part that may be large and seldom changes. There is no row while all of it is empty.
CREATE TABLE profiles (
    session         INT NOT NULL PRIMARY KEY,
    system_messages LONGBLOB NOT NULL,
    state           LONGBLOB NOT NULL,
    metadata        LONGBLOB NOT NULL
) {table};

CREATE {view} session_rows AS
SELECT s.pk, s.tenant, s.user_id, s.id, s.agent, s.version, s.created_at, s.updated_at, s.status, s.ttl, s.messages,
       s.bytes, s.next_seq, s.total, s.digest, s.last_seq, s.counts, p.system_messages, p.state, p.metadata,
       s.accessed_at, s.ended_at, s.end_reason, s.expires_at, s.withdrawn, s.identity, s.claim_holder, s.claim_until,
       s.claim_wanted, s.views_from
FROM sessions AS s LEFT JOIN profiles AS p ON p.session = s.pk;

-- The log. `payload` is JSON as it was written. It follows the columns that most reads need: SQLite reads them without its overflow
-- pages, and PostgreSQL stores large ones outside the row, compressed. MySQL keeps each session's entries together.
CREATE TABLE entries (
[sqlite]     pk         INTEGER PRIMARY KEY,
    session    INT NOT NULL,
    seq        INT NOT NULL,
    turn_id    INT NOT NULL,
    unit_back  INT NOT NULL,  -- seq - unit
    timestamp  INT NOT NULL,
    tokens     INT NOT NULL,
    total      INT NOT NULL,
    retired_by INT,
    importance FLOAT,
    kind       FLAG NOT NULL,
    pinned     FLAG NOT NULL,
    erased     FLAG NOT NULL,
    digest     VARBINARY(64) NOT NULL,
    agent      ID,
    metadata   LONGBLOB,
    payload    LONGBLOB NOT NULL,
    -- keys of 64 bits, see `holdfast.stores.matching`: of the digest of a visible entry, and of its alias
    mark       INT,
    alias      INT
[mysql]     , PRIMARY KEY (session, seq)
) {table};

-- Each entry is in one of these two indexes, so that retired entries do not slow down reading the live path.
[sqlite postgres] CREATE UNIQUE INDEX entries_live ON entries (session, seq) WHERE retired_by IS NULL;
[sqlite postgres] CREATE UNIQUE INDEX entries_retired ON entries (session, seq) WHERE retired_by IS NOT NULL;
[sqlite postgres] CREATE INDEX entries_mark ON entries (mark, session, seq) WHERE mark IS NOT NULL;
[sqlite postgres] CREATE INDEX entries_alias ON entries (alias, session, seq) WHERE alias IS NOT NULL;
[mysql] CREATE INDEX entries_live ON entries (session, retired_by, seq);
[mysql] CREATE INDEX entries_mark ON entries (mark, session, seq);
[mysql] CREATE INDEX entries_alias ON entries (alias, session, seq);

CREATE TABLE saved_views (
    session  INT NOT NULL,
    "key"      ID NOT NULL,
    -- milliseconds since the epoch; only views that were saved lately are kept
    saved_at INT NOT NULL,
    data     LONGBLOB NOT NULL,
    PRIMARY KEY (session, "key")
) {clustered};

-- The entries of a key are read from the log, so that no erased entry is stored here.
CREATE TABLE idempotency (
    session     INT NOT NULL,
    "key"         ID NOT NULL,
    fingerprint LONGBLOB NOT NULL,
    version     INT NOT NULL,
    first_seq   INT NOT NULL,
    entries     INT NOT NULL,
    PRIMARY KEY (session, "key")
) {clustered};

-- The turns of request keys, by a hash of tenant, user and key. `session` is 0 if the session is gone; such a row is kept for some days.
CREATE TABLE turn_keys (
    id          VARBINARY(16) NOT NULL PRIMARY KEY,
    session     INT NOT NULL,
    fingerprint LONGBLOB NOT NULL,
    first_seq   INT NOT NULL,
    entries     INT NOT NULL,
    made_at     INT NOT NULL,
    expires_at  INT
) {clustered};

CREATE INDEX turn_keys_session ON turn_keys (session);
[sqlite postgres] CREATE INDEX turn_keys_expiring ON turn_keys (expires_at) WHERE expires_at IS NOT NULL;
[mysql] CREATE INDEX turn_keys_expiring ON turn_keys (expires_at);

CREATE TABLE model_calls (
    pk      SERIAL,
    session INT NOT NULL,
    turn_id INT NOT NULL,
    data    BLOB NOT NULL
) {table};

CREATE INDEX model_calls_session ON model_calls (session, pk);
CREATE INDEX model_calls_turn ON model_calls (session, turn_id, pk);

-- Texts of prompts that are no messages of the log; see `PromptText`. `id` is a hash of `data`, `source` is empty if nothing outside of
-- the session is quoted.
CREATE TABLE prompt_texts (
    session   INT NOT NULL,
    id        INT NOT NULL,
    source    ID NOT NULL,
    first_seq INT NOT NULL,
    last_seq  INT NOT NULL,
    data      LONGBLOB NOT NULL,
    PRIMARY KEY (session, id)
) {clustered};

[sqlite postgres] CREATE INDEX prompt_texts_source ON prompt_texts (source) WHERE source <> '';
[mysql] CREATE INDEX prompt_texts_source ON prompt_texts (source);

-- Compactions. The row with a session's highest id is never deleted before the session, because the next id follows
-- from it.
CREATE TABLE compactions (
    session   INT NOT NULL,
    id        INT NOT NULL,
    -- the session's version when it was added: a view that was built before does not contain it
    laid_at   INT NOT NULL,
    first_seq INT NOT NULL,
    last_seq  INT NOT NULL,
    status    WORD NOT NULL,
    view_key  ID NOT NULL,
    data      LONGBLOB NOT NULL,
    PRIMARY KEY (session, id)
) {clustered};

-- At most one of a view is live. In MySQL, the lock on the session ensures it.
[sqlite postgres] CREATE UNIQUE INDEX compactions_live ON compactions (session, view_key) WHERE status = 'live';
[mysql] CREATE INDEX compactions_live ON compactions (session, view_key, status);

-- Small things of a tenant, by kind and id, or in the order of `at`: API keys, leases, calibration data of models, ends of sessions that
-- some hooks have not been notified of, the journal of deletions, the search indexes that are in use, notes of an index, and diaries
-- about memories. `about` is what lists of a kind are filtered by.
CREATE TABLE items (
    at     INT NOT NULL,
    tenant ID NOT NULL,
    kind   ID(32) NOT NULL,
    id     ID NOT NULL,
    about  ID NOT NULL,
    data   MEDIUMBLOB NOT NULL,
    PRIMARY KEY (tenant, kind, id)
) {clustered};
CREATE INDEX items_at ON items (tenant, kind, at, id);

-- Artifacts: names, their versions, and contents if the database stores them.

-- A version of a name, which is JSON. `session` is 0 for a name that all sessions of a user share; `folded` is equal for names that differ
-- in case or Unicode form alone. A version's number is not used again while the name has any version: `highest` of the newest one is the
-- highest number that the name ever had. `blob_key` is the key of the content in the blob store.
CREATE TABLE artifacts (
    session  INT NOT NULL,
    tenant   ID NOT NULL,
    user_id  ID NOT NULL,
    folded   ID(1024) NOT NULL,
    version  INT NOT NULL,
    highest  INT NOT NULL,
    blob_key ID(64) NOT NULL,
    size     INT NOT NULL,
    data     MEDIUMBLOB NOT NULL,
    PRIMARY KEY (session, tenant, user_id, folded, version)
) {clustered};

-- Each content belongs to one version. Also finds the keys that are in use.
CREATE UNIQUE INDEX artifacts_blob ON artifacts (tenant, blob_key);

-- Contents, in parts that fit into memory.
CREATE TABLE blobs (
    tenant     ID NOT NULL,
    blob_key   ID(64) NOT NULL,
    part       INT NOT NULL,
    written_at INT NOT NULL,
    data       LONGBLOB NOT NULL,
    PRIMARY KEY (tenant, blob_key, part)
) {table};

-- Media that entries refer to, once per session. Most are compressed already.
CREATE TABLE media (
    session INT NOT NULL,
    size    INT NOT NULL,
    sha256  VARBINARY(32) NOT NULL,
    data    LONGBLOB NOT NULL,
    PRIMARY KEY (session, sha256)
) {table};
[postgres] ALTER TABLE media ALTER COLUMN data SET STORAGE EXTERNAL;

-- Which entries refer to them.
CREATE TABLE media_uses (
    session INT NOT NULL,
    seq     INT NOT NULL,
    sha256  VARBINARY(32) NOT NULL,
    PRIMARY KEY (session, seq, sha256)
) {clustered};
CREATE INDEX media_uses_sha256 ON media_uses (session, sha256);

-- Owners: whose state, records, memories and artifacts there are. Every write of what an owner has locks its row. `kind` is `state`,
-- `records`, `artifacts`, or `memories.` and `user`, `agent` or `app`. `id` is the user or agent; it is empty for the tenant. `session` is 0, or the session that
-- has the records. The version grows with each write; `items` and `bytes` are totals, and the other counts say how many numbers were given
-- to memories or searchable records, to signals and to entries of the diary. If `session` is -1, the row has the floor of its kind:
-- the highest version or number of owners that were deleted. Below -1, the owner has lost its name and is about to be deleted.
CREATE TABLE owners (
    pk         SERIAL,
    session    INT NOT NULL,
    version    INT NOT NULL DEFAULT 0,
    items      INT NOT NULL DEFAULT 0,
    bytes      INT NOT NULL DEFAULT 0,
    numbers    INT NOT NULL DEFAULT 0,
    signals    INT NOT NULL DEFAULT 0,
    entries    INT NOT NULL DEFAULT 0,
    updated_at INT NOT NULL DEFAULT 0,
    tenant     ID NOT NULL,
    kind       ID(16) NOT NULL,
    id         ID NOT NULL
) {table};

CREATE UNIQUE INDEX owners_name ON owners (tenant, kind, id, session);

-- State that sessions share: that of a user or of the tenant.

-- The value of each key, as JSON.
CREATE TABLE state_values (
    owner INT NOT NULL,
    name  ID(256) NOT NULL,
    data  MEDIUMBLOB NOT NULL,
    PRIMARY KEY (owner, name)
) {table};

-- Memories, and signals of their recalls.

-- A memory as JSON, without its owner, number and version. `version` is the version of the owner at its last change.
CREATE TABLE memories (
    owner   INT NOT NULL,
    number  INT NOT NULL,
    tenant  ID NOT NULL,
    id      ID(64) NOT NULL,
    version INT NOT NULL,
    status  ID(16) NOT NULL,
    data    MEDIUMBLOB NOT NULL,
    PRIMARY KEY (owner, number)
) {table};

CREATE UNIQUE INDEX memories_id ON memories (tenant, id);
-- Finds the changes after a version.
CREATE INDEX memories_version ON memories (owner, version);
CREATE INDEX memories_status ON memories (owner, status, number);

-- A recall of a memory. `memory` is the memory's number.
CREATE TABLE memory_signals (
    owner       INT NOT NULL,
    memory      INT NOT NULL,
    seq         INT NOT NULL,
    recalled_at INT NOT NULL,
    asked       VARBINARY(64) NOT NULL,
    score       FLOAT NOT NULL,
    session_id  ID NOT NULL,
    PRIMARY KEY (owner, memory, seq)
) {clustered};

CREATE INDEX memory_signals_at ON memory_signals (owner, recalled_at);

-- The search index: terms, their documents, and vectors, without text; see `holdfast.recall.base`.

-- A space, with the number and length of its documents. It is deleted with its last source.
CREATE TABLE index_spaces (
    number         SERIAL,
    tenant         ID NOT NULL,
    kind           ID(16) NOT NULL,
    name           ID NOT NULL,
    talk_documents INT NOT NULL,
    talk_length    INT NOT NULL,
    tool_documents INT NOT NULL,
    tool_length    INT NOT NULL
) {table};
CREATE UNIQUE INDEX index_spaces_name ON index_spaces (tenant, kind, name);

-- `data` is the progress as JSON.
CREATE TABLE index_sources (
    number    SERIAL,
    space     INT NOT NULL,
    id        ID NOT NULL,
    identity  ID NOT NULL,
    complete  INT NOT NULL,
    documents INT NOT NULL,
    data      MEDIUMBLOB NOT NULL
) {table};
CREATE UNIQUE INDEX index_sources_id ON index_sources (space, id);
[sqlite postgres] CREATE INDEX index_sources_incomplete ON index_sources (space, id) WHERE complete = 0;
[mysql] CREATE INDEX index_sources_incomplete ON index_sources (complete, space, id);

-- `id` is made of the source's number, the channel and the place, so that neighbours have neighbouring ids.
-- `model` is the model of its vector, or the tenant's model without a name until it has one; NULL if it gets no vector.
-- `terms` are the keys of its terms; those that occur more than once are repeated after a bar, with their count.
CREATE TABLE index_documents (
    id      INT NOT NULL PRIMARY KEY,
    space   INT NOT NULL,
    channel INT NOT NULL,
    source  INT NOT NULL,
    seq     INT NOT NULL,
    at      INT NOT NULL,
    length  INT NOT NULL,
    traits  INT NOT NULL,
    model   INT,
    role    ID NOT NULL,
    agent   ID,
    name    ID(1100),
    digest  VARBINARY(16) NOT NULL,
[sqlite]     terms TEXT NOT NULL
[postgres mysql]     terms MEDIUMBLOB NOT NULL
) {table};
CREATE UNIQUE INDEX index_documents_seq ON index_documents (source, seq);
[sqlite] CREATE INDEX index_documents_at ON index_documents (space, channel, at);
[sqlite] CREATE INDEX index_documents_model ON index_documents (model, space) WHERE model IS NOT NULL;
[postgres mysql] CREATE INDEX index_documents_at ON index_documents (space, channel, at, id);
[postgres] CREATE INDEX index_documents_model ON index_documents (model, space, id) WHERE model IS NOT NULL;
[mysql] CREATE INDEX index_documents_model ON index_documents (model, space, id);

-- The number of documents of a space and channel that contain a term.
CREATE TABLE index_frequencies (
    space     INT NOT NULL,
    channel   INT NOT NULL,
    term      ID(64) NOT NULL,
    documents INT NOT NULL,
    PRIMARY KEY (space, channel, term)
[sqlite mysql] ) {clustered};
[postgres] ) WITH (fillfactor = 80);

-- The posting lists. Each word begins with channel and space, so that a list contains documents of one space only. In MySQL this is
-- no FULLTEXT key: such a key is outside of a transaction's snapshot, so a lookup during a write would miss replaced documents, and it
-- keeps words of erased documents until the table is rebuilt.
[sqlite] CREATE VIRTUAL TABLE index_postings USING fts5 (
[sqlite]     tokens, content = '', columnsize = 0, detail = none, tokenize = "ascii tokenchars '_'"
[sqlite] );
[sqlite] INSERT INTO index_postings (index_postings, rank) VALUES ('secure-delete', 1);
[postgres] CREATE TABLE index_postings (id bigint PRIMARY KEY, tokens tsvector NOT NULL);
[postgres] CREATE INDEX index_postings_tokens ON index_postings USING gin (tokens) WITH (fastupdate = off);
[mysql] CREATE TABLE index_postings (
[mysql]     word ID(64) NOT NULL,
[mysql]     id   INT NOT NULL,
[mysql]     PRIMARY KEY (word, id)
[mysql] ) {table};

-- `dimensions` below 0: vectors are stored as float16.
CREATE TABLE index_models (
    number     SERIAL,
    tenant     ID NOT NULL,
    name       ID NOT NULL,
    dimensions INT NOT NULL
) {table};
CREATE UNIQUE INDEX index_models_name ON index_models (tenant, name);

-- By document; float32, little-endian. `mark` is the beginning of the document's digest, as a number.
CREATE TABLE index_vectors (
    id   INT NOT NULL PRIMARY KEY,
    mark INT NOT NULL,
    data MEDIUMBLOB NOT NULL
) {table};
CREATE INDEX index_vectors_mark ON index_vectors (mark);

-- Which entries of a session are copies, in ranges up to the next `first`. `source` is the identity of the session in
-- which they were written first, `source_first` their place there. A session without copies has no row.
CREATE TABLE entry_origins (
    session      INT NOT NULL,
    first        INT NOT NULL,
    source       ID NOT NULL,
    source_first INT NOT NULL,
    PRIMARY KEY (session, first)
) {clustered};
CREATE INDEX entry_origins_source ON entry_origins (source, session);

-- Records: values under a namespace and a key.

-- A record. `place` is its namespace and key as sortable bytes; `form` is 0 for JSON and 1 for bytes.
CREATE TABLE records (
    owner      INT NOT NULL,
    place      VARBINARY(1100) NOT NULL,
    tenant     ID NOT NULL,
    version    INT NOT NULL,
    created_at INT NOT NULL,
    updated_at INT NOT NULL,
    expires_at INT,
    form       INT NOT NULL,
    size       INT NOT NULL,
    data       LONGBLOB NOT NULL,
    -- the number of a searchable record among those of its owner, and its searchable text in UTF-8
    number     INT,
    words      MEDIUMBLOB,
[mysql]     searched INT GENERATED ALWAYS AS (IF(number IS NULL, NULL, version)) VIRTUAL,
    PRIMARY KEY (owner, place)
) {table};

[sqlite postgres] CREATE INDEX records_expires ON records (tenant, expires_at) WHERE expires_at IS NOT NULL;
[sqlite postgres] CREATE INDEX records_searchable ON records (owner, version, number) WHERE number IS NOT NULL;
[mysql] CREATE INDEX records_expires ON records (tenant, expires_at);
[mysql] CREATE INDEX records_searchable ON records (owner, searched, number);

-- What is to be done after a write, recorded in the transaction of the write.

-- For an index, `target`: data that was removed from the store; `kind` and `name` are the space. For the target '': an erasure
-- or deletion of a user that was begun; `name` is the user. Numbers are never used again, since several processes delete rows.
CREATE TABLE due (
[sqlite] pk      INTEGER PRIMARY KEY AUTOINCREMENT,
[postgres mysql] pk      SERIAL,
    tenant  ID NOT NULL,
    target  ID NOT NULL,
    kind    ID NOT NULL,
    name    ID NOT NULL,
    source  ID NOT NULL,
    seq     INT,
    data    LONGBLOB NOT NULL
) {table};

CREATE INDEX due_of_target ON due (tenant, target, pk);

-- The ids of the writes of the last hour, which begin with the time. They show if a write was committed whose answer was lost.
[postgres mysql] CREATE TABLE writes (id VARBINARY(16) NOT NULL PRIMARY KEY) {clustered};
