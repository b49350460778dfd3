"""The store contract: what every database promises. `tests/contract` checks every store against it.

A `Store` is a handle of one tenant; no method works without a tenant, and nothing of another tenant can be seen or
told apart from what does not exist. Identifiers compare byte for byte: case, trailing spaces, NUL and every Unicode
character count. The contract has one part per subject, each a protocol with its own prose:

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

**Writing.** Every method that writes is one transaction, all or nothing, and when it returns the write survives the
process and the machine; in Redis, as far as the server's configuration goes. A write that raises has written nothing.

**Reading.** Reads see every write that was acknowledged before they began. They cost what they return, at any length
of the session. A read does not keep a session alive.

**Cancellation.** A cancelled write is either done or not, never half; the handle stays usable, and no other caller
ever gets its result.

**Limits** are those of `holdfast.limits`. An identifier that is empty or too long, or not Unicode, is `InvalidRequest`; a
message, metadata, state or system messages that are too large are `TooLarge`, and a message that cannot be written as JSON,
or whose turn is before the log's, is `InvalidMessage`.

**Time** is never read by a store: timestamps come in arguments.

**Foreign errors** do not leak: a full disk, a lost connection or a file that is no database is a `StoreError`.
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
    """A store handle of one tenant: all parts of the contract. Callers that need one part take that part's protocol."""

    def for_tenant(self, tenant: str) -> Store:
        """Return a handle of another tenant on the same open database; this is cheap, nothing is opened.

        The handle that `open_store` returned owns the database: closing it closes all. Closing another closes only that.
        """
        ...
