-- Owners of state, records, memories and artifacts: who has them, with version and totals.

-- owner_get(tenant, kind, id, session): select pk, version, items, bytes, numbers, signals, entries, updated_at, {floor} from owners locked --
-- Return an owner, and the floor of versions and numbers.

-- floor(tenant, kind) --
-- Used by other statements: the floor of a kind, which is stored as the version of an owner with session -1.
coalesce((SELECT f.version FROM owners AS f WHERE f.tenant = owners.tenant AND f.kind = owners.kind AND f.id = '' AND f.session = -1), 0)

-- owner_take(tenant, kind, id, session): take pk, version, items, bytes, numbers, signals, entries, updated_at from owners --
-- owner_floor(tenant, kind, id, session): select version from owners --

-- owner_put(pk, version, items, bytes, numbers, signals, entries, updated_at): update owners --
-- owner_delete(pk): delete owners --

-- owner_detach(pk): update owners set id = '', session = -1 - pk --
-- Take the name from an owner whose items are about to be deleted. Its session is then below -1.

-- owner_detached(tenant, kind): select pk from owners where id = '' AND session < -1 ORDER BY session LIMIT 1 --
-- Return an owner that has lost its name.

-- owner_floor_raise(tenant, kind, version) --
-- Raise the floor of a kind: all versions and numbers of its deleted owners are at most this one.
INSERT INTO owners (tenant, kind, id, session, version) VALUES (:tenant, :kind, '', -1, :version)
ON CONFLICT (tenant, kind, id, session) DO UPDATE
SET version = CASE WHEN excluded.version > owners.version THEN excluded.version ELSE owners.version END

-- of_owner(tenant, kind, id) --
-- Used by other statements: the condition for an owner that is not a session.
o.tenant = :tenant AND o.kind = :kind AND o.id = :id AND o.session = 0

-- owned(tenant, kind, id) --
-- Used by other statements: the condition for memories of an owner.
owner = (SELECT o.pk FROM owners AS o WHERE {of_owner})
