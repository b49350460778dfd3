"""Tools that run inside a turn: their order, their errors, their limits, and what they can see and change."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from holdfast import ToolContext, tool_from
from holdfast.testing import Reply
from tests.behaviour.kit import Served, answer_of, gateway, refused, texts


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


def one(name: str, arguments: Any = None, text: str | None = None) -> Reply:
    return Reply(text=text, tool_calls=[(name, {} if arguments is None else arguments)])


async def results(served: Served) -> list[str]:
    return [row["content"] for row in await served.entries() if row["role"] == "tool"]


# -- order ----------------------------------------------------------------------------------------


async def test_calls_of_one_message_run_at_the_same_time() -> None:
    """Async ones and threads. Each waits for the one after it."""
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

    script = [Reply(tool_calls=[(name, {}) for name in ("first", "second", "third")]), "Done."]
    async with gateway(script, tools=[first, second, third]) as served:
        assert answer_of(await served.chat("Go")) == "Done."
        assert sorted(await results(served)) == ["one", "three", "two"]


async def test_a_result_is_in_the_log_before_the_model_is_called_again() -> None:
    seen: list[list[Any]] = []

    async def look() -> str:
        """Look."""
        seen.append(texts(await served.entries()))
        return f"look {len(seen)}"

    async with gateway([one("look"), one("look"), "Done."], tools=[look]) as served:
        await served.chat("Go")
        assert seen == [["Go", None], ["Go", None, "look 1", None]]


async def test_texts_of_all_rounds_are_one_message() -> None:
    script = [one("shout", {"text": "x"}, "Let me look."), one("shout", {"text": "y"}, "Once more: "), "Found it."]
    async with gateway(script, tools=[shout]) as served:
        body = {"messages": [{"role": "user", "content": "Go"}], "session_id": "s", "stream": True}
        text = (await served.http.post("/v1/chat/completions", json=body)).text
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "Let me look.\n\nOnce more: Found it."
        assert len({chunk["id"] for chunk in chunks}) == sum("role" in delta for delta in deltas) == 1
        assert not any("tool_calls" in delta for delta in deltas)
        last = (await served.entries())[-1]
        assert (last["content"], last["metadata"]) == ("Found it.", {"preface": "Let me look.\n\nOnce more: "})


async def test_parallel_calls_with_one_id_get_their_own_results() -> None:
    calls = [
        {"id": "x", "type": "function", "function": {"name": "shout", "arguments": json.dumps({"text": text})}}
        for text in "ab"
    ]
    async with gateway([Reply(tool_calls=calls), "ok"], tools=[shout]) as served:
        await served.chat("Go")
        by_id = {row["tool_call_id"]: row["content"] for row in served.sent["messages"] if row["role"] == "tool"}
        assert [by_id[call["id"]] for call in served.sent["messages"][1]["tool_calls"]] == ["A", "B"]


# -- errors ---------------------------------------------------------------------------------------


async def test_a_change_that_the_state_refuses_fails_its_own_call_only() -> None:
    """The results of both are written together, because both are done at the same time."""

    async def grow(ctx: ToolContext) -> str:
        """Write too much."""
        ctx.state["e"] = "x" * 100_000
        return "grown"

    async def note(ctx: ToolContext) -> str:
        """Write little."""
        ctx.state["noted"] = True
        return "noted"

    async with gateway([Reply(tool_calls=[("grow", {}), ("note", {})]), "Done."], tools=[grow, note]) as served:
        await served.rest.create("s", state=dict.fromkeys("abcd", "x" * 250_000))
        assert answer_of(await served.chat("Go")) == "Done."
        refusal, noted = await results(served)
        assert ("the tool's result could not be stored" in refusal, noted) == (True, "noted")
        assert list(await served.rest.session().state()) == [*"abcd", "noted"]


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
        case "exit":
            raise SystemExit(3)
        case _:
            return object()


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("fails", {"how": "value"}, "ValueError: no order 7"),
        ("fails", {"how": "silent"}, "KeyError"),
        ("fails", {"how": "unprintable"}, "Unprintable"),
        ("fails", {"how": "cancelled"}, "the tool cancelled itself"),
        ("fails", {"how": "surrogate"}, "ValueError: ?"),
        ("fails", {"how": "exit"}, "the tool tried to end the process, with 3"),
        ("fails", {"how": "object"}, "TypeError"),
        ("fails", {"how": 7}, "Expected `str`, got `int` - at `$.how`"),
        ("fails", {}, "missing required field `how`"),
        ("fails", {"how": "x", "much": 1}, "unknown field `much`"),
        ("fails", "{half", "not valid JSON"),
        ("fails", "[1]", "expected a JSON object"),
        ("fall", {}, "there is no tool 'fall'; there are: fails, shout"),
        ("shout", {"text": None}, "Expected `str`, got `null`"),
    ],
)
async def test_an_error_is_a_result_and_the_turn_goes_on(
    name: str, arguments: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the result nor the server's log has a traceback; the log does not quote the error."""
    async with gateway([one(name, arguments), "I see."], tools=[fails, shout]) as served:
        assert answer_of(await served.chat("Go")) == "I see."
        (made,) = await results(served)
        assert words in json.loads(made)["error"]
        assert "Traceback" not in made
        assert "no order" not in caplog.text


async def test_a_tool_that_takes_too_long_is_an_error() -> None:
    """An async one is cancelled, a thread goes on alone, and a tool may have a limit of its own."""
    release, stopped = threading.Event(), asyncio.Event()

    def hangs() -> None:
        release.wait()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    own = tool_from(slow, name="own", timeout=0.02)
    script = [Reply(tool_calls=[("hangs", {}), ("slow", {}), ("own", {})]), "Never mind."]
    try:
        async with gateway(script, "gateway: {tool_timeout: 10ms}", tools=[hangs, slow, own]) as served:
            assert answer_of(await served.chat("Go")) == "Never mind."
            told = await results(served)
            assert sorted(json.loads(text)["error"].split("longer than ")[1][:6].strip() for text in told) == [
                "0.01 s",
                "0.01 s",
                "0.02 s",
            ]
            await stopped.wait()
    finally:
        release.set()


async def test_a_long_result_keeps_its_ends() -> None:
    async def long() -> str:
        """Be long."""
        return "ä" * 3000 + "end"

    async with gateway([one("long"), "ok"], "gateway: {max_tool_result: 1KiB}", tools=[long]) as served:
        await served.chat("Go")
        (text,) = await results(served)
        assert len(text.encode()) <= 1024
        head, _, tail = text.partition("\n[… ")
        assert (set(head), tail.endswith("ä" * 100 + "end"), "of 6,003 bytes" in tail) == ({"ä"}, True, True)
        missing = int(tail.split()[0].replace(",", ""))
        assert missing + len(head.encode()) + len(tail.partition("…]\n")[2].encode()) == 6003


# -- rounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("last", "reason"), [("Enough.", "stop"), (one("shout", {"text": "x"}, "Enough."), "length")])
async def test_text_at_the_last_round_is_the_answer(last: Any, reason: str) -> None:
    config = "gateway: {max_tool_rounds: 1}\npython: {enabled: true, unsandboxed: true}"
    async with gateway([one("shout", {"text": "x"}), last], config, tools=[shout]) as served:
        answer = await served.chat("Go")
        assert (answer_of(answer), answer["choices"][0]["finish_reason"]) == ("Enough.", reason)
        assert (await served.entries())[-1]["content"] == "Enough."


async def test_without_rounds_no_tool_is_offered() -> None:
    async with gateway(["hi"], "gateway: {max_tool_rounds: 0}", tools=[shout]) as served:
        await served.chat("Go")
        assert "tools" not in served.sent


@pytest.mark.parametrize(
    ("choice", "then"),
    [
        ("required", "auto"),
        ({"type": "function", "function": {"name": "shout"}}, "auto"),
        ("none", "none"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        ),
    ],
)
async def test_a_choice_forces_only_the_first_call(choice: Any, then: Any) -> None:
    async with gateway([one("shout", {"text": "x"}), "ok"], tools=[shout]) as served:
        await served.chat("Go", tool_choice=choice)
        assert [received.body["tool_choice"] for received in served.upstream.requests] == [choice, then]


async def test_agents_have_the_tools_that_they_name() -> None:
    def whisper(text: str) -> str:
        """Whisper."""
        return text.lower()

    agents = "agents: {all: {}, one: {tools: [whisper]}, none: {tools: []}, lost: {tools: [typewriter]}}"
    async with gateway(lambda _: "ok", agents, tools=[shout, whisper]) as served:
        for name, expected in (("all", ["shout", "whisper"]), ("one", ["whisper"]), ("none", [])):
            await served.chat("Go", None, model=name)
            assert [tool["function"]["name"] for tool in served.sent.get("tools") or ()] == expected
        answer = await served.chat("Go", None, model="lost")
        assert (answer["status"], "typewriter" in answer["error"]["message"]) == (400, True)


# -- state ----------------------------------------------------------------------------------------


async def test_changes_of_state_are_committed_with_the_result() -> None:
    """A tool that fails changes nothing. Temporary keys are seen by the tools of the turn, and stored nowhere."""
    seen: list[Any] = []

    def write(context: ToolContext, key: str, value: Any, fail: bool = False) -> str:
        """Write."""
        context.state[key] = value
        context.state["temp:last"] = key
        if fail:
            raise ValueError("no")
        return "ok"

    def count(context: ToolContext) -> str:
        """Count."""
        context.state.increment("user:visits")
        context.state.append("user:places", "Oslo")
        seen.append((context.state["user:visits"], context.state.get("temp:last"), context.session_id, context.user_id))
        return "ok"

    script = [
        one("write", {"key": "a", "value": [1]}),
        one("write", {"key": "b", "value": 2, "fail": True}),
        one("count"),
        one("write", {"key": "a", "value": None}),
        one("count"),
        "ok",
    ]
    async with gateway(script, tools=[write, count]) as served:
        await served.chat("Go", user="ada")
        state = await served.rest.session("s", "ada").state()
        assert state == {"user:visits": 2, "user:places": ["Oslo", "Oslo"]}
        assert [(visits, session, user) for visits, _, session, user in seen] == [(1, "s", "ada"), (2, "s", "ada")]
        assert (await served.rest.shared_state("ada"))["user:visits"] == 2


async def test_what_the_state_cannot_hold_is_an_error_without_its_value() -> None:
    def write(context: ToolContext, key: str, value: Any) -> str:
        """Write."""
        context.state[key] = value
        return "ok"

    def grow(context: ToolContext) -> str:
        """Grow."""
        context.state.increment("word")
        return "ok"

    script = [
        one("write", {"key": "long", "value": "secret" * 60_000}),
        one("write", {"key": "word", "value": "x"}),
        one("grow"),
        "ok",
    ]
    async with gateway(script, tools=[write, grow]) as served:
        assert answer_of(await served.chat("Go")) == "ok"
        first, second, third = await results(served)
        assert ("error" in first, "secret" in first, second) == (True, False, "ok")
        assert "error" in third
        assert await served.rest.session().state() == {"word": "x"}


async def test_artifacts_that_a_tool_saves_are_listed_with_the_reply() -> None:
    async def save(context: ToolContext) -> str:
        """Save."""
        saved = await context.artifacts.save("note.txt", "Hi.")
        return f"version {saved.version}"

    async with gateway([one("save"), one("save"), "See note.txt."], tools=[save]) as served:
        answer = await served.chat("Go")
        assert await results(served) == ["version 0", "version 1"]
        assert [row["name"] for row in answer["session"]["artifacts"]] == ["note.txt"]
        with refused("artifact_not_found"):
            await served.rest.session().ask("GET", "artifacts", "other.txt")
