-- Statements whose text for PostgreSQL is not in `../common.sql`. Text is sent as bytea.

-- tenant_after --
SELECT tenant FROM (
    (SELECT tenant FROM sessions WHERE tenant > :after ORDER BY tenant LIMIT 1)
    UNION ALL (SELECT tenant FROM memory_owners WHERE tenant > :after ORDER BY tenant LIMIT 1)
    UNION ALL (SELECT tenant FROM record_owners WHERE tenant > :after AND session <> -1 ORDER BY tenant LIMIT 1)
) AS found ORDER BY tenant LIMIT 1

-- session_holds --
SELECT (SELECT count(*) FROM compactions WHERE session = :session), (SELECT count(*) FROM saved_views WHERE session = :session),
       (SELECT count(*) FROM model_calls WHERE session = :session), (SELECT count(*) FROM idempotency WHERE session = :session),
       (SELECT count(*) FROM artifacts WHERE session = :session),
       (SELECT coalesce(sum(size), 0)::bigint FROM artifacts WHERE session = :session),
       (SELECT count(*) FROM media WHERE session = :session),
       (SELECT coalesce(sum(size), 0)::bigint FROM media WHERE session = :session)

-- log_extent --
SELECT count(*), sum(live), max(seq) + 1, sum(size), sum(pinned), sum(chosen) FROM (
    SELECT seq, 1 AS live, length(payload) AS size, pinned, CASE WHEN position(:choices IN metadata) > 0 THEN 1 ELSE 0 END AS chosen
    FROM entries WHERE session = :session AND seq < :stop AND retired_by IS NULL
    UNION ALL
    SELECT seq, 0, length(payload), pinned, 0
    FROM entries WHERE session = :session AND seq < :stop AND retired_by IS NOT NULL AND retired_by = seq) AS found

-- mark_last --
SELECT max(place) - 1 FROM jsonb_array_elements(convert_from(:wanted, 'UTF8')::jsonb) WITH ORDINALITY AS wanted (value, place)
WHERE (SELECT 1 FROM entries AS e
       CROSS JOIN LATERAL (SELECT tenant, user_id, withdrawn FROM sessions WHERE pk = e.session OFFSET 0) AS s
       WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = ''
         AND e.mark = (value ->> 0)::bigint AND e.session BETWEEN coalesce(:session, 0) AND coalesce(:session, 4611686018427387904)
         AND e.digest = decode(value ->> 1, 'hex')
       ORDER BY e.session DESC, e.seq DESC LIMIT 1) = 1

-- mark_places --
SELECT s.id, s.identity, s.updated_at, s.digest, e.seq, e.digest, e.retired_by
FROM entries AS e CROSS JOIN LATERAL
     (SELECT id, identity, updated_at, digest, tenant, user_id, withdrawn FROM sessions WHERE pk = e.session OFFSET 0) AS s
WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = ''
  AND e.mark = :mark AND e.session BETWEEN coalesce(:session, 0) AND coalesce(:session, 4611686018427387904) AND e.digest = :digest
ORDER BY e.session DESC, e.seq DESC LIMIT :limit

-- alias_last --
SELECT max(place) - 1 FROM jsonb_array_elements(convert_from(:wanted, 'UTF8')::jsonb) WITH ORDINALITY AS wanted (value, place)
WHERE (SELECT 1 FROM entries AS e
       CROSS JOIN LATERAL (SELECT tenant, user_id, withdrawn FROM sessions WHERE pk = e.session OFFSET 0) AS s
       WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = ''
         AND e.alias = value::bigint AND e.session BETWEEN coalesce(:session, 0) AND coalesce(:session, 4611686018427387904)
       ORDER BY e.session DESC, e.seq DESC LIMIT 1) = 1

-- alias_places --
SELECT s.id, s.identity, s.updated_at, s.digest, e.seq, e.digest, e.retired_by
FROM entries AS e CROSS JOIN LATERAL
     (SELECT id, identity, updated_at, digest, tenant, user_id, withdrawn FROM sessions WHERE pk = e.session OFFSET 0) AS s
WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = ''
  AND e.alias = :alias AND e.session BETWEEN coalesce(:session, 0) AND coalesce(:session, 4611686018427387904)
ORDER BY e.session DESC, e.seq DESC LIMIT :limit

-- end_last --
SELECT max(place) - 1 FROM jsonb_array_elements_text(convert_from(:digests, 'UTF8')::jsonb) WITH ORDINALITY AS wanted (value, place)
WHERE EXISTS (SELECT 1 FROM
       (SELECT tenant, user_id, withdrawn FROM sessions AS s
        WHERE s.digest || s.tenant || s.user_id = decode(value, 'hex') || :tenant || :user_id OFFSET 0) AS found
       WHERE tenant = :tenant AND user_id = :user_id AND withdrawn = '')

-- end_places --
SELECT id, identity, updated_at, digest, last_seq, digest, NULL FROM
    (SELECT * FROM sessions AS s WHERE s.digest || s.tenant || s.user_id = :digest || :tenant || :user_id
     ORDER BY s.updated_at DESC OFFSET 0) AS found
WHERE tenant = :tenant AND user_id = :user_id AND withdrawn = '' LIMIT :limit

-- compactions_list --
SELECT * FROM compaction_rows
WHERE session = :session AND (:view_key IS NULL OR view_key = :view_key) AND (:live_only::int = 0 OR status = 'live') ORDER BY id

-- artifact_totals --
SELECT count(*), coalesce(sum(versions), 0)::bigint, coalesce(sum(bytes), 0)::bigint FROM artifact_names
WHERE session = :session AND tenant = :tenant AND user_id = :user_id

-- state_read_named --
SELECT s.version, v.name, v.data
FROM state_scopes AS s
LEFT JOIN json_array_elements_text(convert_from(:names, 'UTF8')::json) AS n (one) ON s.version <> :known_version
LEFT JOIN state_values AS v ON v.tenant = s.tenant AND v.user_id = s.user_id AND v.name = decode(n.one, 'hex')
WHERE s.tenant = :tenant AND s.user_id = :user_id

-- leases_clean --
DELETE FROM leases WHERE (tenant, name) IN
  (SELECT tenant, name FROM leases WHERE tenant = :tenant AND expires_at <= :now FOR UPDATE SKIP LOCKED)

-- ping_put --
INSERT INTO holdfast_schema (number, name, checksum) VALUES (0, 'ping', encode(substr(:padding, 1, 1), 'escape'))

-- index_sources_of_after --
SELECT p.kind, p.name, s.id, s.identity, s.version, s.next_seq, s.talk, s.tool, s.epoch, s.complete
FROM index_spaces AS p JOIN index_sources AS s ON s.space = p.number
WHERE p.number = :space AND s.id >= :id AND (:inclusive = 1 OR s.id > :id)
ORDER BY s.id LIMIT :limit

-- index_sources_incomplete --
SELECT p.kind, p.name, s.id, s.identity, s.version, s.next_seq, s.talk, s.tool, s.epoch, s.complete
FROM index_sources AS s JOIN index_spaces AS p ON p.number = s.space
WHERE p.tenant = :tenant AND s.complete = 0 AND s.space BETWEEN :first_space AND :last_space
      AND (p.kind, p.name) >= (:kind, :name) AND ((p.kind, p.name) > (:kind, :name) OR :after_id IS NULL OR s.id > :after_id)
      AND p.kind <> 'gone'
ORDER BY p.kind, p.name, s.id LIMIT :limit

-- index_sources_count --
SELECT count(*), coalesce(sum(1 - s.complete), 0)::bigint, coalesce(sum(s.documents), 0)::bigint
FROM index_spaces AS p JOIN index_sources AS s ON s.space = p.number
WHERE p.tenant = :tenant AND p.number BETWEEN :first_space AND :last_space AND p.kind <> 'gone'

-- index_posting_put --
INSERT INTO index_postings (id, tokens) VALUES (:rowid, array_to_tsvector(string_to_array(:tokens, ' ')))

-- index_posting_delete --
DELETE FROM index_postings WHERE id = :rowid AND :tokens IS NOT NULL

-- index_frequencies_add --
INSERT INTO index_frequencies (space, channel, term, documents)
SELECT :space, :channel::integer, convert_to(value ->> 0, 'UTF8'), (value ->> 1)::bigint FROM json_array_elements(convert_from(:pairs, 'UTF8')::json) AS value
ON CONFLICT (space, channel, term) DO UPDATE SET documents = index_frequencies.documents + excluded.documents

-- index_frequencies --
SELECT f.term, f.documents
FROM json_array_elements_text(convert_from(:terms, 'UTF8')::json) AS value
CROSS JOIN LATERAL (SELECT term, documents FROM index_frequencies
                    WHERE space = :space AND channel = :channel AND term = convert_to(value, 'UTF8') LIMIT 1) AS f

-- index_postings_read --
SELECT 0, id FROM index_postings
WHERE :w0 <> 'none' AND tokens @@ ('''' || :w0 || '''')::tsquery UNION ALL
SELECT 1, id FROM index_postings
WHERE :w1 <> 'none' AND tokens @@ ('''' || :w1 || '''')::tsquery UNION ALL
SELECT 2, id FROM index_postings
WHERE :w2 <> 'none' AND tokens @@ ('''' || :w2 || '''')::tsquery UNION ALL
SELECT 3, id FROM index_postings
WHERE :w3 <> 'none' AND tokens @@ ('''' || :w3 || '''')::tsquery UNION ALL
SELECT 4, id FROM index_postings
WHERE :w4 <> 'none' AND tokens @@ ('''' || :w4 || '''')::tsquery UNION ALL
SELECT 5, id FROM index_postings
WHERE :w5 <> 'none' AND tokens @@ ('''' || :w5 || '''')::tsquery UNION ALL
SELECT 6, id FROM index_postings
WHERE :w6 <> 'none' AND tokens @@ ('''' || :w6 || '''')::tsquery UNION ALL
SELECT 7, id FROM index_postings
WHERE :w7 <> 'none' AND tokens @@ ('''' || :w7 || '''')::tsquery

-- index_postings_newest --
SELECT id FROM (
    SELECT id FROM index_postings
    WHERE tokens @@ ('''' || :word || ''' & ''' || :other || '''')::tsquery OFFSET 0
) AS found ORDER BY id DESC LIMIT :limit

-- index_postings_passing --
SELECT d.id FROM (
    SELECT id FROM index_postings
    WHERE tokens @@ ('''' || :word || ''' & ''' || :other || '''')::tsquery OFFSET 0
) AS found JOIN index_documents AS d ON d.id = found.id
WHERE {filters}
ORDER BY d.id DESC LIMIT :limit

-- index_candidates --
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM json_array_elements_text(convert_from(:ids, 'UTF8')::json) AS wanted
     CROSS JOIN LATERAL (SELECT * FROM index_documents WHERE id = wanted.value::bigint LIMIT 1) AS d
     CROSS JOIN LATERAL (SELECT id, identity FROM index_sources WHERE number = d.source LIMIT 1) AS s
WHERE d.space = :space AND d.channel = :channel
      AND {filters}

-- index_candidates_newest --
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM index_documents AS d JOIN index_sources AS s ON s.number = d.source
WHERE d.space = :space AND d.channel = :channel
      AND {filters}
ORDER BY d.at DESC, d.id DESC LIMIT :limit

-- index_candidates_of --
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM json_array_elements_text(convert_from(:sources, 'UTF8')::json) AS wanted
     CROSS JOIN LATERAL (SELECT number, id, identity FROM index_sources WHERE number = wanted.value::bigint LIMIT 1) AS s
     CROSS JOIN LATERAL (SELECT * FROM index_documents WHERE source = s.number OFFSET 0) AS d
WHERE d.space = :space AND d.channel = :channel
      AND (:without IS NULL OR d.source NOT IN :without)
      AND (:agents IS NULL OR d.agent IN :agents)
      AND (:roles IS NULL OR d.role IN :roles) AND {named}
      AND d.at >= :since AND d.at < :until
ORDER BY d.at DESC, d.id DESC LIMIT :limit

-- index_pending --
SELECT p.kind, p.name, s.id, s.identity, d.seq, d.digest
FROM index_documents AS d JOIN index_sources AS s ON s.number = d.source
     JOIN index_spaces AS p ON p.number = d.space
WHERE d.model = :model AND d.space BETWEEN :first_space AND :last_space AND p.kind <> 'gone' ORDER BY d.space, d.id LIMIT :limit

-- index_vectors_at --
SELECT d.id, v.data FROM json_array_elements_text(convert_from(:ids, 'UTF8')::json) AS wanted JOIN index_documents AS d ON d.id = wanted.value::bigint
     JOIN index_vectors AS v ON v.id = d.id
WHERE d.model = :model

-- index_vectors_like --
SELECT d.digest, v.data FROM index_vectors AS v JOIN index_documents AS d ON d.id = v.id
WHERE d.model = :model AND d.space = :space AND v.mark IN :marks

-- index_vectors_read --
SELECT d.id, v.data FROM index_documents AS d JOIN index_vectors AS v ON v.id = d.id
WHERE d.model = :model AND d.space = :space AND d.id > :after_id AND d.channel = :channel
      AND {filters}
ORDER BY d.id LIMIT :limit

-- index_nearest --
SELECT d.id, length(:vector)::double precision AS near
FROM index_documents AS d JOIN index_vectors AS v ON v.id = d.id
WHERE d.model = :model AND d.space = :space AND d.channel = :channel
      AND {filters}
ORDER BY near DESC, d.id DESC LIMIT :limit

-- floor_raise --
INSERT INTO floors (tenant, number) VALUES (:tenant, :number)
ON CONFLICT (tenant) DO UPDATE SET number = greatest(floors.number, excluded.number)

-- memories_forward --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN LATERAL (SELECT number, id, version, data FROM memories
                   WHERE owner = o.pk AND number > :place
                   ORDER BY number LIMIT :limit) AS m ON true
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number

-- memories_backward --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN LATERAL (SELECT number, id, version, data FROM memories
                   WHERE owner = o.pk AND number < :place
                   ORDER BY number DESC LIMIT :limit) AS m ON true
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number DESC

-- memories_forward_of --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN LATERAL (SELECT number, id, version, data FROM memories
                   WHERE owner = o.pk AND status = :status AND number > :place
                   ORDER BY number LIMIT :limit) AS m ON true
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number

-- memories_backward_of --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN LATERAL (SELECT number, id, version, data FROM memories
                   WHERE owner = o.pk AND status = :status AND number < :place
                   ORDER BY number DESC LIMIT :limit) AS m ON true
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number DESC

-- memories_since --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN LATERAL (SELECT number, id, version, data FROM memories
                   WHERE owner = o.pk AND version > :after_version AND (:status = ''::bytea OR status = :status) AND number * :direction > :place
                   ORDER BY number * :direction LIMIT :limit) AS m ON true
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number * :direction

-- memories_of_ids --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN LATERAL (SELECT number, id, version, data
                   FROM (SELECT * FROM memories WHERE tenant = :tenant AND id = ANY
                         (ARRAY:wanted)
                         OFFSET 0) AS named
                   WHERE owner = o.pk AND version > :after_version AND (:status = ''::bytea OR status = :status) AND number * :direction > :place
                   ORDER BY number * :direction LIMIT :limit) AS m ON true
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number * :direction

-- memories_of_numbers --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN LATERAL (SELECT number, id, version, data
                   FROM json_array_elements_text(convert_from(:wanted, 'UTF8')::json) AS value
                   CROSS JOIN LATERAL (SELECT * FROM memories WHERE owner = o.pk AND number = value::bigint OFFSET 0) AS named
                   WHERE version > :after_version AND (:status = ''::bytea OR status = :status) AND number * :direction > :place
                   ORDER BY number * :direction LIMIT :limit) AS m ON true
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number * :direction

-- memories_named --
SELECT id, owner, number FROM memories WHERE tenant = :tenant AND id = ANY
      (ARRAY:ids)

-- signals_all --
SELECT m.id, s.recalled_at, s.asked, s.score, s.session_id
FROM memory_owners AS o
CROSS JOIN LATERAL (SELECT * FROM memory_signals WHERE owner = o.pk AND recalled_at >= :since OFFSET 0) AS s
CROSS JOIN LATERAL (SELECT id FROM memories WHERE owner = o.pk AND number = s.memory OFFSET 0) AS m
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY s.seq

-- signals_of --
SELECT m.id, s.recalled_at, s.asked, s.score, s.session_id
FROM memory_owners AS o
CROSS JOIN LATERAL (SELECT * FROM memories WHERE tenant = :tenant AND id = ANY
     (ARRAY:memory_ids) OFFSET 0) AS m
CROSS JOIN LATERAL (SELECT * FROM memory_signals WHERE owner = m.owner AND memory = m.number OFFSET 0) AS s
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id AND m.owner = o.pk AND s.recalled_at >= :since ORDER BY s.seq

-- session_get_lock(tenant, id, user_id, withdrawn) --
-- Lock a session, so that no other transaction writes to it. This is a separate statement, so that later reads see the state after the
-- lock. A single statement that waited for the lock would join the newest session with an old profile.
SELECT 1 FROM sessions WHERE tenant = :tenant AND id = :id AND user_id = :user_id AND withdrawn = :withdrawn FOR NO KEY UPDATE

-- session_guard(pk, version, claim_holder, claim_until, claim_wanted) --
-- Return the session if its version and claim are still those that a write was computed from.
SELECT pk FROM sessions
WHERE pk = :pk AND version = :version AND claim_holder = :claim_holder AND claim_until = :claim_until AND claim_wanted = :claim_wanted FOR NO KEY UPDATE

-- ending_get_lock(tenant, id) --
-- Lock an end, so that no other transaction records an outcome of it.
SELECT 1 FROM endings WHERE tenant = :tenant AND id = :id FOR NO KEY UPDATE

-- artifact_name_get_lock(session, tenant, user_id, folded) --
-- Lock the name of an artifact, so that no other transaction changes it.
SELECT 1 FROM artifact_names WHERE session = :session AND tenant = :tenant AND user_id = :user_id AND folded = :folded FOR NO KEY UPDATE

-- scope_get_lock(tenant, user_id) --
-- Lock a scope, so that no other transaction writes to it.
SELECT 1 FROM state_scopes WHERE tenant = :tenant AND user_id = :user_id FOR NO KEY UPDATE

-- records_info --
SELECT place, version, created_at, updated_at, expires_at, form, size, number FROM records
WHERE owner = :owner AND place = ANY (ARRAY:places)

-- records_searchable_named --
SELECT place, version, created_at, updated_at, expires_at, form, size, number, words FROM records
WHERE owner = :owner AND place = ANY (ARRAY:places) AND number IS NOT NULL AND (expires_at IS NULL OR expires_at > :now)
ORDER BY version, number

-- records_searchable --
SELECT place, version, created_at, updated_at, expires_at, form, size, number, words FROM records
WHERE owner = :owner AND number IS NOT NULL AND (version, number) > (:version, :number)
      AND (expires_at IS NULL OR expires_at > :now)
ORDER BY version, number LIMIT :limit

-- records_sizes --
SELECT r.size FROM record_owners AS o
CROSS JOIN LATERAL (SELECT * FROM records WHERE owner = o.pk AND place = ANY (ARRAY:places) OFFSET 0) AS r
WHERE o.tenant = :tenant AND o.user_id = :user_id AND o.session = :session AND (r.expires_at IS NULL OR r.expires_at > :now)

-- records_named --
SELECT r.place, r.version, r.created_at, r.updated_at, r.expires_at, r.form, r.size, r.number, r.data, r.words FROM record_owners AS o
CROSS JOIN LATERAL (SELECT * FROM records WHERE owner = o.pk AND place = ANY (ARRAY:places) OFFSET 0) AS r
WHERE o.tenant = :tenant AND o.user_id = :user_id AND o.session = :session AND (r.expires_at IS NULL OR r.expires_at > :now)

-- record_owner_get_lock(tenant, user_id, session) --
-- Lock an owner, so that no other transaction writes to its records.
SELECT 1 FROM record_owners WHERE tenant = :tenant AND user_id = :user_id AND session = :session FOR NO KEY UPDATE

-- learned_get_lock(tenant, model) --
-- Lock the calibration data of a model, so that no other transaction changes them.
SELECT 1 FROM learned WHERE tenant = :tenant AND model = :model FOR NO KEY UPDATE

-- memory_owner_get_lock(tenant, kind, id) --
-- Lock an owner, so that no other transaction writes to its memories.
SELECT 1 FROM memory_owners WHERE tenant = :tenant AND kind = :kind AND id = :id FOR NO KEY UPDATE

-- index_space_get_lock(tenant, kind, name) --
-- Lock a space, so that its writers take turns.
SELECT 1 FROM index_spaces WHERE tenant = :tenant AND kind = :kind AND name = :name FOR NO KEY UPDATE

-- index_spaces_lock(tenant, kind bytes, limit) --
-- Lock several spaces.
SELECT 1 FROM index_spaces WHERE tenant = :tenant AND (:kind IS NULL OR kind = :kind) ORDER BY kind, name LIMIT :limit FOR NO KEY UPDATE

-- index_models_lock(tenant) --
-- Lock models, so that none is deleted while documents get vectors of it.
SELECT 1 FROM index_models WHERE tenant = :tenant FOR KEY SHARE

-- index_model_delete_lock(number) --
-- Wait for transactions that store vectors of a model, before checking whether it is in use.
SELECT 1 FROM index_models WHERE number = :number FOR UPDATE
