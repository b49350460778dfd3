"""One turn of a session at a time, in one process: waiting, rejection, interruption, and the resulting log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.errors import TurnInterrupted
from tests.service.turns_kit import log, open_stage, say, wait_for_waiting

MEMORY = "sqlite://:memory:"


# -- interruption ----------------------------------------------------------------


async def test_interrupted_turn_completes_its_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is writing its user message or its complete reply."""
    async with open_stage(MEMORY) as ([hf], stage):
        append, writing, go_on = hf.store.append, asyncio.Event(), asyncio.Event()

        async def slow(ref: SessionRef, write: Any) -> Any:
            if write.entries and write.entries[0].message.text in ("a", "re: c"):
                writing.set()
                await go_on.wait()
            return await append(ref, write)

        monkeypatch.setattr(hf.store, "append", slow)
        for text, outcome in (("a", TurnInterrupted), ("c", str)):
            writing.clear()
            go_on.clear()
            first = asyncio.create_task(say(hf, text))
            await writing.wait()
            second = asyncio.create_task(say(hf, "b", session_queue="interrupt"))
            await wait_for_waiting(hf, 1, first, second)
            go_on.set()
            assert type((await asyncio.gather(first, second, return_exceptions=True))[0]) is outcome
        assert await log(hf) == ["a", "b", "re: b", "c", "re: c", "b", "re: b"]
        assert stage.asked == ["b", "c", "b"]
