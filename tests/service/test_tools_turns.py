"""Turns with server tools: rounds, errors, limits, what is stored when, and what the client sees."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from holdfast.agents import Agent
from holdfast.domain.log import to_sent_message
from holdfast.domain.messages import chain
from holdfast.errors import InvalidRequest
from holdfast.holdfast import Holdfast
from holdfast.tools.functions import tool_from
from holdfast.tools.tool import ToolLimits
from holdfast.turns.reply_assembler import Progress
from holdfast.turns.respond import respond
from tests.service.scripted_model import REF
from tests.service.tools_kit import THEIRS, Call, bench, content, make_reply, shout


async def find_order(number: int) -> dict[str, Any]:
    """Find an order."""
    return {"order": number, "status": "sent"}


# -- rounds --------------------------------------------------------------------


async def test_reply_after_a_tool_call_is_returned() -> None:
    """The tool runs, the model gets its result, the client gets one reply."""
    script = [make_reply(None, ("c1", "find_order", {"number": 7})), make_reply("It was sent.")]
    async with bench(script, find_order, shout) as desk:
        completion = await desk.ask("Where is my order?")
        assert content(completion) == "It was sent."
        assert completion["choices"][0]["finish_reason"] == "stop"
        assert "tool_calls" not in completion["choices"][0]["message"]
        assert await desk.describe_log() == [
            "user: Where is my order?",
            "assistant find_order(c1): ",
            'tool c1: {"order":7,"status":"sent"}',
            "assistant: It was sent.",
        ]
        assert [tool["function"]["name"] for tool in desk.model.bodies[0]["tools"]] == ["find_order", "shout"]
        assert [message["role"] for message in desk.model.prompts[1]] == ["user", "assistant", "tool"]
        assert {entry.turn_id for entry in await desk.log()} == {0}
        assert await desk.session.verify() == 4


async def test_calls_of_one_message_run_concurrently() -> None:
    """The tools wait for each other, so they would never finish one after the other."""
    met, heard = asyncio.Event(), threading.Event()

    async def first() -> str:
        await met.wait()
        return "one"

    async def second() -> str:
        met.set()
        await asyncio.to_thread(heard.wait)
        return "two"

    def third() -> str:
        heard.set()
        return "three"

    script = [make_reply(None, ("a", "first", {}), ("b", "second", {}), ("c", "third", "")), make_reply("Done.")]
    async with bench(script, first, second, third) as desk:
        await desk.ask("go")
        told = await desk.describe_log()
        assert sorted(told[2:5]) == ["tool a: one", "tool b: two", "tool c: three"]
        assert {entry.unit for entry in (await desk.log())[1:5]} == {1}


async def test_client_collects_one_message_from_all_rounds() -> None:
    """Chunks share one id and one role; texts before calls precede the last one and are separated from it."""
    script = [
        make_reply("Let me look.", ("a", "shout", {"text": "x"})),
        make_reply("Once more: ", ("b", "shout", {"text": "y"})),
        make_reply("Found it."),
    ]
    async with bench(script, shout) as desk:
        chunks = [chunk async for chunk in respond(desk.turn("go"))]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        text = "".join(delta.get("content") or "" for delta in deltas)
        assert text == "Let me look.\n\nOnce more: Found it."
        assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
        assert sum("role" in delta for delta in deltas) == 1
        assert not any("tool_calls" in delta for delta in deltas)
        reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
        assert [reason for reason in reasons if reason] == ["stop"]
        assert sum("usage" in chunk for chunk in chunks) == 1
        assert not any(isinstance(chunk, Progress) for chunk in chunks)
        last = (await desk.log())[-1]
        assert last.message.content == "Found it."
        assert last.metadata == {"preface": "Let me look.\n\nOnce more: "}
        first, *_ = await desk.log()
        assert last.digest == chain(first.digest, to_sent_message(last.message, last.metadata))
        assert to_sent_message(last.message, last.metadata).content == text
        assert await desk.session.verify() == 6


async def test_each_result_is_durable_before_the_next_call() -> None:
    """When the model is called again, everything in its prompt is in the log."""
    seen: list[int] = []

    async def counting() -> str:
        seen.append(len(await desk.log()))
        return "ok"

    script = [make_reply(None, ("a", "counting", {})), make_reply(None, ("b", "counting", {})), make_reply("z")]
    async with bench(script, counting) as desk:
        await desk.ask("go")
        assert seen == [2, 4]


async def test_session_send_runs_tools_and_session_turn_does_not() -> None:
    """`session.turn` leaves tools to the caller of the model."""
    async with bench([make_reply(None, ("a", "shout", {"text": "x"})), make_reply("z")], shout) as desk:
        assert content(await desk.session.send("go")) == "z"
        async with desk.session.turn("more", tools=[{"type": "function", "function": {"name": "shout"}}]) as turn:
            turn.add("ok")


# -- errors ----------------------------------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


async def fails(how: str) -> Any:
    """Fail."""
    match how:
        case "value":
            raise ValueError("no order 7")
        case "silent":
            raise KeyError
        case "unprintable":
            raise Unprintable
        case "cancelled":
            raise asyncio.CancelledError
        case "surrogate":
            raise ValueError("\ud800")
        case _:
            return object()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("fails", {"how": "value"}), "ValueError: no order 7"),
        (("fails", {"how": "silent"}), "KeyError"),
        (("fails", {"how": "unprintable"}), "Unprintable"),
        (("fails", {"how": "cancelled"}), "the tool cancelled itself"),
        (("fails", {"how": "surrogate"}), "ValueError: ?"),
        (("fails", {"how": "object"}), "TypeError"),
        (("fails", {"how": 7}), "Expected `str`, got `int` - at `$.how`"),
        (("fails", {}), "missing required field `how`"),
        (("fails", {"how": "x", "much": 1}), "unknown field `much`"),
        (("fails", "{half"), "not valid JSON"),
        (("fails", "[1]"), "expected a JSON object"),
        (("fall", {}), "there is no tool 'fall'; there are: fails, shout"),
        (("shout", {"text": None}), "Expected `str`, got `null`"),
    ],
)
async def test_errors_are_returned_as_results(call: tuple[str, Any], words: str) -> None:
    """The model gets every error of a tool or of its own call as text, and the turn continues."""
    async with bench([make_reply(None, ("a", *call)), make_reply("I see.")], fails, shout) as desk:
        assert content(await desk.ask("go")) == "I see."
        result = (await desk.log())[2].message.text
        assert words in msgspec.json.decode(result)["error"]
        assert "Traceback" not in result


async def test_log_contains_neither_traceback_nor_text_of_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """An error may quote a secret, so the log only has its type and place."""
    async with bench([make_reply(None, ("a", "fails", {"how": "value"})), make_reply("I see.")], fails) as desk:
        await desk.ask("go")
    (record,) = [record for record in caplog.records if record.name == "holdfast.tools"]
    fields: Any = record.__dict__["fields"]
    assert (fields["tool"], fields["error"]) == ("fails", "ValueError")
    assert __file__ in fields["place"]
    assert "no order" not in str(record.__dict__)


async def test_slow_tool_times_out() -> None:
    """Async tools are cancelled and threads abandoned; even a tool that ignores cancellation blocks no one."""
    release, stopped = threading.Event(), asyncio.Event()

    def hangs() -> None:
        release.wait()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def stubborn() -> None:
        while not stubborn_may_end.is_set():
            try:
                await stubborn_may_end.wait()
            except asyncio.CancelledError:
                continue

    stubborn_may_end = asyncio.Event()
    calls: list[Call] = [("a", "hangs", {}), ("b", "slow", {}), ("c", "stubborn", {})]
    script = [make_reply(None, *calls), make_reply("Never mind.")]
    try:
        async with bench(script, hangs, slow, stubborn, limits=ToolLimits(timeout=0.01)) as desk:
            assert content(await desk.ask("go")) == "Never mind."
            results = [entry.message.text for entry in await desk.log() if entry.kind == "result"]
            assert all("took longer than 0.01 s" in result for result in results)
            await stopped.wait()
    finally:
        release.set()
        stubborn_may_end.set()


async def test_base_exceptions_propagate() -> None:
    """The turn ends, with no open call."""

    class Stop(BaseException):
        pass

    async def stops() -> None:
        raise Stop

    async def waits() -> None:
        await asyncio.Event().wait()

    async with bench([make_reply(None, ("a", "stops", {}), ("b", "waits", {}))], stops, waits) as desk:
        with pytest.raises(Stop):
            await desk.ask("go")
        async with desk.hf.engine.locks.make_exclusive_lock(REF):
            session = await desk.hf.store.get(REF)
        assert session.tail.open_calls == ()
        assert [entry.kind for entry in await desk.log()] == ["user", "calls", "result", "result"]


async def test_long_results_are_cut() -> None:
    """Head and tail are kept, in whole characters, and the marker says how much is missing."""

    async def long() -> str:
        return "ä" * 3000 + "end"

    async with bench(
        [make_reply(None, ("a", "long", {})), make_reply("ok")], long, limits=ToolLimits(result=1024)
    ) as desk:
        await desk.ask("go")
        text = (await desk.log())[2].message.text
        assert len(text.encode()) <= 1024
        head, marker, tail = text.partition("\n[… ")
        assert marker
        assert set(head) == {"ä"}
        assert tail.endswith("ä" * 100 + "end")
        missing = int(tail.split()[0].replace(",", ""))
        assert missing + len(head.encode()) + len(tail.partition("…]\n")[2].encode()) == 6003
        assert "of 6,003 bytes" in tail


async def test_parallel_calls_with_one_id_are_distinguished() -> None:
    """Some models give all calls the same id, or none: each result is still matched to its call, in any order."""
    first_may = asyncio.Event()

    async def wait(n: int) -> str:
        if n == 1:
            await first_may.wait()
        first_may.set()
        return f"result {n}"

    async with bench(
        [make_reply(None, ("x", "wait", {"n": 1}), ("x", "wait", {"n": 2})), make_reply("ok")], wait
    ) as desk:
        await desk.ask("go")
        calls, *results = (await desk.log())[1:4]
        by_id = {entry.message.tool_call_id: entry.message.text for entry in results}
        assert [by_id[call.id] for call in calls.message.tool_calls] == ["result 1", "result 2"]


# -- number of rounds ------------------------------------------------------------


async def test_text_next_to_a_call_at_the_limit_is_the_answer() -> None:
    """The call is dropped."""

    again = ("a", "shout", {"text": "x"})
    ends: tuple[tuple[list[Call], str], ...] = (([], "stop"), ([again], "length"))
    for calls, reason in ends:
        looped = [make_reply(None, again), make_reply("Enough.", *calls)]
        async with bench(looped, shout, limits=ToolLimits(rounds=1)) as desk:
            completion = await desk.ask("go")
            assert (content(completion), completion["choices"][0]["finish_reason"]) == ("Enough.", reason)
            assert (await desk.describe_log())[-1] == "assistant: Enough."


async def test_zero_rounds_disable_server_tools() -> None:
    """The model is offered none."""
    async with bench([make_reply("hi")], shout, limits=ToolLimits(rounds=0)) as desk:
        await desk.ask("go")
        assert "tools" not in desk.model.bodies[0]


@pytest.mark.parametrize(
    ("choice", "then"),
    [
        ("required", "auto"),
        ({"type": "function", "function": {"name": "shout"}}, "auto"),
        ("none", "none"),
        ("auto", "auto"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        ),
    ],
)
async def test_tool_choice_forces_only_the_first_call(choice: Any, then: Any) -> None:
    """Afterwards the model may choose."""
    async with bench([make_reply(None, ("a", "shout", {"text": "x"})), make_reply("ok")], shout) as desk:
        await desk.ask("go", body={"tool_choice": choice})
        assert [body["tool_choice"] for body in desk.model.bodies] == [choice, then]


# -- the client's own tools ----------------------------------------------------


@pytest.mark.parametrize("by", ["delta", "same keys"])
async def test_message_with_calls_of_server_and_client_tools(by: str) -> None:
    """Server tools run and are stored, only the client's calls are returned, and its results continue the same turn."""
    script = [
        make_reply("Opening.", ("a", "open_door", {}), ("b", "shout", {"text": "x"}), ("c", "open_door", {"n": 2})),
        make_reply("Both are open."),
    ]
    async with bench(script, shout) as desk:
        body = {"tools": THEIRS}
        completion = await desk.ask("go", body=body, idempotency_key="k")
        choice = completion["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "Opening."
        assert [call["id"] for call in choice["message"]["tool_calls"]] == ["a", "c"]
        assert await desk.describe_log() == [
            "user: go",
            "assistant open_door(a) shout(b) open_door(c): Opening.",
            "tool b: X",
        ]
        assert (await desk.hf.store.get(REF)).tail.open_calls == ("a", "c")
        if by == "same keys":
            again = await desk.ask("go", body=body, idempotency_key="k")
            assert again["choices"] == completion["choices"]
        results = [{"role": "tool", "tool_call_id": call_id, "content": "open"} for call_id in "ac"]
        assert content(await desk.ask(*results, body=body)) == "Both are open."
        assert [message["role"] for message in desk.model.prompts[1]] == ["user", "assistant", *["tool"] * 3]
        assert {entry.turn_id for entry in await desk.log()} == {0}
        assert {entry.unit for entry in (await desk.log())[1:5]} == {1}
        assert await desk.session.verify() == 6


async def test_client_call_after_a_round_of_server_tools() -> None:
    """The text sent before is stored with the message that has the client's call."""
    script = [make_reply("First.", ("a", "shout", {"text": "x"})), make_reply("Then.", ("b", "open_door", {}))]
    async with bench(script, shout) as desk:
        completion = await desk.ask("go", body={"tools": THEIRS})
        assert content(completion) == "First.\n\nThen."
        assert [call["id"] for call in completion["choices"][0]["message"]["tool_calls"]] == ["b"]
        first, _, second = (await desk.log())[1:4]
        assert first.metadata == {"returned": []}
        assert second.metadata == {"preface": "First.\n\n"}


async def test_agents_have_the_tools_they_name() -> None:
    """An empty list means no tools, a missing one all tools except built-in ones that must be named."""
    agents = {
        "some": Agent(name="some", tools=("shout", "search")),
        "none": Agent(name="none", tools=()),
        "all": Agent(name="all"),
    }
    async with bench(lambda _: make_reply("ok"), find_order, shout, agents=agents) as desk:
        for name, tools in (
            ("some", ["shout", "search_conversations"]),
            ("none", None),
            ("all", ["find_order", "shout"]),
        ):
            await desk.ask("go", agent=name)
            given = desk.model.bodies[-1].get("tools")
            assert (given and [tool["function"]["name"] for tool in given]) == tools


async def test_client_tools_follow_server_tools() -> None:
    """The order is stable, so the prompt prefix is too."""
    async with bench([make_reply("ok")], shout) as desk:
        await desk.ask("go", body={"tools": THEIRS, "stream_options": {"include_progress": True}})
        names = [tool["function"]["name"] for tool in desk.model.bodies[0]["tools"]]
        assert names == ["shout", "open_door"]
        assert desk.model.bodies[0]["stream_options"] == {}


# -- progress ------------------------------------------------------------------


# -- configuration ---------------------------------------------------------------


async def test_tool_may_have_its_own_limits() -> None:
    async def long() -> str:
        return "x" * 5000

    one = tool_from(long, name="lengthy", description="Say much.", max_result=2048)
    async with bench([make_reply(None, ("a", "lengthy", {})), make_reply("ok")], one) as desk:
        await desk.ask("go")
        assert 2000 < len((await desk.log())[2].message.text) <= 2048
        assert desk.model.bodies[0]["tools"][0]["function"]["description"] == "Say much."


def test_invalid_tools_are_rejected() -> None:
    for wrong in (5, "shout", [shout, shout], [5], [lambda: 1]):
        with pytest.raises(InvalidRequest):
            Holdfast("sqlite://:memory:", tools=wrong)  # type: ignore[arg-type]  # on purpose


# -- reconstruction --------------------------------------------------------------


async def test_sent_prompt_of_a_tool_turn_can_be_rebuilt() -> None:
    """The last prompt of a turn is identical byte for byte; an imported copy equals the session, including texts
    before calls.
    """
    script = [make_reply("Look: ", ("a", "shout", {"text": "x"})), make_reply("X."), make_reply("ok")]
    async with bench(script, shout) as desk:
        await desk.ask("go", body={"tools": THEIRS})
        await desk.ask("more", body={"tools": THEIRS})
        context = await desk.session.context(at_turn=0)
        assert context.hash == context.sent_hash
        exported = await desk.hf.export(desk.session.ref)
        assert not (await desk.hf.import_(exported)).changed
        moved = await desk.hf.import_(exported, user_id="ada")
        assert moved.session.tail == (await desk.session.info()).tail
