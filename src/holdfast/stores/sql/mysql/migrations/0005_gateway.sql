-- What a gateway needs: digests that are found among all logs of a user, media beside a log, turns that are claimed, API keys.

-- Keys of 64 bits; see `holdfast.stores.matching`. `mark` is that of the digest of a visible entry, `alias` that of its alias.
ALTER TABLE entries
    ADD COLUMN mark BIGINT,
    ADD COLUMN alias BIGINT,
    ADD KEY entries_mark (mark, session, seq),
    ADD KEY entries_alias (alias, session, seq);

-- Who has a turn open: nobody when `claim_holder` is empty.
ALTER TABLE sessions
    ADD COLUMN claim_holder VARBINARY(512) NOT NULL DEFAULT '',
    ADD COLUMN claim_until BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN claim_wanted SMALLINT NOT NULL DEFAULT 0;

CREATE OR REPLACE VIEW session_rows AS
SELECT s.pk, s.tenant, s.user_id, s.id, s.agent, s.version, s.created_at, s.updated_at, s.status, s.ttl, s.messages,
       s.bytes, s.calls, s.prompt_tokens, s.completion_tokens, s.cached_tokens, s.next_seq, s.turn_id, s.total,
       s.digest, s.last_seq, s.last_kind, s.unit, s.open_calls, s.anchor, p.system_messages, p.state, p.metadata,
       s.accessed_at, s.ended_at, s.end_reason, s.expires_at, s.withdrawn, s.identity, s.claim_holder, s.claim_until,
       s.claim_wanted, s.views_from
FROM sessions AS s LEFT JOIN profiles AS p ON p.session = s.pk;

-- Contents that entries name, once a session.
CREATE TABLE media (
    session BIGINT        NOT NULL,
    sha256  VARBINARY(32) NOT NULL,
    size    BIGINT        NOT NULL,
    data    LONGBLOB      NOT NULL,
    PRIMARY KEY (session, sha256)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Which entries name them.
CREATE TABLE media_uses (
    session BIGINT        NOT NULL,
    seq     BIGINT        NOT NULL,
    sha256  VARBINARY(32) NOT NULL,
    PRIMARY KEY (session, seq, sha256),
    KEY media_uses_sha256 (session, sha256)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- API keys, kept by the tenant of a server; `opens` is the tenant whose sessions a key opens.
CREATE TABLE api_keys (
    tenant     VARBINARY(512) NOT NULL,
    id         VARBINARY(512) NOT NULL,
    hash       VARBINARY(32)  NOT NULL,
    name       VARBINARY(512) NOT NULL,
    opens      VARBINARY(512) NOT NULL,
    user_id    VARBINARY(512),
    `role`     VARBINARY(512) NOT NULL,
    created_at BIGINT         NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    used_at    BIGINT,
    rate       BIGINT,
    max_body   BIGINT,
    PRIMARY KEY (tenant, id),
    UNIQUE KEY api_keys_hash (tenant, hash)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
