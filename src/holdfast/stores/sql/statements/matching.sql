-- Matching of sessions, and origins of copied entries.

-- within(session int) --
-- Used by other statements: the condition for entries of one session, or of any.
[sqlite postgres] e.session BETWEEN coalesce(:session, 0) AND coalesce(:session, 4611686018427387904)
[mysql] (:session IS NULL OR e.session = :session)

-- mark_last(tenant, user_id, session int, wanted) --
-- Return the index of the last one of some digests that occurs in a user's logs, or in one session. Digests and their keys are a JSON array.
[sqlite] SELECT max(wanted.key) FROM json_each(:wanted) AS wanted
[sqlite] WHERE EXISTS (SELECT 1 FROM entries AS e CROSS JOIN sessions AS s ON s.pk = e.session
[sqlite]               WHERE e.mark = wanted.value ->> 0 AND e.digest = unhex(wanted.value ->> 1) AND {within} AND {live_session})
[postgres] SELECT max(place) - 1 FROM jsonb_array_elements(convert_from(:wanted, 'UTF8')::jsonb) WITH ORDINALITY AS wanted (value, place)
[postgres] WHERE (SELECT 1 FROM entries AS e
[postgres]        CROSS JOIN LATERAL (SELECT tenant, user_id, withdrawn FROM sessions WHERE pk = e.session OFFSET 0) AS s
[postgres]        WHERE e.mark = (value ->> 0)::bigint AND e.digest = decode(value ->> 1, 'hex') AND {within} AND {live_session}
[postgres]        ORDER BY e.session DESC, e.seq DESC LIMIT 1) = 1
[mysql] SELECT max(place) - 1
[mysql] FROM JSON_TABLE(CONVERT(:wanted USING utf8mb4), '$[*]' COLUMNS
[mysql]      (place FOR ORDINALITY, number BIGINT PATH '$[0]', digest VARCHAR(64) PATH '$[1]')) AS wanted
[mysql] WHERE (SELECT 1 FROM entries AS e FORCE INDEX (entries_mark) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
[mysql]        WHERE e.mark = wanted.number AND e.digest = UNHEX(wanted.digest) AND {within} AND {live_session} LIMIT 1) = 1

-- entries_of_user --
-- Used by other statements: entries with their sessions, which are read after them.
[sqlite] entries AS e CROSS JOIN sessions AS s ON s.pk = e.session
[postgres] entries AS e CROSS JOIN LATERAL
[postgres]      (SELECT id, identity, updated_at, digest, tenant, user_id, withdrawn FROM sessions WHERE pk = e.session OFFSET 0) AS s

-- mark_places(tenant, user_id, session int, mark, limit, digest) --
-- Return the places of a digest, newest sessions first, with the columns that show whether it is the end of the live path.
SELECT s.id, s.identity, s.updated_at, s.digest, e.seq, e.digest, e.retired_by
[sqlite postgres] FROM {entries_of_user}
[mysql] FROM entries AS e FORCE INDEX (entries_mark) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
WHERE e.mark = :mark AND e.digest = :digest AND {within} AND {live_session}
ORDER BY e.session DESC, e.seq DESC LIMIT :limit

-- alias_last(tenant, user_id, session int, wanted) --
-- Return the index of the last one of some aliases that occurs in a user's logs, or in one session. Keys of aliases are a JSON array.
[sqlite] SELECT max(wanted.key) FROM json_each(:wanted) AS wanted
[sqlite] WHERE EXISTS (SELECT 1 FROM {entries_of_user} WHERE e.alias = wanted.value AND {within} AND {live_session})
[postgres] SELECT max(place) - 1 FROM jsonb_array_elements(convert_from(:wanted, 'UTF8')::jsonb) WITH ORDINALITY AS wanted (value, place)
[postgres] WHERE (SELECT 1 FROM entries AS e
[postgres]        CROSS JOIN LATERAL (SELECT tenant, user_id, withdrawn FROM sessions WHERE pk = e.session OFFSET 0) AS s
[postgres]        WHERE e.alias = value::bigint AND {within} AND {live_session}
[postgres]        ORDER BY e.session DESC, e.seq DESC LIMIT 1) = 1
[mysql] SELECT max(place) - 1
[mysql] FROM JSON_TABLE(CONVERT(:wanted USING utf8mb4), '$[*]' COLUMNS (place FOR ORDINALITY, number BIGINT PATH '$')) AS wanted
[mysql] WHERE (SELECT 1 FROM entries AS e FORCE INDEX (entries_alias) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
[mysql]        WHERE e.alias = wanted.number AND {within} AND {live_session} LIMIT 1) = 1

-- alias_places(tenant, user_id, session int, alias, limit) --
-- Return the places of an alias; otherwise like `mark_places`.
SELECT s.id, s.identity, s.updated_at, s.digest, e.seq, e.digest, e.retired_by
[sqlite postgres] FROM {entries_of_user}
[mysql] FROM entries AS e FORCE INDEX (entries_alias) STRAIGHT_JOIN sessions AS s ON s.pk = e.session
WHERE e.alias = :alias AND {within} AND {live_session}
ORDER BY e.session DESC, e.seq DESC LIMIT :limit

-- end_last(tenant bytes, user_id bytes, digests) --
-- Return the last one of some digests, given as a JSON array, with which the live path of a session of a user ends.
[sqlite] SELECT max(wanted.key) FROM json_each(:digests) AS wanted
[sqlite] WHERE EXISTS (SELECT 1 FROM sessions AS s INDEXED BY sessions_end WHERE s.digest = unhex(wanted.value) AND {live_session})
[postgres] SELECT max(place) - 1 FROM jsonb_array_elements_text(convert_from(:digests, 'UTF8')::jsonb) WITH ORDINALITY AS wanted (value, place)
[postgres] WHERE EXISTS (SELECT 1 FROM
[postgres]        (SELECT tenant, user_id, withdrawn FROM sessions AS s
[postgres]         WHERE s.digest || s.tenant || s.user_id = decode(value, 'hex') || :tenant || :user_id OFFSET 0) AS s
[postgres]        WHERE {live_session})
[mysql] SELECT max(place) - 1
[mysql] FROM JSON_TABLE(CONVERT(:digests USING utf8mb4), '$[*]' COLUMNS (place FOR ORDINALITY, digest VARCHAR(64) PATH '$')) AS wanted
[mysql] WHERE (SELECT 1 FROM sessions AS s FORCE INDEX (sessions_end)
[mysql]        WHERE s.digest = UNHEX(wanted.digest) AND {live_session} LIMIT 1) = 1

-- end_places(tenant bytes, user_id bytes, digest bytes, limit) --
-- Return the sessions of a user whose live path ends with a digest, most recently used first.
SELECT s.id, s.identity, s.updated_at, s.digest, s.last_seq, s.digest, NULL
[sqlite mysql] FROM sessions AS s {use sessions_end} WHERE s.digest = :digest AND {live_session} ORDER BY s.updated_at DESC LIMIT :limit
[postgres] FROM (SELECT * FROM sessions WHERE digest || tenant || user_id = :digest || :tenant || :user_id ORDER BY updated_at DESC OFFSET 0) AS s
[postgres] WHERE {live_session} LIMIT :limit

-- origin_insert(session, first, source, source_first): insert entry_origins --
-- Record the origin of a session's entries, up to the next range.

-- origin_delete(session, first): delete entry_origins --
-- Delete the range of a session that begins at an entry.

-- origins_named(tenant, user_id, ids names) --
-- Return the origins of some sessions of a user, by a JSON array of ids in hexadecimal.
SELECT s.id, o.first, o.source, o.source_first FROM sessions AS s JOIN entry_origins AS o ON o.session = s.pk
WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = '' AND s.id IN
      :ids
ORDER BY s.pk, o.first

-- origins_sharing(tenant, user_id, source) --
-- Return the origins of all sessions of a user that have entries of one session, given by its identity.
SELECT s.id, o.first, o.source, o.source_first FROM entry_origins AS o JOIN sessions AS s ON s.pk = o.session
WHERE s.tenant = :tenant AND s.user_id = :user_id AND s.withdrawn = '' AND o.session IN
      (SELECT session FROM entry_origins WHERE source = :source)
ORDER BY s.pk, o.first

-- origins_delete(session): delete entry_origins --
