-- Small things of a tenant: data by kind and id, or in the order of `at`.

-- item_get(tenant, kind, id): select data, at, id from items locked --
-- item_new(tenant, kind, id, at, about, data): insert items --
-- item_add(tenant, kind, id, at, about, data): add items --
-- item_put(tenant, kind, id, at, about, data): put items --
-- item_delete(tenant, kind, id): delete items --
-- items_clear(tenant, kind): delete items --

-- items_after(tenant, kind, id, limit, about bytes): select data, at, id from items where id > :id AND (:about IS NULL OR about = :about) ORDER BY id --

-- items_until(tenant, kind, at, limit): select data, at, id from items where at <= :at ORDER BY at, id --

-- items_before(tenant, kind, at, id, limit, about bytes, skip) --
-- Return items before a time and id, the newest first.
SELECT data, at, id FROM items
WHERE tenant = :tenant AND kind = :kind AND at <= :at AND (at < :at OR id < :id) AND (:about IS NULL OR about = :about)
ORDER BY at DESC, id DESC LIMIT :limit OFFSET :skip

-- items_expire(tenant, kind, at) --
-- Delete items up to a time.
[sqlite mysql] DELETE FROM items WHERE tenant = :tenant AND kind = :kind AND at <= :at
[postgres] DELETE FROM items WHERE (tenant, kind, id) IN
[postgres]   (SELECT tenant, kind, id FROM items WHERE tenant = :tenant AND kind = :kind AND at <= :at FOR UPDATE SKIP LOCKED)
