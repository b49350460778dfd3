"""Sign-ins of browsers: an API key is exchanged for an opaque token that expires and can be revoked."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from holdfast.access import Principal
from holdfast.limits import SIGN_IN_SECONDS


class SignIns:
    """The sign-ins of this server.

    Args:
        clock: returns the time in milliseconds since the epoch.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._known: dict[str, tuple[Principal, int]] = {}

    async def create(self, principal: Principal) -> str:
        """Store a sign-in and return its token."""
        token = secrets.token_urlsafe(32)
        self._known[token] = (principal, self._clock() + SIGN_IN_SECONDS * 1000)
        return token

    async def find(self, token: str) -> Principal | None:
        """Return the principal of a sign-in, or None if the token is unknown or has expired."""
        found = self._known.get(token)
        return found[0] if found is not None and self._clock() < found[1] else None

    async def end(self, token: str) -> None:
        """Remove a sign-in. A token that is unknown has no effect."""
        self._known.pop(token, None)
