"""One turn of a session at a time over several servers on one database, with two Holdfasts that each have their own queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import Claim, SessionRef
from holdfast.engine.session_lock import LEASE, RENEWAL_MS
from holdfast.errors import (
    BudgetTooSmall,
    ModelUnavailable,
    SessionBusy,
    StoreUnavailable,
    TurnLost,
)
from holdfast.holdfast import Holdfast
from holdfast.sessions.session_list import find_state
from holdfast.stores.log import Append
from holdfast.turns.respond import collect_reply
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.wire.openai import parse_message
from tests.clocks import Clock
from tests.other_process import LINUX, OtherProcess, other_process
from tests.service.tools_kit import stop_at
from tests.service.turns_kit import (
    REF,
    Stage,
    get_claim,
    get_queue,
    is_stop_wanted,
    log,
    open_stage,
    renew_claim,
    retry_at_once,
    say,
    start_turn,
)
from tests.waits import until

# -- waiting, rejecting, interrupting ------------------------------------------


async def _has_tried(hf: Holdfast) -> bool:
    """Return True if a waiting turn of this process has tried once to claim the session."""
    await hf.store.get(REF)
    line = get_queue(hf)
    return bool(line) and line[0].is_first


async def test_waiting_for_another_server_times_out(tmp_path: Path) -> None:
    """Even if the running turn does not stop. The waiting message is not stored."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with open_stage(url, openings=2, queue_timeout=0.001) as ([one, two], stage):
        running = await start_turn(one, stage, "a")
        for mode in ("queue", "interrupt"):
            with pytest.raises(SessionBusy):
                await say(two, "b", session_queue=mode)
        assert await is_stop_wanted(one)
        stage.go_on()
        await running
        assert await log(two) == ["a", "re: a"]


async def test_waiting_turn_retries_when_the_claim_expires(tmp_path: Path) -> None:
    """A dead process on another host blocks its session no longer than its claim is valid."""
    url, clock = f"sqlite:///{tmp_path}/s.db", Clock()
    async with open_stage(url, openings=2, clock=clock) as ([one, two], stage):
        running, slept = await start_turn(one, stage, "a"), 0.0

        async def pause(seconds: float) -> None:
            nonlocal slept
            slept += seconds
            clock.now += round(1000 * seconds)

        two.engine.locks.pause = pause
        assert await say(two, "b") == "re: b"
        assert slept == pytest.approx(LEASE / 1000)
        stage.go_on()
        with pytest.raises(TurnLost):
            await running


async def test_cancelled_waiting_turn_leaves_nothing(tmp_path: Path) -> None:
    """No message, no claim and no place in the queue."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with open_stage(url, openings=2) as ([one, two], stage):
        running, there = await start_turn(one, stage, "a"), asyncio.Event()

        async def pause(seconds: float) -> None:
            there.set()
            await asyncio.Event().wait()

        two.engine.locks.pause = pause
        gone = asyncio.create_task(say(two, "b"))
        await there.wait()
        gone.cancel()
        await asyncio.wait([gone])
        assert two.engine.locks.is_empty
        stage.go_on()
        await running
        assert await get_claim(one) is None
        assert await log(one) == ["a", "re: a"]


# -- renewed and expired claims ------------------------------------------------


async def test_claim_is_renewed_while_the_model_answers(tmp_path: Path) -> None:
    """No other turn gets the session meanwhile."""
    url, clock = f"sqlite:///{tmp_path}/s.db", Clock()
    async with open_stage(url, openings=2, clock=clock) as ([one, two], stage):
        running = await start_turn(one, stage, "a")
        for _ in range(10):
            clock.now += RENEWAL_MS
            assert await renew_claim(one) == RENEWAL_MS
            with pytest.raises(SessionBusy):
                await say(two, "b", session_queue="reject")
        stage.go_on()
        await running
        assert await get_claim(one) is None


async def _claim_for(hf: Holdfast, other: OtherProcess) -> None:
    """Claim the session as a turn of another process does that has just begun."""
    now = hf.clock()
    await hf.store.append(REF, Append(timestamp=now, claim=Claim(f"{other.holder}-0", now + LEASE)))


@LINUX
async def test_session_of_a_killed_process_is_not_shown_as_busy(tmp_path: Path) -> None:
    """In lists, as for turns: its claim has not expired, because the clock does not move."""
    with other_process() as other:
        async with open_stage(f"sqlite:///{tmp_path}/s.db") as ([hf], _):
            await _claim_for(hf, other)
            session = await hf.store.get(REF)
            assert find_state(hf.engine, session) == "busy"
            other.kill()
            assert find_state(hf.engine, session) == "active"


@LINUX
async def test_waiting_turn_starts_when_the_other_process_is_killed(tmp_path: Path) -> None:
    """It retries at least once a second."""
    with other_process() as other:
        async with open_stage(f"sqlite:///{tmp_path}/s.db") as ([hf], _):
            retry_at_once(hf)
            await _claim_for(hf, other)
            waits = asyncio.create_task(say(hf, "a"))
            await until(lambda: _has_tried(hf), waits)
            other.kill()
            assert await waits == "re: a"


@LINUX
async def test_session_can_be_moved_after_its_process_was_killed(tmp_path: Path) -> None:
    """Its claim no longer belongs to a running turn."""
    with other_process() as other:
        async with open_stage(f"sqlite:///{tmp_path}/s.db") as ([hf], _):
            await _claim_for(hf, other)
            with pytest.raises(SessionBusy):
                await hf.move(REF, user_id="ada")
            other.kill()
            assert (await hf.move(REF, user_id="ada")).ref == SessionRef("ada", "s")


async def test_turn_stops_when_renewal_finds_the_session_taken_over(tmp_path: Path) -> None:
    """The call is cancelled at once, while the other turn is running."""
    url, clock = f"sqlite:///{tmp_path}/s.db", Clock()
    async with open_stage(url, openings=2, clock=clock) as ([one, two], stage):
        late = await start_turn(one, stage, "a")
        clock.now += LEASE
        running = await start_turn(two, stage, "b")
        assert await renew_claim(one) == 0
        with pytest.raises(TurnLost):
            await late
        assert await log(one) == ["a", "b"]
        stage.go_on()
        assert await running == "re: b"


# -- ending --------------------------------------------------------------------


async def _end_with_answer(hf: Holdfast, stage: Stage) -> None:
    await say(hf, "a")


async def _end_with_failure(hf: Holdfast, stage: Stage) -> None:
    stage.failure = ModelUnavailable("gone")
    with pytest.raises(ModelUnavailable):
        await say(hf, "a")


async def _end_with_too_small_budget(hf: Holdfast, stage: Stage) -> None:
    handle = hf.handle(await hf.store.get(REF))
    system = {"role": "system", "content": "word " * 200_000}
    with pytest.raises(BudgetTooSmall):
        await handle.send([system, {"role": "user", "content": "a"}])


async def _end_by_cancellation(hf: Holdfast, stage: Stage) -> None:
    running = await start_turn(hf, stage, "a")
    running.cancel()
    await asyncio.wait([running])


async def _end_by_closed_stream(hf: Holdfast, stage: Stage) -> None:
    message = parse_message({"role": "user", "content": "a"}, "message")
    assert await stop_at(
        Turn(hf.engine, TurnRequest(ref=REF, responder=hf.roster.find_responder(), incoming=(message,))), 0
    )


async def _end_block(hf: Holdfast, stage: Stage) -> None:
    async with (await hf.session("s")).turn("a"):
        pass


async def _end_block_with_exception(hf: Holdfast, stage: Stage) -> None:
    async def leave_turn() -> None:
        async with (await hf.session("s")).turn("a") as turn:
            turn.add("A")
            raise KeyError

    with pytest.raises(KeyError):
        await leave_turn()


async def _end_with_replay(hf: Holdfast, stage: Stage) -> None:
    message = parse_message({"role": "user", "content": "a"}, "message")
    request = TurnRequest(ref=REF, responder=hf.roster.find_responder(), incoming=(message,)).with_key("k")
    for _ in range(2):
        await collect_reply(Turn(hf.engine, request))


async def _end_after_unanswered_message(hf: Holdfast, stage: Stage) -> None:
    await (await hf.session("s")).append("a")
    await say(hf, "a")
    assert (await log(hf)) == ["a", "re: a"]


@pytest.mark.parametrize(
    "way",
    [
        _end_with_answer,
        _end_with_failure,
        _end_with_too_small_budget,
        _end_by_cancellation,
        _end_by_closed_stream,
        _end_block,
        _end_block_with_exception,
        _end_with_replay,
        _end_after_unanswered_message,
    ],
)
async def test_every_end_of_a_turn_releases_the_session(way: Callable[[Holdfast, Stage], Any], tmp_path: Path) -> None:
    """Another server can continue at once, whatever the outcome."""
    async with open_stage(f"sqlite:///{tmp_path}/s.db", openings=2) as ([one, two], stage):
        await way(one, stage)
        async with one.engine.lock_between_turns(REF):
            assert await get_claim(two) is None
        stage.failure = None
        await say(two, "next", session_queue="reject")


@asynccontextmanager
async def _open_with_kept_claim(tmp_path: Path) -> AsyncIterator[tuple[Holdfast, Holdfast, Stage, Clock]]:
    """Open a database twice, with a session whose claim the first Holdfast could not release."""
    clock = Clock()
    async with open_stage(f"sqlite:///{tmp_path}/s.db", openings=2, clock=clock) as ([one, two], stage):
        store = one.engine.life.store
        append = store.append

        async def failing(ref: SessionRef, write: Append) -> Any:
            if write.release is not None:
                raise StoreUnavailable("the disk is full")
            return await append(ref, write)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "append", failing)
            stage.failure = ModelUnavailable("gone")
            with pytest.raises(ModelUnavailable):  # the caller gets the turn's own error
                await say(one, "a")
            with pytest.raises(StoreUnavailable):
                await say(one, "b", session_queue="reject")
        stage.failure = None
        assert await get_claim(one) is not None
        yield one, two, stage, clock


@pytest.mark.parametrize("mode", ["reject", "queue", "interrupt"])
async def test_process_does_not_wait_for_its_own_unreleased_claim(mode: str, tmp_path: Path) -> None:
    """It knows that the turn has ended, so its next turn runs as soon as the store works again."""
    async with _open_with_kept_claim(tmp_path) as (one, two, _, _):
        one.engine.locks.pause = _fail_if_waiting
        assert await say(one, "b", session_queue=mode) == "re: b"
        assert await get_claim(one) is None
        assert await say(two, "c", session_queue="reject") == "re: c"


async def _fail_if_waiting(seconds: float) -> None:
    raise AssertionError(f"waited for {seconds} seconds")


@pytest.mark.parametrize("tools", [False, True])
async def test_claiming_adds_no_writes_or_reads_to_a_turn(
    tools: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim and release are part of the turn's own writes: one per step."""
    async with open_stage(f"sqlite:///{tmp_path}/s.db") as ([hf], _):
        await say(hf, "warm")
        store, asked = hf.engine.life.store, Counter[str]()

        def counting(name: str, method: Any) -> Any:
            async def call(*args: Any, **kwargs: Any) -> Any:
                asked[name] += 1
                return await method(*args, **kwargs)

            return call

        for name in ("append", "get", "want", "window", "entries", "sightings"):
            monkeypatch.setattr(store, name, counting(name, getattr(store, name)))
        session = await hf.session("s")
        asked.clear()
        async with session.turn("a") as turn:
            if tools:
                call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                turn.add({"role": "assistant", "content": None, "tool_calls": [call]})
                turn.add({"role": "tool", "tool_call_id": "x", "content": "1"})
                await turn.next()
            turn.add("A")
        assert asked == {"append": 2 + tools}
        assert await get_claim(hf) is None
