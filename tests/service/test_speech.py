"""Speaking and greeting: messages that no model turn generated, and the resulting log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.service.turns_kit import REF, log, open_stage, retry_at_once, start_turn
from tests.stores.servers import place

# -- speaking ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_running_turn_of_another_server_counts(kind: str, tmp_path: Any) -> None:
    with place(kind, tmp_path) as url:
        async with open_stage(url, openings=2) as ([one, two], stage):
            retry_at_once(one, two)
            session = two.handle(await two.store.get(REF))
            running = await start_turn(one, stage, "a")
            assert (await session.speak("x", priority="IGNORE")).entry is None
            behind = asyncio.create_task(session.speak("y", priority="APPEND"))
            stage.go_on("a")
            await running
            assert (await behind).entry is not None
            assert await log(two) == ["a", "re: a", "y"]
