"""Who may what: API keys as text and as what is kept of them, roles, and as whom a request is made.

A key is `hf_<id>_<secret>`: the id names it in lists and logs, the secret has 256 random bits. Nothing here is random, asks the
clock or looks anything up.
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
"""Each may what those before it may."""
ID_RANDOM: Final = 10
"""Random bytes of a key's id."""
SECRET_RANDOM: Final = 32
"""Random bytes of its secret."""
_KEY: Final = re.compile(r"hf_([a-z2-7]{16})_[a-z2-7]{52}")
_PREFIX: Final = "hf_"
_MEANT: Final = re.compile(r"hf_[a-z2-7]{16}_")
"""What begins like one of ours: others' keys begin with `hf_` too."""
_USER_KEY: Final = b"holdfast upstream user"
"""Keys the hash by which an upstream key is a user, so that it is no other hash of that key."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """As whom a request is made."""

    tenant: str
    user_id: str | None = None
    """The only user it acts for; None: any of the tenant."""
    role: Role
    key_id: str | None = None
    """Names the key, or how else it was known; None: nobody asked for one."""
    rate: int | None = None
    """Requests a minute; None: the server's setting."""
    max_body: int | None = None
    """Bytes of a request's body; None: the server's setting."""
    session_mode: Mode | None = None
    """How messages with a session id are read, where a request does not say; None: the agent or the server decides."""
    budget: int | None = None
    """Most tokens of the conversation in a prompt; None: any number that the agent has."""

    def has_role(self, role: Role) -> bool:
        """Whether it may what that role may."""
        return ROLES.index(self.role) >= ROLES.index(role)


class NewKey(msgspec.Struct, frozen=True):
    """A key that was just made."""

    id: str
    text: str
    """The key itself: shown once, kept nowhere."""
    hash: bytes

    def __repr__(self) -> str:
        return f"NewKey({self.id!r})"


class ForwardedHeaders(dict[str, str]):
    """Headers that are handed on to an upstream; never shown."""

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: …' for name in self)}}}"


def create_key(random: bytes) -> NewKey:
    """A key made from `ID_RANDOM` and `SECRET_RANDOM` random bytes."""
    if len(random) != ID_RANDOM + SECRET_RANDOM:
        raise ValueError(f"a key is made from {ID_RANDOM + SECRET_RANDOM} random bytes, not {len(random)}")
    name, secret = _encode(random[:ID_RANDOM]), _encode(random[ID_RANDOM:])
    key = f"{_PREFIX}{name}_{secret}"
    return NewKey(name, key, hash_key(key))


def _encode(data: bytes) -> str:
    return b32encode(data).decode().rstrip("=").lower()


def is_key(text: str) -> bool:
    """Whether that is meant for a key of Holdfast's, right or wrong: then it goes to nobody else."""
    return _MEANT.match(text) is not None


def parse_key_id(text: str) -> str | None:
    """The id in a key; None for what is no key."""
    found = _KEY.fullmatch(text)
    return found[1] if found else None


def hash_key(text: str) -> bytes:
    """What is kept of a key: 256 random bits need neither salt nor a slow function."""
    return hashlib.sha256(text.encode()).digest()


def is_valid_key(kept: ApiKey, text: str, now: int) -> bool:
    """Whether `text` is that key, and valid at `now`, milliseconds since the epoch."""
    same = hmac.compare_digest(kept.hash, hash_key(text))
    in_time = kept.expires_at is None or now < kept.expires_at
    return same and kept.id == parse_key_id(text) and in_time and kept.revoked_at is None


def to_principal(kept: ApiKey) -> Principal:
    """As whom whoever has the key makes requests."""
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
    """The user that an upstream's key stands for: always the same one, and nobody reads the key off it."""
    said = msgspec.json.encode([tenant, token])
    return f"key_{hashlib.blake2b(said, key=_USER_KEY, digest_size=16).hexdigest()}"
