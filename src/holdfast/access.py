"""API keys, roles, and principals: the identities that requests are made with.

A key is `hf_<id>_<secret>`: the id identifies the key in lists and logs, the secret has 256 random bits. This module is
pure: it uses no randomness, no clock and no storage.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b32encode
from typing import Any, Final, Literal, Self

import msgspec

from holdfast.domain.objects import make_object
from holdfast.stores.keys import ApiKey, KeyFields, KeyRights, Role

ROLES: Final[tuple[Role, ...]] = ("read", "write", "admin")
"""All roles, from the least to the most powerful. Each role includes the ones before it."""
ID_RANDOM: Final = 10
"""Number of random bytes in the id of a key."""
SECRET_RANDOM: Final = 32
"""Number of random bytes in the secret of a key."""
"""Values of `Principal.key_id` for credentials that are not keys of Holdfast: tokens, and keys of a model provider."""
_KEY: Final = re.compile(r"hf_([a-z2-7]{16})_[a-z2-7]{52}")
_PREFIX: Final = "hf_"
_MEANT: Final = re.compile(r"hf_[a-z2-7]{16}_")
"""Matches the beginning of a Holdfast key. The prefix `hf_` alone is not enough: keys of other systems begin with it too."""
_USER_KEY: Final = b"holdfast upstream user"
"""Key of the hash that turns an upstream's API key into a user id. It makes that hash differ from every other hash of the API key."""


class Principal(KeyRights, frozen=True, kw_only=True):
    """The identity that a request is made with, and its limits."""

    key_id: str | None = None
    """Id of the API key or other credential that was used; None if the server requires no credential."""

    def has_role(self, role: Role) -> bool:
        """Return True if the principal has at least this role."""
        return ROLES.index(self.role) >= ROLES.index(role)


class ApiKeyObject(KeyFields, frozen=True, kw_only=True):
    """An API key, without its secret text."""

    object: Literal["api_key"] = "api_key"
    status: Literal["valid", "expired", "revoked"]

    @classmethod
    def from_key(cls, stored: ApiKey, now: int, /, **more: Any) -> Self:
        """Convert a stored key to its JSON object, with the status that it has now."""
        unusable: Literal["expired", "revoked"] = "expired" if stored.revoked_at is None else "revoked"
        return make_object(cls, stored, status="valid" if is_usable_key(stored, now) else unusable, **more)


class NewKey(msgspec.Struct, frozen=True):
    """A key that was just created."""

    id: str
    text: str
    """The complete key. It is shown once and never stored."""
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
    """Return True if the text looks like a Holdfast key, valid or not. Such a text must never be forwarded to an upstream."""
    return _MEANT.match(text) is not None


def parse_key_id(text: str) -> str | None:
    """Return the id inside a key, or None if the text is not a well-formed key."""
    found = _KEY.fullmatch(text)
    return found[1] if found else None


def hash_key(text: str) -> bytes:
    """Return the hash under which a key is stored.

    A key has 256 random bits, so its hash needs no salt and no slow hash function.
    """
    return hashlib.sha256(text.encode()).digest()


def is_valid_key(kept: ApiKey, text: str, now: int) -> bool:
    """Return True if `text` is the stored key and the stored key is neither expired nor revoked.

    Args:
        kept: the stored key.
        text: the key as a client sent it.
        now: the current time, in milliseconds since the epoch.
    """
    same = hmac.compare_digest(kept.hash, hash_key(text))
    return same and kept.id == parse_key_id(text) and is_usable_key(kept, now)


def is_usable_key(kept: ApiKey, now: int) -> bool:
    """Return True if a stored key is neither expired nor revoked."""
    return kept.revoked_at is None and (kept.expires_at is None or now < kept.expires_at)


def to_principal(kept: ApiKey) -> Principal:
    """Return the principal for requests that use this key."""
    return make_object(Principal, kept, key_id=kept.id)


def derive_upstream_user(tenant: str, token: str) -> str:
    """Derive a user id from an API key of a model provider (an upstream).

    The same key always gives the same id, and the key cannot be computed from the id.
    """
    identity = msgspec.json.encode([tenant, token])
    return f"key_{hashlib.blake2b(identity, key=_USER_KEY, digest_size=16).hexdigest()}"
