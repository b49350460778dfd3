"""The store contract: what every database promises. `tests/contract` checks every store against it.

A `Store` is a handle of one tenant. Every method acts for that tenant, and data of another tenant looks exactly like data that does
not exist. Identifiers are compared byte for byte: case, trailing spaces, NUL and every Unicode character make a difference. The
contract consists of one protocol per subject, which is described in the docstring of its module:

| part | module |
| --- | --- |
| sessions: names and fields | `holdfast.stores.sessions` |
| the log, media, views, compactions, claims | `holdfast.stores.log` |
| the lifecycle: use and end of sessions | `holdfast.stores.lifecycle` |
| state that sessions share | `holdfast.stores.state` |
| artifacts | `holdfast.stores.artifacts` |
| memories | `holdfast.stores.memories` |
| records | `holdfast.stores.records` |
| API keys | `holdfast.stores.keys` |
| the journal of deletions | `holdfast.stores.deletions` |
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

from typing import Protocol

from holdfast.stores.artifacts import ArtifactStore
from holdfast.stores.deletions import DeletionStore
from holdfast.stores.keys import KeyStore
from holdfast.stores.lifecycle import LifecycleStore
from holdfast.stores.log import LogStore
from holdfast.stores.matching import MatchingStore
from holdfast.stores.memories import MemoryStore
from holdfast.stores.records import RecordStore
from holdfast.stores.sessions import SessionStore
from holdfast.stores.state import StateStore
from holdfast.stores.tenants import TenantStore


class Store(
    SessionStore,
    LogStore,
    LifecycleStore,
    StateStore,
    ArtifactStore,
    MemoryStore,
    RecordStore,
    KeyStore,
    DeletionStore,
    MatchingStore,
    TenantStore,
    Protocol,
):
    """A handle of one tenant in a database, with all parts of the store contract.

    A caller that needs only one part uses the protocol of that part.
    """

    def for_tenant(self, tenant: str) -> Store:
        """Return a handle of another tenant on the same open database. The call is cheap, since it opens nothing.

        The handle that `open_store` returned owns the database: closing it closes all handles. Closing any other handle closes
        only that handle.
        """
        ...
