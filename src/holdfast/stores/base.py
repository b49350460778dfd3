"""The store contract: what every database promises. `tests/contract` checks every store against it.

A `Store` is a handle of one tenant. Every method acts for that tenant, and data of another tenant looks exactly like data that does
not exist. Identifiers compare byte for byte: case, trailing spaces, NUL and every Unicode character count. The contract has one
part per subject, each a protocol in a module that describes it:

| part | module |
| --- | --- |
| sessions: names and fields | `holdfast.stores.sessions` |
| the log, media, views, compactions, claims | `holdfast.stores.log` |
| use and end of sessions | `holdfast.stores.lifecycle` |
| state that sessions share | `holdfast.stores.state` |
| artifacts | `holdfast.stores.artifacts` |
| memories | `holdfast.stores.memories` |
| API keys | `holdfast.stores.keys` |
| matching: which sessions have a message, and which share entries | `holdfast.stores.matching` |
| the tenant: leases, what was learned of models, the handle | `holdfast.stores.tenants` |

**Writing.** Every method that writes is one transaction, all or nothing. When it returns, the write survives the loss of the process
and of the machine; in Redis, as far as the server's configuration provides that. A write that raises has written nothing.

**Reading.** Reads see every write that was acknowledged before they began. Their cost depends on what they return, not on the length
of the session. A read does not keep a session alive.

**Cancellation.** A cancelled write is either done or not, never half; the handle stays usable, and no other caller
ever gets its result.

**Limits** are those of `holdfast.limits`. An identifier that is empty or too long, or not Unicode, is `InvalidRequest`. A message,
metadata, state or system messages that are too large are `TooLarge`. A message that cannot be written as JSON, or whose turn is
before the log's, is `InvalidMessage`.

**Time** is never read by a store: timestamps come in arguments.

**Driver errors** do not reach the caller: a full disk, a lost connection or a file that is not a database is a `StoreError`.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.stores.artifacts import ArtifactStore
from holdfast.stores.keys import KeyStore
from holdfast.stores.lifecycle import LifecycleStore
from holdfast.stores.log import LogStore
from holdfast.stores.matching import MatchingStore
from holdfast.stores.memories import MemoryStore
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
    KeyStore,
    MatchingStore,
    TenantStore,
    Protocol,
):
    """A store handle of one tenant, with all parts of the contract. Callers that need one part take that part's protocol."""

    def for_tenant(self, tenant: str) -> Store:
        """Return a handle of another tenant on the same open database. This is cheap, since nothing is opened.

        The handle that `open_store` returned owns the database: closing it closes all handles. Closing another handle closes only that.
        """
        ...
