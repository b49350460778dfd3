"""The part of the store contract about API keys: who may access the server, and as whom.

A key is stored as its hash only. The handle of the server's own tenant stores all keys, whatever tenant each one opens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from holdfast.domain.reconcile import Mode

Role = Literal["read", "write", "admin"]
"""What a key permits: reading; also writing; also removing users and reading the server's own metrics."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without its secret."""

    id: str
    """Identifies the key. It is not secret: the key itself begins with it."""
    hash: bytes
    """SHA-256 of the whole key: 256 random bits need no salt and no slow function."""
    name: str = ""
    """A name that its owner gave it."""
    tenant: str
    """The tenant whose sessions it opens."""
    user_id: str | None = None
    """The only user that the key acts for; None: any user of the tenant."""
    role: Role = "write"
    created_at: int
    """Milliseconds since the epoch."""
    expires_at: int | None = None
    """Milliseconds since the epoch from which the key is invalid; None: never."""
    revoked_at: int | None = None
    used_at: int | None = None
    """Milliseconds since the epoch, accurate to about a minute; None: never."""
    rate: int | None = None
    """Requests per minute; None: the server's setting."""
    max_body: int | None = None
    """Maximum bytes of a request body; None: the server's setting."""
    session_mode: Mode | None = None
    """How messages with a session id are read if a request does not say; None: the agent or the server decides."""
    budget: int | None = None
    """Maximum tokens of the conversation in a prompt; None: the agent's own budget."""


class KeyStore(Protocol):
    """Store API keys. The module describes what all methods promise."""

    async def add_key(self, key: ApiKey) -> None:
        """Store a key. Raises `InvalidRequest` if a key with that id or hash exists."""
        ...

    async def key_of(self, hash: bytes) -> ApiKey | None:  # noqa: A002 - its name in the API
        """Return the key with that hash, even if it is revoked or expired; None if there is none."""
        ...

    async def keys(self, *, after: str = "", limit: int = 100) -> Sequence[ApiKey]:
        """Return keys in order of id, after `after`, at most `limit`, including revoked ones."""
        ...

    async def revoke_key(self, key_id: str, *, timestamp: int) -> ApiKey:
        """Revoke a key for good, and return it. A revoked key stays unchanged. Raises `KeyNotFound`."""
        ...

    async def use_key(self, key_id: str, *, timestamp: int) -> None:
        """Record that a key was used. An earlier timestamp, or a key that does not exist, changes nothing."""
        ...
