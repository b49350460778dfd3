-- Memories: records of what was learned, signals of their recalls, and a diary. Whose they are is a user, an agent, or the tenant.

-- An owner. Whoever writes to its memories locks this row. It stays when all of them are gone: versions and numbers never come
-- again. `held` is how many memories it has; the last three are the next numbers of a memory, of a signal and of a diary entry.
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

-- A memory as JSON, without its owner, number and version. `version` is the owner's with its last change.
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
-- What was changed behind a version.
CREATE INDEX memories_version ON memories (owner, version);
CREATE INDEX memories_status ON memories (owner, status, number);

-- A recall of a memory, which is named by its number.
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
