"""The base of all handles on a SQL database: a tenant, and a database that runs steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Self, TypeVar

from msgspec import UnsetType
from msgspec.structs import astuple

from holdfast.domain.artifact import Scope
from holdfast.domain.session import SessionRef
from holdfast.domain.state import Change
from holdfast.errors import StoreClosed, StoreCorrupt, StoreUnavailable
from holdfast.stores import checks
from holdfast.stores.logic import state
from holdfast.stores.logic.steps import Database, Steps

T = TypeVar("T")


class _WriteState:
    """State about writes that the handles of one database share.

    Attributes:
        refused: True if a write failed since the last `ping` that succeeded.
    """

    refused = False


class Handle:
    """A handle of one tenant; the modules next to this one add its methods."""

    durable = True
    """True, since a SQL database outlives the process; a store in memory overrides it."""

    def __init__(self, database: Database, tenant: str, *, owner: bool) -> None:
        checks.check_id(tenant, "tenant")
        self.tenant = tenant
        self.database = database
        self._owner = owner
        self._closed = False
        self._writes = _WriteState()

    def for_tenant(self, tenant: str) -> Self:
        handle = type(self)(self.database, tenant, owner=False)
        handle._writes = self._writes  # noqa: SLF001 - a handle of the same class
        return handle

    async def _read(self, steps: Callable[[], Steps[T]], *, single: bool = False, ref: SessionRef | None = None) -> T:
        """Run a read. An error about damaged data names `ref`, the session that is read."""
        if self._closed:
            raise StoreClosed
        try:
            return await self.database.read(steps, single=single)
        except StoreCorrupt as exc:
            raise add_session(exc, ref) from exc

    async def _write(
        self,
        steps: Callable[[], Steps[T]],
        scope: Scope | None = None,
        *,
        scrub: bool = False,
        light: bool = False,
        sharing: Mapping[str, Change] | UnsetType | None = None,
    ) -> T:
        if self._closed:
            raise StoreClosed
        queue = None if scope is None else (self.tenant, *astuple(scope))
        try:
            if sharing and scope is not None and (later_queues := self._list_shared_queues(scope, sharing)):
                return await self.database.write(steps, scrub=scrub, queue=queue, later_queues=later_queues)
            return await self.database.write(steps, scrub=scrub, queue=queue, light=light)
        except StoreCorrupt as exc:
            raise add_session(exc, scope) from exc
        except StoreUnavailable:
            self._writes.refused = True  # see `ping`
            raise

    async def _write_queued(self, steps: Callable[[], Steps[T]], queue: Hashable, *, scrub: bool = False) -> T:
        if self._closed:
            raise StoreClosed
        return await self.database.write(steps, scrub=scrub, queue=queue)

    def _list_shared_queues(self, scope: Scope, delta: Mapping[str, Change]) -> Sequence[Hashable]:
        """Return the queues of the shared scopes that changes of a session's state affect."""
        return [(self.tenant, user_id) for user_id in state.list_reached_scopes(scope.user_id, delta)]


def add_session(error: StoreCorrupt, scope: Scope | None) -> StoreCorrupt:
    """Return the error with its session added, unless it already names one or does not concern a session."""
    if not isinstance(scope, SessionRef) or error.session_id is not None:
        return error
    return error.with_session(scope.user_id, scope.id)
