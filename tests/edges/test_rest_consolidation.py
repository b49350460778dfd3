"""Consolidation over REST: sweep, dry run, diary, owners, and refused requests."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import StaleMemories
from tests.edges.server import Served, gateway


async def request_consolidation(served: Served, body: dict[str, Any], **headers: str) -> Any:
    return await served.http.post("/v1/memories/consolidate", json=body, headers=headers)


async def test_constantly_changing_memories_are_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as (served, _):

        async def stale(*_: Any, **__: Any) -> Any:
            raise StaleMemories(expected=1, version=2)

        monkeypatch.setattr(served.hf.consolidation, "consolidate", stale)
        assert (await request_consolidation(served, {"user_id": "ann"})).status_code == 412
