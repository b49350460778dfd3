"""One turn of a session at a time: waiting, refusing, interrupting, and what each caller sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import World, count_waiting, fresh_store, inject, refused, texts, through, until, user

DOORS = ("library", "connect", "rest")


class Stage:
    """A model that answers `a` with `re: a`, and waits first with what is held."""

    def __init__(self, *held: str) -> None:
        self.gates = {text: Gate() for text in held}

    def __call__(self, body: dict[str, Any]) -> Reply:
        text = [one["content"] for one in body["messages"] if one["role"] == "user"][-1]
        return Reply(text=f"re: {text}", hold=self.gates.get(text))

    def open(self) -> None:
        for gate in self.gates.values():
            gate.open()


async def asked(hf: Any, text: str) -> None:
    """Wait until the model was asked for an answer to a text."""
    await hf.upstream.until(lambda: any(one.body["messages"][-1]["content"] == text for one in hf.upstream.requests))


class Busy(NamedTuple):
    """A session whose first turn, `a`, waits for its model."""

    hf: Any
    session: Any
    first: asyncio.Task[Any]
    stage: Stage


@asynccontextmanager
async def busy(world: World, settings: str = "", *before: Any, held: str = "a") -> AsyncIterator[Busy]:
    stage = Stage(*held)
    async with world.open(settings, script=stage) as hf:
        session = await hf.given("s", *before)
        first = asyncio.create_task(session.send(user("a")))
        await asked(hf, "a")
        yield Busy(hf, session, first, stage)
        stage.open()


@through(*DOORS)
async def test_turns_wait_for_each_other(world: World) -> None:
    """Turns of other sessions, and writes without a turn, do not wait."""
    async with busy(world) as (hf, session, first, stage):
        others = [asyncio.create_task(session.send(user(text))) for text in "bc"]
        assert (await hf.session("other").send(user("x")))["choices"][0]["message"]["content"] == "re: x"
        assert not any(one.done() for one in (first, *others))
        stage.open()
        await asyncio.gather(first, *others)
        found = texts(await session.messages())
        assert found[:2] == ["a", "re: a"]
        assert {*zip(found[2::2], found[3::2], strict=True)} == {("b", "re: b"), ("c", "re: c")}


@through(*DOORS)
@pytest.mark.parametrize("asks", [True, False], ids=["asked for", "a setting of the server"])
async def test_a_refused_turn_writes_nothing(world: World, asks: bool) -> None:
    mode: dict[str, Any] = {"session_queue": "reject"} if asks else {}
    async with busy(world, "" if asks else "gateway: {session_queue: reject}") as (_, session, first, stage):
        for refusing in (session.send(user("b"), **mode), session.turn("b", **mode)):
            with refused("session_busy"):
                await refusing
        stage.open()
        await first
        assert texts(await session.messages()) == ["a", "re: a"]


@through(*DOORS)
async def test_a_turn_waits_no_longer_than_its_timeout(world: World) -> None:
    """So do calls that change the log in another way. An append does not wait."""
    async with busy(world, "gateway: {queue_timeout: 50ms}", user("0")) as (_, session, first, stage):
        for waiting in (session.send(user("b")), session.turn("b"), session.rewind(0), session.replace(0, "B")):
            with refused("session_busy"):
                await waiting
        stage.open()
        await first
        assert texts(await session.messages()) == ["0", "a", "re: a"]


@through(*DOORS)
async def test_a_turn_interrupts_the_one_before(world: World) -> None:
    """The messages of all are logged in order; only the last one is answered."""
    stage = Stage("a", "b")
    async with world.open(script=stage) as hf:
        session = await hf.given("s")
        running = []
        for text in "ab":
            running.append(asyncio.create_task(session.send(user(text), session_queue="interrupt")))
            await asked(hf, text)
        answer = await session.send(user("c"), session_queue="interrupt")
        assert answer["choices"][0]["message"]["content"] == "re: c"
        for one in running:
            with refused("turn_interrupted"):
                await one
        assert texts(await session.messages()) == ["a", "b", "c", "re: c"]
        stage.open()


@through(*DOORS)
async def test_a_failed_turn_lets_the_next_one_run(world: World) -> None:
    async with world.open(script=[Reply(status=400, error="no"), "fine"]) as hf:
        session = await hf.given("s")
        with refused("upstream_rejected"):
            await session.send(user("a"))
        await session.send(user("b"))
        assert texts(await session.messages()) == ["a", "b", "fine"]


@through("library")
async def test_a_cancelled_turn_lets_the_next_one_run(world: World) -> None:
    """One that only waits leaves the queue, and its message is not logged."""
    async with busy(world) as (_, session, first, _):
        waiting = asyncio.create_task(session.send(user("b")))
        await asyncio.sleep(0)
        for task in (waiting, first):
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        await session.send(user("c"))
        assert texts(await session.messages()) == ["a", "c", "re: c"]


@through("library")
async def test_a_turn_cancelled_while_it_waits_for_a_write_lets_the_next_one_run(world: World) -> None:
    """The write is the reply of another cancelled turn, the third of that turn, and is completed."""
    written = asyncio.Event()
    async with world.open(script=Stage()) as hf:
        session = await hf.given("s")
        with inject("before-commit", written.wait, at=3) as fault:
            for text in "ab":
                task = asyncio.create_task(session.send(user(text)))
                await until(lambda: fault.hits > 2)
                await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.wait([task])
            written.set()
        await session.send(user("c"))
        assert texts(await session.messages()) == ["a", "re: a", "c", "re: c"]


@through("library")
@pytest.mark.parametrize("mode", ["queue", "reject", "interrupt"])
async def test_a_turn_inside_of_a_turn_is_refused(world: World, mode: Any) -> None:
    """It would wait for itself. The outer one goes on. Another task may wait, and other sessions have turns of their own."""
    async with world.open() as hf:
        session = await hf.given("s")
        handle = await session.native()
        other = await (await hf.given("other")).native()
        async with handle.turn("a") as turn:
            for nested in (
                handle.send("b", session_queue=mode),
                handle.begin_turn("b", session_queue=mode),
                handle.interrupt(),
                handle.speak("x"),
                handle.close(),
            ):
                with refused("invalid_request", "open in this task"):
                    await nested
            waiting = asyncio.create_task(handle.rewind(0))
            async with other.turn("x"):
                pass
            turn.add("A")
        await waiting
        assert texts(await session.messages()) == ["a", "A"]


@through("library")
async def test_an_interrupted_block_is_told_and_keeps_what_was_added(world: World) -> None:
    """The other turn begins when the block has ended."""
    async with world.open(script=Stage()) as hf:
        session = await hf.given("s")
        handle = await session.native()
        others = []

        async def run() -> None:
            async with handle.turn("a") as turn:
                turn.add("A")
                others.append(asyncio.create_task(session.send(user("b"), session_queue="interrupt")))
                await until(lambda: turn.interrupted)
                with refused("turn_interrupted"):
                    await turn.next()
                assert not others[0].done()
                turn.add("never")

        with refused("turn_interrupted"):
            await run()
        await others[0]
        assert texts(await session.messages()) == ["a", "A", "b", "re: b"]


@through("library")
async def test_a_cancelled_and_interrupted_turn_ends_as_cancelled(world: World) -> None:
    async with busy(world, held="ac") as (hf, session, running, _):
        running.cancel()
        await session.send(user("b"), session_queue="interrupt")
        await asyncio.wait([running])
        assert running.cancelled()

        async def goes_on() -> int:
            with refused("turn_interrupted"):
                await session.send(user("c"))
            task = asyncio.current_task()
            assert task is not None
            return task.cancelling()

        other = asyncio.create_task(goes_on())
        await asked(hf, "c")
        await session.send(user("d"), session_queue="interrupt")
        assert await other == 0


@through("library")
async def test_no_more_than_256_turns_wait(world: World) -> None:
    async with busy(world) as (_, session, first, stage):
        handle = await session.native()
        waiting = [asyncio.create_task(handle.send(str(number))) for number in range(257)]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (one,) = done
        assert getattr(one.exception(), "code", None) == "session_busy"
        with refused("session_busy"):
            await handle.send("x", session_queue="interrupt")
        assert not first.done()
        for task in waiting:
            task.cancel()
        stage.open()
        await first
        await asyncio.wait(waiting)
        assert texts(await session.messages()) == ["a", "re: a"]


# -- several servers -------------------------------------------------------------------


@through("library")
@pytest.mark.parametrize("store", ["file", "postgres", "mysql"])
async def test_turns_of_several_servers_wait_for_each_other(world: World, store: str) -> None:
    with fresh_store(store, world.folder) as url:
        async with world.open(store=url) as one, world.open(store=url) as two:
            handles = [await (await one.given("s")).native(), await two.session("s").native()]

            async def work(number: int) -> None:
                async with handles[number % 2].turn(f"u{number}") as turn:
                    turn.add(f"a{number}")

            await asyncio.gather(*(work(number) for number in range(6)))
            found = texts(await one.session("s").messages())
            assert sorted(found[::2]) == [f"u{number}" for number in range(6)]
            assert [text.replace("u", "a") for text in found[::2]] == found[1::2]
            turn = await handles[0].begin_turn("busy")
            with refused("session_busy"):
                await handles[1].begin_turn("b", session_queue="reject")
            await turn.end()
            assert await handles[1].verify() == 13


@through("library")
async def test_a_busy_turn_notices_that_another_server_interrupts_it(world: World) -> None:
    """Even one that writes again and again, and so renews its claim before it has seen the wish."""
    url = f"sqlite:///{world.folder}/chat.db"
    async with world.open(store=url) as one, world.open(store=url, script=Stage()) as two:
        turn = await (await (await one.given("s")).native()).begin_turn("a")
        other = asyncio.create_task(two.session("s").send(user("b"), session_queue="interrupt"))
        with refused("turn_interrupted"):
            for _ in range(1000):
                turn.add("A")
                await turn.next()
        await turn.end()
        await other
        found = texts(await two.session("s").messages())
        assert (found[0], {*found[1:-2]}, found[-2:]) == ("a", {"A"}, ["b", "re: b"])


@through("library")
@pytest.mark.parametrize("store", ["file", "postgres", "mysql"])
async def test_speech_and_interruptions_find_a_turn_of_another_server(world: World, store: str) -> None:
    with fresh_store(store, world.folder) as url:
        async with world.open(store=url) as one, world.open(store=url) as two:
            handle, there = await (await one.given("s")).native(), two.session("s")
            turn = await handle.begin_turn("a")
            assert not (await there.speak("x", priority="IGNORE"))["spoken"]
            late = asyncio.create_task(there.speak("y", priority="APPEND"))
            turn.add("A")
            await turn.end()
            assert (await late)["spoken"]
            turn = await handle.begin_turn("b")
            turn.add("Well, I think so.")
            stopping = asyncio.create_task(there.interrupt(content="Well"))
            with refused("turn_interrupted"):
                for number in range(1000):
                    turn.state["number"] = number
                    await turn.next()
            await turn.end()
            done = await stopping
            assert (done["stopped"], done["interrupted"]) == (True, True)
            assert texts(await there.messages()) == ["a", "A", "y", "b", "Well"]
            assert await handle.verify() == 6


@through("library")
async def test_a_turn_that_lost_its_claim_to_another_server_writes_nothing_more(world: World) -> None:
    """Its process did not renew the claim in time. What it had written stays."""
    url = f"sqlite:///{world.folder}/chat.db"
    async with world.open(store=url) as one, world.open(store=url) as two:
        late = await (await (await one.given("s")).native()).begin_turn("a")
        world.clock.now += 60_000
        async with (await two.session("s").native()).turn("b") as turn:
            assert texts(turn.messages) == ["a", "b"]
            turn.add("B")
        late.add("A")
        with refused("turn_lost"):
            await late.end()
        assert texts(await two.session("s").messages()) == ["a", "b", "B"]


@through("library")
async def test_a_turn_that_nobody_overtook_continues_after_a_late_renewal(world: World) -> None:
    async with world.open(store="file") as hf:
        session = await hf.given("s")
        turn = await (await session.native()).begin_turn("a")
        world.clock.now += 60_000
        turn.add("A")
        await turn.end()
        assert texts(await session.messages()) == ["a", "A"]


@through("library")
async def test_a_turn_that_is_cancelled_when_it_becomes_first_blocks_no_other(world: World) -> None:
    async with world.open("gateway: {queue_timeout: 5s}") as hf:
        session = await hf.native.session("s")
        async with session.turn("a") as turn:
            turn.add("re: a")
            waiting = asyncio.create_task(session.turn("b").__aenter__())
            await until(lambda: count_waiting(hf.native) == 1)
        assert waiting.cancel()
        async with session.turn("c") as turn:
            turn.add("re: c")
        assert texts(await hf.session("s").messages()) == ["a", "re: a", "c", "re: c"]
