-- Records and their owners.

-- record_owner_get(tenant, user_id, session) --
-- Return an owner of records, its version, and the floor of versions. Session 0: the user; also without a user: the tenant.
-- The last column is how many numbers of searchable records the owner has given. The floor is stored as the version of an owner with session -1.
SELECT o.pk, o.version, coalesce(f.version, 0), o.numbers
FROM record_owners AS o LEFT JOIN record_owners AS f ON f.tenant = o.tenant AND f.user_id = '' AND f.session = -1
WHERE o.tenant = :tenant AND o.user_id = :user_id AND o.session = :session

-- record_owner_get_lock(tenant, user_id, session) --
-- Lock an owner, so that no other transaction writes to its records.
[postgres mysql] SELECT 1 FROM record_owners WHERE tenant = :tenant AND user_id = :user_id AND session = :session {lock}

-- record_owner_new(tenant, user_id, session) --
-- Insert an owner of records. If another process has just done so, lock that row, so that no other transaction deletes it.
INSERT INTO record_owners (tenant, user_id, session, version) VALUES (:tenant, :user_id, :session, 0)
ON CONFLICT (tenant, user_id, session) DO UPDATE SET version = record_owners.version

-- record_owner_put(pk, version, numbers) --
-- Update the version of an owner of records, and how many numbers it has given.
UPDATE record_owners SET version = :version, numbers = :numbers WHERE pk = :pk

-- record_users(tenant, after, inclusive int, limit) --
-- Return the users of a tenant that have given numbers to searchable records, in order, on or after one. An empty name is the tenant itself.
SELECT user_id FROM record_owners
WHERE tenant = :tenant AND session = 0 AND numbers > 0 AND (user_id > :after OR (:inclusive = 1 AND user_id = :after))
ORDER BY user_id LIMIT :limit

-- record_owner_delete(pk) --
-- Delete an owner of records, with the name of its user.
DELETE FROM record_owners WHERE pk = :pk

-- record_owner_detach(pk) --
-- Take the name from an owner of records whose records are about to be deleted. Its session is then below -1.
UPDATE record_owners SET user_id = '', session = -1 - pk WHERE pk = :pk

-- record_owner_detached(tenant) --
-- Return an owner of records that has lost its name.
SELECT pk FROM record_owners WHERE tenant = :tenant AND user_id = '' AND session < -1 ORDER BY session LIMIT 1

-- record_floor_raise(tenant, version) --
-- Raise the floor of versions: all versions of records of deleted owners are at most this one.
INSERT INTO record_owners (tenant, user_id, session, version) VALUES (:tenant, '', -1, :version)
ON CONFLICT (tenant, user_id, session) DO UPDATE
SET version = CASE WHEN excluded.version > record_owners.version THEN excluded.version ELSE record_owners.version END

-- records_info(owner, places places) --
-- Return what is stored of some records of an owner, besides their values; expired ones too.
SELECT place, version, created_at, updated_at, expires_at, form, size, number FROM records WHERE owner = :owner AND place = ANY :places

-- records_of(tenant, user_id, session, places places, now) --
-- Used by other statements: some records of an owner.
FROM record_owners AS o
[sqlite mysql] JOIN records AS r ON r.owner = o.pk AND r.place IN :places
[postgres] CROSS JOIN LATERAL (SELECT * FROM records WHERE owner = o.pk AND place = ANY :places OFFSET 0) AS r
WHERE o.tenant = :tenant AND o.user_id = :user_id AND o.session = :session AND (r.expires_at IS NULL OR r.expires_at > :now)

-- records_sizes(tenant, user_id, session, places places, now) --
-- Return the sizes of some records of an owner.
SELECT r.size {records_of}

-- records_named(tenant, user_id, session, places places, now) --
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

-- record_put(owner, place, tenant, version, created_at, updated_at, expires_at, form, size, number, data, words) --
-- Insert or replace a record.
INSERT INTO records (owner, place, tenant, version, created_at, updated_at, expires_at, form, size, number, data, words)
VALUES (:owner, :place, :tenant, :version, :created_at, :updated_at, :expires_at, :form, :size, :number, :data, :words)
ON CONFLICT (owner, place) DO UPDATE
SET version = excluded.version, created_at = excluded.created_at, updated_at = excluded.updated_at,
    expires_at = excluded.expires_at, form = excluded.form, size = excluded.size, number = excluded.number,
    data = excluded.data, words = excluded.words

-- record_delete(owner, place) --
-- Delete a record.
DELETE FROM records WHERE owner = :owner AND place = :place

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
