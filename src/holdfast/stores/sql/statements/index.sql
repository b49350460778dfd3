-- The search index.

-- filters(sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until) --
-- Used by other statements: the conditions for documents of an index that a search may find.
(:sources IS NULL OR d.source IN :sources) AND {other_filters}

-- other_filters(without ints, agents names, roles names, first_name bytes, end_name bytes, since, until) --
-- Used by other statements: these conditions without that for the sources.
(:without IS NULL OR d.source NOT IN :without) AND (:agents IS NULL OR d.agent IN :agents)
      AND (:roles IS NULL OR d.role IN :roles) AND {named} AND d.at >= :since AND d.at < :until

-- named(first_name bytes, end_name bytes) --
-- Used by other statements: the condition for documents with names in a range.
[sqlite] (:first_name IS NULL OR (CAST(d.name AS BLOB) >= :first_name AND CAST(d.name AS BLOB) < :end_name))
[postgres mysql] (:first_name IS NULL OR (d.name >= :first_name AND d.name < :end_name))

-- index_space_get(tenant, kind, name): select number, talk_documents, talk_length, tool_documents, tool_length from index_spaces locked --

-- index_space_new(tenant, kind, name) --
-- Insert an empty space. Two that are inserted at the same time conflict.
INSERT INTO index_spaces (tenant, kind, name, talk_documents, talk_length, tool_documents, tool_length)
VALUES (:tenant, :kind, :name, 0, 0, 0, 0)

-- index_space_add(number, more_talk_documents, more_talk_length, more_tool_documents, more_tool_length): update index_spaces set talk_documents = talk_documents + :more_talk_documents, talk_length = talk_length + :more_talk_length, tool_documents = tool_documents + :more_tool_documents, tool_length = tool_length + :more_tool_length --

-- index_space_delete(number): delete index_spaces --

-- index_source_get(space, id): select number, documents, data from index_sources --
-- index_source_new(space, id, identity, complete, documents, data): insert index_sources --
-- index_source_put(number, complete, more_documents, data): update index_sources set documents = documents + :more_documents --

-- index_source_delete(number): delete index_sources --

-- index_sources_named(space, ids names): select number, documents from index_sources where id IN :ids --

-- index_sources_of(space, limit): select number, id from index_sources ORDER BY id --

-- source_columns --
-- Used by other statements: a source of an index and its progress, with the name of its space.
p.kind, p.name, s.id, s.data

-- index_sources_after(tenant, kind, name, spaces, limit) --
-- Return sources of some spaces after a given one, in the order of space and id. A space without sources has one row without a source.
SELECT {source_columns}
FROM (SELECT number, kind, name FROM index_spaces {use index_spaces_name}
[sqlite postgres] WHERE tenant = :tenant AND (kind, name) > (:kind, :name)
[mysql] WHERE tenant = :tenant AND (kind > :kind OR kind = :kind AND name > :name)
        ORDER BY kind, name LIMIT :spaces) AS p
     LEFT JOIN index_sources AS s {use index_sources_id} ON s.space = p.number
ORDER BY p.kind, p.name, s.id LIMIT :limit

-- index_sources_of_after(space, id, inclusive int, limit) --
-- Return sources of one space, from an id on or after it.
SELECT {source_columns}
FROM index_spaces AS p {then} index_sources AS s {use index_sources_id} ON s.space = p.number
WHERE p.number = :space AND s.id >= :id AND (:inclusive = 1 OR s.id > :id)
ORDER BY s.id LIMIT :limit

-- index_sources_incomplete(tenant, first_space, last_space, kind, name, after_id bytes, limit) --
-- Return incomplete sources of some spaces from a position on, in the order of space and id.
SELECT {source_columns}
FROM index_sources AS s {use index_sources_incomplete} {then} index_spaces AS p {use_key} ON p.number = s.space
WHERE p.tenant = :tenant AND s.complete = 0 AND s.space BETWEEN :first_space AND :last_space
      AND (p.kind, p.name) >= (:kind, :name) AND ((p.kind, p.name) > (:kind, :name) OR :after_id IS NULL OR s.id > :after_id)
ORDER BY p.kind, p.name, s.id LIMIT :limit

-- index_sources_count(tenant, first_space, last_space) --
-- Count the sources of a tenant's spaces or of one of them, the incomplete ones, and all their documents.
SELECT count(*), CAST(coalesce(sum(1 - s.complete), 0) AS {int}), CAST(coalesce(sum(s.documents), 0) AS {int})
FROM index_spaces AS p JOIN index_sources AS s ON s.space = p.number
WHERE p.tenant = :tenant AND p.number BETWEEN :first_space AND :last_space

-- index_documents_at(source, seqs ints, ids ints) --
-- Return the columns that are needed to delete documents of a source, by numbers or ids.
[sqlite postgres] SELECT id, seq, channel, digest, length, terms, model FROM index_documents WHERE source = :source AND seq IN :seqs
[sqlite postgres] UNION
[sqlite postgres] SELECT id, seq, channel, digest, length, terms, model FROM index_documents WHERE source = :source AND id IN :ids
[mysql] SELECT d.id, d.seq, d.channel, d.digest, d.length, d.terms, d.model
[mysql] FROM EACH :seqs AS wanted {then} index_documents AS d {use index_documents_seq} ON d.source = :source AND d.seq = wanted.value
[mysql] UNION
[mysql] SELECT d.id, d.seq, d.channel, d.digest, d.length, d.terms, d.model
[mysql] FROM EACH :ids AS wanted {then} index_documents AS d {use_key} ON d.id = wanted.value WHERE d.source = :source

-- index_documents_first(source, limit): select id, seq, channel, digest, length, terms, model from index_documents ORDER BY seq --

-- index_documents_delete(ids ints) --
-- Delete documents by id.
[sqlite postgres] DELETE FROM index_documents WHERE id IN :ids
[mysql] DELETE d FROM EACH :ids AS wanted {then} index_documents AS d {use_key} ON d.id = wanted.value

-- index_document_put(id, space, channel, source, seq, at, length, traits, model, role, agent, name, digest, terms) --
-- Insert or replace a document.
INSERT INTO index_documents (id, space, channel, source, seq, at, length, traits, model, role, agent, name, digest, terms)
VALUES (:id, :space, :channel, :source, :seq, :at, :length, :traits, :model, :role, :agent, :name, :digest, :terms)
ON CONFLICT (id) DO UPDATE
SET seq = excluded.seq, at = excluded.at, role = excluded.role, agent = excluded.agent, name = excluded.name,
    traits = excluded.traits

-- index_documents_held(source, start, limit): select seq, digest from index_documents where seq >= :start ORDER BY seq --

-- index_posting_put(rowid, tokens text) --
-- Insert the words of a document.
[sqlite] INSERT INTO index_postings (rowid, tokens) VALUES (:rowid, :tokens)
[postgres] INSERT INTO index_postings (id, tokens) VALUES (:rowid, array_to_tsvector(string_to_array(:tokens, ' ')))
[mysql] INSERT INTO index_postings (word, id)
[mysql] SELECT CAST(wanted.one AS BINARY), :rowid
[mysql] FROM JSON_TABLE(CONVERT(CONCAT('["', REPLACE(:tokens, ' ', '","'), '"]') USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS wanted
[mysql] WHERE wanted.one <> ''

-- index_posting_delete(rowid, tokens bytes) --
-- Delete the words of a document.
[sqlite] INSERT INTO index_postings (index_postings, rowid, tokens) VALUES ('delete', :rowid, :tokens)
[postgres] DELETE FROM index_postings WHERE id = :rowid AND :tokens IS NOT NULL
[mysql] DELETE p FROM JSON_TABLE(CONVERT(CONCAT('["', REPLACE(:tokens, ' ', '","'), '"]') USING utf8mb4), '$[*]' COLUMNS (one VARCHAR(64) PATH '$')) AS wanted
[mysql]      STRAIGHT_JOIN index_postings AS p FORCE INDEX (PRIMARY) ON p.word = CAST(wanted.one AS BINARY) AND p.id = :rowid

-- index_frequencies_add(space int, channel, pairs) --
-- Change the numbers of documents with these terms, given as pairs in the order of the terms.
INSERT INTO index_frequencies (space, channel, term, documents)
[sqlite] SELECT :space, :channel, value ->> 0, value ->> 1 FROM json_each(:pairs) WHERE true
[postgres] SELECT :space, :channel::integer, convert_to(value ->> 0, 'UTF8'), (value ->> 1)::bigint FROM json_array_elements(convert_from(:pairs, 'UTF8')::json) AS value
[mysql] SELECT :space, :channel, one.term, one.more
[mysql] FROM JSON_TABLE(CONVERT(:pairs USING utf8mb4), '$[*]' COLUMNS (term VARCHAR(64) PATH '$[0]', more BIGINT PATH '$[1]')) AS one
ON CONFLICT (space, channel, term) DO UPDATE SET documents = index_frequencies.documents + excluded.documents

-- index_frequencies_clean(space, channel, terms ids) --
-- Delete the terms, of these, that no document has any more.
[sqlite postgres] DELETE FROM index_frequencies WHERE space = :space AND channel = :channel AND term IN :terms AND documents <= 0
[mysql] DELETE f FROM EACH :terms AS wanted
[mysql]      {then} index_frequencies AS f {use_key} ON f.space = :space AND f.channel = :channel AND f.term = CAST(wanted.value AS BINARY)
[mysql] WHERE f.documents <= 0

-- index_frequencies(space, channel, terms ids) --
-- Return the numbers of documents with these terms.
[sqlite] SELECT term, documents FROM index_frequencies WHERE space = :space AND channel = :channel AND term IN :terms
[postgres] SELECT f.term, f.documents FROM EACH :terms AS wanted
[postgres] CROSS JOIN LATERAL (SELECT term, documents FROM index_frequencies
[postgres]                     WHERE space = :space AND channel = :channel AND term = convert_to(wanted.value, 'UTF8') LIMIT 1) AS f
[mysql] SELECT f.term, f.documents FROM EACH :terms AS wanted
[mysql]      {then} index_frequencies AS f {use_key} ON f.space = :space AND f.channel = :channel AND f.term = CAST(wanted.value AS BINARY)

-- index_postings_read(words texts) --
-- Return all documents with each of some words, a JSON array: the index of the word, and an id or all ids as one JSON array, which is faster.
[sqlite] SELECT n.key, (SELECT json_group_array(rowid) FROM index_postings WHERE index_postings MATCH n.value) FROM EACH :words AS n
[postgres] SELECT n.place - 1, p.id FROM json_array_elements_text(convert_from(:words, 'UTF8')::json) WITH ORDINALITY AS n (value, place)
[postgres] CROSS JOIN LATERAL (SELECT id FROM index_postings WHERE tokens @@ ('''' || n.value || '''')::tsquery OFFSET 0) AS p
[mysql] SELECT n.place - 1, p.id
[mysql] FROM JSON_TABLE(CONVERT(:words USING utf8mb4), '$[*]' COLUMNS (place FOR ORDINALITY, value VARCHAR(64) PATH '$')) AS n
[mysql]      {then} index_postings AS p {use_key} ON p.word = CAST(n.value AS BINARY)

-- postings_of(word text, other text) --
-- Used by other statements: the documents that have two words.
[sqlite] index_postings MATCH iif(:word = :other, :word, :word || ' AND ' || :other)
[postgres] (SELECT id FROM index_postings WHERE tokens @@ ('''' || :word || ''' & ''' || :other || '''')::tsquery OFFSET 0)
[mysql] w.word = :word AND (:word = :other OR EXISTS (SELECT 1 FROM index_postings AS o WHERE o.word = :other AND o.id = w.id))

-- index_postings_newest(word text, other text, limit) --
-- Return the newest documents that have two words, or one word that is given twice.
[sqlite] SELECT rowid FROM index_postings WHERE {postings_of} ORDER BY rowid DESC LIMIT :limit
[postgres] SELECT id FROM {postings_of} AS found ORDER BY id DESC LIMIT :limit
[mysql] SELECT id FROM index_postings AS w WHERE {postings_of} ORDER BY id DESC LIMIT :limit

-- index_postings_passing(word text, other text, limit, sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until) --
-- Return the newest documents that have two words and pass filters.
[sqlite] SELECT d.id FROM index_postings AS w CROSS JOIN index_documents AS d ON d.id = w.rowid WHERE w.{postings_of} AND {filters} ORDER BY w.rowid DESC LIMIT :limit
[postgres] SELECT d.id FROM {postings_of} AS found JOIN index_documents AS d ON d.id = found.id WHERE {filters} ORDER BY d.id DESC LIMIT :limit
[mysql] SELECT d.id FROM index_postings AS w STRAIGHT_JOIN index_documents AS d FORCE INDEX (PRIMARY) ON d.id = w.id WHERE {postings_of} AND {filters} ORDER BY w.id DESC LIMIT :limit

-- index_documents_counted(space, channel, since, until, limit) --
-- Count the documents of a space in a time range, up to a limit.
SELECT count(*) FROM (SELECT 1 FROM index_documents WHERE space = :space AND channel = :channel AND at >= :since AND at < :until LIMIT :limit) AS page

-- candidate --
-- Used by other statements: the columns of a candidate of a search.
d.id, d.seq, s.id, s.identity, d.role, d.agent, d.name, d.at, d.length, d.traits, d.terms

-- index_candidates(ids ints, space, channel, sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until) --
-- Return those of some documents that pass filters, by id.
SELECT {candidate} FROM EACH :ids AS wanted
[sqlite mysql]      {then} index_documents AS d {use_key} ON d.id = wanted.value {then} index_sources AS s {use_key} ON s.number = d.source
[postgres]      CROSS JOIN LATERAL (SELECT * FROM index_documents WHERE id = wanted.value::bigint LIMIT 1) AS d
[postgres]      CROSS JOIN LATERAL (SELECT id, identity FROM index_sources WHERE number = d.source LIMIT 1) AS s
WHERE d.space = :space AND d.channel = :channel AND {filters}

-- index_candidates_newest(limit, space, channel, sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until) --
-- Return the newest documents of a space that pass filters.
SELECT {candidate}
FROM index_documents AS d {use index_documents_at} {then} index_sources AS s {use_key} ON s.number = d.source
WHERE d.space = :space AND d.channel = :channel AND {filters}
ORDER BY d.at DESC, d.id DESC LIMIT :limit

-- index_candidates_of(limit, space, channel, sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until) --
-- Return the newest documents of given sources that pass filters; they are few compared to those of the space.
SELECT {candidate} FROM EACH :sources AS wanted
[sqlite mysql]      {then} index_sources AS s {use_key} ON s.number = wanted.value {then} index_documents AS d {use index_documents_seq} ON d.source = s.number
[postgres]      CROSS JOIN LATERAL (SELECT number, id, identity FROM index_sources WHERE number = wanted.value::bigint LIMIT 1) AS s
[postgres]      CROSS JOIN LATERAL (SELECT * FROM index_documents WHERE source = s.number OFFSET 0) AS d
WHERE d.space = :space AND d.channel = :channel AND {other_filters}
ORDER BY d.at DESC, d.id DESC LIMIT :limit

-- index_candidates_at(source, seqs ints) --
-- Return documents of a source by their numbers.
SELECT {candidate}
[sqlite postgres] FROM index_documents AS d JOIN index_sources AS s ON s.number = d.source WHERE d.source = :source AND d.seq IN :seqs
[mysql] FROM EACH :seqs AS wanted {then} index_documents AS d {use index_documents_seq} ON d.source = :source AND d.seq = wanted.value
[mysql]      {then} index_sources AS s {use_key} ON s.number = d.source
ORDER BY d.id

-- index_models(tenant): select number, name, dimensions from index_models --
-- Return the models of a tenant's vectors. The model without a name is that of documents without a vector.

-- index_models_lock(tenant) --
-- Lock models, so that none is deleted while documents get vectors of it.
[postgres] SELECT 1 FROM index_models WHERE tenant = :tenant FOR KEY SHARE
[mysql] SELECT 1 FROM index_models WHERE tenant = :tenant LOCK IN SHARE MODE

-- index_model_new(tenant, name, dimensions): insert index_models --
-- Insert a model. Two that are inserted at the same time conflict.

-- index_model_delete(number) --
-- Delete a model that no document has any more.
DELETE FROM index_models WHERE number = :number AND NOT EXISTS (SELECT 1 FROM index_documents WHERE model = :number)

-- index_model_delete_lock(number) --
-- Wait for transactions that store vectors of a model, before checking whether it is in use.
[postgres mysql] SELECT 1 FROM index_models WHERE number = :number FOR UPDATE

-- index_model_of(model, limit): select id from index_documents ORDER BY space, id --

-- index_model_count(model, first_space, last_space): select count(*) from index_documents where space BETWEEN :first_space AND :last_space --

-- index_pending(model, first_space, last_space, limit) --
-- Return documents of a model, or without a vector, by space, oldest first.
SELECT p.kind, p.name, s.id, s.identity, d.seq, d.digest
FROM index_documents AS d {use index_documents_model} {then} index_sources AS s {use_key} ON s.number = d.source
     {then} index_spaces AS p {use_key} ON p.number = d.space
WHERE d.model = :model AND d.space BETWEEN :first_space AND :last_space ORDER BY d.space, d.id LIMIT :limit

-- index_documents_model(ids ints, model) --
-- Set the model of documents.
[sqlite postgres] UPDATE index_documents SET model = :model WHERE id IN :ids
[mysql] UPDATE EACH :ids AS wanted {then} index_documents AS d {use_key} ON d.id = wanted.value SET d.model = :model

-- index_vector_put(id, mark, data): put index_vectors --

-- index_vectors_delete(ids ints) --
-- Delete the vectors of documents.
[sqlite postgres] DELETE FROM index_vectors WHERE id IN :ids
[mysql] DELETE v FROM EACH :ids AS wanted {then} index_vectors AS v {use_key} ON v.id = wanted.value

-- index_vectors_at(ids ints, model) --
-- Return the vectors of those of some documents that have one of a model.
SELECT d.id, v.data FROM EACH :ids AS wanted
[sqlite mysql]      {then} index_documents AS d {use_key} ON d.id = wanted.value {then} index_vectors AS v {use_key} ON v.id = d.id
[postgres]      JOIN index_documents AS d ON d.id = wanted.value::bigint JOIN index_vectors AS v ON v.id = d.id
WHERE d.model = :model

-- index_vectors_like(model, space, marks ints) --
-- Return the vectors of a model in a space whose documents' digests begin with these eight bytes, given as a number.
SELECT d.digest, v.data
[sqlite postgres] FROM index_vectors AS v {then} index_documents AS d ON d.id = v.id WHERE d.model = :model AND d.space = :space AND v.mark IN :marks
[mysql] FROM EACH :marks AS wanted {then} index_vectors AS v {use index_vectors_mark} ON v.mark = wanted.value
[mysql]      {then} index_documents AS d {use_key} ON d.id = v.id WHERE d.model = :model AND d.space = :space

-- index_vectors_read(model, space, channel, sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until, after_id, limit) --
-- Return the vectors of a model in a space, from an id on, of documents that pass filters.
SELECT d.id, v.data FROM index_documents AS d {use index_documents_model} {then} index_vectors AS v {use_key} ON v.id = d.id
WHERE d.model = :model AND d.space = :space AND d.id > :after_id AND d.channel = :channel AND {filters}
ORDER BY d.id LIMIT :limit

-- index_nearest(model, space, channel, sources ints, without ints, agents names, roles names, first_name bytes, end_name bytes, since, until, vector bytes, limit) --
-- Return the nearest documents that pass filters, and their similarities.
[sqlite] SELECT d.id, 1 - vec1_cos_distance(v.data, :vector) AS near
[postgres] SELECT d.id, length(:vector)::double precision AS near
[mysql] SELECT d.id, LENGTH(:vector) AS near
FROM index_documents AS d {use index_documents_model} {then} index_vectors AS v {use_key} ON v.id = d.id
WHERE d.model = :model AND d.space = :space AND d.channel = :channel AND {filters}
ORDER BY near DESC, d.id DESC LIMIT :limit
