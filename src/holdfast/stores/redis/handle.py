"""What all parts of a handle on a Redis place share: a tenant, and the database that runs its operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from holdfast.domain.session import Session, SessionRef
from holdfast.errors import StoreClosed, StoreCorrupt
from holdfast.stores.redis.database import Database, Transaction, head_command
from holdfast.stores.redis.keys import ScopeKeys, SessionKeys, TenantKeys
from holdfast.stores.redis.records import decode_record, session_of

T = TypeVar("T")


class Handle:
    """A handle of one tenant; its parts are in the modules beside this one."""

    tenant: str
    database: Database
    _closed: bool

    def _session_keys(self, ref: SessionRef) -> SessionKeys:
        return self.database.keys.session(self.tenant, ref.user_id, ref.id, ref.withdrawn)

    def _scope_keys(self, user_id: str | None) -> ScopeKeys:
        """Return the keys of what a user's sessions share; of None, a tenant's."""
        return self.database.keys.user(self.tenant, user_id or "")

    @property
    def _tenant_keys(self) -> TenantKeys:
        return self.database.keys.tenant(self.tenant)

    async def _read(self, keys: ScopeKeys | None, work: Callable[[Transaction], Awaitable[T]]) -> T:
        if self._closed:
            raise StoreClosed
        try:
            return await self.database.read(keys, work)
        except StoreCorrupt as exc:
            raise naming(exc, keys) from exc

    async def _write(
        self, keys: ScopeKeys | None, work: Callable[[Transaction], Awaitable[T]], *, key: str | None = None
    ) -> T:
        if self._closed:
            raise StoreClosed
        try:
            return await self.database.write(keys, work, key=key)
        except StoreCorrupt as exc:
            raise naming(exc, keys) from exc

    async def _tidied(self) -> None:
        """Have the tenant's indexes include what dead processes wrote."""
        if self._closed:
            raise StoreClosed
        await self.database.tidied(self.tenant)


async def load_sessions(tx: Transaction, keys: Sequence[SessionKeys]) -> list[Session]:
    """Return the sessions that are there: another process may have deleted one a moment ago."""
    heads = await tx.database.fetch([head_command(one) for one in keys])
    found = ((one, head) for one, head in zip(keys, heads, strict=True) if head[1] is not None)
    return [session_of(decode_record(one, record), profile) for one, (_, record, profile) in found]


def naming(error: StoreCorrupt, keys: ScopeKeys | None) -> StoreCorrupt:
    """Return the error with the session that it is about, if it is about one and does not name it yet."""
    if not isinstance(keys, SessionKeys) or error.session_id is not None:
        return error
    return error.naming(keys.user_id, keys.id)
