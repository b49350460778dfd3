"""What agents put into the state: their replies under `output_key`, and what a session has from its beginning."""

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


async def state_of(bench: Any, name: str = "s") -> dict[str, Any]:
    """A session's own state."""
    return dict((await bench.hf.store.get(SessionRef("default", name))).state)


# -- replies -----------------------------------------------------------------------------


@SHARED
async def test_a_reply_is_kept_under_its_agents_key_in_the_write_that_records_it(kind: str, tmp_path: Any) -> None:
    """What stood with calls is no reply; each agent has its own key."""
    scripts = {
        "coordinator": [make_reply("Ask her.", hand_over("researcher"))],
        "researcher": [make_reply("Found it.")],
    }
    with place(kind, tmp_path) as url:
        async with open_team(scripts, agents=KEPT, url=url) as bench:
            version = (await bench.session.info()).version
            await bench.ask("find")
            assert await bench.hf.user_state("default").get("user:found") == "Found it."
            assert await state_of(bench) == {}
            assert (await bench.session.info()).version == version + 4  # question, calls, result, reply


async def test_the_next_instruction_has_it() -> None:
    scripts = {
        "coordinator": [make_reply("First look."), make_reply(None, hand_over("researcher"))],
        "researcher": [make_reply("ok")],
    }
    async with open_team(scripts, agents=KEPT) as bench:
        await bench.ask("plan")
        assert await state_of(bench) == {"plan": "First look."}
        await bench.ask("go")
        assert bench.told_by.prompt()[0] == ("system", "Plan: First look.")


async def test_a_reply_that_was_cut_is_not_kept() -> None:
    async with open_team({"coordinator": [make_reply("A long way to go")]}, agents=KEPT) as bench:
        chunks = respond(bench.turn("x"))
        async for chunk in chunks:
            if "long" in (chunk["choices"][0]["delta"].get("content") or ""):
                break
        await chunks.aclose()
        assert (await bench.log())[-1].metadata["interrupted"]  # type: ignore[index]
        assert await state_of(bench) == {}


async def test_calls_of_the_clients_tools_are_no_reply() -> None:
    async with open_team({"coordinator": [make_reply("Wait.", ("d", "open_door", {}))]}, agents=KEPT) as bench:
        await bench.ask("x", body={"tools": THEIRS})
        assert await state_of(bench) == {}


async def test_a_reply_under_a_temporary_key_is_the_turns() -> None:
    agents = {"a": Agent(name="a", llm="a", output_key="temp:draft")}
    async with open_team({"a": [make_reply("A draft.")]}, agents=agents) as bench:
        turn, seen = bench.turn("x", agent="a"), []
        collector = Collector()
        async for chunk in respond(turn):
            collector.add(chunk)
            seen.append(dict(turn.temp))
        assert {"temp:draft": "A draft."} in seen
        assert (turn.temp, await state_of(bench)) == ({}, {})


async def test_a_reply_too_long_for_the_state_is_in_the_log_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    long = "x" * (STATE_VALUE_BYTES + 1)
    async with open_team({"coordinator": [make_reply(long), make_reply("short")]}, agents=KEPT) as bench:
        with caplog.at_level(logging.WARNING, "holdfast.turns.respond"):
            assert content(await bench.ask("x")) == long
        assert [record.message for record in caplog.records] == [
            "a reply could not be stored under its agent's output_key"
        ]
        assert (await bench.log())[-1].message.text == long
        await bench.ask("y")
        assert await state_of(bench) == {"plan": "short"}


async def test_a_reply_that_a_librarys_user_adds_is_kept_too() -> None:
    async with open_team({}, agents=KEPT) as bench:
        async with bench.session.turn("x") as turn:
            turn.add({"role": "assistant", "content": None, "tool_calls": [_call()]})
            turn.add({"role": "tool", "tool_call_id": "c", "content": "1"})
            await turn.next()
            assert await state_of(bench) == {}
            turn.state["seen"] = True
            turn.add("Done.")
        assert await state_of(bench) == {"seen": True, "plan": "Done."}


def _call() -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


async def test_a_failure_message_is_no_reply() -> None:
    sorry = {"a": Agent(name="a", llm="a", output_key="plan", failure_message="Sorry.")}
    async with open_team({"a": [[ModelUnavailable("down")]]}, agents=sorry) as bench:
        assert content(await bench.ask("x", agent="a")) == "Sorry."
        assert await state_of(bench) == {}


# -- the beginning -----------------------------------------------------------------------


@SHARED
async def test_a_session_has_its_agents_state_from_the_beginning(kind: str, tmp_path: Any) -> None:
    """What sessions share is written where nothing stands, and stays as it is where something does."""
    with place(kind, tmp_path) as url:
        async with open_team({}, agents=BEGUN, url=url) as bench:
            assert await state_of(bench) == {"topic": "kelp"}
            user, app = bench.hf.user_state("default"), bench.hf.app_state()
            assert (await user.all(), await app.all()) == ({"user:language": "en"}, {"app:limits": {"n": 3}})
            await user.set("user:language", "de")
            await bench.hf.session("again", agent="a")
            assert await user.get("user:language") == "de"
            await user.delete("user:language")
            await bench.hf.session("once more", agent="a")
            assert await user.get("user:language") == "en"


async def test_what_a_session_is_made_with_goes_before_it() -> None:
    async with open_team({}, agents=BEGUN) as bench:
        await bench.hf.create("own", agent="a", state={"topic": "fish", "user:language": "fr"})
        assert await state_of(bench, "own") == {"topic": "fish"}
        assert await bench.hf.user_state("default").get("user:language") == "fr"


async def test_a_session_of_another_agent_has_none_of_it() -> None:
    async with open_team({}, agents=BEGUN) as bench:
        await bench.hf.session("other", agent="b")
        await bench.hf.session("nobody")
        assert (await state_of(bench, "other"), await state_of(bench, "nobody")) == ({}, {})


async def test_a_fork_keeps_its_own() -> None:
    async with open_team({"a": [make_reply("hi")]}, agents=BEGUN) as bench:
        await bench.ask("x", agent="a")
        await bench.session.state.set("topic", "whales")
        await bench.session.fork(id="copy")
        assert await state_of(bench, "copy") == {"topic": "whales"}


async def test_a_session_that_memory_has_let_go_of_begins_again_with_it() -> None:
    settings = LifeSettings(session_ttl=1000, sweep=False)
    now = [1_700_000_000_000]
    async with open_team({"a": [make_reply("hi")]}, agents=BEGUN, life=settings, clock=lambda: now[0]) as bench:
        await bench.session.state.set("topic", "whales")
        now[0] += 5000
        await bench.session.send("x")
        assert await state_of(bench) == {"topic": "kelp"}


async def test_a_greeting_may_use_it() -> None:
    polite = {
        "a": Agent(name="a", llm="a", greeting="Shall we speak {user:language} of {topic}?", state=BEGUN["a"].state)
    }
    async with open_team({}, agents=polite) as bench:
        assert [entry.message.text for entry in await bench.log()] == ["Shall we speak en of kelp?"]


async def test_many_that_begin_at_once_lose_nothing_of_what_is_there() -> None:
    """One counts already while others begin: nobody sets the counter back."""
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


async def test_an_agent_without_any_costs_nothing() -> None:
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
