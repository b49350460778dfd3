"""The contract, closing: what a store held it gives back. `nothing_left` looks behind every check."""

from __future__ import annotations

import asyncio

from holdfast.stores.log import Append

from .kit import REF, session, user
from .plugin import OpenStore
from .resources import HeldResources


async def test_close_releases_everything(store_opener: OpenStore) -> None:
    """Threads, files and connections are as before, after use by many at once."""
    before = HeldResources()
    for _ in range(3):
        store = await store_opener()
        await store.replace(session(), [])
        await asyncio.gather(*(store.append(REF, Append(entries=[user("a")], timestamp=2)) for _ in range(50)))
        await asyncio.gather(*(store.for_tenant(f"t{at}").list() for at in range(50)))
        await store.close()
        assert before.more() == []
