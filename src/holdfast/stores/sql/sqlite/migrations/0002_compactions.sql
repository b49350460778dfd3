-- Compactions, what explains a model call, leases, and what was learned of models. An index that is empty takes a page too,
-- so what has few rows a tenant has none of its own.

-- The version before which a compaction was made from what has been erased or dropped since.
ALTER TABLE sessions ADD COLUMN compactions_from INTEGER NOT NULL DEFAULT 0;

ALTER TABLE model_calls ADD COLUMN turn_id INTEGER NOT NULL DEFAULT 0;
ALTER TABLE model_calls ADD COLUMN through INTEGER NOT NULL DEFAULT -1;
ALTER TABLE model_calls ADD COLUMN view_key TEXT NOT NULL DEFAULT '';
ALTER TABLE model_calls ADD COLUMN hash BLOB NOT NULL DEFAULT x'';
ALTER TABLE model_calls ADD COLUMN build BLOB NOT NULL DEFAULT x'';

CREATE INDEX model_calls_turn ON model_calls (session, turn_id, pk);

-- The row with a session's highest id is never deleted before the session: the next id follows from it. `text` stands last,
-- so that what comes before it is read without its overflow pages.
CREATE TABLE compactions (
    session           INTEGER NOT NULL,
    id                INTEGER NOT NULL,
    view_key          TEXT    NOT NULL,
    status            TEXT    NOT NULL,
    -- the session's version when it was laid: a view built before that does not know it
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
