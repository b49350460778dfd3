-- Compactions, what explains a model call, leases, and what was learned of models.

-- The version before which a compaction was made from what has been erased or dropped since.
ALTER TABLE sessions ADD COLUMN compactions_from bigint NOT NULL DEFAULT 0;

ALTER TABLE model_calls ADD COLUMN turn_id bigint NOT NULL DEFAULT 0;
ALTER TABLE model_calls ADD COLUMN through bigint NOT NULL DEFAULT -1;
ALTER TABLE model_calls ADD COLUMN view_key bytea NOT NULL DEFAULT '';
ALTER TABLE model_calls ADD COLUMN hash bytea NOT NULL DEFAULT '';
ALTER TABLE model_calls ADD COLUMN build bytea NOT NULL DEFAULT '';

CREATE INDEX model_calls_turn ON model_calls (session, turn_id, pk);

-- The row with a session's highest id is never deleted before the session: the next id follows from it.
CREATE TABLE compactions (
    session           bigint NOT NULL,
    id                bigint NOT NULL,
    -- the session's version when it was laid: a view built before that does not know it
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
