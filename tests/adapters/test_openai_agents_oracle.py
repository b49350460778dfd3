"""Behaviours of a session of the OpenAI Agents SDK: the same tests for its own `SQLiteSession` (the oracle) and for ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed here: make adapters")

from agents import Agent, Runner, SQLiteSession, function_tool, handoff
from agents.memory import Session, SessionSettings
from agents.testing import ScriptedModel, assistant_message, function_call

import holdfast
from holdfast.adapters.openai_agents import HoldfastSession
from tests.adapters.oracle import expect_difference
from tests.adapters.test_openai_agents import OUTPUTS, REPLY

REASONS: Final[dict[str, dict[str, str]]] = {
    "sqlite": {},
    "holdfast": {
        "test_values_of_items_are_kept[half_pair]": "databases refuse half a surrogate pair; it becomes U+FFFD",
        "test_values_of_items_are_kept[infinite]": "infinite numbers are not JSON; nothing of the call is written",
        "test_a_negative_limit_returns_everything": "a negative limit returns nothing, as zero does",
        "test_ids_may_be_empty_or_long": "an id has 1 to 512 bytes",
    },
}
"""The known differences of each kind of session, by the name of the test."""
Opener = Callable[..., Any]
"""Opens a session by its id. The sessions of a test share one database."""


@pytest.fixture(params=list(REASONS))
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    """Open sessions of each kind in turn. A test that fails for a known reason is expected to fail."""
    expect_difference(request, REASONS[request.param])
    opened: list[SQLiteSession] = []

    def open_sqlite(name: str = "s", **settings: Any) -> SQLiteSession:
        opened.append(SQLiteSession(name, tmp_path / "sdk.db", **settings))
        return opened[-1]

    if request.param == "sqlite":
        yield open_sqlite
        for one in opened:
            one.close()
    else:
        async with holdfast.open("sqlite://:memory:") as hf:
            yield lambda name="s", **settings: HoldfastSession(hf, name, **settings)


def say(*texts: str) -> list[Any]:
    return [{"role": "user", "content": text} for text in texts]


async def read(session: Session, limit: int | None = None) -> list[str]:
    return [str(item["content"]) for item in await session.get_items(limit)]  # type: ignore[typeddict-item]


# -- items ---------------------------------------------------------------------------------


async def test_a_whole_reply_is_returned_unchanged(service: Opener) -> None:
    session = service()
    await session.add_items([*say("Where?"), *REPLY, *OUTPUTS, *REPLY[1:2]])
    assert await session.get_items() == [*say("Where?"), *REPLY, *OUTPUTS, *REPLY[1:2]]


VALUES: Final[dict[str, Any]] = {
    "unicode": "é 👍 \u2028",
    "nul": "a\0b",
    "half_pair": "a\ud83db",
    "empty": "",
    "large": "x" * 2_000_000,
    "numbers": [1.5, 2**53 + 1, -0.0, None, True, {"n": []}],
    "whole": 2**70,
    "deep": [[[[[[[[[[[[[[[[{"a": [None]}]]]]]]]]]]]]]]]],
    "infinite": float("inf"),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
async def test_values_of_items_are_kept(service: Opener, value: Any) -> None:
    session = service()
    text = value if isinstance(value, str) else "text"
    item = {"role": "user", "content": text, "own": value}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "own": value}
    await session.add_items([item, call])
    assert repr(await session.get_items()) == repr([item, call]) or await session.get_items() == [item, call]


async def test_an_item_that_is_not_json_adds_nothing(service: Opener) -> None:
    session = service()
    with pytest.raises(Exception):  # noqa: B017 - each kind has its own
        await session.add_items([*say("a"), {"role": "user", "content": "b", "own": {1}}])
    assert await session.get_items() == []


async def test_returned_and_added_items_are_copies(service: Opener) -> None:
    session = service()
    item = {"role": "user", "content": [{"type": "input_text", "text": "a"}]}
    await session.add_items([item])
    item["content"] = "changed"
    for _ in range(2):
        found = await session.get_items()
        assert found == [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]
        found[0]["content"].clear()


# -- limits ----------------------------------------------------------------------------------


async def test_a_limit_may_cut_a_reply(service: Opener) -> None:
    session = service()
    await session.add_items([*say("Where?"), *REPLY])
    for limit in range(1, len(REPLY) + 2):
        assert await session.get_items(limit) == [*say("Where?"), *REPLY][-limit:]


async def test_a_negative_limit_returns_everything(service: Opener) -> None:
    session = service()
    await session.add_items(say("a", "b"))
    assert await read(session, -1) == ["a", "b"]


@pytest.mark.parametrize("settings", [SessionSettings(limit=2), {"limit": 2}], ids=["object", "dict"])
async def test_settings_have_a_limit_that_a_call_may_override(service: Opener, settings: Any) -> None:
    session = service("s", session_settings=settings)
    assert session.session_settings.limit == 2
    await session.add_items(say("a", "b", "c"))
    assert await read(session) == ["b", "c"]
    assert await read(session, 1) == ["c"]
    assert await read(session, 3) == ["a", "b", "c"]


async def test_without_settings_there_is_no_limit(service: Opener) -> None:
    assert service().session_settings.limit is None


# -- several sessions, objects and tasks ----------------------------------------------------------


@pytest.mark.parametrize("name", ["a/b", "é 👍", "../a", "a#b", " a ", "x" * 200, "a\nb", "'; --"])
async def test_ids_may_have_any_characters(service: Opener, name: str) -> None:
    session = service(name)
    assert session.session_id == name
    await session.add_items(say("a"))
    assert await read(service(name)) == ["a"]
    assert await service(f"{name}2").get_items() == []


@pytest.mark.parametrize("name", ["", "x" * 600], ids=["empty", "long"])
async def test_ids_may_be_empty_or_long(service: Opener, name: str) -> None:
    session = service(name)
    await session.add_items(say("a"))
    assert await read(session) == ["a"]


# -- runs ------------------------------------------------------------------------------------------


@function_tool
def find(order: int) -> str:
    """Find an order."""
    if order == 13:
        raise ValueError("There is no such order.")
    return f"Order {order} is on its way."


async def run_tools(session: Any) -> None:
    """Call tools, also in parallel, one of which fails."""
    replies = [
        [function_call("find", {"order": 1}, call_id="c1")],
        [function_call("find", {"order": 2}, call_id="c2"), function_call("find", {"order": 13}, call_id="c3")],
        [assistant_message("Done.")],
        [assistant_message("Yes.")],
    ]
    agent = Agent(name="helper", model=ScriptedModel(replies), tools=[find])
    for text in ("Where are my orders?", "Sure?"):
        await Runner.run(agent, text, session=session)


async def run_streamed(session: Any) -> None:
    """Stream replies."""
    replies = [[function_call("find", {"order": 1}, call_id="c1")], [assistant_message("Done.")]]
    result = Runner.run_streamed(
        Agent(name="helper", model=ScriptedModel(replies), tools=[find]), "Where is it?", session=session
    )
    async for _ in result.stream_events():
        pass


async def run_handoff(session: Any) -> None:
    """Hand the conversation to another agent."""
    expert = Agent(name="expert", model=ScriptedModel([[assistant_message("I know.")]]))
    first = ScriptedModel([[function_call("transfer_to_expert", {}, call_id="c1")]])
    await Runner.run(Agent(name="helper", model=first, handoffs=[handoff(expert)]), "Who knows?", session=session)


async def run_failing(session: Any) -> None:
    """Let the model fail in the middle of a run, then go on."""
    replies = [[function_call("find", {"order": 1}, call_id="c1")], RuntimeError("no"), [assistant_message("Again.")]]
    agent = Agent(name="helper", model=ScriptedModel(replies), tools=[find])
    with pytest.raises(RuntimeError):
        await Runner.run(agent, "Where is it?", session=session)
    await Runner.run(agent, "And now?", session=session)


@pytest.mark.parametrize("run", [run_tools, run_streamed, run_handoff, run_failing], ids=lambda run: run.__name__)
async def test_a_run_leaves_the_same_items_as_with_the_sdks_own_session(run: Any) -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        ours, oracle = HoldfastSession(hf, "s"), SQLiteSession("s")
        for session in (ours, oracle):
            await run(session)
        expected = await oracle.get_items()
        assert expected
        assert await ours.get_items() == expected
        oracle.close()
