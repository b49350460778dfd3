"""The part of the store contract about API keys: they decide who may access the server, and as which tenant and user.

Only the hash of a key is stored. The handle of the server's own tenant stores the keys of all tenants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import msgspec

from holdfast.domain.objects import Id, NonEmpty, Time, json_schema
from holdfast.domain.reconcile import Mode

Role = Literal["read", "write", "admin"]
"""The permissions of a key: `read` allows reading, `write` also writing, and `admin` also removing users and reading the
server's own metrics.
"""
KeyLimit = Annotated[int, json_schema(minimum=1)]
"""A limit of a key."""


class KeyFields(msgspec.Struct, frozen=True, kw_only=True):
    """The data of an API key that its owner may see."""

    id: NonEmpty
    name: str = ""
    tenant: Id
    """Tenant whose data the key gives access to."""
    user_id: Id | None = None
    """The only user that the key acts for; null: any user of the tenant."""
    role: Role = "write"
    created_at: Time
    expires_at: Time | None = None
    revoked_at: Time | None = None
    used_at: Time | None = None
    """Time of the last use, accurate to about a minute."""
    rate: KeyLimit | None = None
    """Maximum requests per minute; null: the server's setting."""
    max_body: KeyLimit | None = None
    """Maximum bytes of a request body; null: the server's setting."""
    session_mode: Mode | None = None
    """Interpretation of messages with a session id; null: the agent's or the server's setting."""
    budget: KeyLimit | None = None
    """Maximum tokens of the conversation in a prompt; null: the agent's."""


class ApiKey(KeyFields, frozen=True, kw_only=True):
    """The stored data of an API key, without the secret key itself. The id is the beginning of the key, which is not secret."""

    hash: bytes
    """SHA-256 of the whole key. A key has 256 random bits, so the hash needs no salt and no slow function."""


class KeyStore(Protocol):
    """Store API keys. The module docstring describes what all methods promise."""

    async def add_key(self, key: ApiKey) -> None:
        """Store a key. Raises `InvalidRequest` if a key with that id exists."""
        ...

    async def get_key(self, key_id: str) -> ApiKey | None:
        """Return the key with that id, even if it is revoked or expired; None if there is none."""
        ...

    async def keys(self, *, after: str = "", limit: int = 100, tenant: str | None = None) -> Sequence[ApiKey]:
        """Return at most `limit` keys with ids after `after`, in order of id. Revoked keys are included.

        Args:
            after: an id; empty: begin with the first key.
            limit: maximum number of keys.
            tenant: return only keys that give access to this tenant; None: to any.
        """
        ...

    async def revoke_key(self, key_id: str, *, timestamp: int) -> ApiKey:
        """Revoke a key permanently, and return it. A key that is already revoked stays unchanged.

        Raises:
            KeyNotFound: there is no key with this id.
        """
        ...

    async def use_key(self, key_id: str, *, timestamp: int) -> None:
        """Record the time when a key was used. Does nothing if a later time is stored, or if the key does not exist."""
        ...
