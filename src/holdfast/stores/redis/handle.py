"""The base of a tenant's handle on Redis, and decorators that run a handle's methods as transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from inspect import Signature, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from holdfast.domain.session import Session, SessionRef
from holdfast.errors import StoreClosed, StoreCorrupt
from holdfast.stores import checks
from holdfast.stores.redis.database import Database, Transaction, make_head_command
from holdfast.stores.redis.keys import ScopeKeys, SessionKeys, TenantKeys
from holdfast.stores.redis.records import build_session, decode_record

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound="Handle")
_Work = Callable[[Transaction], Awaitable[T]]
_KeysOf = Callable[["Handle", Any], ScopeKeys | None]
"""Type of functions that take the first argument of a store method, and return the keys of the data that the method reads or writes."""


class Handle:
    """A handle of one tenant. Subclasses in the other modules of this package implement the parts of the store."""

    tenant: str
    database: Database
    _closed: bool

    def _make_session_keys(self, ref: SessionRef) -> SessionKeys:
        return self.database.keys.session(self.tenant, ref.user_id, ref.id, ref.withdrawn)

    def _make_scope_keys(self, user_id: str | None) -> ScopeKeys:
        """Return the keys of the data that all sessions of a user share. For None, return those that all sessions of the tenant share."""
        return self.database.keys.user(self.tenant, user_id or "")

    @property
    def _tenant_keys(self) -> TenantKeys:
        return self.database.keys.tenant(self.tenant)

    async def run(self, keys: ScopeKeys | None, work: _Work[T], *, write: bool, key: str | None = None) -> T:
        """Run `work` in a transaction and return its result. The arguments are those of `Database.read` and `Database.write`."""
        if self._closed:
            raise StoreClosed
        database = self.database
        try:
            return await (database.write(keys, work, key=key) if write else database.read(keys, work))
        except StoreCorrupt as exc:
            if isinstance(keys, SessionKeys) and exc.session_id is None:
                raise exc.with_session(keys.user_id, keys.id) from exc
            raise

    async def _tidy(self) -> TenantKeys:
        """Add the writes of crashed processes to the tenant's indexes; return the tenant's keys."""
        await self.database.tidy(self.tenant)
        return self._tenant_keys


def _resolve_no_keys(_handle: Handle, _subject: object) -> None:
    return None


def resolve_session_keys(handle: Handle, ref: SessionRef) -> ScopeKeys:
    """Return the keys of the session that is passed as a method's first argument."""
    checks.check_ref(ref)
    return handle._make_session_keys(ref)  # noqa: SLF001 - of this module


class _Transactional:
    """A decorator that runs a method as a transaction.

    The method's first parameter after `self` is the transaction. The decorator passes it, so callers leave it out.
    """

    def __init__(self, keys_of: _KeysOf, *, write: bool) -> None:
        self._keys_of = keys_of
        self._write = write

    def __call__(
        self, method: Callable[Concatenate[H, Transaction, P], Coroutine[Any, Any, T]]
    ) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
        keys_of, write = self._keys_of, self._write
        own, _, *rest = signature(method).parameters.values()
        subject = rest[0].name if rest else ""

        @wraps(method)
        async def call(handle: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
            keys = keys_of(handle, args[0] if args else kwargs.get(subject))
            return await handle.run(keys, lambda tx: method(handle, tx, *args, **kwargs), write=write)

        call.__signature__ = Signature([own, *rest])  # type: ignore[attr-defined]  # what `inspect` reads
        return call


def read_transaction(keys_of: _KeysOf = _resolve_no_keys) -> _Transactional:
    """Return a decorator for methods that read. All reads of one call see the same snapshot of the data.

    Args:
        keys_of: returns the keys of the data to read, given the method's first argument.
    """
    return _Transactional(keys_of, write=False)


def write_transaction(keys_of: _KeysOf = _resolve_no_keys) -> _Transactional:
    """Return a decorator for methods that write. The method is called again if another writer changed the data in the meantime.

    Args:
        keys_of: returns the keys of the data whose guard the commit checks, given the method's first argument.
    """
    return _Transactional(keys_of, write=True)


async def load_sessions(tx: Transaction, keys: Sequence[SessionKeys]) -> list[Session]:
    """Return the sessions with these keys. Sessions that another process has just deleted are left out."""
    heads = await tx.database.fetch([make_head_command(one) for one in keys])
    found = ((one, head) for one, head in zip(keys, heads, strict=True) if head[1] is not None)
    return [build_session(decode_record(one, record), profile) for one, (_, record, profile) in found]
