"""The part of the store contract about sign-ins: browser sessions of the inspector, each made by an API key or a token.

Only the hash of a sign-in's secret text is stored. The handle of the server's own tenant stores the sign-ins of all tenants.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from holdfast.stores.keys import Role

EXPIRED_PER_WRITE: Final = 100
"""Maximum number of expired sign-ins that one `add_sign_in` deletes. The others are deleted by the next ones."""


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """The stored data of a sign-in, without its secret text."""

    hash: bytes
    """SHA-256 of the secret text, which has 256 random bits."""
    tenant: str
    """The tenant whose sessions the sign-in gives access to."""
    user_id: str | None = None
    """The only user that the sign-in acts for; None: any user of the tenant."""
    role: Role
    key_id: str | None = None
    """Id of the API key or other credential that it was made with; None: none was required."""
    created_at: int
    """Milliseconds since the epoch."""
    expires_at: int
    """Time at which the sign-in ends even if it is used, in milliseconds since the epoch."""
    used_at: int | None = None
    """Time of the last use in milliseconds since the epoch, accurate to about a minute; None: never used."""


class SignInStore(Protocol):
    """Store sign-ins. The module docstring describes what all methods promise."""

    async def add_sign_in(self, sign_in: SignIn) -> None:
        """Store a sign-in.

        At most `SIGN_INS_OF_HOLDER` sign-ins of the same key, tenant and user are kept, and `SIGN_INS` of all. The oldest are deleted.
        Up to `EXPIRED_PER_WRITE` sign-ins that have expired when this one is created are deleted, too.

        Raises:
            InvalidRequest: a sign-in with that hash exists, or it expires before it is created.
        """
        ...

    async def find_sign_in(self, hash: bytes) -> SignIn | None:  # noqa: A002 - as in `KeyStore`
        """Return the sign-in with that hash, even if it has expired; None if there is none."""
        ...

    async def use_sign_in(self, hash: bytes, *, timestamp: int) -> None:  # noqa: A002
        """Record the time when a sign-in was used. Does nothing if a later time is stored, or if the sign-in does not exist."""
        ...

    async def remove_sign_in(self, hash: bytes) -> None:  # noqa: A002
        """Delete a sign-in. Does nothing if it does not exist. `KeyStore.revoke_key` deletes all sign-ins of a key."""
        ...
