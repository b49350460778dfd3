-- Records and their owners.

-- record_users(tenant, after, inclusive int, limit): select id from owners where kind = 'records' AND session = 0 AND numbers > 0 AND (id > :after OR (:inclusive = 1 AND id = :after)) ORDER BY id --
-- Return the users of a tenant that have given numbers to searchable records, in order, on or after one. An empty name is the tenant itself.

-- records_info(owner, places places): select place, version, created_at, updated_at, expires_at, form, size, number from records where place = ANY :places --

-- records_of(tenant, kind, id, session, places places, now) --
-- Used by other statements: some records of an owner.
FROM owners AS o
[sqlite mysql] JOIN records AS r ON r.owner = o.pk AND r.place IN :places
[postgres] CROSS JOIN LATERAL (SELECT * FROM records WHERE owner = o.pk AND place = ANY :places OFFSET 0) AS r
WHERE o.tenant = :tenant AND o.kind = :kind AND o.id = :id AND o.session = :session AND (r.expires_at IS NULL OR r.expires_at > :now)

-- records_sizes(tenant, kind, id, session, places places, now) --
-- Return the sizes of some records of an owner.
SELECT r.size {records_of}

-- records_named(tenant, kind, id, session, places places, now) --
-- Return some records of an owner with their values.
SELECT r.place, r.version, r.created_at, r.updated_at, r.expires_at, r.form, r.size, r.number, r.data, r.words {records_of}

-- records_forward | records_backward(owner, begin, end, now, limit): select place, version, created_at, updated_at, expires_at, form, size from records where place >= :begin AND place < :end AND (expires_at IS NULL OR expires_at > :now) ORDER BY place --


-- records_searchable(owner, version, number, now, limit) --
-- Return an owner's searchable records after a version and number, without their values.
SELECT place, version, created_at, updated_at, expires_at, form, size, number, words
[sqlite postgres] FROM records WHERE owner = :owner AND number IS NOT NULL AND (version, number) > (:version, :number)
[mysql] FROM records FORCE INDEX (records_searchable) WHERE owner = :owner AND (searched > :version OR (searched = :version AND number > :number))
      AND (expires_at IS NULL OR expires_at > :now)
[sqlite postgres] ORDER BY version, number LIMIT :limit
[mysql] ORDER BY searched, number LIMIT :limit

-- records_searchable_named(owner, places places, now): select place, version, created_at, updated_at, expires_at, form, size, number, words from records where place = ANY :places AND number IS NOT NULL AND (expires_at IS NULL OR expires_at > :now) ORDER BY version, number --
-- Return some records of an owner without their values, if they are searchable.

-- record_put(owner, place, tenant, version, created_at, updated_at, expires_at, form, size, number, data, words): put records --
-- record_delete(owner, place): delete records --

-- record_expire(owner, place, now): delete records where expires_at <= :now --

-- records_expired(tenant, now, limit): select owner, place, size from records where expires_at <= :now ORDER BY expires_at --
-- Return records of a tenant that have expired, those that expired first before the others.

-- records_first(owner, limit): select place, size from records ORDER BY place --

-- records_delete_through(owner, place): delete records where place <= :place --
