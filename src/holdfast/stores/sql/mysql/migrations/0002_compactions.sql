-- Compactions, what explains a model call, leases, and what was learned of models.

-- The version before which a compaction was made from what has been erased or dropped since.
ALTER TABLE sessions ADD COLUMN compactions_from BIGINT NOT NULL DEFAULT 0;

ALTER TABLE model_calls
    ADD COLUMN turn_id BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN through BIGINT NOT NULL DEFAULT -1,
    ADD COLUMN view_key VARBINARY(512) NOT NULL DEFAULT '',
    ADD COLUMN hash VARBINARY(16) NOT NULL DEFAULT '',
    ADD COLUMN build BLOB NOT NULL,
    ADD KEY model_calls_turn (session, turn_id, pk);

-- The row with a session's highest id is never deleted before the session: the next id follows from it. At most one of a
-- view is live, which the lock on the session sees to.
CREATE TABLE compactions (
    session           BIGINT NOT NULL,
    id                BIGINT NOT NULL,
    view_key          VARBINARY(512) NOT NULL,
    status            VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- the session's version when it was laid: a view built before that does not know it
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
