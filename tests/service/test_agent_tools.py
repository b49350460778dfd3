"""Agents that others call like tools: each call is a whole turn in a session of its own, linked, and never taken for another."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Agent
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, Session, SessionRef, is_child, make_child_id
from holdfast.domain.state import Increment
from holdfast.engine.engine import make_session_id
from holdfast.errors import InvalidRequest, SessionNotFound
from holdfast.limits import AGENT_DEPTH
from holdfast.tools.context import ToolContext
from holdfast.turns.respond import respond
from tests.service.matching_kit import landing_of
from tests.service.told_model import REF
from tests.service.tools_kit import Bench, content, said, short, shout
from tests.service.workflow_kit import DOWN, agents, asked_as, benched, who

PAIR = agents(
    Agent(name="chief", instruction="I am chief", agent_tools=("summarizer",), tools=()),
    Agent(name="summarizer", instruction="I am summarizer", description="Makes it short."),
)


def asks(request: str, call: str = "c1", name: str = "summarizer") -> list[dict[str, Any]]:
    return said(None, (call, name, {"request": request}))


async def children(desk: Bench) -> list[Session]:
    page = await desk.hf.sessions()
    return [session for session in page.sessions if "parent" in session.metadata]


async def log_of(desk: Bench, session: Session) -> list[str]:
    return [short(entry) for entry in await desk.hf.store.entries(session.ref)]


def results(log: list[Entry]) -> list[Entry]:
    return [entry for entry in log if entry.kind == "result"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/holdfast.db"


async def test_an_agent_is_called_like_a_tool_in_a_session_of_its_own(url: str) -> None:
    """Its reply is the result; the two name each other; it runs its own tools, and has ended behind the call."""
    lines = {
        "chief": [asks("Shorten: kelp is a plant."), said("In short: kelp.")],
        "summarizer": [said(None, ("s1", "shout", {"text": "kelp"})), said("Kelp.")],
    }
    async with benched(lines, PAIR, shout, url=url) as desk:
        completion = await desk.ask("Tell me.", agent="chief")
        assert content(completion) == "In short: kelp."
        tool = desk.model.bodies[0]["tools"][0]["function"]
        assert (tool["name"], tool["description"]) == ("summarizer", "Makes it short.")
        assert list(tool["parameters"]["properties"]) == ["request"]
        (child,) = await children(desk)
        (result,) = results(await desk.log())
        assert result.message.content == "Kelp."
        assert result.metadata == {"child": child.id}
        assert child.metadata == {"parent": {"session_id": "s", "seq": 1, "call_id": "c1"}}
        assert (child.user_id, child.agent, child.status) == ("default", "summarizer", "closed")
        assert await log_of(desk, child) == [
            "user: Shorten: kelp is a plant.",
            "assistant shout(s1): ",
            "tool s1: KELP",
            "assistant: Kelp.",
        ]
        assert asked_as(desk, "summarizer")[0] == "user: Shorten: kelp is a plant."
        assert completion["usage"]["prompt_tokens"] == 20
        assert (child.usage.calls, (await desk.session.info()).usage.calls) == (2, 2)


# -- state -------------------------------------------------------------------------


async def test_its_state_begins_as_a_copy_and_its_changes_come_back_with_the_result(url: str) -> None:
    """Own keys are copied, and what changed of them is written with the result; shared ones are shared; `temp:` ones go one way."""
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
        "chief": [said(None, ("h", "hint", {})), asks("Go."), said(None, ("p", "peek", {})), said("Done.")],
        "summarizer": [said(None, ("n", "note", {})), said("Noted.")],
    }
    async with benched(lines, roster, note, hint, peek, url=url) as desk:
        await desk.session.update(state={"kept": "k", "gone": "g", "count": Increment(2), "user:seen": 1})
        await desk.ask("go", agent="chief")
        assert seen == [{"kept": "k", "gone": "g", "count": 2, "user:seen": 1, "temp:hint": "look"}]
        assert (await desk.session.info()).state == {"kept": "k", "count": 3, "found": {"pages": 3}}
        peeked = results(await desk.log())[-1].message.content
        assert peeked == '{"found":{"pages":3},"count":3,"gone":null,"temp:hint":"look","user:seen":2}'


# -- what goes wrong ---------------------------------------------------------------


async def test_its_failure_is_an_error_that_the_caller_can_read(url: str) -> None:
    """The turn goes on; what it asked for is in the other session, which has ended and is linked all the same."""
    lines = {"chief": [asks("Go."), said("Never mind.")], "summarizer": DOWN}
    async with benched(lines, PAIR, shout, url=url) as desk:
        assert content(await desk.ask("go", agent="chief")) == "Never mind."
        (result,) = results(await desk.log())
        assert "answered 503" in result.message.text
        (child,) = await children(desk)
        assert result.metadata == {"child": child.id}
        assert child.status == "closed"
        assert await log_of(desk, child) == ["user: Go."]


async def test_a_failure_message_is_no_answer(url: str) -> None:
    """What an agent says in place of a reply to a user is an error to another agent."""
    roster = agents(PAIR["chief"], Agent(name="summarizer", instruction="I am summarizer", failure_message="Sorry!"))
    async with benched({"chief": [asks("Go."), said("Ok.")], "summarizer": DOWN}, roster, url=url) as desk:
        await desk.ask("go", agent="chief")
        (result,) = results(await desk.log())
        assert "the agent did not answer" in result.message.text
        assert "Sorry!" not in result.message.text


@pytest.mark.parametrize("arguments", [{}, {"request": " "}, {"request": 1}, {"wanted": "x"}])
async def test_a_call_without_a_request_makes_no_session(arguments: dict[str, Any], url: str) -> None:
    lines = {"chief": [said(None, ("c", "summarizer", arguments)), said("Ok.")]}
    async with benched(lines, PAIR, url=url) as desk:
        await desk.ask("go", agent="chief")
        assert "request is missing" in results(await desk.log())[0].message.text
        assert await children(desk) == []


async def test_agents_call_each_other_only_so_deep(url: str) -> None:
    """The last one is told to answer; every session but the first is the child of another."""
    names = [f"a{at}" for at in range(AGENT_DEPTH + 2)]
    roster = agents(
        *(
            Agent(name=name, instruction=f"I am {name}", agent_tools=(after,), tools=())
            for name, after in pairwise(names)
        ),
        Agent(name=names[-1], instruction=f"I am {names[-1]}", tools=()),
    )
    lines: dict[str, Any] = {
        name: [asks("deeper", name=after), said(f"{name} is done.")] for name, after in pairwise(names)
    }
    async with benched(lines, roster, url=url) as desk:
        assert content(await desk.ask("go", agent="a0")) == "a0 is done."
        made = await children(desk)
        assert len(made) == AGENT_DEPTH
        deepest = next(one for one in made if one.agent == f"a{AGENT_DEPTH}")
        log = await desk.hf.store.entries(deepest.ref)
        assert f"{AGENT_DEPTH} deep" in results(list(log))[0].message.text
        assert await desk.hf.delete(REF)
        assert (await desk.hf.sessions()).sessions == ()


async def test_whoever_asks_may_go_in_the_middle(url: str) -> None:
    """The call is cancelled, its session ends with what had come, and the caller's log is legal."""
    reached, never = asyncio.Event(), asyncio.Event()

    async def note() -> str:
        """Wait."""
        reached.set()
        await never.wait()
        return "never"

    lines = {"chief": [asks("Go."), said("No.")], "summarizer": [said(None, ("n", "note", {})), said("No.")]}
    async with benched(lines, PAIR, note, url=url) as desk:
        turn = desk.turn("go", agent="chief")

        async def run() -> None:
            async for _ in respond(turn):
                pass

        task = asyncio.create_task(run())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with desk.hf.engine.lock_between_turns(REF):  # behind its last writes
            (child,) = await children(desk)
        assert child.status == "closed"
        (result,) = results(await desk.log())
        assert result.metadata == {"child": child.id}
        assert "cancelled" in result.message.text
        assert "cancelled" in (await log_of(desk, child))[-1]
        assert not (await desk.session.info()).tail.open_calls


# -- apart from other sessions ---------------------------------------------------------


async def test_no_transcript_is_taken_for_one_of_it(url: str) -> None:
    """A client that happens to send the very same words goes on with its own session, or begins a new one."""
    lines = {"chief": [asks("Hi"), said("Hello to you.")], "summarizer": [said("Hello!"), said("Hello!")]}
    async with benched(lines, PAIR, url=url) as desk:
        await desk.ask("Hi there", agent="chief")
        transcript = [
            Message(role="user", content="Hi"),
            Message(role="assistant", content="Hello!"),
            Message(role="user", content="And now?"),
        ]
        assert await landing_of(desk.hf.store, "default", transcript) is None
        mine = await desk.hf.session("mine", agent="summarizer")
        await mine.send("Hi")
        found = await landing_of(desk.hf.store, "default", transcript)
        assert found is not None
        assert found.place.ref.id == "mine"


async def test_a_longer_likeness_with_a_call_does_not_hide_the_session_that_is_meant(url: str) -> None:
    """What both share is looked for where the call's own words go further than the client's session."""
    more = [said("Hello!"), said("Hello!"), said("More.")]
    lines = {"chief": [asks("Hi"), said("Ok.")], "summarizer": more}
    async with benched(lines, PAIR, url=url) as desk:
        await desk.ask("go", agent="chief")
        (child,) = await children(desk)
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
        found = await landing_of(desk.hf.store, "default", transcript)
        assert found is not None
        assert (found.place.ref.id, found.shared) == ("mine", 2)


async def test_a_session_goes_with_those_that_were_made_from_it(url: str) -> None:
    """Not with a copy of it that names them, too; the receipt counts them."""
    lines = {"chief": [asks("Go."), said("Ok.")], "summarizer": said("Done.")}
    async with benched(lines, PAIR, url=url) as desk:
        await desk.ask("go", agent="chief")
        (child,) = await children(desk)
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


async def test_it_goes_too_where_its_caller_is_deleted_in_the_middle(url: str) -> None:
    """No log will name it: nothing of what was asked in it stays behind."""

    async def wipe() -> str:
        """Delete the session that all of this belongs to."""
        assert await desk.hf.remove(REF)
        return "gone"

    lines = {"chief": [asks("Go."), said("Ok.")], "summarizer": [said(None, ("w", "wipe", {})), said("Done.")]}
    async with benched(lines, PAIR, wipe, url=url) as desk:
        with pytest.raises(SessionNotFound):
            await desk.ask("go", agent="chief")
        assert not (await desk.hf.sessions()).sessions


async def test_it_has_no_greeting_and_the_client_cannot_be_called(url: str) -> None:
    """It is no conversation with a user: it begins with what is wanted, and is offered its own tools alone."""
    roster = agents(
        PAIR["chief"], Agent(name="summarizer", instruction="I am summarizer", greeting="Welcome!", tools=())
    )
    theirs = [{"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}]
    lines = {"chief": [asks("Go."), said("Ok.")], "summarizer": said("Done.")}
    async with benched(lines, roster, url=url) as desk:
        await desk.ask("go", agent="chief", body={"tools": theirs})
        (child,) = await children(desk)
        assert await log_of(desk, child) == ["user: Go.", "assistant: Done."]
        bodies = [body for body in desk.model.bodies if who(body) == "summarizer"]
        assert [body.get("tools") for body in bodies] == [None]


async def test_several_calls_of_one_message_run_side_by_side(url: str) -> None:
    """Each in a session of its own."""
    calls = [(f"c{at}", "summarizer", {"request": f"part {at}"}) for at in range(5)]
    lines: dict[str, Any] = {"chief": [said(None, *calls), said("All.")], "summarizer": said("Short.")}
    async with benched(lines, PAIR, url=url) as desk:
        assert content(await desk.ask("go", agent="chief")) == "All."
        made = await children(desk)
        assert {child.metadata["parent"]["call_id"] for child in made} == {f"c{at}" for at in range(5)}
        assert {(entry.metadata or {})["child"] for entry in results(await desk.log())} == {child.id for child in made}


async def test_a_tool_of_ones_own_may_not_be_called_like_an_agent() -> None:
    """Which of the two would be called nobody could tell."""
    roster = agents(Agent(name="chief", agent_tools=("shout",)), Agent(name="shout"))
    async with benched({}, roster, shout) as desk:
        with pytest.raises(InvalidRequest, match="two tools are named 'shout'"):
            desk.turn("go", agent="chief")


def test_the_sessions_of_calls_are_known_by_their_ids() -> None:
    """The mark is one that ids made here have nowhere else."""
    assert is_child(SessionRef("u", make_child_id(make_session_id())))
    assert not is_child(SessionRef("u", make_session_id()))
