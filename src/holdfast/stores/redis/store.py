"""The Redis store, on one server or a cluster."""

from __future__ import annotations

from typing import Final, Self

from holdfast.stores import checks
from holdfast.stores.logic.network import NAME, SessionCache
from holdfast.stores.redis import health
from holdfast.stores.redis.address import parse_address
from holdfast.stores.redis.artifacts import ArtifactMethods
from holdfast.stores.redis.compactions import CompactionMethods
from holdfast.stores.redis.convert import LAYOUT, NEWEST, UNFINISHED, check_converted, convert, read_layouts
from holdfast.stores.redis.database import Database, Head, Transaction
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.lifecycle import LifecycleMethods
from holdfast.stores.redis.log import ForkMethods, LogMethods
from holdfast.stores.redis.matching import MatchingMethods
from holdfast.stores.redis.memories import MemoryMethods
from holdfast.stores.redis.nodes import Nodes
from holdfast.stores.redis.owned_records import RecordMethods
from holdfast.stores.redis.sessions import SessionMethods
from holdfast.stores.redis.state import StateMethods
from holdfast.stores.redis.tenants import DeletionMethods, SignInMethods, TenantMethods
from holdfast.stores.sql import Migration
from holdfast.stores.sql.upgrade import list_pending

LAYOUTS: Final = (
    Migration(1, "initial", "", "1"),
    Migration(2, "gateway", "", "1"),
    Migration(3, "state", "", "1"),
    Migration(4, "memories", "", "1"),
    Migration(LAYOUT, "lists", "", "1"),
    Migration(NEWEST, "records", "", "1"),
)
"""The layouts of keys that releases of Holdfast have used. They correspond to the migrations of SQL databases."""


class RedisStore(
    SessionMethods,
    ForkMethods,
    LogMethods,
    CompactionMethods,
    LifecycleMethods,
    MatchingMethods,
    StateMethods,
    ArtifactMethods,
    MemoryMethods,
    RecordMethods,
    SignInMethods,
    DeletionMethods,
    TenantMethods,
):
    """A store (`holdfast.stores.base.Store`) of one tenant on a Redis server or cluster."""

    dialect = "redis"
    layouts = LAYOUTS

    def __init__(self, database: Database, tenant: str, *, owner: bool) -> None:
        checks.check_id(tenant, "tenant")
        self.tenant = tenant
        self.database = database
        self._owner = owner
        self._closed = False

    @staticmethod
    async def read_applied_migrations(url: str) -> dict[int, str]:
        """Return the checksums of the store's layouts, by number. Reads only."""
        address = parse_address(url)
        nodes, keys = Nodes(address, SessionCache()), Keys(address.prefix)
        try:
            found = await read_layouts(nodes, keys)
            return {number: checksum for number, checksum in found.items() if checksum != UNFINISHED}
        finally:
            await nodes.close()

    convert = staticmethod(convert)
    """Converts data of Holdfast 0.1; see `holdfast.stores.redis.convert`."""

    @classmethod
    async def open(cls, url: str, *, tenant: str) -> Self:
        """Open the store at `url`, and deliver the news that crashed processes left."""
        checks.check_id(tenant, "tenant")
        address = parse_address(url)
        remembered: SessionCache[Head] = SessionCache()
        nodes, keys = Nodes(address, remembered), Keys(address.prefix)
        try:
            found = await health.load_health(nodes)
            health.check_health(found, nodes.name, clustered=address.is_cluster, allow_eviction=address.allow_eviction)
            layouts = await read_layouts(nodes, keys)
            missing = list_pending(
                nodes.name, LAYOUTS, {at: sum_ for at, sum_ in layouts.items() if sum_ != UNFINISHED}
            )
            await check_converted(nodes, keys, layouts)
            if missing:  # with one command, because a store with only some of the layouts is taken for one of 0.1
                noted = [part for layout in missing for part in (str(layout.number), layout.checksum)]
                await nodes.call(keys.layout, (b"HSET", keys.layout, *noted))
        except BaseException:
            await nodes.close()
            raise
        nodes.name = NAME
        database = Database(nodes, keys, remembered)
        store = cls(database, tenant, owner=True)
        try:
            await store._tidy()
        except BaseException:
            await database.close()
            raise
        return store

    def for_tenant(self, tenant: str) -> Self:
        return type(self)(self.database, tenant, owner=False)

    async def ping(self) -> None:
        layout = self.database.keys.layout

        async def work(tx: Transaction) -> None:
            await tx.read((b"HLEN", layout))
            tx.queue("HSET", layout, b"ping", b"1")
            tx.queue("HDEL", layout, b"ping")

        await self.run(None, work, write=True)

    async def close(self) -> None:
        self._closed = True
        if self._owner:
            await self.database.close()


async def inspect_servers(url: str) -> list[health.Health]:
    """Return version and configuration of the servers at `url`. Reads only. Raises `StoreUnavailable` if a server cannot be reached."""
    nodes = Nodes(parse_address(url), SessionCache())
    try:
        return await health.load_health(nodes)
    finally:
        await nodes.close()
