"""State written by agents: replies under `output_key`, and the initial state of a session."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from holdfast.agents import Agent
from holdfast.domain.session import SessionRef
from holdfast.errors import ModelUnavailable
from holdfast.lifecycle.settings import LifeSettings
from holdfast.limits import STATE_VALUE_BYTES
from holdfast.models import Collector
from holdfast.turns.respond import respond
from tests.service.team_kit import hand_over, open_team
from tests.service.tools_kit import THEIRS, content, make_reply
from tests.service.turns_kit import SHARED
from tests.stores.servers import place

KEPT = {
    "coordinator": Agent(name="coordinator", llm="coordinator", sub_agents=("researcher",), output_key="plan"),
    "researcher": Agent(name="researcher", llm="researcher", output_key="user:found", instruction="Plan: {plan?}"),
}
BEGUN = {
    "a": Agent(name="a", llm="a", state={"topic": "kelp", "user:language": "en", "app:limits": {"n": 3}, "gone": None}),
    "b": Agent(name="b", llm="b"),
}


async def session_state(bench: Any, name: str = "s") -> dict[str, Any]:
    """Return the session's own state."""
    return dict((await bench.hf.store.get(SessionRef("default", name))).state)


# -- replies -----------------------------------------------------------------------------


@SHARED
async def test_reply_is_stored_under_output_key_in_the_same_write(kind: str, tmp_path: Any) -> None:
    """Text next to calls does not count; each agent has its own key."""
    scripts = {
        "coordinator": [make_reply("Ask her.", hand_over("researcher"))],
        "researcher": [make_reply("Found it.")],
    }
    with place(kind, tmp_path) as url:
        async with open_team(scripts, agents=KEPT, url=url) as bench:
            version = (await bench.session.info()).version
            await bench.ask("find")
            assert await bench.hf.user_state("default").get("user:found") == "Found it."
            assert await session_state(bench) == {}
            assert (await bench.session.info()).version == version + 4  # question, calls, result, reply


async def test_next_instruction_contains_the_stored_reply() -> None:
    scripts = {
        "coordinator": [make_reply("First look."), make_reply(None, hand_over("researcher"))],
        "researcher": [make_reply("ok")],
    }
    async with open_team(scripts, agents=KEPT) as bench:
        await bench.ask("plan")
        assert await session_state(bench) == {"plan": "First look."}
        await bench.ask("go")
        assert bench.told_by.prompt()[0] == ("system", "Plan: First look.")


async def test_interrupted_reply_is_not_stored_in_the_state() -> None:
    async with open_team({"coordinator": [make_reply("A long way to go")]}, agents=KEPT) as bench:
        chunks = respond(bench.turn("x"))
        async for chunk in chunks:
            if "long" in (chunk["choices"][0]["delta"].get("content") or ""):
                break
        await chunks.aclose()
        assert (await bench.log())[-1].metadata["interrupted"]  # type: ignore[index]
        assert await session_state(bench) == {}


async def test_calls_of_client_tools_are_not_stored_as_a_reply() -> None:
    async with open_team({"coordinator": [make_reply("Wait.", ("d", "open_door", {}))]}, agents=KEPT) as bench:
        await bench.ask("x", body={"tools": THEIRS})
        assert await session_state(bench) == {}


async def test_reply_under_a_temporary_key_lasts_for_the_turn() -> None:
    agents = {"a": Agent(name="a", llm="a", output_key="temp:draft")}
    async with open_team({"a": [make_reply("A draft.")]}, agents=agents) as bench:
        turn, seen = bench.turn("x", agent="a"), []
        collector = Collector()
        async for chunk in respond(turn):
            collector.add(chunk)
            seen.append(dict(turn.temp))
        assert {"temp:draft": "A draft."} in seen
        assert (turn.temp, await session_state(bench)) == ({}, {})


async def test_reply_too_long_for_the_state_is_still_logged(caplog: pytest.LogCaptureFixture) -> None:
    long = "x" * (STATE_VALUE_BYTES + 1)
    async with open_team({"coordinator": [make_reply(long), make_reply("short")]}, agents=KEPT) as bench:
        with caplog.at_level(logging.WARNING, "holdfast.turns.respond"):
            assert content(await bench.ask("x")) == long
        assert [record.message for record in caplog.records] == [
            "a reply could not be stored under its agent's output_key"
        ]
        assert (await bench.log())[-1].message.text == long
        await bench.ask("y")
        assert await session_state(bench) == {"plan": "short"}


async def test_reply_added_in_a_library_turn_is_stored_too() -> None:
    async with open_team({}, agents=KEPT) as bench:
        async with bench.session.turn("x") as turn:
            turn.add({"role": "assistant", "content": None, "tool_calls": [_call()]})
            turn.add({"role": "tool", "tool_call_id": "c", "content": "1"})
            await turn.next()
            assert await session_state(bench) == {}
            turn.state["seen"] = True
            turn.add("Done.")
        assert await session_state(bench) == {"seen": True, "plan": "Done."}


def _call() -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


async def test_failure_message_is_not_stored_as_a_reply() -> None:
    sorry = {"a": Agent(name="a", llm="a", output_key="plan", failure_message="Sorry.")}
    async with open_team({"a": [[ModelUnavailable("down")]]}, agents=sorry) as bench:
        assert content(await bench.ask("x", agent="a")) == "Sorry."
        assert await session_state(bench) == {}


# -- initial state ------------------------------------------------------------------------


@SHARED
async def test_session_starts_with_the_state_of_its_agent(kind: str, tmp_path: Any) -> None:
    """Shared keys are written only if they are missing."""
    with place(kind, tmp_path) as url:
        async with open_team({}, agents=BEGUN, url=url) as bench:
            assert await session_state(bench) == {"topic": "kelp"}
            user, app = bench.hf.user_state("default"), bench.hf.app_state()
            assert (await user.all(), await app.all()) == ({"user:language": "en"}, {"app:limits": {"n": 3}})
            await user.set("user:language", "de")
            await bench.hf.session("again", agent="a")
            assert await user.get("user:language") == "de"
            await user.delete("user:language")
            await bench.hf.session("once more", agent="a")
            assert await user.get("user:language") == "en"


async def test_state_given_at_creation_takes_precedence() -> None:
    async with open_team({}, agents=BEGUN) as bench:
        await bench.hf.create("own", agent="a", state={"topic": "fish", "user:language": "fr"})
        assert await session_state(bench, "own") == {"topic": "fish"}
        assert await bench.hf.user_state("default").get("user:language") == "fr"


async def test_session_of_another_agent_has_no_such_state() -> None:
    async with open_team({}, agents=BEGUN) as bench:
        await bench.hf.session("other", agent="b")
        await bench.hf.session("nobody")
        assert (await session_state(bench, "other"), await session_state(bench, "nobody")) == ({}, {})


async def test_fork_keeps_its_own_state() -> None:
    async with open_team({"a": [make_reply("hi")]}, agents=BEGUN) as bench:
        await bench.ask("x", agent="a")
        await bench.session.state.set("topic", "whales")
        await bench.session.fork(id="copy")
        assert await session_state(bench, "copy") == {"topic": "whales"}


async def test_expired_session_starts_again_with_the_initial_state() -> None:
    settings = LifeSettings(session_ttl=1000, sweep=False)
    now = [1_700_000_000_000]
    async with open_team({"a": [make_reply("hi")]}, agents=BEGUN, life=settings, clock=lambda: now[0]) as bench:
        await bench.session.state.set("topic", "whales")
        now[0] += 5000
        await bench.session.send("x")
        assert await session_state(bench) == {"topic": "kelp"}


async def test_greeting_can_use_the_initial_state() -> None:
    polite = {
        "a": Agent(name="a", llm="a", greeting="Shall we speak {user:language} of {topic}?", state=BEGUN["a"].state)
    }
    async with open_team({}, agents=polite) as bench:
        assert [entry.message.text for entry in await bench.log()] == ["Shall we speak en of kelp?"]


async def test_concurrent_session_starts_do_not_reset_shared_state() -> None:
    """One session already counts while others start."""
    counted = {"a": Agent(name="a", llm="a", state={"user:count": 0, "user:list": []})}
    async with open_team({}, agents=counted) as bench:
        user = bench.hf.user_state("default")

        async def begin(at: int) -> None:
            await bench.hf.session(f"n{at}", agent="a")
            await user.increment("user:count")
            await user.append("user:list", at)

        await asyncio.gather(*(begin(at) for at in range(20)))
        assert await user.get("user:count") == 20
        assert sorted(await user.get("user:list")) == list(range(20))


async def test_agent_without_initial_state_costs_no_reads() -> None:
    async with open_team({}, agents=BEGUN) as bench:
        asked: list[str] = []
        inner = bench.hf.engine.store

        class Watched:
            def __getattr__(self, name: str) -> Any:
                asked.append(name)
                return getattr(inner, name)

        bench.hf.engine.store = Watched()
        await bench.hf.create("plain", agent="b")
        assert {"state", "change_state"} & set(asked) == set()
        bench.hf.engine.store = inner
