"""The base of all store handles on SQL databases: a tenant, and a database that runs statements."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Self, TypeVar

from msgspec import UnsetType
from msgspec.structs import astuple

from holdfast import faults
from holdfast.domain.artifact import Scope
from holdfast.domain.session import SessionRef
from holdfast.domain.state import Change
from holdfast.errors import StoreClosed, StoreCorrupt, StoreUnavailable
from holdfast.stores import checks
from holdfast.stores.logic import state
from holdfast.stores.logic.steps import Database, Steps

T = TypeVar("T")


class _WriteState:
    """Information about writes that all handles of one database share.

    Attributes:
        refused: True if a write has failed since the last successful `ping`.
    """

    refused = False


class Handle:
    """The part that all handles on a SQL database share. Subclasses in the other modules of this package add the methods of the store."""

    durable = True
    """True, because a SQL database outlives the process. A store in memory overrides this."""

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
        """Run a read and return its result. If stored data is damaged, the raised error names the session `ref`."""
        if self._closed:
            raise StoreClosed
        if faults.active:
            await faults.hit("before-read")
        try:
            return await self.database.read(steps, single=single)
        except StoreCorrupt as exc:
            raise add_session(exc, ref) from exc

    async def _write(
        self,
        steps: Callable[[], Steps[T]],
        scope: Scope | None = None,
        *,
        queue: Hashable = None,
        scrub: bool = False,
        light: bool = False,
        sharing: Mapping[str, Change] | UnsetType | None = None,
    ) -> T:
        if self._closed:
            raise StoreClosed
        if scope is not None:
            queue = (self.tenant, *astuple(scope))
        later_queues = self._list_shared_queues(scope, sharing) if sharing and scope is not None else ()
        try:
            if faults.active:
                await faults.hit("before-commit")
            written = await self.database.write(
                steps, scrub=scrub, queue=queue, later_queues=later_queues, light=light and not later_queues
            )
            if faults.active:
                await faults.hit("after-commit")
        except StoreCorrupt as exc:
            raise add_session(exc, scope) from exc
        except StoreUnavailable:
            self._writes.refused = True  # see `ping`
            raise
        return written

    def _list_shared_queues(self, scope: Scope, delta: Mapping[str, Change]) -> Sequence[Hashable]:
        """Return the queues that a write must wait in because `delta` changes state that sessions share."""
        return [(self.tenant, user_id) for user_id in state.list_reached_scopes(scope.user_id, delta)]


def add_session(error: StoreCorrupt, scope: Scope | None) -> StoreCorrupt:
    """Add a session to an error and return the error.

    The error is returned unchanged if it already names a session, or if `scope` is not a session.
    """
    if not isinstance(scope, SessionRef) or error.session_id is not None:
        return error
    return error.with_session(scope.user_id, scope.id)
