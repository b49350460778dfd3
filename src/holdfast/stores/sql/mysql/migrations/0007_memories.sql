-- Memories: records of what was learned, signals of their recalls, and a diary. Whose they are is a user, an agent, or the tenant.

-- An owner. Whoever writes to its memories locks this row. It stays when all of them are gone: versions and numbers never come
-- again. `held` is how many memories it has; the last three are the next numbers of a memory, of a signal and of a diary entry.
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

-- A memory as JSON, without its owner, number and version. `version` is the owner's with its last change.
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

-- A recall of a memory, which is named by its number.
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
