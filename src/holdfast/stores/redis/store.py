"""The Redis store: one server, or a cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self, TypeVar

from holdfast.domain.session import Ending, Entry, Session, SessionRef
from holdfast.domain.state import Change
from holdfast.errors import StoreClosed, StoreCorrupt
from holdfast.stores import checks
from holdfast.stores.log import WindowRows
from holdfast.stores.logic import reads
from holdfast.stores.logic.network import NAME, LastKnown
from holdfast.stores.logic.rows import ENDLESS
from holdfast.stores.logic.steps import Steps
from holdfast.stores.logic.store import LogicStore, naming
from holdfast.stores.redis import health
from holdfast.stores.redis.address import RedisAddress, address_of
from holdfast.stores.redis.connection import Command
from holdfast.stores.redis.database import Database
from holdfast.stores.redis.keys import Keys
from holdfast.stores.redis.log import ranged, window_command
from holdfast.stores.redis.nodes import Nodes
from holdfast.stores.redis.records import LAYOUT
from holdfast.stores.redis.work import Head, head_command
from holdfast.stores.sessions import SessionPage
from holdfast.stores.sql import Migration
from holdfast.stores.sql.upgrade import pending
from holdfast.stores.state import ScopedState

T = TypeVar("T")
LAYOUTS: Final = (
    Migration(1, "initial", "", "1"),
    Migration(2, "gateway", "", "1"),
    Migration(3, "state", "", "1"),
    Migration(LAYOUT, "memories", "", "1"),
)
"""What a place has had done to it, as SQL databases have migrations."""


class RedisStore(LogicStore):
    """A handle of one tenant on a Redis server or cluster; see `holdfast.stores.base.Store`."""

    database: Database
    dialect = "redis"
    layouts = LAYOUTS

    @staticmethod
    async def applied_to(url: str) -> dict[int, str]:
        """The layouts that the place at `url` has had; nothing is changed."""
        address = address_of(url)
        nodes, keys = _nodes(address, LastKnown()), Keys(address.prefix)
        try:
            return await _layouts(nodes, keys)
        finally:
            await nodes.close()

    @classmethod
    async def open(cls, url: str, *, tenant: str) -> Self:
        """Open the place at `url`. What others left unfinished is finished first."""
        checks.check_id(tenant, "tenant")
        address = address_of(url)
        remembered: LastKnown[Head] = LastKnown()
        nodes, keys = _nodes(address, remembered), Keys(address.prefix)
        try:
            found = await health.healths(nodes)
            health.check(found, nodes.name, clustered=address.clustered, allow_eviction=address.allow_eviction)
            for layout in pending(nodes.name, LAYOUTS, await _layouts(nodes, keys)):
                await nodes.call(keys.layout, (b"HSET", keys.layout, str(layout.number), layout.checksum))
        except BaseException:
            await nodes.close()
            raise
        nodes.name = NAME
        database = Database(nodes, keys, remembered)
        store = cls(database, tenant, owner=True)
        try:
            await store._tidied()
        except BaseException:
            await database.close()
            raise
        return store

    # -- reads in one round trip -------------------------------------------------

    async def window(self, ref: SessionRef, view: str | None) -> WindowRows:
        """See `Store.window`."""
        checks.check_ref(ref)
        keys = self._keys(ref)
        rest = ranged(keys.live, 0, ENDLESS, ENDLESS) if view is None else window_command(keys, view)
        return await self._ahead(ref, partial(reads.window, self.tenant, ref, view), head_command(keys), rest)

    async def entries(
        self,
        ref: SessionRef,
        *,
        start: int = 0,
        stop: int | None = None,
        limit: int | None = None,
        descending: bool = False,
        retired: bool = False,
    ) -> tuple[Entry, ...]:
        """See `Store.entries`."""
        checks.check_ref(ref)
        if limit is not None:
            checks.check_limit(limit, lowest=0, highest=None)
        keys = self._keys(ref)
        bounds = (start, ENDLESS if stop is None else stop, ENDLESS if limit is None else limit)
        both = (keys.live, keys.retired) if retired else (keys.live,)
        rest = [ranged(key, *bounds, descending=descending) for key in both]
        flags = {"descending": descending, "retired": retired}
        steps = partial(reads.entries, self.tenant, ref, start=start, stop=stop, limit=limit, **flags)
        return await self._ahead(ref, steps, head_command(keys), *rest)

    def _keys(self, ref: SessionRef) -> Any:
        return self.database.keys.session(self.tenant, ref.user_id, ref.id, ref.withdrawn)

    async def _ahead(self, ref: SessionRef, steps: Callable[[], Steps[T]], *commands: Command) -> T:
        if self._closed:
            raise StoreClosed
        try:
            return await self.database.read(steps, ahead=commands)
        except StoreCorrupt as exc:
            raise naming(exc, ref) from exc

    # -- what a tenant's sessions share ---------------------------------------------

    async def state(
        self, user_id: str | None, *, names: Collection[str] | None = None, known: int | None = None
    ) -> ScopedState:
        """See `StateStore.state`."""
        if user_id is None:
            await self._tidied()
        return await super().state(user_id, names=names, known=known)

    async def change_state(self, user_id: str | None, delta: Mapping[str, Change], **asked: Any) -> ScopedState:
        """See `StateStore.change_state`."""
        if user_id is None:
            await self._tidied()
        return await super().change_state(user_id, delta, **asked)

    async def drop_state(self, user_id: str | None) -> int:
        """See `StateStore.drop_state`."""
        if user_id is None:
            await self._tidied()
        return await super().drop_state(user_id)

    # -- what follows writes -------------------------------------------------------

    async def _tidied(self) -> None:
        """See that a tenant's indexes know what processes wrote that are no more."""
        if self._closed:
            raise StoreClosed
        await self.database.tidied(self.tenant)

    async def find(self, session_id: str) -> Session:
        """See `Store.find`."""
        await self._tidied()
        return await super().find(session_id)

    async def list(self, **asked: Any) -> SessionPage:
        """See `Store.list`."""
        await self._tidied()
        return await super().list(**asked)

    async def endings(self, *, due: int, limit: int = 100) -> tuple[Ending, ...]:
        """See `Store.endings`."""
        await self._tidied()
        return await super().endings(due=due, limit=limit)

    async def endings_of(self, user_id: str, *, after: str = "", limit: int = 100) -> tuple[Ending, ...]:
        """See `Store.endings_of`."""
        await self._tidied()
        return await super().endings_of(user_id, after=after, limit=limit)

    async def idle(self, *, now: int, ttl: int | None, limit: int = 100) -> tuple[Session, ...]:
        """See `Store.idle`."""
        await self._tidied()
        return await super().idle(now=now, ttl=ttl, limit=limit)

    async def oldest(self, *, limit: int = 100) -> tuple[Session, ...]:
        """See `Store.oldest`."""
        await self._tidied()
        return await super().oldest(limit=limit)

    async def active(self) -> int:
        """See `Store.active`."""
        await self._tidied()
        return await super().active()

    async def blobs_in_use(self, blobs: Sequence[str]) -> frozenset[str]:
        """See `ArtifactStore.blobs_in_use`."""
        await self._tidied()
        return await super().blobs_in_use(blobs)


async def inspected(url: str) -> list[health.Health]:
    """How the servers at `url` say that they are set up; nothing is changed, or refused. Raises `StoreUnavailable`."""
    nodes = _nodes(address_of(url), LastKnown())
    try:
        return await health.healths(nodes)
    finally:
        await nodes.close()


def _nodes(address: RedisAddress, remembered: LastKnown[Any]) -> Nodes:
    # After a loss the server may be another one, whose past is not that of the first: nothing is believed of it.
    lost = remembered.clear
    return Nodes(
        address.login, address.places, clustered=address.clustered, size=address.pool, name=address.name, lost=lost
    )


async def _layouts(nodes: Nodes, keys: Keys) -> dict[int, str]:
    flat = await nodes.call(keys.layout, (b"HGETALL", keys.layout))
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return {int(number): checksum.decode() for number, checksum in fields.items() if number.isdigit()}
