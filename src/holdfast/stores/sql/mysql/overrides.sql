-- Statements whose text for MySQL and MariaDB is not in `../common.sql`.

-- session_insert --
INSERT INTO sessions (tenant, user_id, id, agent, version, created_at, updated_at, status, ttl, messages, bytes, calls,
                      prompt_tokens, completion_tokens, cached_tokens, next_seq, turn_id, total, digest, last_seq,
                      last_kind, unit, open_calls, anchor, accessed_at, expires_at, identity)
VALUES (:tenant, :user_id, :id, :agent, :version, :created_at, :accessed_at, :status, :ttl, :messages, :bytes, :calls, :prompt_tokens, :completion_tokens, :cached_tokens, :next_seq, :turn_id, :total, :digest, :last_seq, :last_kind, :unit, :open_calls, :anchor, :accessed_at,
        :accessed_at + nullif(:ttl, 0), :identity)

-- session_holds --
SELECT (SELECT count(*) FROM compactions WHERE session = :session), (SELECT count(*) FROM saved_views WHERE session = :session),
       (SELECT count(*) FROM model_calls WHERE session = :session), (SELECT count(*) FROM idempotency WHERE session = :session),
       (SELECT count(*) FROM artifacts WHERE session = :session),
       (SELECT CAST(coalesce(sum(size), 0) AS SIGNED) FROM artifacts WHERE session = :session),
       (SELECT count(*) FROM media WHERE session = :session),
       (SELECT CAST(coalesce(sum(size), 0) AS SIGNED) FROM media WHERE session = :session)

-- list_newest --
SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
WHERE w.tenant = :tenant AND (w.updated_at < :at OR w.updated_at = :at AND w.user_id < :user_id OR w.updated_at = :at AND w.user_id = :user_id AND w.id < :id)
  AND (:agent IS NULL OR w.agent = :agent) AND w.withdrawn = ''
  AND (:status IS NULL OR :status = CASE
       WHEN w.status = 'active' AND (w.expires_at <= :now OR w.ttl IS NULL AND w.accessed_at <= :idle_since) THEN 'closed'
       ELSE w.status END)
ORDER BY w.updated_at DESC, w.user_id DESC, w.id DESC LIMIT :limit

-- list_oldest --
SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
WHERE w.tenant = :tenant AND (w.updated_at > :at OR w.updated_at = :at AND w.user_id > :user_id OR w.updated_at = :at AND w.user_id = :user_id AND w.id > :id)
  AND (:agent IS NULL OR w.agent = :agent) AND w.withdrawn = ''
  AND (:status IS NULL OR :status = CASE
       WHEN w.status = 'active' AND (w.expires_at <= :now OR w.ttl IS NULL AND w.accessed_at <= :idle_since) THEN 'closed'
       ELSE w.status END)
ORDER BY w.updated_at, w.user_id, w.id LIMIT :limit

-- list_newest_of_user --
SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent_of_user) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
WHERE w.tenant = :tenant AND w.user_id = :user_id AND (w.updated_at < :at OR w.updated_at = :at AND w.id < :id)
  AND (:agent IS NULL OR w.agent = :agent) AND w.withdrawn = ''
  AND (:status IS NULL OR :status = CASE
       WHEN w.status = 'active' AND (w.expires_at <= :now OR w.ttl IS NULL AND w.accessed_at <= :idle_since) THEN 'closed'
       ELSE w.status END)
ORDER BY w.updated_at DESC, w.id DESC LIMIT :limit

-- list_oldest_of_user --
SELECT r.* FROM sessions AS w FORCE INDEX (sessions_recent_of_user) STRAIGHT_JOIN session_rows AS r ON r.pk = w.pk
WHERE w.tenant = :tenant AND w.user_id = :user_id AND (w.updated_at > :at OR w.updated_at = :at AND w.id > :id)
  AND (:agent IS NULL OR w.agent = :agent) AND w.withdrawn = ''
  AND (:status IS NULL OR :status = CASE
       WHEN w.status = 'active' AND (w.expires_at <= :now OR w.ttl IS NULL AND w.accessed_at <= :idle_since) THEN 'closed'
       ELSE w.status END)
ORDER BY w.updated_at, w.id LIMIT :limit

-- live_forward --
SELECT session, seq, turn_id, unit_back, timestamp, tokens, total, digest, agent, importance, pinned, retired_by, erased,
       metadata, payload
FROM entries FORCE INDEX (entries_live)
WHERE session = :session AND retired_by IS NULL AND seq >= :start AND seq < :stop ORDER BY seq LIMIT :limit

-- live_backward --
SELECT session, seq, turn_id, unit_back, timestamp, tokens, total, digest, agent, importance, pinned, retired_by, erased,
       metadata, payload
FROM entries FORCE INDEX (entries_live)
WHERE session = :session AND retired_by IS NULL AND seq >= :start AND seq < :stop ORDER BY seq DESC LIMIT :limit

-- log_forward --
SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop ORDER BY seq LIMIT :limit

-- log_backward --
SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop ORDER BY seq DESC LIMIT :limit

-- noted_forward --
SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop AND (retired_by IS NULL OR retired_by = seq)
ORDER BY seq LIMIT :limit

-- noted_backward --
SELECT * FROM entry_rows WHERE session = :session AND seq >= :start AND seq < :stop AND (retired_by IS NULL OR retired_by = seq)
ORDER BY seq DESC LIMIT :limit

-- mark_last --
SELECT max(place) - 1
FROM JSON_TABLE(CONVERT(:wanted USING utf8mb4), '$[*]' COLUMNS
     (place FOR ORDINALITY, number BIGINT PATH '$[0]', digest VARCHAR(64) PATH '$[1]')) AS wanted
WHERE (SELECT 1 FROM entries AS e FORCE INDEX (entries_mark) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
       WHERE e.mark = wanted.number AND (:session IS NULL OR e.session = :session) AND e.digest = UNHEX(wanted.digest)
         AND s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = '' LIMIT 1) = 1

-- mark_places --
SELECT s.id, s.identity, s.updated_at, s.digest, e.seq, e.digest, e.retired_by
FROM entries AS e FORCE INDEX (entries_mark) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
WHERE e.mark = :mark AND (:session IS NULL OR e.session = :session) AND e.digest = :digest AND s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = ''
ORDER BY e.session DESC, e.seq DESC LIMIT :limit

-- alias_last --
SELECT max(place) - 1
FROM JSON_TABLE(CONVERT(:wanted USING utf8mb4), '$[*]' COLUMNS
     (place FOR ORDINALITY, number BIGINT PATH '$')) AS wanted
WHERE (SELECT 1 FROM entries AS e FORCE INDEX (entries_alias) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
       WHERE e.alias = wanted.number AND (:session IS NULL OR e.session = :session)
         AND s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = '' LIMIT 1) = 1

-- alias_places --
SELECT s.id, s.identity, s.updated_at, s.digest, e.seq, e.digest, e.retired_by
FROM entries AS e FORCE INDEX (entries_alias) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
WHERE e.alias = :alias AND (:session IS NULL OR e.session = :session) AND s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = ''
ORDER BY e.session DESC, e.seq DESC LIMIT :limit

-- end_last --
SELECT max(place) - 1
FROM JSON_TABLE(CONVERT(:digests USING utf8mb4), '$[*]' COLUMNS
     (place FOR ORDINALITY, digest VARCHAR(64) PATH '$')) AS wanted
WHERE (SELECT 1 FROM sessions AS s FORCE INDEX (sessions_end)
       WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.digest = UNHEX(wanted.digest) AND s.withdrawn = '' LIMIT 1) = 1

-- end_places --
SELECT s.id, s.identity, s.updated_at, s.digest, s.last_seq, s.digest, NULL
FROM sessions AS s FORCE INDEX (sessions_end)
WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.digest = :digest AND s.withdrawn = '' ORDER BY s.updated_at DESC LIMIT :limit

-- last_not_result --
SELECT seq FROM entries FORCE INDEX (entries_live) WHERE session = :session AND seq < :before AND retired_by IS NULL AND kind <> 4 ORDER BY seq DESC LIMIT 1

-- last_visible --
SELECT digest FROM entries FORCE INDEX (entries_live) WHERE session = :session AND seq < :before AND retired_by IS NULL AND kind < 3 ORDER BY seq DESC LIMIT 1

-- view_get --
SELECT v.frontier, v.state, v.kept, c.*
FROM sessions AS s
LEFT JOIN saved_views AS v ON v.session = s.pk AND v.`key` = :key
LEFT JOIN compaction_rows AS c ON c.session = s.pk AND c.view_key = :key AND c.status = 'live'
WHERE s.pk = :pk

-- view_put --
INSERT INTO saved_views (session, `key`, frontier, state, kept, saved_at)
SELECT :session, :key, :frontier, :state, :kept, :saved_at FROM DUAL
WHERE NOT EXISTS
      (SELECT 1 FROM compactions WHERE session = :session AND view_key = :key AND status = 'live' AND laid_at > :known)
ON DUPLICATE KEY UPDATE frontier = VALUES(frontier), state = VALUES(state), kept = VALUES(kept), saved_at = VALUES(saved_at)

-- views_trim --
DELETE FROM saved_views
WHERE session = :session
  AND `key` NOT IN (SELECT `key` FROM
                    (SELECT `key` FROM saved_views WHERE session = :session
                     ORDER BY saved_at DESC, frontier DESC, `key` LIMIT :kept) AS saved_last)

-- idempotency_get --
SELECT fingerprint, version, first_seq, entries FROM idempotency WHERE session = :session AND `key` = :key

-- idempotency_put --
INSERT INTO idempotency (session, `key`, fingerprint, version, first_seq, entries) VALUES (:session, :key, :fingerprint, :version, :first_seq, :entries)

-- compactions_revive --
UPDATE compactions SET status = 'live'
WHERE session = :session AND status = 'superseded'
  AND id IN (SELECT newest FROM (SELECT max(id) AS newest FROM compactions
             WHERE session = :session AND status IN ('live', 'superseded') GROUP BY view_key) AS of_views)

-- compactions_trim --
DELETE FROM compactions
WHERE session = :session AND status IN ('superseded', 'dropped', 'dead')
  AND id <= (SELECT id FROM
             (SELECT id FROM compactions WHERE session = :session AND status IN ('superseded', 'dropped', 'dead')
              ORDER BY id DESC LIMIT 1 OFFSET :kept) AS last_to_go)

-- compactions_trim_failed --
DELETE FROM compactions
WHERE session = :session AND status = 'failed'
  AND id <= (SELECT id FROM (SELECT id FROM compactions WHERE session = :session AND status = 'failed'
             ORDER BY id DESC LIMIT 1 OFFSET :kept) AS last_to_go)

-- artifact_totals --
SELECT count(*), CAST(coalesce(sum(versions), 0) AS SIGNED), CAST(coalesce(sum(bytes), 0) AS SIGNED) FROM artifact_names
WHERE session = :session AND tenant = :tenant AND user_id = :user_id

-- blobs_in_use --
SELECT blob_key FROM artifacts WHERE tenant = :tenant AND blob_key IN
      (SELECT CAST(one AS BINARY) FROM JSON_TABLE(CONVERT(:blob_keys USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS found)

-- state_read_named --
SELECT s.version, v.name, v.data
FROM state_scopes AS s
LEFT JOIN JSON_TABLE(CONVERT(:names USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(512) PATH '$')) AS n ON s.version <> :known_version
LEFT JOIN state_values AS v ON v.tenant = s.tenant AND v.user_id = s.user_id AND v.name = UNHEX(n.one)
WHERE s.tenant = :tenant AND s.user_id = :user_id

-- lease_put --
INSERT INTO leases (tenant, name, holder, expires_at) VALUES (:tenant, :name, :holder, :expires_at)
ON DUPLICATE KEY UPDATE
holder = IF(holder = VALUES(holder) OR expires_at <= :now, VALUES(holder), holder),
expires_at = IF(holder = VALUES(holder), VALUES(expires_at), expires_at)

-- learned_trim --
DELETE FROM learned
WHERE tenant = :tenant AND (updated_at, model) <=
      (SELECT updated_at, model FROM (SELECT updated_at, model FROM learned WHERE tenant = :tenant
                                      ORDER BY updated_at DESC, model DESC LIMIT 1 OFFSET :kept) AS last_to_go)

-- ping_put --
INSERT INTO holdfast_schema (number, name, checksum) VALUES (0, 'ping', left(:padding, 1))

-- index_sources_after --
SELECT p.kind, p.name, s.id, s.identity, s.version, s.next_seq, s.talk, s.tool, s.epoch, s.complete
FROM (SELECT number, kind, name FROM index_spaces FORCE INDEX (index_spaces_name)
      WHERE tenant = :tenant AND (kind > :kind OR kind = :kind AND name > :name) AND kind <> 'gone' ORDER BY kind, name LIMIT :spaces) AS p
     LEFT JOIN index_sources AS s FORCE INDEX (index_sources_id) ON s.space = p.number
ORDER BY p.kind, p.name, s.id LIMIT :limit

-- index_sources_of_after --
SELECT p.kind, p.name, s.id, s.identity, s.version, s.next_seq, s.talk, s.tool, s.epoch, s.complete
FROM index_spaces AS p STRAIGHT_JOIN index_sources AS s FORCE INDEX (index_sources_id) ON s.space = p.number
WHERE p.number = :space AND s.id >= :id AND (:inclusive = 1 OR s.id > :id)
ORDER BY s.id LIMIT :limit

-- index_sources_incomplete --
SELECT p.kind, p.name, s.id, s.identity, s.version, s.next_seq, s.talk, s.tool, s.epoch, s.complete
FROM index_sources AS s FORCE INDEX (index_sources_incomplete) STRAIGHT_JOIN index_spaces AS p FORCE INDEX (PRIMARY) ON p.number = s.space
WHERE p.tenant = :tenant AND s.complete = 0 AND s.space BETWEEN :first_space AND :last_space
      AND (p.kind, p.name) >= (:kind, :name) AND ((p.kind, p.name) > (:kind, :name) OR :after_id IS NULL OR s.id > :after_id)
      AND p.kind <> 'gone'
ORDER BY p.kind, p.name, s.id LIMIT :limit

-- index_documents_at --
SELECT d.id, d.seq, d.channel, d.digest, d.length, d.terms, d.model
FROM JSON_TABLE(CONVERT(:seqs USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (index_documents_seq) ON d.source = :source AND d.seq = wanted.one
UNION
SELECT d.id, d.seq, d.channel, d.digest, d.length, d.terms, d.model
FROM JSON_TABLE(CONVERT(:ids USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = wanted.one
WHERE d.source = :source

-- index_documents_delete --
DELETE d FROM JSON_TABLE(CONVERT(:ids USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = wanted.one

-- index_posting_put --
INSERT INTO index_postings (word, id)
SELECT CAST(wanted.one AS BINARY), :rowid
FROM JSON_TABLE(CONVERT(CONCAT('["', REPLACE(:tokens, ' ', '","'), '"]') USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS wanted
WHERE wanted.one <> ''

-- index_posting_delete --
DELETE p FROM JSON_TABLE(CONVERT(CONCAT('["', REPLACE(:tokens, ' ', '","'), '"]') USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS wanted
     STRAIGHT_JOIN index_postings AS p FORCE INDEX (PRIMARY) ON p.word = CAST(wanted.one AS BINARY) AND p.id = :rowid

-- index_frequencies_add --
INSERT INTO index_frequencies (space, channel, term, documents)
SELECT :space, :channel, one.term, one.more
FROM JSON_TABLE(CONVERT(:pairs USING utf8mb4), '$[*]' COLUMNS (term VARCHAR(64) PATH '$[0]', more BIGINT PATH '$[1]')) AS one
ON DUPLICATE KEY UPDATE documents = index_frequencies.documents + VALUES(documents)

-- index_frequencies_clean --
DELETE f FROM JSON_TABLE(CONVERT(:terms USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS wanted
     STRAIGHT_JOIN index_frequencies AS f FORCE INDEX (PRIMARY) ON f.space = :space AND f.channel = :channel AND f.term = CAST(wanted.one AS BINARY)
WHERE f.documents <= 0

-- index_frequencies --
SELECT f.term, f.documents
FROM JSON_TABLE(CONVERT(:terms USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS wanted
     STRAIGHT_JOIN index_frequencies AS f FORCE INDEX (PRIMARY) ON f.space = :space AND f.channel = :channel AND f.term = CAST(wanted.one AS BINARY)

-- index_postings_read --
SELECT 0, id FROM index_postings WHERE word = :w0 UNION ALL
SELECT 1, id FROM index_postings WHERE word = :w1 UNION ALL
SELECT 2, id FROM index_postings WHERE word = :w2 UNION ALL
SELECT 3, id FROM index_postings WHERE word = :w3 UNION ALL
SELECT 4, id FROM index_postings WHERE word = :w4 UNION ALL
SELECT 5, id FROM index_postings WHERE word = :w5 UNION ALL
SELECT 6, id FROM index_postings WHERE word = :w6 UNION ALL
SELECT 7, id FROM index_postings WHERE word = :w7

-- index_postings_newest --
SELECT id FROM index_postings AS w
WHERE word = :word AND (:word = :other OR EXISTS (SELECT 1 FROM index_postings AS o WHERE o.word = :other AND o.id = w.id))
ORDER BY id DESC LIMIT :limit

-- index_postings_passing --
SELECT d.id FROM index_postings AS w STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = w.id
WHERE w.word = :word AND (:word = :other OR EXISTS (SELECT 1 FROM index_postings AS o WHERE o.word = :other AND o.id = w.id))
      AND {filters}
ORDER BY w.id DESC LIMIT :limit

-- index_candidates --
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM JSON_TABLE(CONVERT(:ids USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = wanted.one
     STRAIGHT_JOIN index_sources AS s FORCE INDEX (PRIMARY) ON s.number = d.source
WHERE d.space = :space AND d.channel = :channel
      AND {filters}

-- index_candidates_newest --
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM index_documents AS d FORCE INDEX (index_documents_at) STRAIGHT_JOIN index_sources AS s FORCE INDEX (PRIMARY) ON s.number = d.source
WHERE d.space = :space AND d.channel = :channel
      AND {filters}
ORDER BY d.at DESC, d.id DESC LIMIT :limit

-- index_candidates_of --
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM JSON_TABLE(CONVERT(:sources USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted STRAIGHT_JOIN index_sources AS s FORCE INDEX (PRIMARY) ON s.number = wanted.one
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (index_documents_seq) ON d.source = s.number
WHERE d.space = :space AND d.channel = :channel
      AND (:without IS NULL OR d.source NOT IN :without)
      AND (:agents IS NULL OR d.agent IN :agents)
      AND (:roles IS NULL OR d.role IN :roles) AND {named}
      AND d.at >= :since AND d.at < :until
ORDER BY d.at DESC, d.id DESC LIMIT :limit

-- index_candidates_at --
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM JSON_TABLE(CONVERT(:seqs USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (index_documents_seq) ON d.source = :source AND d.seq = wanted.one
     STRAIGHT_JOIN index_sources AS s FORCE INDEX (PRIMARY) ON s.number = d.source
ORDER BY d.id

-- index_pending --
SELECT p.kind, p.name, s.id, s.identity, d.seq, d.digest
FROM index_documents AS d FORCE INDEX (index_documents_model) STRAIGHT_JOIN index_sources AS s FORCE INDEX (PRIMARY) ON s.number = d.source
     STRAIGHT_JOIN index_spaces AS p FORCE INDEX (PRIMARY) ON p.number = d.space
WHERE d.model = :model AND d.space BETWEEN :first_space AND :last_space AND p.kind <> 'gone' ORDER BY d.space, d.id LIMIT :limit

-- index_documents_model --
UPDATE JSON_TABLE(CONVERT(:ids USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = wanted.one
SET d.model = :model

-- index_vectors_delete --
DELETE v FROM JSON_TABLE(CONVERT(:ids USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_vectors AS v FORCE INDEX (PRIMARY) ON v.id = wanted.one

-- index_vectors_at --
SELECT d.id, v.data FROM JSON_TABLE(CONVERT(:ids USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = wanted.one
     STRAIGHT_JOIN index_vectors AS v FORCE INDEX (PRIMARY) ON v.id = d.id
WHERE d.model = :model

-- index_vectors_like --
SELECT d.digest, v.data
FROM JSON_TABLE(CONVERT(:marks USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS wanted
     STRAIGHT_JOIN index_vectors AS v FORCE INDEX (index_vectors_mark) ON v.mark = wanted.one
     STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = v.id
WHERE d.model = :model AND d.space = :space

-- index_vectors_read --
SELECT d.id, v.data FROM index_documents AS d FORCE INDEX (index_documents_model) STRAIGHT_JOIN index_vectors AS v FORCE INDEX (PRIMARY) ON v.id = d.id
WHERE d.model = :model AND d.space = :space AND d.id > :after_id AND d.channel = :channel
      AND {filters}
ORDER BY d.id LIMIT :limit

-- index_nearest --
SELECT d.id, LENGTH(:vector) AS near
FROM index_documents AS d FORCE INDEX (index_documents_model) STRAIGHT_JOIN index_vectors AS v FORCE INDEX (PRIMARY) ON v.id = d.id
WHERE d.model = :model AND d.space = :space AND d.channel = :channel
      AND {filters}
ORDER BY near DESC, d.id DESC LIMIT :limit

-- floor_raise --
INSERT INTO floors (tenant, number) VALUES (:tenant, :number)
ON DUPLICATE KEY UPDATE number = GREATEST(number, :number)

-- memory_owners_after --
SELECT kind, id, updated_at FROM memory_owners FORCE INDEX (memory_owners_name)
WHERE tenant = :tenant AND (kind > :kind OR (kind = :kind AND id > :id))
ORDER BY kind, id LIMIT :limit

-- memories_forward --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN (SELECT number, id, version, data FROM memories
           WHERE owner = (SELECT pk FROM memory_owners WHERE tenant = :tenant AND kind = :kind AND id = :id) AND number > :place
           ORDER BY number LIMIT :limit) AS m ON TRUE
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number

-- memories_backward --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN (SELECT number, id, version, data FROM memories
           WHERE owner = (SELECT pk FROM memory_owners WHERE tenant = :tenant AND kind = :kind AND id = :id) AND number < :place
           ORDER BY number DESC LIMIT :limit) AS m ON TRUE
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number DESC

-- memories_forward_of --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN (SELECT number, id, version, data FROM memories
           WHERE owner = (SELECT pk FROM memory_owners WHERE tenant = :tenant AND kind = :kind AND id = :id) AND status = :status AND number > :place
           ORDER BY number LIMIT :limit) AS m ON TRUE
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number

-- memories_backward_of --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN (SELECT number, id, version, data FROM memories
           WHERE owner = (SELECT pk FROM memory_owners WHERE tenant = :tenant AND kind = :kind AND id = :id) AND status = :status AND number < :place
           ORDER BY number DESC LIMIT :limit) AS m ON TRUE
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number DESC

-- memories_of_ids --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN JSON_TABLE(CONVERT(:wanted USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS n ON TRUE
LEFT JOIN memories AS m ON m.tenant = o.tenant AND m.id = CAST(n.one AS BINARY) AND m.owner = o.pk AND m.version > :after_version AND (:status = '' OR m.status = :status) AND m.number * :direction > :place
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number IS NULL, m.number * :direction LIMIT :limit

-- memories_of_numbers --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN JSON_TABLE(CONVERT(:wanted USING utf8mb4), '$[*]' COLUMNS (one BIGINT PATH '$')) AS n ON TRUE
LEFT JOIN memories AS m ON m.number = n.one AND m.owner = o.pk AND m.version > :after_version AND (:status = '' OR m.status = :status) AND m.number * :direction > :place
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number IS NULL, m.number * :direction LIMIT :limit

-- memories_named --
SELECT id, owner, number FROM memories WHERE tenant = :tenant AND id IN
      (SELECT CAST(one AS BINARY) FROM JSON_TABLE(CONVERT(:ids USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS found)

-- signals_trim --
DELETE FROM memory_signals
WHERE owner = :owner AND memory = :memory
  AND seq <= (SELECT seq FROM (SELECT seq FROM memory_signals WHERE owner = :owner AND memory = :memory
             ORDER BY seq DESC LIMIT 1 OFFSET :kept) AS last_to_go)

-- signals_of --
SELECT m.id, s.recalled_at, s.asked, s.score, s.session_id
FROM memory_owners AS o
JOIN JSON_TABLE(CONVERT(:memory_ids USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS n
JOIN memories AS m ON m.tenant = o.tenant AND m.id = CAST(n.one AS BINARY) AND m.owner = o.pk
JOIN memory_signals AS s ON s.owner = m.owner AND s.memory = m.number
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id AND s.recalled_at >= :since ORDER BY s.seq

-- session_get_locked(tenant, id, user_id, withdrawn) --
-- Like session_get, and lock the row until the transaction ends.
SELECT * FROM session_rows WHERE tenant = :tenant AND id = :id AND user_id = :user_id AND withdrawn = :withdrawn FOR UPDATE

-- ending_get_lock(tenant, id) --
-- Lock an end, so that no other transaction records an outcome of it.
SELECT 1 FROM endings WHERE tenant = :tenant AND id = :id FOR UPDATE

-- artifact_name_get_lock(session, tenant, user_id, folded) --
-- Lock the name of an artifact, so that no other transaction changes it.
SELECT 1 FROM artifact_names WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded FOR UPDATE

-- scope_get_lock(tenant, user_id) --
-- Lock a scope, so that no other transaction writes to it.
SELECT 1 FROM state_scopes WHERE tenant = :tenant AND user_id = :user_id FOR UPDATE

-- records_searchable --
SELECT place, version, created_at, updated_at, expires_at, form, size, number, words FROM records FORCE INDEX (records_searchable)
WHERE owner = :owner AND (searched > :version OR (searched = :version AND number > :number))
      AND (expires_at IS NULL OR expires_at > :now)
ORDER BY searched, number LIMIT :limit

-- record_owner_get_lock(tenant, user_id, session) --
-- Lock an owner, so that no other transaction writes to its records.
SELECT 1 FROM record_owners WHERE tenant = :tenant AND user_id = :user_id AND session = :session FOR UPDATE

-- learned_get_lock(tenant, model) --
-- Lock the calibration data of a model, so that no other transaction changes them.
SELECT 1 FROM learned WHERE tenant = :tenant AND model = :model FOR UPDATE

-- memory_owner_get_lock(tenant, kind, id) --
-- Lock an owner, so that no other transaction writes to its memories.
SELECT 1 FROM memory_owners WHERE tenant = :tenant AND kind = :kind AND id = :id FOR UPDATE

-- index_space_get_lock(tenant, kind, name) --
-- Lock a space, so that its writers take turns.
SELECT 1 FROM index_spaces WHERE tenant = :tenant AND kind = :kind AND name = :name FOR UPDATE

-- index_spaces_lock(tenant, kind bytes, limit) --
-- Lock several spaces.
SELECT 1 FROM index_spaces WHERE tenant = :tenant AND (:kind IS NULL OR kind = :kind) ORDER BY kind, name LIMIT :limit FOR UPDATE

-- index_models_lock(tenant) --
-- Lock models, so that none is deleted while documents get vectors of it.
SELECT 1 FROM index_models WHERE tenant = :tenant LOCK IN SHARE MODE

-- index_model_delete_lock(number) --
-- Wait for transactions that store vectors of a model, before checking whether it is in use.
SELECT 1 FROM index_models WHERE number = :number FOR UPDATE
