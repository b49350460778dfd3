"""One turn of a session at a time over several servers on one database, with two Holdfasts that each have their own queue."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import Claim, SessionRef
from holdfast.engine.session_lock import LEASE
from holdfast.errors import (
    SessionBusy,
    TurnLost,
)
from holdfast.holdfast import Holdfast
from holdfast.stores.log import Append
from tests.clocks import Clock
from tests.other_process import LINUX, OtherProcess, other_process
from tests.service.turns_kit import (
    REF,
    SHARED,
    get_claim,
    log,
    open_stage,
    say,
    start_turn,
)
from tests.stores.servers import place

# -- waiting, rejecting, interrupting ------------------------------------------


# -- renewed and expired claims ------------------------------------------------


@SHARED
async def test_session_of_a_dead_holder_is_taken_over_after_its_lease(kind: str, tmp_path: Path) -> None:
    """If the holder is alive after all, its turn fails, and nothing of it is stored in between."""
    clock = Clock()
    with place(kind, tmp_path) as url:
        async with open_stage(url, openings=2, clock=clock) as ([one, two], stage):
            running = await start_turn(one, stage, "a")
            clock.now += LEASE - 1
            with pytest.raises(SessionBusy):
                await say(two, "b", session_queue="reject")
            clock.now += 1
            assert await say(two, "b") == "re: b"
            stage.go_on()
            with pytest.raises(TurnLost):
                await running
            assert await log(one) == ["a", "b", "re: b"]
            assert await get_claim(one) is None
            assert await say(one, "c") == "re: c"


async def test_late_write_is_rejected_after_another_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write began in time but arrives after another turn has come and ended."""
    url, clock = f"sqlite:///{tmp_path}/s.db", Clock()
    async with open_stage(url, openings=2, clock=clock) as ([one, two], _):
        append, begun_, go_on = one.store.append, asyncio.Event(), asyncio.Event()

        async def slow(ref: SessionRef, write: Append) -> Any:
            if write.release is not None and not begun_.is_set():
                begun_.set()
                await go_on.wait()
            return await append(ref, write)

        monkeypatch.setattr(one.store, "append", slow)
        late = asyncio.create_task(say(one, "a"))
        await begun_.wait()
        clock.now += LEASE
        assert await say(two, "b") == "re: b"
        assert await get_claim(two) is None
        go_on.set()
        with pytest.raises(TurnLost):
            await late
        assert await log(one) == ["a", "b", "re: b"]


async def _claim_for(hf: Holdfast, other: OtherProcess) -> None:
    """Claim the session as a turn of another process does that has just begun."""
    now = hf.clock()
    await hf.store.append(REF, Append(timestamp=now, claim=Claim(f"{other.holder}-0", now + LEASE)))


@LINUX
@SHARED
async def test_turn_of_a_killed_process_does_not_block(kind: str, tmp_path: Path) -> None:
    """No lease has expired, as the clock does not move. The turn of a running process does block."""
    with place(kind, tmp_path) as url, other_process() as other:
        async with open_stage(url, openings=2) as ([one, two], _):
            await _claim_for(one, other)
            for hf in (one, two):
                with pytest.raises(SessionBusy):
                    await say(hf, "no", session_queue="reject")
            other.kill()
            assert await say(two, "a", session_queue="reject") == "re: a"
            assert await log(one) == ["a", "re: a"]
            assert await get_claim(one) is None


async def test_late_library_turn_fails_at_its_next_write(tmp_path: Path) -> None:
    """What was written before is kept."""
    url, clock = f"sqlite:///{tmp_path}/s.db", Clock()
    async with open_stage(url, openings=2, clock=clock) as ([one, two], _):
        session = await one.session("s")

        async def late() -> None:
            async with session.turn("a") as turn:
                turn.add({"role": "assistant", "content": "written"})
                await turn.next()
                turn.add({"role": "assistant", "content": "lost"})
                clock.now += LEASE
                await say(two, "b")
                with pytest.raises(TurnLost):
                    await turn.next()
                with pytest.raises(TurnLost):
                    turn.add("never")

        with pytest.raises(TurnLost):
            await late()
        assert await log(one) == ["a", "written", "b", "re: b"]


# -- ending --------------------------------------------------------------------
