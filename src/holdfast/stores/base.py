"""The store contract: what every database promises. `tests/contract` checks every store against it.

A `Store` is a handle of one tenant. Every method acts for that tenant, and data of another tenant looks exactly like data that does
not exist. Identifiers are compared byte for byte: case, trailing spaces, NUL and every Unicode character make a difference. The
contract consists of one class per subject. The docstring of a module describes what all its methods promise:

| part | module |
| --- | --- |
| sessions: names and fields | `holdfast.stores.sessions` |
| the log, media, views, compactions, claims | `holdfast.stores.log` |
| the lifecycle: use and end of sessions | `holdfast.stores.logic.lifecycle` |
| state that sessions share | `holdfast.stores.state` |
| artifacts | `holdfast.stores.logic.artifacts` |
| memories | `holdfast.stores.memories` |
| records | `holdfast.stores.logic.records` |
| API keys | `holdfast.stores.keys` |
| the journal of deletions | `holdfast.stores.deletions` |
| what is to be done after a write | `holdfast.stores.logic.due` |
| matching: find the sessions that contain a message, or that share entries | `holdfast.stores.matching` |
| the tenant: leases, data about models, the handle | `holdfast.stores.tenants` |

**Writing.** Every method that writes runs one transaction: it writes everything or nothing. When the method returns, the write
survives a crash of the process and of the machine. A write that raises an error has written nothing.

**Reading.** A read sees every write that was acknowledged before the read began. Its cost depends on how much it returns, not on the
length of the session. A read does not keep a session from expiring.

**Cancellation.** A cancelled write has written everything or nothing. The handle stays usable, and no other caller gets the
result of the cancelled call.

**Limits** are defined in `holdfast.limits`. An identifier that is empty, too long or not Unicode raises `InvalidRequest`. A message,
metadata, state or system messages that are too large raise `TooLarge`. A message raises `InvalidMessage` if it cannot be written as
JSON, or if its turn is lower than the log's current turn.

**Time.** A store never reads a clock: timestamps are passed as arguments.

**Driver errors** do not reach the caller. A full disk, a lost connection or a file that is not a database raises a `StoreError`.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import StoreClosed
from holdfast.stores.logic.artifacts import ArtifactStore
from holdfast.stores.logic.due import DueStore
from holdfast.stores.logic.lifecycle import LifecycleStore
from holdfast.stores.logic.log import LogStore
from holdfast.stores.logic.matching import MatchingStore
from holdfast.stores.logic.memories import MemoryStore
from holdfast.stores.logic.sessions import SessionStore
from holdfast.stores.logic.state import StateStore
from holdfast.stores.logic.steps import Query, Steps
from holdfast.stores.logic.tenants import DeletionStore, KeyStore, TenantStore

PING_BYTES: Final = 1 << 20
"""Number of bytes that `ping` writes after a write has failed: about the size of a turn with a large message."""


class Store(
    SessionStore,
    LogStore,
    LifecycleStore,
    StateStore,
    ArtifactStore,
    MemoryStore,
    KeyStore,
    DeletionStore,
    DueStore,
    MatchingStore,
    TenantStore,
):
    """A handle of one tenant in a SQL database, with all parts of the store contract.

    Its methods check their arguments and run the statements of an operation. A caller that needs only one part uses its class as the type.
    """

    @property
    def durable(self) -> bool:
        """True if written data is kept when the process ends. If False, a session that ends is deleted instead of closed."""
        return self.database.durable

    def for_tenant(self, tenant: str) -> Store:
        """Return a handle of another tenant on the same open database. The call is cheap, since it opens nothing.

        The handle that `open_store` returned owns the database: closing it closes all handles. Closing any other handle closes
        only that handle.
        """
        handle = type(self)(self.database, tenant, owner=False)
        handle._writes = self._writes  # noqa: SLF001 - a handle of the same class
        return handle

    async def ping(self) -> None:
        """Check that the store can be read and written. Raises `StoreUnavailable` if not."""

        def read() -> Steps[None]:
            yield Query("ping", ())

        def write() -> Steps[None]:
            # A full disk may still accept a small write, which would not prove that turns can be stored.
            yield Query("ping_put", ("x" * (PING_BYTES if self._writes.refused else 0),))
            yield Query("ping_delete", ())

        await self._read(read, single=True)
        if self._closed:
            raise StoreClosed
        await self.database.write(write)
        self._writes.refused = False

    async def close(self) -> None:
        """Finish the accepted operations, then release all resources. A second call does nothing."""
        self._closed = True
        if self._owner:
            await self.database.close()
