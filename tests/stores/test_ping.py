"""A ping is answered on every database, also when it has to show that there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.stores import open_store
from tests.stores.servers import place


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
async def test_a_ping_writes_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    with place(kind, tmp_path) as url:
        store = await open_store(url, tenant="acme")
        for _ in range(2):  # what the first one left would be in the way of the second
            await store.ping()
            store._writes.refused = True  # noqa: SLF001 - as after a write that failed: the next one needs more room
            await store.ping()
        await store.close()
