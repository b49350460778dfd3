"""Agents called as tools: each call is a whole turn in a linked session of its own, which session matching never returns."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Agent
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, Session
from holdfast.domain.state import Increment
from holdfast.errors import SessionNotFound
from holdfast.limits import AGENT_DEPTH
from holdfast.tools.context import ToolContext
from holdfast.turns.respond import respond
from tests.service.matching_kit import find_landing
from tests.service.scripted_model import REF
from tests.service.tools_kit import Bench, content, make_reply, short, shout
from tests.service.workflow_kit import DOWN, agents, get_agent, get_prompt, open_workflow_bench

PAIR = agents(
    Agent(name="chief", instruction="I am chief", agent_tools=("summarizer",), tools=()),
    Agent(name="summarizer", instruction="I am summarizer", description="Makes it short."),
)


def call_agent(request: str, call: str = "c1", name: str = "summarizer") -> list[dict[str, Any]]:
    return make_reply(None, (call, name, {"request": request}))


async def list_child_sessions(desk: Bench) -> list[Session]:
    page = await desk.hf.sessions()
    return [session for session in page.sessions if "parent" in session.metadata]


async def read_log(desk: Bench, session: Session) -> list[str]:
    return [short(entry) for entry in await desk.hf.store.entries(session.ref)]


def filter_results(log: list[Entry]) -> list[Entry]:
    return [entry for entry in log if entry.kind == "result"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/holdfast.db"


async def test_agent_tool_call_runs_in_a_linked_child_session(url: str) -> None:
    """Its reply is the result, it runs its own tools, and its session is closed after the call."""
    lines = {
        "chief": [call_agent("Shorten: kelp is a plant."), make_reply("In short: kelp.")],
        "summarizer": [make_reply(None, ("s1", "shout", {"text": "kelp"})), make_reply("Kelp.")],
    }
    async with open_workflow_bench(lines, PAIR, shout, url=url) as desk:
        completion = await desk.ask("Tell me.", agent="chief")
        assert content(completion) == "In short: kelp."
        tool = desk.model.bodies[0]["tools"][0]["function"]
        assert (tool["name"], tool["description"]) == ("summarizer", "Makes it short.")
        assert list(tool["parameters"]["properties"]) == ["request"]
        (child,) = await list_child_sessions(desk)
        (result,) = filter_results(await desk.log())
        assert result.message.content == "Kelp."
        assert result.metadata == {"child": child.id}
        assert child.metadata == {"parent": {"session_id": "s", "seq": 1, "call_id": "c1"}}
        assert (child.user_id, child.agent, child.status) == ("default", "summarizer", "closed")
        assert await read_log(desk, child) == [
            "user: Shorten: kelp is a plant.",
            "assistant shout(s1): ",
            "tool s1: KELP",
            "assistant: Kelp.",
        ]
        assert get_prompt(desk, "summarizer")[0] == "user: Shorten: kelp is a plant."
        assert completion["usage"]["prompt_tokens"] == 20
        assert (child.usage.calls, (await desk.session.info()).usage.calls) == (2, 2)


# -- state -------------------------------------------------------------------------


async def test_child_state_starts_as_a_copy_and_its_changes_are_merged_back(url: str) -> None:
    """Session keys are copied and their changes written with the result. User keys are shared, and `temp:` keys are only passed down."""
    seen: list[dict[str, Any]] = []

    def note(ctx: ToolContext) -> str:
        """Note it."""
        seen.append({key: ctx.state.get(key) for key in ("kept", "gone", "count", "user:seen", "temp:hint")})
        ctx.state["found"] = {"pages": 3}
        ctx.state.increment("count")
        ctx.state.increment("user:seen")
        ctx.state["temp:hint"] = "changed"
        del ctx.state["gone"]
        return "ok"

    def hint(ctx: ToolContext) -> str:
        """Leave a hint."""
        ctx.state["temp:hint"] = "look"
        return "ok"

    def peek(ctx: ToolContext) -> Any:
        """Look."""
        return {key: ctx.state.get(key) for key in ("found", "count", "gone", "temp:hint", "user:seen")}

    roster = agents(
        Agent(name="chief", instruction="I am chief", agent_tools=("summarizer",), tools=("hint", "peek")),
        Agent(name="summarizer", instruction="I am summarizer", tools=("note",), state={"count": 7, "mine": 1}),
    )
    lines = {
        "chief": [
            make_reply(None, ("h", "hint", {})),
            call_agent("Go."),
            make_reply(None, ("p", "peek", {})),
            make_reply("Done."),
        ],
        "summarizer": [make_reply(None, ("n", "note", {})), make_reply("Noted.")],
    }
    async with open_workflow_bench(lines, roster, note, hint, peek, url=url) as desk:
        await desk.session.update(state={"kept": "k", "gone": "g", "count": Increment(2), "user:seen": 1})
        await desk.ask("go", agent="chief")
        assert seen == [{"kept": "k", "gone": "g", "count": 2, "user:seen": 1, "temp:hint": "look"}]
        assert (await desk.session.info()).state == {"kept": "k", "count": 3, "found": {"pages": 3}}
        peeked = filter_results(await desk.log())[-1].message.content
        assert peeked == '{"found":{"pages":3},"count":3,"gone":null,"temp:hint":"look","user:seen":2}'


# -- failures ---------------------------------------------------------------------


async def test_failed_agent_call_returns_an_error_result(url: str) -> None:
    """The turn continues. The child session is closed and linked, and contains the request."""
    lines = {"chief": [call_agent("Go."), make_reply("Never mind.")], "summarizer": DOWN}
    async with open_workflow_bench(lines, PAIR, shout, url=url) as desk:
        assert content(await desk.ask("go", agent="chief")) == "Never mind."
        (result,) = filter_results(await desk.log())
        assert "answered 503" in result.message.text
        (child,) = await list_child_sessions(desk)
        assert result.metadata == {"child": child.id}
        assert child.status == "closed"
        assert await read_log(desk, child) == ["user: Go."]


async def test_failure_message_of_an_agent_is_an_error_result(url: str) -> None:
    """A failure message is meant for users; the calling agent gets an error."""
    roster = agents(PAIR["chief"], Agent(name="summarizer", instruction="I am summarizer", failure_message="Sorry!"))
    async with open_workflow_bench(
        {"chief": [call_agent("Go."), make_reply("Ok.")], "summarizer": DOWN}, roster, url=url
    ) as desk:
        await desk.ask("go", agent="chief")
        (result,) = filter_results(await desk.log())
        assert "the agent did not answer" in result.message.text
        assert "Sorry!" not in result.message.text


@pytest.mark.parametrize("arguments", [{}, {"request": " "}, {"request": 1}, {"wanted": "x"}])
async def test_agent_call_without_a_request_creates_no_session(arguments: dict[str, Any], url: str) -> None:
    lines = {"chief": [make_reply(None, ("c", "summarizer", arguments)), make_reply("Ok.")]}
    async with open_workflow_bench(lines, PAIR, url=url) as desk:
        await desk.ask("go", agent="chief")
        assert "request is missing" in filter_results(await desk.log())[0].message.text
        assert await list_child_sessions(desk) == []


async def test_depth_of_agent_calls_is_limited(url: str) -> None:
    """The deepest agent gets an error result. Every session except the first is a child."""
    names = [f"a{at}" for at in range(AGENT_DEPTH + 2)]
    roster = agents(
        *(
            Agent(name=name, instruction=f"I am {name}", agent_tools=(after,), tools=())
            for name, after in pairwise(names)
        ),
        Agent(name=names[-1], instruction=f"I am {names[-1]}", tools=()),
    )
    lines: dict[str, Any] = {
        name: [call_agent("deeper", name=after), make_reply(f"{name} is done.")] for name, after in pairwise(names)
    }
    async with open_workflow_bench(lines, roster, url=url) as desk:
        assert content(await desk.ask("go", agent="a0")) == "a0 is done."
        made = await list_child_sessions(desk)
        assert len(made) == AGENT_DEPTH
        deepest = next(one for one in made if one.agent == f"a{AGENT_DEPTH}")
        log = await desk.hf.store.entries(deepest.ref)
        assert f"nested {AGENT_DEPTH} levels deep" in filter_results(list(log))[0].message.text
        assert await desk.hf.delete(REF)
        assert (await desk.hf.sessions()).sessions == ()


async def test_cancelling_the_turn_cancels_the_agent_call(url: str) -> None:
    """The child session is closed with what it has, and the caller's log is valid."""
    reached, never = asyncio.Event(), asyncio.Event()

    async def note() -> str:
        """Wait."""
        reached.set()
        await never.wait()
        return "never"

    lines = {
        "chief": [call_agent("Go."), make_reply("No.")],
        "summarizer": [make_reply(None, ("n", "note", {})), make_reply("No.")],
    }
    async with open_workflow_bench(lines, PAIR, note, url=url) as desk:
        turn = desk.turn("go", agent="chief")

        async def run() -> None:
            async for _ in respond(turn):
                pass

        task = asyncio.create_task(run())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with desk.hf.engine.lock_between_turns(REF):  # after its last writes
            (child,) = await list_child_sessions(desk)
        assert child.status == "closed"
        (result,) = filter_results(await desk.log())
        assert result.metadata == {"child": child.id}
        assert "cancelled" in result.message.text
        assert "cancelled" in (await read_log(desk, child))[-1]
        assert not (await desk.session.info()).tail.open_calls


# -- separate from other sessions------------------------------------------------------


async def test_child_session_never_matches_a_transcript(url: str) -> None:
    """A client that sends the same words continues its own session or starts a new one."""
    lines = {
        "chief": [call_agent("Hi"), make_reply("Hello to you.")],
        "summarizer": [make_reply("Hello!"), make_reply("Hello!")],
    }
    async with open_workflow_bench(lines, PAIR, url=url) as desk:
        await desk.ask("Hi there", agent="chief")
        transcript = [
            Message(role="user", content="Hi"),
            Message(role="assistant", content="Hello!"),
            Message(role="user", content="And now?"),
        ]
        assert await find_landing(desk.hf.store, "default", transcript) is None
        mine = await desk.hf.session("mine", agent="summarizer")
        await mine.send("Hi")
        found = await find_landing(desk.hf.store, "default", transcript)
        assert found is not None
        assert found.place.ref.id == "mine"


async def test_child_session_with_a_longer_match_does_not_hide_the_clients_session(url: str) -> None:
    more = [make_reply("Hello!"), make_reply("Hello!"), make_reply("More.")]
    lines = {"chief": [call_agent("Hi"), make_reply("Ok.")], "summarizer": more}
    async with open_workflow_bench(lines, PAIR, url=url) as desk:
        await desk.ask("go", agent="chief")
        (child,) = await list_child_sessions(desk)
        mine = await desk.hf.session("mine", agent="summarizer")
        await mine.send("Hi")
        await desk.hf.handle(child).send("Go on")
        transcript = [
            Message(role="user", content="Hi"),
            Message(role="assistant", content="Hello!"),
            Message(role="user", content="Go on"),
            Message(role="assistant", content="More."),
            Message(role="user", content="And?"),
        ]
        found = await find_landing(desk.hf.store, "default", transcript)
        assert found is not None
        assert (found.place.ref.id, found.shared) == ("mine", 2)


async def test_deleting_a_session_deletes_its_child_sessions(url: str) -> None:
    """Deleting a fork that also names them does not. The receipt counts them."""
    lines = {"chief": [call_agent("Go."), make_reply("Ok.")], "summarizer": make_reply("Done.")}
    async with open_workflow_bench(lines, PAIR, url=url) as desk:
        await desk.ask("go", agent="chief")
        (child,) = await list_child_sessions(desk)
        fork = await desk.session.fork()
        await fork.delete()
        assert (await desk.hf.store.get(child.ref)).id == child.id
        exported = await desk.hf.export(REF)
        assert child.id in str(exported["messages"])
        receipt = await desk.hf.remove(REF)
        assert receipt is not None
        assert receipt.sessions == 2
        with pytest.raises(SessionNotFound):
            await desk.hf.store.get(child.ref)


@pytest.mark.parametrize("kind", ["calls", "result"])
async def test_erasing_an_agent_call_or_its_result_deletes_the_child_session(kind: str, url: str) -> None:
    """The child session contains the same text, and after the erasure no log may name it. It is reached from a fork, too."""
    lines = {"chief": [call_agent("Go."), make_reply("Ok.")], "summarizer": make_reply("Done.")}
    async with open_workflow_bench(lines, PAIR, url=url) as desk:
        await desk.ask("go", agent="chief")
        (child,) = await list_child_sessions(desk)
        fork = await desk.session.fork()
        (found,) = [entry for entry in await fork.entries() if entry.kind == kind]
        await desk.hf.erase(fork.ref, found.seq)
        with pytest.raises(SessionNotFound):
            await desk.hf.store.get(child.ref)
        assert len((await desk.hf.sessions()).sessions) == 2


async def test_deleting_the_caller_during_a_call_deletes_the_child_session(url: str) -> None:
    """No log would name it any more."""

    async def wipe() -> str:
        """Delete the session that all of this belongs to."""
        assert await desk.hf.remove(REF)
        return "gone"

    lines = {
        "chief": [call_agent("Go."), make_reply("Ok.")],
        "summarizer": [make_reply(None, ("w", "wipe", {})), make_reply("Done.")],
    }
    async with open_workflow_bench(lines, PAIR, wipe, url=url) as desk:
        with pytest.raises(SessionNotFound):
            await desk.ask("go", agent="chief")
        assert not (await desk.hf.sessions()).sessions


async def test_child_session_has_no_greeting_and_no_client_tools(url: str) -> None:
    """It is not a conversation with a user."""
    roster = agents(
        PAIR["chief"], Agent(name="summarizer", instruction="I am summarizer", greeting="Welcome!", tools=())
    )
    theirs = [{"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}]
    lines = {"chief": [call_agent("Go."), make_reply("Ok.")], "summarizer": make_reply("Done.")}
    async with open_workflow_bench(lines, roster, url=url) as desk:
        await desk.ask("go", agent="chief", body={"tools": theirs})
        (child,) = await list_child_sessions(desk)
        assert await read_log(desk, child) == ["user: Go.", "assistant: Done."]
        bodies = [body for body in desk.model.bodies if get_agent(body) == "summarizer"]
        assert [body.get("tools") for body in bodies] == [None]


async def test_several_agent_calls_run_in_parallel(url: str) -> None:
    """Each in a session of its own."""
    calls = [(f"c{at}", "summarizer", {"request": f"part {at}"}) for at in range(5)]
    lines: dict[str, Any] = {
        "chief": [make_reply(None, *calls), make_reply("All.")],
        "summarizer": make_reply("Short."),
    }
    async with open_workflow_bench(lines, PAIR, url=url) as desk:
        assert content(await desk.ask("go", agent="chief")) == "All."
        made = await list_child_sessions(desk)
        assert {child.metadata["parent"]["call_id"] for child in made} == {f"c{at}" for at in range(5)}
        assert {(entry.metadata or {})["child"] for entry in filter_results(await desk.log())} == {
            child.id for child in made
        }
