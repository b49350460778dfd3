-- Memories: records of what was learned, signals of their recalls, and a diary. Whose they are is a user, an agent, or the tenant.

-- An owner. Whoever writes to its memories locks this row. It stays when all of them are gone: versions and numbers never come
-- again. `held` is how many memories it has; the last three are the next numbers of a memory, of a signal and of a diary entry.
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

-- A memory as JSON, without its owner, number and version. `version` is the owner's with its last change.
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
-- What was changed behind a version.
CREATE INDEX memories_version ON memories (owner, version);
CREATE INDEX memories_status ON memories (owner, status, number);

-- A recall of a memory, which is named by its number.
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
