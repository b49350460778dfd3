"""The base of all store handles on SQL databases: a tenant, and a database that runs statements."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Mapping
from functools import partial, wraps
from operator import itemgetter
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from msgspec import UnsetType
from msgspec.structs import astuple

from holdfast import faults
from holdfast.domain.artifact import Scope, UserRef
from holdfast.domain.session import Ending, SessionRef
from holdfast.domain.state import Change, get_scope
from holdfast.domain.state import Scope as StateScope
from holdfast.errors import SessionNotFound, StoreClosed, StoreCorrupt, StoreUnavailable
from holdfast.recall.base import Space
from holdfast.stores import checks
from holdfast.stores.logic.rows import get_identity
from holdfast.stores.logic.steps import Database, Query, Row, Steps

T = TypeVar("T")
P = ParamSpec("P")
H = TypeVar("H", bound="Handle")
SHARED_SCOPES: Final[tuple[StateScope, ...]] = ("user", "app")
"""The scopes of state that sessions share, in the order in which every writer locks their rows, after the session's row. A fixed order
prevents deadlocks."""
get_first: Final = itemgetter(0)
"""Decodes a row of one column."""


class _WriteState:
    """Information about writes that all handles of one database share.

    Attributes:
        refused: True if a write has failed since the last successful `ping`.
    """

    refused = False


class Handle:
    """The part that all handles on a SQL database share. Subclasses in the other modules of this package add the methods of the store."""

    _points = ("before-read", "before-commit", "after-commit")
    """The failure points of a read and a write, see `holdfast.faults`."""

    def __init__(self, database: Database, tenant: str, *, owner: bool) -> None:
        checks.check_id(tenant, "tenant")
        self.tenant = tenant
        self.database = database
        self._owner = owner
        self._closed = False
        self._writes = _WriteState()

    async def _read(
        self,
        steps: Callable[[], Steps[T]],
        *,
        single: bool = False,
        short: bool = False,
        ref: SessionRef | None = None,
    ) -> T:
        """Run a read and return its result. If stored data is damaged, the raised error names the session `ref`."""
        if self._closed:
            raise StoreClosed
        if faults.active:
            await faults.hit(self._points[0])
        try:
            return await self.database.read(steps, single=single, short=short)
        except StoreCorrupt as exc:
            raise add_session(exc, ref) from exc

    async def _select(self, decode: Callable[[Row], T], name: str, *params: Any) -> tuple[T, ...]:
        """Run one statement, whose first parameter is the tenant, and return its decoded rows."""

        def steps() -> Steps[tuple[T, ...]]:
            rows = yield Query(name, (self.tenant, *params))
            return tuple(map(decode, rows))

        return await self._read(steps, single=True)

    async def _select_one(self, decode: Callable[[Row], T], name: str, *params: Any) -> T | None:
        """Run one statement like `_select`, and return its first row; None if there is none."""
        found = await self._select(decode, name, *params)
        return found[0] if found else None

    async def _write(
        self,
        steps: Callable[[], Steps[T]],
        scope: Scope | None = None,
        *,
        queue: Hashable = None,
        scrub: bool = False,
        light: bool = False,
        long: bool = False,
        sharing: Mapping[str, Change] | UnsetType | None = None,
    ) -> T:
        """Run a write and return its result.

        Args:
            steps: returns a new generator of the write's statements.
            scope: the session or user whose row the write locks first.
            queue: identifies that row, if it is not given as a scope.
            scrub: if True, also remove deleted data from the database files.
            light: True if the write depends only on the version of the session's row, and on an idempotency key.
            long: True if the write may take milliseconds beside its statements.
            sharing: changes of state that sessions share, which the write makes too. They lock more rows afterwards.
        """
        if self._closed:
            raise StoreClosed
        if scope is not None:
            queue = self._get_queue(scope)
        later_queues = self._list_shared_queues(scope, sharing) if sharing and scope is not None else ()
        try:
            if faults.active:
                await faults.hit(self._points[1])
            written = await self.database.write(
                steps,
                scrub=scrub,
                queue=queue,
                later_queues=later_queues,
                light=light and not later_queues,
                long=long,
            )
            if faults.active:
                await faults.hit(self._points[2])
        except StoreCorrupt as exc:
            raise add_session(exc, scope) from exc
        except StoreUnavailable:
            self._writes.refused = True  # see `ping`
            raise
        return written

    async def _execute(self, name: str, *params: Any) -> None:
        """Run one statement that writes. Its first parameter is the tenant."""

        def steps() -> Steps[None]:
            yield Query(name, (self.tenant, *params))

        await self._write(steps)

    def _get_queue(self, scope: Scope) -> Hashable:
        """Return what identifies the row that a write of a session or user locks first."""
        return (self.tenant, *astuple(scope))

    def _list_shared_queues(self, scope: Scope, delta: Mapping[str, Change]) -> list[Hashable]:
        """Return the queues that a write must wait in because `delta` changes state that sessions share, in the order of locking."""
        scopes = {get_scope(key) for key in delta}
        users = [scope.user_id if shared == "user" else "" for shared in SHARED_SCOPES if shared in scopes]
        return [(self.tenant, user_id) for user_id in users]


# -- methods as steps ----------------------------------------------------------


def reads(
    *, single: bool = False, short: bool = False
) -> Callable[[Callable[Concatenate[H, P], Steps[T]]], Callable[Concatenate[H, P], Coroutine[Any, Any, T]]]:
    """Make a method of the steps of a read. The keywords are those of `Database.read`.

    The checks of the arguments are part of the steps. If stored data are damaged, the error names the session that is the first argument.
    """

    def make(steps: Callable[Concatenate[H, P], Steps[T]]) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
        @wraps(steps)
        async def read(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
            first = args[0] if args else None
            ref = first if isinstance(first, SessionRef) else None
            return await self._read(partial(steps, self, *args, **kwargs), single=single, short=short, ref=ref)

        return read

    return make


def writes(
    *, scrub: bool = False
) -> Callable[[Callable[Concatenate[H, P], Steps[T]]], Callable[Concatenate[H, P], Coroutine[Any, Any, T]]]:
    """Make a method of the steps of a write. If the first argument is a session, its end or a user, that row is locked first."""

    def make(steps: Callable[Concatenate[H, P], Steps[T]]) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
        @wraps(steps)
        async def write(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
            scope: Any = args[0] if args else None
            if isinstance(scope, Ending):
                scope = SessionRef(scope.user_id, scope.session_id)
            locks = isinstance(scope, SessionRef | UserRef | Space)
            return await self._write(partial(steps, self, *args, **kwargs), scope if locks else None, scrub=scrub)

        return write

    return make


def read_session_row(tenant: str, ref: SessionRef, identity: str | None = None) -> Steps[Row]:
    """Return the session's row. In a write, the row is locked until the transaction ends.

    Raises:
        SessionNotFound: the session does not exist, or has another identity than `identity`; None: any.
    """
    rows = yield Query("session_get", (tenant, ref.id, ref.user_id, ref.withdrawn))
    if not rows or (identity is not None and get_identity(rows[0]) != identity):
        raise SessionNotFound(ref.id)
    return rows[0]


def add_session(error: StoreCorrupt, scope: Scope | None) -> StoreCorrupt:
    """Add a session to an error and return the error.

    The error is returned unchanged if it already names a session, or if `scope` is not a session.
    """
    if not isinstance(scope, SessionRef) or error.session_id is not None:
        return error
    return error.with_session(scope.user_id, scope.id)
