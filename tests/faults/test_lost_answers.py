"""Answers of the store that are lost at any write of a turn: each message is in the log once, and its usage is counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents import Agent, Llm, Roster
from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry
from holdfast.engine.entries import make_entries
from holdfast.engine.session_lock import LEASE
from holdfast.errors import HoldfastError, InvalidRequest, SessionBusy, StoreError, StoreUnavailable, TurnLost
from holdfast.holdfast import Holdfast
from holdfast.hooks.transcripts import Transcripts
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from tests.clocks import Clock
from tests.faults.lossy_store import CALLS_DOWN, REF, Loss, Record, open_lossy, read_record
from tests.service.scripted_model import ScriptedModel
from tests.service.tools_kit import make_reply
from tests.service.transcripts_kit import describe_file
from tests.service.turns_kit import retry_at_once
from tests.waits import until

T = TypeVar("T")
MEMORY = "sqlite://:memory:"
ROUNDS = 3
WRITES = ROUNDS + 2
"""Writes of the turn: the user's message, the tool rounds, and the reply."""
TRIES = 2 * CALLS_DOWN
LOSSES: tuple[Loss, ...] = ("answer", "request", "both", "late")
WHOLE = Record(
    [
        "user: find",
        *(text for at in range(ROUNDS) for text in (f"assistant c{at}:", f"tool c{at}: found {at}", "note:")),
        "assistant: done",
    ],
    calls=ROUNDS + 1,
    prompt_tokens=100 + 101 + 102 + 200,
    completion_tokens=10 + 11 + 12 + 20,
    state={"rounds": ROUNDS, "found": [*range(ROUNDS)]},
)


async def persist(work: Callable[[], Awaitable[T]]) -> T:
    """Do something again, as a program does, until the store answers."""
    for _ in range(TRIES):
        try:
            return await work()
        except StoreError:
            continue
    return await work()


def add_round(turn: Any, at: int) -> None:
    """Add a call, its result, a note, and changes of the state."""
    function = {"name": "find", "arguments": "{}"}
    calls = [{"id": f"c{at}", "type": "function", "function": function}]
    usage = {"prompt_tokens": 100 + at, "completion_tokens": 10 + at}
    turn.add({"role": "assistant", "content": None, "tool_calls": calls}, usage=usage)
    turn.add({"role": "tool", "tool_call_id": f"c{at}", "content": f"found {at}"})
    turn.add({"role": "note", "content": f"round {at}"})
    turn.state.increment("rounds")
    turn.state.append("found", at)


def add_reply(turn: Any) -> None:
    turn.add("done", usage={"prompt_tokens": 200, "completion_tokens": 20})


async def run_turn(hf: Holdfast) -> None:
    session = await persist(lambda: hf.session("s"))
    turn = await persist(lambda: session.begin_turn("find"))
    for at in range(ROUNDS):
        add_round(turn, at)
        await persist(turn.next)
        assert (turn.state["rounds"], turn.state["found"]) == (at + 1, [*range(at + 1)])
    add_reply(turn)
    await turn.end()


# -- a library turn --------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
async def test_library_turn_is_written_once_whatever_is_lost(loss: Loss) -> None:
    """At each write, with each kind of loss."""
    for lost in range(WRITES):
        async with open_lossy(MEMORY, {lost: loss}) as (hf, losses, inner):
            ends = lost == WRITES - 1 and loss in ("both", "late")
            if ends:  # the turn cannot find out, and says so
                with pytest.raises(StoreUnavailable):
                    await run_turn(hf)
            else:
                await run_turn(hf)
            await losses.settle()
            assert await read_record(inner) == WHOLE, (lost, loss)


async def test_write_that_commits_late_is_not_repeated() -> None:
    """The store commits it only after the turn has looked for it, and just before the turn writes it again."""
    async with open_lossy(MEMORY) as (hf, losses, inner):
        session = await hf.session("s")
        turn = await session.begin_turn("a")
        held: list[Append] = []

        async def hold(store: Store, ref: Any, write: Append) -> Appended:
            if not held:
                held.append(write)
                raise StoreUnavailable("no answer")
            if len(held) == 1 and write.entries:
                held.append(write)
                await store.append(ref, held[0])
            return await store.append(ref, write)

        losses.replace_append(hold)
        turn.add("b", usage={"prompt_tokens": 7})
        with pytest.raises(StoreUnavailable):
            await turn.next()
        await turn.next()
        turn.add("c")
        await turn.end()
        record = await read_record(inner)
        assert record.texts == ["user: a", "assistant: b", "assistant: c"]
        assert record.prompt_tokens == 7


async def test_refused_state_is_reported_after_a_lost_answer() -> None:
    """The messages are written without it, once."""
    async with open_lossy(MEMORY) as (hf, losses, inner):
        session = await hf.session("s")
        turn = await session.begin_turn("a")
        turn.state.increment("user:n")
        await (await hf.session("t")).state.set("user:n", "text")
        turn.add("b")
        losses.plan[losses.writes + 1] = "both"  # the second attempt, without the changes
        with pytest.raises(InvalidRequest):
            await persist(turn.next)
        turn.add("c")
        await turn.end()
        assert (await read_record(inner)).texts == ["user: a", "assistant: b", "assistant: c"]


async def test_reply_is_stored_once_under_its_output_key() -> None:
    roster = Roster(agents={"a": Agent(name="a", output_key="last")})
    for loss in LOSSES:
        async with open_lossy(MEMORY, {1: loss}, roster=roster) as (hf, losses, inner):
            session = await hf.session("s", agent="a")
            turn = await session.begin_turn("a")
            turn.add("b")
            await persist(turn.next)
            await turn.end()
            await losses.settle()
            record = await read_record(inner)
            assert (record.texts, record.state) == (["user: a", "assistant: b"], {"last": "b"})


async def test_found_write_is_searchable_and_in_the_transcript(tmp_path: Path) -> None:
    """Whatever follows a write follows it, although the store reported an error."""
    async with open_lossy(
        f"sqlite:///{tmp_path}/s.db",
        {1: "answer"},
        hooks=[Transcripts(tmp_path / "t")],
        index=f"sqlite:///{tmp_path}/i.db",
    ) as (hf, _, _inner):
        session = await hf.session("s")
        async with session.turn("where is the zeppelin?") as turn:
            turn.add("the zeppelin is in Friedrichshafen")

        async def is_found() -> bool:
            found = await hf.search("Friedrichshafen")
            return bool(found.hits)

        await until(is_found)
    assert describe_file(tmp_path / "t" / "s.jsonl") == [
        "[s]",
        "where is the zeppelin?",
        "the zeppelin is in Friedrichshafen",
    ]


@pytest.mark.parametrize("lost", ["both", "request"])
async def test_committed_write_of_an_expired_claim_is_found(tmp_path: Path, lost: Literal["both", "request"]) -> None:
    """Another server has taken the session over, has written to it, and has released its own claim."""
    url, clock = f"sqlite:///{tmp_path}/s.db", Clock()
    async with open_lossy(url, clock=clock) as (hf, losses, inner), Holdfast(url, clock=clock, index=None) as other:
        session = await hf.session("s")
        turn = await session.begin_turn("a")
        turn.add("b")
        losses.plan[1] = lost
        with pytest.raises(StoreUnavailable):
            await turn.next()
        clock.now += LEASE
        async with (await other.session("s")).turn("c") as later:
            later.add("d")
        losses.plan.clear()
        with pytest.raises(TurnLost):
            await persist(turn.next)
        with pytest.raises(TurnLost) if lost == "request" else nullcontext():
            await turn.end()
        found = (await read_record(inner)).texts
        assert found == ["user: a", *(["assistant: b"] if lost == "both" else []), "user: c", "assistant: d"]


@pytest.mark.parametrize("taken_over", [False, True])
async def test_lost_reply_is_found_after_the_next_turn_of_another_server(tmp_path: Path, taken_over: bool) -> None:
    """The reply has released the session, so another turn may follow at once."""
    url, clock = f"sqlite:///{tmp_path}/s.db", Clock()
    async with open_lossy(url, clock=clock) as (hf, losses, inner), Holdfast(url, clock=clock, index=None) as other:

        async def write_then_lose(store: Store, ref: Any, write: Append) -> Appended:
            appended = await store.append(ref, write)
            if write.release and not appended.session.claim and write.entries:
                clock.now += LEASE if taken_over else 0
                async with (await other.session("s")).turn("c") as later:
                    later.add("d")
                raise StoreUnavailable("no answer")
            return appended

        losses.replace_append(write_then_lose)
        async with (await hf.session("s")).turn("a") as turn:
            turn.add("b", usage={"prompt_tokens": 7})
        record = await read_record(inner)
        assert record.texts == ["user: a", "assistant: b", "user: c", "assistant: d"]
        assert record.prompt_tokens == 7


async def test_claim_is_kept_until_the_last_write_of_a_cancelled_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a turn of another server could come before it, and the reply would be lost."""
    url, clock, counted = f"sqlite:///{tmp_path}/s.db", Clock(), asyncio.Event()

    async def count_slowly(*args: Any, **options: Any) -> Any:
        await counted.wait()
        return await make_entries(*args, **options)

    async with open_lossy(url, clock=clock) as (hf, _, inner), Holdfast(url, clock=clock, index=None) as other:
        turn = await (await hf.session("s")).begin_turn("a")
        turn.add("b")
        with monkeypatch.context() as patched:
            patched.setattr("holdfast.turns.turn.make_entries", count_slowly)
            ending = asyncio.ensure_future(turn.end())
            await asyncio.sleep(0)
            ending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ending
            session = await other.session("s")
        try:
            with pytest.raises(SessionBusy):
                await session.begin_turn("c", session_queue="reject")
        finally:
            counted.set()
        retry_at_once(other)
        async with session.turn("c") as later:
            later.add("d")
        assert (await read_record(inner)).texts == ["user: a", "assistant: b", "user: c", "assistant: d"]


# -- turns of the gateway, and other writers -----------------------------------------


def find(what: str) -> str:
    """Find something."""
    return f"found {what}"


def make_roster() -> Roster:
    """Return a model that calls `find` three times, and then replies."""

    def answer(request: dict[str, Any]) -> Any:
        at = sum(message["role"] == "tool" for message in request["messages"])
        usage = {"prompt_tokens": 100 + at, "completion_tokens": 10 + at, "total_tokens": 110 + 2 * at}
        if at < ROUNDS:
            return make_reply(None, (f"c{at}", "find", {"what": str(at)}), usage=usage)
        return make_reply("done", usage=usage)

    model = ScriptedModel(answer)
    return Roster({"default": Llm(name="default", model="gpt-4o", client=model)})


async def test_turn_with_the_servers_tools_is_written_once() -> None:
    """The caller notices nothing, whichever answer of the store is lost."""
    for lost in range(2 * ROUNDS + 2):
        async with open_lossy(MEMORY, {lost: "answer"}, roster=make_roster(), tools=[find]) as (hf, losses, inner):
            completion = await (await hf.session("s")).send("find")
            assert completion["choices"][0]["message"]["content"] == "done"
            assert losses.writes == 2 * ROUNDS + 2
            rounds = [text for at in range(ROUNDS) for text in (f"assistant c{at}:", f"tool c{at}: found {at}")]
            record = await read_record(inner)
            assert record.texts == ["user: find", *rounds, "assistant: done"]
            assert (record.calls, record.prompt_tokens) == (ROUNDS + 1, 406)


async def test_request_that_failed_may_be_sent_again() -> None:
    """The store commits, and cannot be read. The client gets an error, and sends the same request again."""
    for lost in range(2 * ROUNDS + 1):
        async with open_lossy(MEMORY, {lost: "both"}, roster=make_roster(), tools=[find]) as (hf, _, inner):
            session = await hf.session("s")
            completion = await persist(lambda session=session: session.send("find"))  # type: ignore[misc]  # bound at once
            assert completion["choices"][0]["message"]["content"] == "done"
            texts = (await read_record(inner)).texts
            assert [texts.count(text) for text in ("user: find", "assistant: done")] == [1, 1], (lost, texts)
            assert len(texts) == len(set(texts)), (lost, texts)


async def test_speech_is_written_once() -> None:
    async with open_lossy(MEMORY, {0: "answer"}) as (hf, _, inner):
        done = await (await hf.session("s")).speak("Hello.")
        assert done.entry is not None
        assert (await read_record(inner)).texts == ["assistant: Hello."]


async def test_log_operations_are_done_once() -> None:
    """`pop`, `replace` and `clear` look for their write, even if others have written since."""
    for loss in ("answer", "request"):
        async with open_lossy(MEMORY) as (hf, losses, inner):
            session = await hf.session("s")
            await session.append([{"role": "user", "content": text} for text in "abc"])
            losses.plan = {losses.writes: loss}
            popped = await session.pop()
            assert popped is not None
            assert popped.message.text == "c"
            losses.plan = {losses.writes: loss}
            assert (await session.replace(0, {"role": "user", "content": "A"})).message.text == "A"
            assert [entry.message.text for entry in await inner.entries(REF)] == ["A", "b"]
            losses.plan = {losses.writes: loss}
            assert (await session.clear()).messages == 0
            assert len(await inner.entries(REF, retired=True)) == 5


# -- losses and cancellations anywhere ---------------------------------------------

PLANS = st.dictionaries(st.integers(0, 2 * WRITES), st.sampled_from(LOSSES), max_size=4)
CANCELS = st.dictionaries(st.integers(0, 2 * WRITES), st.integers(0, 12), max_size=4)
OTHERS = st.sets(st.integers(0, 2 * WRITES), max_size=4)
OTHER = NewEntry(message=Message(role="user", content="other"), tokens=1, timestamp=Clock().now)


class Program:
    """A program whose calls are cancelled, and which makes them again.

    Args:
        cancels: by number of the call, the number of times that the event loop goes round before the call is cancelled.
        others: the numbers of the calls before which another program writes to the session.
    """

    def __init__(self, inner: Store, cancels: dict[int, int], others: set[int]) -> None:
        self._inner = inner
        self._cancels = cancels
        self._others = others
        self._calls = 0

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Make a call until it succeeds."""
        while True:
            try:
                return await self.call_once(work)
            except (StoreError, asyncio.CancelledError):
                continue

    async def call_once(self, work: Callable[[], Awaitable[T]]) -> T:
        number, self._calls = self._calls, self._calls + 1
        if number in self._others:
            await self._inner.append(REF, Append(entries=[OTHER], timestamp=OTHER.timestamp))
        task = asyncio.ensure_future(work())
        if number in self._cancels:
            for _ in range(self._cancels[number]):
                await asyncio.sleep(0)
            task.cancel()
        return await task


@given(PLANS, CANCELS, OTHERS, st.integers(0, 3))
async def test_whatever_is_lost_or_cancelled_each_message_is_written_once(
    plan: dict[int, Loss], cancels: dict[int, int], others: set[int], pauses: int
) -> None:
    async with open_lossy(MEMORY, plan) as (hf, losses, inner):
        losses.pauses = pauses
        program, failed = Program(inner, cancels, others), False
        session = await program.call(lambda: hf.session("s"))
        key = "k" if others else None  # without a key, the message is recognised only at the end of the log
        turn = await program.call(lambda: session.begin_turn("find", idempotency_key=key))
        for at in range(ROUNDS):
            add_round(turn, at)
            await program.call(turn.next)
        add_reply(turn)
        try:
            await program.call_once(turn.end)
        except (HoldfastError, asyncio.CancelledError):
            failed = True
        await hf.engine.locks.close()
        await losses.settle()
        record = await read_record(
            inner, live=key is not None
        )  # a keyed turn is written again after those that overtook it
        own = [text for text in record.texts if text != "user: other"]
        if failed and own == WHOLE.texts[:-1]:  # the program knows that the reply may be missing
            assert record.calls == WHOLE.calls - 1
            assert record.prompt_tokens == WHOLE.prompt_tokens - 200
            assert record.state == WHOLE.state
        else:
            assert msgspec.structs.replace(record, texts=own) == WHOLE
