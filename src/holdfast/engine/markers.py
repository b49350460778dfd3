"""Markers of sessions: derived from a secret of the tenant, which is made once and kept in the store."""

from __future__ import annotations

import secrets
from typing import Final

from holdfast.context.escaping import marker_of
from holdfast.domain.session import Session
from holdfast.stores.base import Store
from holdfast.stores.tenants import FOREVER

_KEPT_AS: Final = "holdfast:marker"
"""Where the secret is kept, among what a tenant keeps of models: no model is named so, see `holdfast.engine.learning.key_of`."""
_BYTES: Final = 32


class Markers:
    """Derives markers for the sessions of one tenant; see `holdfast.context.escaping`.

    Every process that opens the database derives the same ones. A copy of the database has them, an export does not.

    Args:
        store: the tenant's.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._secret: bytes | None = None

    async def of(self, session: Session) -> str:
        """Return the session's marker.

        Raises:
            StoreError: the secret cannot be read, or could not be written the first time.
        """
        secret = self._secret
        while secret is None:
            secret = self._secret = await self._store.learned(_KEPT_AS)
            if secret is None:
                # Of several processes that come here at once, one writes; all read what it wrote.
                await self._store.learn(_KEPT_AS, secrets.token_bytes(_BYTES), timestamp=FOREVER, expect=None)
        return marker_of(secret, session.identity)
