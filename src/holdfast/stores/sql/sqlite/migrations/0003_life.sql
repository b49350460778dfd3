-- The life of sessions: when each was used last, how it ended, and ends that have not been told to everybody yet.

-- `identity` tells a session from another one of its name, made when it was gone.
-- `expires_at` is that of a session with a ttl of its own. A session that is `withdrawn` has lost its name, by the id of its
-- ending; it waits to be told of, and to be deleted.
ALTER TABLE sessions ADD COLUMN accessed_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN expires_at INTEGER;
ALTER TABLE sessions ADD COLUMN ended_at INTEGER;
ALTER TABLE sessions ADD COLUMN end_reason TEXT;
ALTER TABLE sessions ADD COLUMN withdrawn TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN identity TEXT NOT NULL DEFAULT '';
UPDATE sessions SET accessed_at = updated_at, expires_at = updated_at + nullif(ttl, 0);

DROP INDEX sessions_name;
CREATE UNIQUE INDEX sessions_name ON sessions (tenant, id, user_id, withdrawn);
CREATE INDEX sessions_active ON sessions (tenant, accessed_at) WHERE status = 'active';
CREATE INDEX sessions_expiring ON sessions (tenant, expires_at) WHERE status = 'active' AND expires_at IS NOT NULL;

DROP VIEW session_rows;
CREATE VIEW session_rows AS
SELECT s.pk, s.tenant, s.user_id, s.id, s.agent, s.version, s.created_at, s.updated_at, s.status, s.ttl, s.messages,
       s.bytes, s.calls, s.prompt_tokens, s.completion_tokens, s.cached_tokens, s.next_seq, s.turn_id, s.total,
       s.digest, s.last_seq, s.last_kind, s.unit, s.open_calls, s.anchor, p.system_messages, p.state, p.metadata,
       s.accessed_at, s.ended_at, s.end_reason, s.expires_at, s.withdrawn, s.identity, s.views_from
FROM sessions AS s LEFT JOIN profiles AS p ON p.session = s.pk;

-- Ends that hooks are still to be told of; `hooks` names them, as JSON.
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
