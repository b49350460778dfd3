-- Statements whose text for SQLite is not in `../common.sql`.

-- session_holds --
SELECT (SELECT count(*) FROM compactions WHERE session = :session), (SELECT count(*) FROM saved_views WHERE session = :session),
       (SELECT count(*) FROM model_calls WHERE session = :session), (SELECT count(*) FROM idempotency WHERE session = :session),
       (SELECT count(*) FROM artifacts WHERE session = :session),
       (SELECT coalesce(sum(size), 0) FROM artifacts WHERE session = :session),
       (SELECT count(*) FROM media WHERE session = :session),
       (SELECT coalesce(sum(size), 0) FROM media WHERE session = :session)

-- mark_last --
SELECT max(wanted.key)
FROM json_each(:wanted) AS wanted
WHERE EXISTS (SELECT 1 FROM entries AS e CROSS JOIN sessions AS s ON s.pk = e.session
              WHERE e.mark = wanted.value ->> 0 AND e.digest = unhex(wanted.value ->> 1)
                AND e.session BETWEEN coalesce(:session, 0) AND coalesce(:session, 4611686018427387904)
                AND s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = '')

-- mark_places --
SELECT s.id, s.identity, s.updated_at, s.digest, e.seq, e.digest, e.retired_by
FROM entries AS e CROSS JOIN sessions AS s ON s.pk = e.session
WHERE e.mark = :mark AND e.digest = :digest AND e.session BETWEEN coalesce(:session, 0) AND coalesce(:session, 4611686018427387904)
  AND s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = ''
ORDER BY e.session DESC, e.seq DESC LIMIT :limit

-- alias_last --
SELECT max(wanted.key)
FROM json_each(:wanted) AS wanted
WHERE EXISTS (SELECT 1 FROM entries AS e CROSS JOIN sessions AS s ON s.pk = e.session
              WHERE e.alias = wanted.value
                AND e.session BETWEEN coalesce(:session, 0) AND coalesce(:session, 4611686018427387904)
                AND s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = '')

-- alias_places --
SELECT s.id, s.identity, s.updated_at, s.digest, e.seq, e.digest, e.retired_by
FROM entries AS e CROSS JOIN sessions AS s ON s.pk = e.session
WHERE e.alias = :alias AND e.session BETWEEN coalesce(:session, 0) AND coalesce(:session, 4611686018427387904)
  AND s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = ''
ORDER BY e.session DESC, e.seq DESC LIMIT :limit

-- end_last --
SELECT max(wanted.key)
FROM json_each(:digests) AS wanted
WHERE EXISTS (SELECT 1 FROM sessions AS s INDEXED BY sessions_end
              WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.digest = unhex(wanted.value) AND s.withdrawn = '')

-- end_places --
SELECT s.id, s.identity, s.updated_at, s.digest, s.last_seq, s.digest, NULL
FROM sessions AS s INDEXED BY sessions_end
WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.digest = :digest AND s.withdrawn = '' ORDER BY s.updated_at DESC LIMIT :limit

-- compactions_erase --
UPDATE compactions
SET status = CASE WHEN status IN ('live', 'superseded') THEN 'dead' ELSE status END, text = x'', report = NULL,
    error = CASE WHEN error IS NULL THEN NULL ELSE :error END
WHERE session = :session AND first_seq <= :seq AND last_seq >= :seq

-- artifact_totals --
SELECT count(*), coalesce(sum(versions), 0), coalesce(sum(bytes), 0) FROM artifact_names
WHERE session = :session AND tenant = :tenant AND user_id = :user_id

-- state_read_named --
SELECT s.version, v.name, v.data
FROM state_scopes AS s
LEFT JOIN json_each(:names) ON s.version <> :known_version
LEFT JOIN state_values AS v ON v.tenant = s.tenant AND v.user_id = s.user_id AND v.name = CAST(unhex(json_each.value) AS TEXT)
WHERE s.tenant = :tenant AND s.user_id = :user_id

-- ping_put --
INSERT INTO holdfast_schema (number, name, checksum) VALUES (0, 'ping', :padding)

-- index_sources_of_after --
SELECT p.kind, p.name, s.id, s.identity, s.version, s.next_seq, s.talk, s.tool, s.epoch, s.complete
FROM index_spaces AS p CROSS JOIN index_sources AS s ON s.space = p.number
WHERE p.number = :space AND s.id >= :id AND (:inclusive = 1 OR s.id > :id)
ORDER BY s.id LIMIT :limit

-- index_sources_incomplete --
SELECT p.kind, p.name, s.id, s.identity, s.version, s.next_seq, s.talk, s.tool, s.epoch, s.complete
FROM index_sources AS s INDEXED BY index_sources_incomplete CROSS JOIN index_spaces AS p ON p.number = s.space
WHERE p.tenant = :tenant AND s.complete = 0 AND s.space BETWEEN :first_space AND :last_space
      AND (p.kind, p.name) >= (:kind, :name) AND ((p.kind, p.name) > (:kind, :name) OR :after_id IS NULL OR s.id > :after_id)
      AND p.kind <> 'gone'
ORDER BY p.kind, p.name, s.id LIMIT :limit

-- index_posting_put --
INSERT INTO index_postings (rowid, tokens) VALUES (:rowid, :tokens)

-- index_posting_delete --
INSERT INTO index_postings (index_postings, rowid, tokens) VALUES ('delete', :rowid, :tokens)

-- index_frequencies_add --
INSERT INTO index_frequencies (space, channel, term, documents)
SELECT :space, :channel, value ->> 0, value ->> 1 FROM json_each(:pairs) WHERE true
ON CONFLICT (space, channel, term) DO UPDATE SET documents = index_frequencies.documents + excluded.documents

-- index_frequencies --
SELECT term, documents FROM index_frequencies
WHERE space = :space AND channel = :channel AND term IN :terms

-- index_postings_read --
SELECT 0, json_group_array(rowid) FROM index_postings WHERE index_postings MATCH :w0 UNION ALL
SELECT 1, json_group_array(rowid) FROM index_postings WHERE index_postings MATCH :w1 UNION ALL
SELECT 2, json_group_array(rowid) FROM index_postings WHERE index_postings MATCH :w2 UNION ALL
SELECT 3, json_group_array(rowid) FROM index_postings WHERE index_postings MATCH :w3 UNION ALL
SELECT 4, json_group_array(rowid) FROM index_postings WHERE index_postings MATCH :w4 UNION ALL
SELECT 5, json_group_array(rowid) FROM index_postings WHERE index_postings MATCH :w5 UNION ALL
SELECT 6, json_group_array(rowid) FROM index_postings WHERE index_postings MATCH :w6 UNION ALL
SELECT 7, json_group_array(rowid) FROM index_postings WHERE index_postings MATCH :w7

-- named --
(:first_name IS NULL OR (CAST(d.name AS BLOB) >= :first_name AND CAST(d.name AS BLOB) < :end_name))

-- index_postings_newest --
SELECT rowid FROM index_postings WHERE index_postings MATCH iif(:word = :other, :word, :word || ' AND ' || :other)
ORDER BY rowid DESC LIMIT :limit

-- index_postings_passing --
SELECT d.id FROM index_postings AS w CROSS JOIN index_documents AS d ON d.id = w.rowid
WHERE w.index_postings MATCH iif(:word = :other, :word, :word || ' AND ' || :other)
      AND {filters}
ORDER BY w.rowid DESC LIMIT :limit

-- index_documents_counted --
SELECT count(*) FROM (SELECT 1 FROM index_documents WHERE space = :space AND channel = :channel AND at >= :since AND at < :until LIMIT :limit)

-- index_candidates --
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM json_each(:ids) AS wanted CROSS JOIN index_documents AS d ON d.id = wanted.value
     CROSS JOIN index_sources AS s ON s.number = d.source
WHERE d.space = :space AND d.channel = :channel
      AND {filters}

-- index_candidates_newest --
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM index_documents AS d INDEXED BY index_documents_at CROSS JOIN index_sources AS s ON s.number = d.source
WHERE d.space = :space AND d.channel = :channel
      AND {filters}
ORDER BY d.at DESC, d.id DESC LIMIT :limit

-- index_candidates_of --
SELECT d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms
FROM json_each(:sources) AS wanted CROSS JOIN index_sources AS s ON s.number = wanted.value
     CROSS JOIN index_documents AS d INDEXED BY index_documents_seq ON d.source = s.number
WHERE d.space = :space AND d.channel = :channel
      AND (:without IS NULL OR d.source NOT IN :without)
      AND (:agents IS NULL OR d.agent IN :agents)
      AND (:roles IS NULL OR d.role IN :roles) AND {named}
      AND d.at >= :since AND d.at < :until
ORDER BY d.at DESC, d.id DESC LIMIT :limit

-- index_model_delete --
DELETE FROM index_models WHERE number = :number

-- index_pending --
SELECT p.kind, p.name, s.id, s.identity, d.seq, d.digest
FROM index_documents AS d INDEXED BY index_documents_model CROSS JOIN index_sources AS s ON s.number = d.source
     CROSS JOIN index_spaces AS p ON p.number = d.space
WHERE d.model = :model AND d.space BETWEEN :first_space AND :last_space AND p.kind <> 'gone' ORDER BY d.space, d.id LIMIT :limit

-- index_vectors_at --
SELECT d.id, v.data FROM json_each(:ids) AS wanted CROSS JOIN index_documents AS d ON d.id = wanted.value
     CROSS JOIN index_vectors AS v ON v.id = d.id
WHERE d.model = :model

-- index_vectors_like --
SELECT d.digest, v.data FROM index_vectors AS v CROSS JOIN index_documents AS d ON d.id = v.id
WHERE d.model = :model AND d.space = :space AND v.mark IN :marks

-- index_vectors_read --
SELECT d.id, v.data FROM index_documents AS d INDEXED BY index_documents_model CROSS JOIN index_vectors AS v ON v.id = d.id
WHERE d.model = :model AND d.space = :space AND d.id > :after_id AND d.channel = :channel
      AND {filters}
ORDER BY d.id LIMIT :limit

-- index_nearest --
SELECT d.id, 1 - vec1_cos_distance(v.data, :vector) AS near
FROM index_documents AS d INDEXED BY index_documents_model CROSS JOIN index_vectors AS v ON v.id = d.id
WHERE d.model = :model AND d.space = :space AND d.channel = :channel
      AND {filters}
ORDER BY near DESC, d.id DESC LIMIT :limit

-- floor_raise --
INSERT INTO floors (tenant, number) VALUES (:tenant, :number)
ON CONFLICT (tenant) DO UPDATE SET number = max(number, excluded.number)

-- memories_forward --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN memories AS m ON m.owner = o.pk AND m.number > :place
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number LIMIT :limit

-- memories_backward --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN memories AS m ON m.owner = o.pk AND m.number < :place
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number DESC LIMIT :limit

-- memories_forward_of --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN memories AS m ON m.owner = o.pk AND m.status = :status AND m.number > :place
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number LIMIT :limit

-- memories_backward_of --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN memories AS m ON m.owner = o.pk AND m.status = :status AND m.number < :place
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number DESC LIMIT :limit

-- memories_of_ids --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN json_each(:wanted) AS n ON TRUE
LEFT JOIN memories AS m ON m.tenant = o.tenant AND m.id = n.value AND m.owner = o.pk AND m.version > :after_version AND (:status = '' OR m.status = :status) AND m.number * :direction > :place
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number IS NULL, m.number * :direction LIMIT :limit

-- memories_of_numbers --
SELECT o.version, o.held, m.number, m.id, m.version, m.data
FROM memory_owners AS o
LEFT JOIN json_each(:wanted) AS n ON TRUE
LEFT JOIN memories AS m ON m.number = n.value AND m.owner = o.pk AND m.version > :after_version AND (:status = '' OR m.status = :status) AND m.number * :direction > :place
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id ORDER BY m.number IS NULL, m.number * :direction LIMIT :limit

-- memories_named --
SELECT id, owner, number FROM memories WHERE tenant = :tenant AND id IN
      :ids

-- signals_of --
SELECT m.id, s.recalled_at, s.asked, s.score, s.session_id
FROM memory_owners AS o
CROSS JOIN json_each(:memory_ids) AS n
CROSS JOIN memories AS m ON m.tenant = o.tenant AND m.id = n.value AND m.owner = o.pk
CROSS JOIN memory_signals AS s ON s.owner = m.owner AND s.memory = m.number
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id AND +s.recalled_at >= :since ORDER BY s.seq

-- records_searchable --
SELECT place, version, created_at, updated_at, expires_at, form, size, number, words FROM records
WHERE owner = :owner AND number IS NOT NULL AND (version, number) > (:version, :number)
      AND (expires_at IS NULL OR expires_at > :now)
ORDER BY version, number LIMIT :limit
