-- What a gateway needs: digests that are found among all logs of a user, media beside a log, turns that are claimed, API keys.

-- Keys of 64 bits; see `holdfast.stores.matching`. `mark` is that of the digest of a visible entry, `alias` that of its alias.
ALTER TABLE entries ADD COLUMN mark bigint;
ALTER TABLE entries ADD COLUMN alias bigint;
CREATE INDEX entries_mark ON entries (mark, session, seq) WHERE mark IS NOT NULL;
CREATE INDEX entries_alias ON entries (alias, session, seq) WHERE alias IS NOT NULL;

-- Who has a turn open: nobody when `claim_holder` is empty.
ALTER TABLE sessions ADD COLUMN claim_holder bytea NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN claim_until bigint NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN claim_wanted smallint NOT NULL DEFAULT 0;

DROP VIEW session_rows;
CREATE VIEW session_rows AS
SELECT s.pk, s.tenant, s.user_id, s.id, s.agent, s.version, s.created_at, s.updated_at, s.status, s.ttl, s.messages,
       s.bytes, s.calls, s.prompt_tokens, s.completion_tokens, s.cached_tokens, s.next_seq, s.turn_id, s.total,
       s.digest, s.last_seq, s.last_kind, s.unit, s.open_calls, s.anchor, p.system_messages, p.state, p.metadata,
       s.accessed_at, s.ended_at, s.end_reason, s.expires_at, s.withdrawn, s.identity, s.claim_holder, s.claim_until,
       s.claim_wanted, s.views_from
FROM sessions AS s LEFT JOIN profiles AS p ON p.session = s.pk;

-- Contents that entries name, once a session. Most are compressed already.
CREATE TABLE media (
    session bigint NOT NULL,
    size    bigint NOT NULL,
    sha256  bytea  NOT NULL,
    data    bytea  NOT NULL,
    PRIMARY KEY (session, sha256)
);
ALTER TABLE media ALTER COLUMN data SET STORAGE EXTERNAL;

-- Which entries name them.
CREATE TABLE media_uses (
    session bigint NOT NULL,
    seq     bigint NOT NULL,
    sha256  bytea  NOT NULL,
    PRIMARY KEY (session, seq, sha256)
);
CREATE INDEX media_uses_sha256 ON media_uses (session, sha256);

-- API keys, kept by the tenant of a server; `opens` is the tenant whose sessions a key opens.
CREATE TABLE api_keys (
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    used_at    bigint,
    rate       bigint,
    max_body   bigint,
    tenant     bytea  NOT NULL,
    id         bytea  NOT NULL,
    hash       bytea  NOT NULL,
    name       bytea  NOT NULL,
    opens      bytea  NOT NULL,
    user_id    bytea,
    role       bytea  NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE UNIQUE INDEX api_keys_hash ON api_keys (tenant, hash);
