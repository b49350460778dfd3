"""One turn of a session at a time, in one process: who waits, who is refused, who interrupts, and what is in the log then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest, ModelUnavailable, SessionBusy, TurnInterrupted
from holdfast.limits import TURNS_WAITING
from tests.service.turns_kit import REF, Stage, get_claim, get_queue, log, open_stage, say, start_turn, wait_for_waiting

MEMORY = "sqlite://:memory:"


# -- waiting -------------------------------------------------------------------


async def test_turns_go_in_the_order_in_which_they_came() -> None:
    """Each is whole before the next begins."""
    async with open_stage(MEMORY) as ([hf], stage):
        tasks = [await start_turn(hf, stage, "a")]
        for at, text in enumerate("bcde"):
            tasks.append(asyncio.create_task(say(hf, text)))
            await wait_for_waiting(hf, at + 1, *tasks)
        assert stage.asked == ["a"]
        stage.go_on()
        assert await asyncio.gather(*tasks) == [f"re: {text}" for text in "abcde"]
        assert await log(hf) == [said for text in "abcde" for said in (text, f"re: {text}")]
        assert hf.engine.locks.is_empty


async def test_who_gives_up_waiting_is_passed_over() -> None:
    """Also in the very moment in which its turn has come."""
    async with open_stage(MEMORY) as ([hf], stage):
        running = await start_turn(hf, stage, "a")
        others = []
        for at, text in enumerate("bcd"):
            others.append(asyncio.create_task(say(hf, text)))
            await wait_for_waiting(hf, at + 1, *others)
        others[0].cancel()
        await asyncio.wait(others[:1])
        assert [lock.ref for lock in get_queue(hf)] == [REF] * 3
        given = get_queue(hf)[1].given
        assert given is not None
        given.add_done_callback(lambda _: others[1].cancel())
        stage.go_on()
        await asyncio.wait([running, *others])
        assert await log(hf) == ["a", "re: a", "d", "re: d"]
        assert hf.engine.locks.is_empty


async def test_waiting_has_an_end() -> None:
    """The one that runs goes on; what waited is not in the log."""
    async with open_stage(MEMORY, queue_timeout=0.001) as ([hf], stage):
        running = await start_turn(hf, stage, "a")
        with pytest.raises(SessionBusy):
            await say(hf, "b")
        stage.go_on()
        await running
        assert await log(hf) == ["a", "re: a"]


async def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further ones are refused at once; so are none of other sessions."""
    monkeypatch.setattr("holdfast.engine.session_lock.TURNS_WAITING", 2)
    assert TURNS_WAITING > 2
    async with open_stage(MEMORY) as ([hf], stage):
        tasks = [await start_turn(hf, stage, "a")]
        for at, text in enumerate("bc"):
            tasks.append(asyncio.create_task(say(hf, text)))
            await wait_for_waiting(hf, at + 1, *tasks)
        for mode in ("queue", "interrupt"):
            with pytest.raises(SessionBusy):
                await say(hf, "d", session_queue=mode)
        assert not get_queue(hf)[0].interrupted
        other = await hf.session("other")
        await other.send("x")
        stage.go_on()
        await asyncio.gather(*tasks)


async def test_a_process_knows_which_sessions_are_busy() -> None:
    """While a turn runs or waits; not while one is ended or goes back."""
    async with open_stage(MEMORY) as ([hf], stage):
        assert not hf.engine.is_busy(REF)
        running = await start_turn(hf, stage, "a")
        assert hf.engine.is_busy(REF)
        assert not hf.engine.is_busy(SessionRef("other", "s"))
        stage.go_on()
        await running
        async with hf.engine.lock_between_turns(REF):
            assert not hf.engine.is_busy(REF)
        assert not hf.engine.is_busy(REF)


@pytest.mark.parametrize("mode", ["queue", "reject", "interrupt"])
async def test_a_turn_inside_a_turn_is_refused_whatever_the_mode(mode: Any) -> None:
    """It would wait for itself; the outer one goes on."""
    async with open_stage(MEMORY) as ([hf], _):
        session = await hf.session("s")
        async with session.turn("a") as turn:
            with pytest.raises(InvalidRequest, match="is open in this task"):
                await session.send("b", session_queue=mode)
            turn.add("A")
        assert await log(hf) == ["a", "A"]


@pytest.mark.parametrize("settings", [{"session_queue": "wait"}, {"queue_timeout": 0}, {"queue_timeout": 86_401}])
async def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    """Are refused by name, before anything is opened, and of one turn before anything is written."""
    name = next(iter(settings))
    with pytest.raises(InvalidRequest, match=name):
        async with open_stage(MEMORY, **settings):
            pass
    if name == "session_queue":
        async with open_stage(MEMORY) as ([hf], _):
            with pytest.raises(InvalidRequest, match=name):
                await say(hf, "a", **settings)
            session = await hf.session("s")
            with pytest.raises(InvalidRequest, match=name):
                async with session.turn("a", **settings):
                    pass
            assert await log(hf) == []


# -- being refused -------------------------------------------------------------


@pytest.mark.parametrize("by", ["setting", "turn"])
async def test_rejecting(by: str) -> None:
    """At once, while one runs; a turn may say otherwise than the setting."""
    mine: dict[str, Any] = {"session_queue": "reject"} if by == "turn" else {}
    theirs: dict[str, Any] = {"session_queue": "reject"} if by == "setting" else {}
    async with open_stage(MEMORY, **theirs) as ([hf], stage):
        running = await start_turn(hf, stage, "a")
        with pytest.raises(SessionBusy) as refused:
            await say(hf, "b", **mine)
        assert refused.value.until > hf.clock()
        patient = asyncio.create_task(say(hf, "c", session_queue="queue"))
        await wait_for_waiting(hf, 1, patient)
        stage.go_on()
        await asyncio.gather(running, patient)
        await say(hf, "d", **mine)
        assert await log(hf) == ["a", "re: a", "c", "re: c", "d", "re: d"]


async def test_what_ends_or_goes_back_is_no_turn() -> None:
    """It is neither a reason to refuse a turn, nor refused or interrupted itself: both wait for each other."""
    async with open_stage(MEMORY, session_queue="reject") as ([hf], stage):
        await say(hf, "a")
        async with hf.engine.lock_between_turns(REF):
            turns = [asyncio.create_task(say(hf, text, session_queue="reject")) for text in "b"]
            await wait_for_waiting(hf, 1, *turns)
        await asyncio.gather(*turns)
        running = await start_turn(hf, stage, "c")
        back = asyncio.create_task((await hf.session("s")).rewind(0))
        await wait_for_waiting(hf, 1, back)
        last = asyncio.create_task(say(hf, "d", session_queue="interrupt"))
        with pytest.raises(TurnInterrupted):
            await running
        await asyncio.gather(back, last)
        assert await log(hf) == ["a", "re: a", "d", "re: d"]


# -- interrupting --------------------------------------------------------------


async def test_interrupting() -> None:
    """What had arrived is stored and marked; the new turn sees it; the other one's caller is told."""
    async with open_stage(MEMORY) as ([hf], stage):
        running = await start_turn(hf, stage, "a")
        assert await say(hf, "b", session_queue="interrupt") == "re: b"
        with pytest.raises(TurnInterrupted):
            await running
        assert await log(hf) == ["a", "re:|", "b", "re: b"]
        assert await get_claim(hf) is None
        assert hf.engine.locks.is_empty


async def test_each_interrupts_the_one_before() -> None:
    """What all of them brought is in the log, in order; the last one is answered, then who only waited."""
    async with open_stage(MEMORY, session_queue="interrupt") as ([hf], stage):
        stage.held = None
        tasks = [asyncio.create_task(say(hf, "a"))]
        await stage.until("a")
        tasks.append(asyncio.create_task(say(hf, "patient", session_queue="queue")))
        await wait_for_waiting(hf, 1, *tasks)
        tasks += [asyncio.create_task(say(hf, text)) for text in "bcd"]
        await stage.until("d")
        stage.go_on()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        told = [outcome if isinstance(outcome, str) else type(outcome) for outcome in outcomes]
        assert told == [TurnInterrupted, "re: patient", TurnInterrupted, TurnInterrupted, "re: d"]
        assert await log(hf) == ["a", "re:|", "b", "c", "d", "re: d", "patient", "re: patient"]
        assert stage.asked == ["a", "d", "patient"]


async def test_a_turn_is_not_cut_in_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted while its user message, or its whole reply, is being written, it writes it."""
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


async def test_a_block_of_the_library_is_told_where_it_goes_on() -> None:
    """`add` and `next` raise; what was added before is stored when the block ends, and then the other one begins."""
    async with open_stage(MEMORY) as ([hf], stage):
        session = await hf.session("s")
        others = []

        async def interrupted() -> None:
            async with session.turn("a") as turn:
                turn.add("A")
                others.append(asyncio.create_task(say(hf, "b", session_queue="interrupt")))
                await wait_for_waiting(hf, 1, *others)
                assert turn.interrupted
                with pytest.raises(TurnInterrupted):
                    await turn.next()
                assert stage.asked == []
                turn.add("never")

        with pytest.raises(TurnInterrupted):
            await interrupted()
        await asyncio.gather(*others)
        async with session.turn("c") as turn:
            assert not turn.interrupted
        assert await log(hf) == ["a", "A", "b", "re: b", "c"]


async def test_a_cancelled_turn_that_is_interrupted_is_cancelled() -> None:
    """Both at once: the task ends as cancelled tasks do, and is not cancelled any more by what came of the interruption."""
    async with open_stage(MEMORY) as ([hf], stage):
        running = await start_turn(hf, stage, "a")
        running.cancel()
        assert await say(hf, "b", session_queue="interrupt") == "re: b"
        assert (await asyncio.wait([running]))[0] == {running}
        assert running.cancelled()

        async def goes_on() -> int:
            with pytest.raises(TurnInterrupted):
                await say(hf, "c")
            task = asyncio.current_task()
            assert task is not None
            return task.cancelling()

        stage.held = {"c"}
        other = asyncio.create_task(goes_on())
        await stage.until("c")
        await say(hf, "d", session_queue="interrupt")
        assert await other == 0
        assert await log(hf) == ["a", "re:|", "b", "re: b", "c", "re:|", "d", "re: d"]


async def test_a_failure_lets_the_next_one_in() -> None:
    """Whatever it is."""
    async with open_stage(MEMORY) as ([hf], stage):
        stage.failure = ModelUnavailable("gone")
        tasks = [asyncio.create_task(say(hf, text)) for text in "abc"]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ModelUnavailable] * 3
        assert await log(hf) == ["a", "b", "c"]
        assert hf.engine.locks.is_empty
        assert await get_claim(hf) is None


async def test_a_stage_is_empty_at_the_end() -> None:
    """A turn that is given up leaves no claim and no place behind."""
    stage = Stage()
    async with open_stage(MEMORY, stage=stage) as ([hf], _):
        running = await start_turn(hf, stage, "a")
        running.cancel()
        await asyncio.wait([running])
        async with hf.engine.lock_between_turns(REF):
            assert await get_claim(hf) is None
        assert hf.engine.locks.is_empty
