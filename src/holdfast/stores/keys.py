"""The part of the store contract that is about API keys: who may come in, and as whom.

A key is known by its hash alone. The keys of a server are kept by the handle of its own tenant, whatever tenant each opens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from holdfast.domain.reconcile import Mode

Role = Literal["read", "write", "admin"]
"""What a key may: look, also change, also remove users and see the server's own figures."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without its secret."""

    id: str
    """Names it, and is no secret: it stands at the beginning of the key itself."""
    hash: bytes
    """SHA-256 of the whole key: 256 random bits need no salt and no slow function."""
    name: str = ""
    """What its owner calls it."""
    tenant: str
    """Whose sessions it opens."""
    user_id: str | None = None
    """The only user it acts for; None: any of the tenant."""
    role: Role = "write"
    created_at: int
    """Milliseconds since the epoch."""
    expires_at: int | None = None
    """Milliseconds since the epoch: not valid from then on; None: never."""
    revoked_at: int | None = None
    used_at: int | None = None
    """Milliseconds since the epoch, by the minute or so; None: never."""
    rate: int | None = None
    """Requests a minute; None: the server's setting."""
    max_body: int | None = None
    """Bytes of a request's body; None: the server's setting."""
    session_mode: Mode | None = None
    """How messages with a session id are read, where a request does not say; None: the agent or the server decides."""
    budget: int | None = None
    """Most tokens of the conversation in a prompt; None: any number that the agent has."""


class KeyStore(Protocol):
    """What a store keeps of keys; see the module."""

    async def add_key(self, key: ApiKey) -> None:
        """Keep a key. Raises `InvalidRequest` where there is one of that id or hash."""
        ...

    async def key_of(self, hash: bytes) -> ApiKey | None:  # noqa: A002 - what it is
        """The key of that hash, revoked and expired ones too; None when there is none."""
        ...

    async def keys(self, *, after: str = "", limit: int = 100) -> Sequence[ApiKey]:
        """Keys in order of id, behind `after`, at most `limit`; revoked ones too."""
        ...

    async def revoke_key(self, key_id: str, *, timestamp: int) -> ApiKey:
        """Make a key invalid for good; as it is then. One that is revoked stays as it is. Raises `KeyNotFound`."""
        ...

    async def use_key(self, key_id: str, *, timestamp: int) -> None:
        """Take note that a key was used; an earlier timestamp changes nothing, and so does a key that is not there."""
        ...
