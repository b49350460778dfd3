"""API keys, roles, and the principal that a request is made for.

A key is `hf_<id>_<secret>`: the id identifies it in lists and logs, the secret has 256 random bits. This module is
pure: it uses no randomness, no clock and no storage.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b32encode
from typing import Final

import msgspec

from holdfast.domain.reconcile import Mode
from holdfast.stores.keys import ApiKey, Role

ROLES: Final[tuple[Role, ...]] = ("read", "write", "admin")
"""From the least to the most powerful; each role includes the ones before it."""
ID_RANDOM: Final = 10
"""Random bytes in the id of a key."""
SECRET_RANDOM: Final = 32
"""Random bytes in the secret of a key."""
_KEY: Final = re.compile(r"hf_([a-z2-7]{16})_[a-z2-7]{52}")
_PREFIX: Final = "hf_"
_MEANT: Final = re.compile(r"hf_[a-z2-7]{16}_")
"""Matches text that begins like a key of Holdfast; other systems' keys begin with `hf_` too."""
_USER_KEY: Final = b"holdfast upstream user"
"""Keys the hash that turns an upstream key into a user id, so that it differs from every other hash of that key."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The identity and the limits that a request is made with."""

    tenant: str
    user_id: str | None = None
    """The only user it may act for; None: any user of the tenant."""
    role: Role
    key_id: str | None = None
    """Id of the key, or of the other credential that was used; None if the server requires none."""
    rate: int | None = None
    """Requests per minute; None: the server's setting."""
    max_body: int | None = None
    """Largest request body in bytes; None: the server's setting."""
    session_mode: Mode | None = None
    """How to read messages of requests with a session id that do not say it themselves; None: the agent or the server decides."""
    budget: int | None = None
    """Most tokens of the conversation in a prompt; None: the agent's own budget."""

    def has_role(self, role: Role) -> bool:
        """Return True if the principal has at least this role."""
        return ROLES.index(self.role) >= ROLES.index(role)


class NewKey(msgspec.Struct, frozen=True):
    """A key that was just created."""

    id: str
    text: str
    """The key itself: shown once and never stored."""
    hash: bytes

    def __repr__(self) -> str:
        return f"NewKey({self.id!r})"


class ForwardedHeaders(dict[str, str]):
    """Headers that are forwarded to an upstream; their values never appear in a repr."""

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: …' for name in self)}}}"


def create_key(random: bytes) -> NewKey:
    """Create a key from `ID_RANDOM + SECRET_RANDOM` random bytes."""
    if len(random) != ID_RANDOM + SECRET_RANDOM:
        raise ValueError(f"a key is made from {ID_RANDOM + SECRET_RANDOM} random bytes, not {len(random)}")
    name, secret = _encode(random[:ID_RANDOM]), _encode(random[ID_RANDOM:])
    key = f"{_PREFIX}{name}_{secret}"
    return NewKey(name, key, hash_key(key))


def _encode(data: bytes) -> str:
    return b32encode(data).decode().rstrip("=").lower()


def is_key(text: str) -> bool:
    """Return True if the text looks like a Holdfast key, valid or not. Such a text is never forwarded to an upstream."""
    return _MEANT.match(text) is not None


def parse_key_id(text: str) -> str | None:
    """Return the id inside a key, or None if the text is not a well-formed key."""
    found = _KEY.fullmatch(text)
    return found[1] if found else None


def hash_key(text: str) -> bytes:
    """Return the hash of a key that is stored. A key has 256 random bits, so it needs neither a salt nor a slow hash function."""
    return hashlib.sha256(text.encode()).digest()


def is_valid_key(kept: ApiKey, text: str, now: int) -> bool:
    """Return True if `text` is the stored key, and the key is neither expired nor revoked.

    Args:
        kept: the key as it is stored.
        text: the key as a client sent it.
        now: the current time, in milliseconds since the epoch.
    """
    same = hmac.compare_digest(kept.hash, hash_key(text))
    in_time = kept.expires_at is None or now < kept.expires_at
    return same and kept.id == parse_key_id(text) and in_time and kept.revoked_at is None


def to_principal(kept: ApiKey) -> Principal:
    """Return the principal that requests with this key are made for."""
    return Principal(
        tenant=kept.tenant,
        user_id=kept.user_id,
        role=kept.role,
        key_id=kept.id,
        rate=kept.rate,
        max_body=kept.max_body,
        session_mode=kept.session_mode,
        budget=kept.budget,
    )


def derive_upstream_user(tenant: str, token: str) -> str:
    """Return the user id for an upstream's key: always the same for a key, and the key cannot be derived from it."""
    identity = msgspec.json.encode([tenant, token])
    return f"key_{hashlib.blake2b(identity, key=_USER_KEY, digest_size=16).hexdigest()}"
