"""The part of the store contract about API keys: they decide who may access the server, and as which tenant and user.

Only the hash of a key is stored. The handle of the server's own tenant stores the keys of all tenants.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.domain.objects import Id, NonEmpty, Time, json_schema
from holdfast.log.align import Mode

Role = Literal["read", "write", "admin"]
"""The permissions of a key: `read` allows reading, `write` also writing, and `admin` also removing users and reading the
server's own metrics.
"""
KeyLimit = Annotated[int, json_schema(minimum=1)]
"""A limit of a key."""


class KeyRights(msgspec.Struct, frozen=True, kw_only=True):
    """For whom a key or a token acts, and within which limits."""

    tenant: Id
    """Tenant whose data the key gives access to."""
    user_id: Id | None = None
    """The only user that the key acts for; null: any user of the tenant."""
    role: Role
    expires_at: Time | None = None
    rate: KeyLimit | None = None
    """Maximum requests per minute; null: the server's setting."""
    max_body: KeyLimit | None = None
    """Maximum bytes of a request body; null: the server's setting."""
    session_mode: Mode | None = None
    """Interpretation of messages with a session id; null: the agent's or the server's setting."""
    budget: KeyLimit | None = None
    """Maximum tokens of the conversation in a prompt; null: the agent's."""


class KeyFields(KeyRights, frozen=True, kw_only=True):
    """The data of an API key that its owner may see."""

    id: NonEmpty
    name: str = ""
    role: Role = "write"
    created_at: Time
    revoked_at: Time | None = None
    used_at: Time | None = None
    """Time of the last use, accurate to about a minute."""


class ApiKey(KeyFields, frozen=True, kw_only=True):
    """The stored data of an API key, without the secret key itself. The id is the beginning of the key, which is not secret."""

    hash: bytes
    """SHA-256 of the whole key. A key has 256 random bits, so the hash needs no salt and no slow function."""
