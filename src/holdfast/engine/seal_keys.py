"""The keys that seal items which clients carry; see `holdfast.domain.sealed_items`."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from holdfast.domain.sealed_items import SealedItem, get_key_id, open_sealed, seal
from holdfast.limits import SEALING_KEYS
from holdfast.stores.base import Store
from holdfast.stores.tenants import FOREVER

_KEY: Final = "holdfast:sealing"
"""Name under which the keys are stored, with the tenant's calibration data of models, as the secret of markers is."""
_BYTES: Final = 32


class _Key(msgspec.Struct, frozen=True):
    id: str
    secret: bytes


class SealKeys:
    """Seals and opens items with keys that all servers of one database share. The newest key signs; older ones still verify.

    Args:
        store: the tenant's store. A copy of the database contains the keys; an export does not.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys: list[_Key] = []

    async def seal(self, item: SealedItem, user_id: str) -> str:
        """Return an item as a text that only its user can send back."""
        key = (await self._load())[0]
        return seal(item, key.id, key.secret, tenant=self._store.tenant, user_id=user_id)

    async def open(self, token: str, user_id: str, where: str) -> SealedItem:
        """Return the content of a sealed item.

        Args:
            token: the item.
            user_id: the user of the request.
            where: place of the item in the request, for errors.

        Raises:
            InvalidSealedItem: the item was changed, is another user's or tenant's, or its key was removed.
        """
        keys = await self._load()
        if all(key.id != get_key_id(token) for key in keys):  # another server may have made a newer key
            self._keys, keys = [], await self._load(fresh=True)
        known = {key.id: key.secret for key in keys}
        return open_sealed(token, known, tenant=self._store.tenant, user_id=user_id, where=where)

    async def rotate(self, *, drop_old: bool = False) -> int:
        """Make a new key, which signs from now on, and return the number of keys that verify items.

        Other servers sign with the previous key until they restart, or until a client sends them an item with the new one.

        Args:
            drop_old: True: items that were signed before are no longer valid, as soon as all servers have restarted. False: the newest
                `SEALING_KEYS` keys still verify items.
        """
        while True:
            stored = await self._store.learned(_KEY)
            keys = [_make_key(), *([] if drop_old else _decode(stored))][:SEALING_KEYS]
            if await self._store.learn(_KEY, msgspec.msgpack.encode(keys), timestamp=FOREVER, expect=stored):
                self._keys = keys
                return len(keys)

    async def _load(self, *, fresh: bool = False) -> list[_Key]:
        if not self._keys or fresh:
            self._keys = _decode(await self._store.learned(_KEY))
        while not self._keys:
            # If several processes do this at once, only one write succeeds, and all read its value.
            new = msgspec.msgpack.encode([_make_key()])
            await self._store.learn(_KEY, new, timestamp=FOREVER, expect=None)
            self._keys = _decode(await self._store.learned(_KEY))
        return self._keys


def _make_key() -> _Key:
    return _Key(secrets.token_hex(4), secrets.token_bytes(_BYTES))


def _decode(stored: bytes | None) -> list[_Key]:
    return [] if stored is None else msgspec.msgpack.decode(stored, type=list[_Key])
