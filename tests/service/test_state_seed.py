"""The state examples of the specification, one by one, on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from holdfast.agents import Agent
from holdfast.domain.session import SessionRef
from holdfast.tools.context import ToolContext
from tests.service.tools_kit import Bench, bench, make_reply
from tests.stores.servers import place

ADA, BOB = SessionRef("ada", "one"), SessionRef("bob", "one")
pytestmark = pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])


@pytest.fixture
def url(kind: str, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an empty database of each kind."""
    with place(kind, tmp_path) as found:
        yield found


async def set_state(context: ToolContext, key: str, value: str) -> str:
    """The example's `session.SetState(ctx, key, value)`, in a tool callback."""
    context.state[key] = value
    return "set"


async def get_state(context: ToolContext, key: str) -> str:
    """The example's `session.GetState(ctx, key)`."""
    return str(context.state.get(key, "nothing"))


def obedient(body: dict[str, Any]) -> Any:
    """A model that obeys: `set KEY VALUE; get KEY; …` calls tools, and then it repeats their results."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        results: list[str] = []
        for message in reversed(body["messages"]):
            if message["role"] != "tool":
                break
            results.insert(0, message["content"])
        return make_reply(", ".join(results))
    calls = []
    for at, wanted in enumerate(last["content"].split("; ")):
        verb, key, *value = wanted.split(" ", 2)
        arguments = {"key": key, **({"value": value[0]} if value else {})}
        calls.append((f"c{at}", f"{verb}_state", arguments))
    return make_reply(None, *calls)


@asynccontextmanager
async def desk_at(url: str, **settings: Any) -> AsyncIterator[Bench]:
    async with bench(obedient, set_state, get_state, url=url, **settings) as desk:
        for ref in (ADA, BOB, SessionRef("ada", "two")):
            await desk.hf.session(ref.id, user_id=ref.user_id)
        yield desk


async def say(desk: Bench, ref: SessionRef, text: str, **how: Any) -> str:
    """Run a turn of a session and return the reply."""
    handle = desk.hf.handle(await desk.hf.store.get(ref), **how)
    return str((await handle.send(text))["choices"][0]["message"]["content"])


async def test_session_state_is_kept_in_its_session_only(url: str) -> None:
    async with desk_at(url) as desk:
        await say(desk, ADA, "set last_search deployment kubernetes; set current_topic infrastructure")
        assert await say(desk, ADA, "get current_topic; get last_search") == "infrastructure, deployment kubernetes"
        assert await say(desk, SessionRef("ada", "two"), "get current_topic") == "nothing"
    async with desk_at(url) as desk:  # another process
        assert await say(desk, ADA, "get current_topic") == "infrastructure"
        assert await desk.hf.user_state("ada").all() == {}


async def test_user_state_is_shared_by_the_users_sessions_only(url: str) -> None:
    preferences = '{"notifications": true}'
    async with desk_at(url) as desk:
        await say(desk, ADA, f"set user:theme dark; set user:language en; set user:preferences {preferences}")
        assert (
            await say(desk, SessionRef("ada", "two"), "get user:theme; get user:preferences") == f"dark, {preferences}"
        )
        assert await say(desk, BOB, "get user:theme; get user:preferences") == "nothing, nothing"
    async with desk_at(url) as desk:
        fresh = await desk.hf.session("three", user_id="ada")
        assert await fresh.state["user:theme"] == "dark"
        assert (await fresh.info()).state == {}
        assert set(await desk.hf.user_state("ada").all()) == {"user:theme", "user:language", "user:preferences"}


async def test_app_state_is_shared_by_all_sessions_of_the_tenant_only(url: str) -> None:
    async with desk_at(url) as desk:
        await say(desk, ADA, "set app:version 2.0.0; set app:announcement Maintenance at 2 AM")
        assert await say(desk, BOB, "get app:version; get app:announcement") == "2.0.0, Maintenance at 2 AM"
        async with desk.hf.serve_tenant("other") as other:
            assert await other.app_state().all() == {}
    async with desk_at(url) as desk:
        assert await desk.hf.app_state()["app:version"] == "2.0.0"


async def test_temporary_state_is_never_stored(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The tools of the invocation see `temp:processing`; the store, log, export and log lines never have it."""
    caplog.set_level("DEBUG", "holdfast")
    async with desk_at(url) as desk:
        text = "set temp:processing true; set temp:intermediate_result s3cr3t; set kept yes"
        handle = desk.hf.handle(await desk.hf.store.get(ADA))
        assert await say(desk, ADA, text) == "set, set, set"
        assert await say(desk, ADA, "get temp:processing; get kept") == "nothing, yes"
        assert await handle.state.all() == {"kept": "yes"}
        exported = await desk.hf.export(ADA, retired=True, calls=True)
        assert exported["state"] == {"kept": "yes"}
        said_by_tools = [one for one in exported["messages"] if one["role"] == "tool"]
        assert b"s3cr3t" not in msgspec.json.encode(said_by_tools)
        await handle.state.set("temp:outside", 1)  # outside a turn: dropped
        assert await handle.state.get("temp:outside") is None
        assert await desk.hf.user_state("ada").all() == await desk.hf.app_state().all() == {}
    assert not any("s3cr3t" in record.getMessage() for record in caplog.records)


async def test_tools_of_one_turn_share_temporary_state(url: str) -> None:
    """In the same round and the next one, but not in the next turn."""
    seen: list[Any] = []

    async def look(context: ToolContext) -> str:
        seen.append(context.state.get("temp:processing"))
        return "looked"

    async def start(context: ToolContext) -> str:
        context.state["temp:processing"] = "true"
        return "started"

    script = [
        make_reply(None, ("a", "start", {})),
        make_reply(None, ("b", "look", {})),
        make_reply("ok"),
        make_reply(None, ("c", "look", {})),
        make_reply("ok"),
    ]
    async with bench(script, look, start, url=url) as desk:
        await desk.ask("go")
        await desk.ask("go on")
        assert seen == ["true", None]


async def test_instructions_contain_current_state_values(url: str) -> None:
    """`{user:language}`, `{current_topic?}` and `{app:version}`, with their values when the model is called."""
    instruction = (
        "User's preferred language: {user:language}\nCurrent topic: {current_topic?}\nApp version: {app:version}\n"
    )
    agents = {"assistant": Agent(name="assistant", instruction=instruction)}
    async with desk_at(url, agents=agents) as desk:
        await desk.hf.user_state("ada").set("user:language", "en")
        await desk.hf.app_state().set("app:version", "2.0.0")
        told = "User's preferred language: en\nCurrent topic: {}\nApp version: 2.0.0\n"
        await say(desk, ADA, "set current_topic infrastructure", agent="assistant")
        prompts = [body["messages"][0]["content"] for body in desk.model.bodies]
        assert prompts == [told.format(""), told.format("infrastructure")], "each call is told what stands then"


async def test_concurrent_sessions_lose_no_state_updates(url: str) -> None:
    """Sessions of one user in two processes, each with its own keys and one shared counter."""

    async def note(context: ToolContext, key: str) -> str:
        context.state[f"user:{key}"] = context.session_id
        context.state.increment("user:count")
        context.state.append("user:who", context.session_id)
        return "noted"

    def model(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        return make_reply("ok") if last["role"] == "tool" else make_reply(None, *calls_of(last["content"]))

    def calls_of(name: str) -> list[Any]:
        return [(f"{name}-{at}", "note", {"key": f"{name}.{at}"}) for at in range(5)]

    names = [f"s{at}" for at in range(10)]
    async with bench(model, note, url=url) as one, bench(model, note, url=url) as two:
        async with anyio.create_task_group() as group:
            for at, name in enumerate(names):
                group.start_soon(talk, (one, two)[at % 2], name)
        found = await one.hf.user_state("ada").all()
    assert found.pop("user:count") == 50
    assert sorted(found.pop("user:who")) == sorted(names * 5)
    assert found == {f"user:{name}.{at}": name for name in names for at in range(5)}


async def talk(desk: Bench, name: str) -> None:
    handle = await desk.hf.session(name, user_id="ada")
    await handle.send(name)
