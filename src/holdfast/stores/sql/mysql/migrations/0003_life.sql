-- The life of sessions: when each was used last, how it ended, and ends that have not been told to everybody yet.

-- `identity` tells a session from another one of its name, made when it was gone.
-- `expires_at` is that of a session with a ttl of its own. A session that is `withdrawn` has lost its name, by the id of its
-- ending; it waits to be told of, and to be deleted.
ALTER TABLE sessions
    ADD COLUMN accessed_at BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN expires_at BIGINT,
    ADD COLUMN ended_at BIGINT,
    ADD COLUMN end_reason VARBINARY(512),
    ADD COLUMN withdrawn VARBINARY(512) NOT NULL DEFAULT '',
    ADD COLUMN identity VARBINARY(512) NOT NULL DEFAULT '',
    DROP KEY sessions_name,
    ADD UNIQUE KEY sessions_name (tenant, id, user_id, withdrawn),
    ADD KEY sessions_active (tenant, status, accessed_at),
    ADD KEY sessions_expiring (tenant, status, expires_at);
UPDATE sessions SET accessed_at = updated_at, expires_at = updated_at + nullif(ttl, 0) WHERE accessed_at = 0;

CREATE OR REPLACE VIEW session_rows AS
SELECT s.pk, s.tenant, s.user_id, s.id, s.agent, s.version, s.created_at, s.updated_at, s.status, s.ttl, s.messages,
       s.bytes, s.calls, s.prompt_tokens, s.completion_tokens, s.cached_tokens, s.next_seq, s.turn_id, s.total,
       s.digest, s.last_seq, s.last_kind, s.unit, s.open_calls, s.anchor, p.system_messages, p.state, p.metadata,
       s.accessed_at, s.ended_at, s.end_reason, s.expires_at, s.withdrawn, s.identity, s.views_from
FROM sessions AS s LEFT JOIN profiles AS p ON p.session = s.pk;

-- Ends that hooks are still to be told of; `hooks` names them, as JSON.
CREATE TABLE endings (
    tenant     VARBINARY(512) NOT NULL,
    id         VARBINARY(512) NOT NULL,
    user_id    VARBINARY(512) NOT NULL,
    session_id VARBINARY(512) NOT NULL,
    identity   VARBINARY(512) NOT NULL,
    withdrawn  SMALLINT NOT NULL,
    reason     VARBINARY(512) NOT NULL,
    ended_at   BIGINT NOT NULL,
    due_at     BIGINT NOT NULL,
    attempts   BIGINT NOT NULL,
    hooks      LONGBLOB NOT NULL,
    error      BLOB,
    PRIMARY KEY (tenant, id),
    KEY endings_due (tenant, due_at, ended_at, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
