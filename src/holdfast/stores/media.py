"""The part of the store contract that is about media: contents that messages refer to, kept once a session."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from holdfast.domain.session import SessionRef


class MediaStore(Protocol):
    """What a store keeps beside a log; see `holdfast.stores.base`, **Media**."""

    async def media(self, ref: SessionRef, hashes: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Contents by their SHA-256; what the session does not have is not in the answer. Raises `SessionNotFound`."""
        ...
