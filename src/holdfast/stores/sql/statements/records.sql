-- Records and their owners.

-- record_users(tenant, after, inclusive int, limit) --
-- Return the users of a tenant that have given numbers to searchable records, in order, on or after one. An empty name is the tenant itself.
SELECT id FROM owners
WHERE tenant = :tenant AND kind = 'records' AND session = 0 AND numbers > 0 AND (id > :after OR (:inclusive = 1 AND id = :after))
ORDER BY id LIMIT :limit

-- records_info(owner, places places) --
-- Return what is stored of some records of an owner, besides their values; expired ones too.
SELECT place, version, created_at, updated_at, expires_at, form, size, number FROM records WHERE owner = :owner AND place = ANY :places

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

-- records_forward(owner, begin, end, now, limit) --
-- Return a range of an owner's records without their values.
SELECT place, version, created_at, updated_at, expires_at, form, size FROM records
WHERE owner = :owner AND place >= :begin AND place < :end AND (expires_at IS NULL OR expires_at > :now)
ORDER BY place LIMIT :limit

-- records_backward(owner, begin, end, now, limit) --
-- Return a range of an owner's records without their values, last ones first.
SELECT place, version, created_at, updated_at, expires_at, form, size FROM records
WHERE owner = :owner AND place >= :begin AND place < :end AND (expires_at IS NULL OR expires_at > :now)
ORDER BY place DESC LIMIT :limit

-- records_searchable(owner, version, number, now, limit) --
-- Return an owner's searchable records after a version and number, without their values.
SELECT place, version, created_at, updated_at, expires_at, form, size, number, words
[sqlite postgres] FROM records WHERE owner = :owner AND number IS NOT NULL AND (version, number) > (:version, :number)
[mysql] FROM records FORCE INDEX (records_searchable) WHERE owner = :owner AND (searched > :version OR (searched = :version AND number > :number))
      AND (expires_at IS NULL OR expires_at > :now)
[sqlite postgres] ORDER BY version, number LIMIT :limit
[mysql] ORDER BY searched, number LIMIT :limit

-- records_searchable_named(owner, places places, now) --
-- Return some records of an owner without their values, if they are searchable.
SELECT place, version, created_at, updated_at, expires_at, form, size, number, words FROM records
WHERE owner = :owner AND place = ANY :places AND number IS NOT NULL AND (expires_at IS NULL OR expires_at > :now)
ORDER BY version, number

-- record_put(owner, place, tenant, version, created_at, updated_at, expires_at, form, size, number, data, words): put records --
-- record_delete(owner, place): delete records --

-- record_expire(owner, place, now) --
-- Delete a record if it has expired.
DELETE FROM records WHERE owner = :owner AND place = :place AND expires_at <= :now

-- records_expired(tenant, now, limit) --
-- Return records of a tenant that have expired, those that expired first before the others.
SELECT owner, place, size FROM records WHERE tenant = :tenant AND expires_at <= :now ORDER BY expires_at LIMIT :limit

-- records_first(owner, limit) --
-- Return the first records of an owner and their sizes, expired ones too.
SELECT place, size FROM records WHERE owner = :owner ORDER BY place LIMIT :limit

-- records_delete_through(owner, place) --
-- Delete the records of an owner up to a place, which is included.
DELETE FROM records WHERE owner = :owner AND place <= :place
