"""Hector's examples of state, artifacts and sessions, on a real server with every store, and on a second server of
the same database. Its other examples are tested elsewhere. Configuration blocks: tests/unit/test_config_use.py,
test_blocks.py and test_blocks_turns.py in this folder. State in tool callbacks: tests/service/test_state_seed.py.
Coordinator, researcher and writer: test_team.py in this folder. Failing steps of an invocation:
tests/service/test_flow.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Reply, ScriptedUpstream
from tests.clocks import TickingClock
from tests.edges.server import Served, config_text, gateway, serving
from tests.service.turns_kit import SHARED
from tests.stores.servers import place
from tests.unit.blocks import TEMPLATE

pytestmark = SHARED
DRAFTS = """
agents:
  article: {sequence: [drafter, writer]}
  drafter: {instruction: "Before: {temp:draft?}.", output_key: "temp:draft"}
  writer: {instruction: "Draft: {temp:draft}.", output_key: last}
"""
FILES = """
agents:
  coordinator: {sub_agents: [researcher, writer]}
  researcher: {tools: [save_artifact]}
  writer: {tools: [load_artifact], instruction: "Notes: {artifact.notes.md?}"}
"""
DEFAULTS = """
agents:
  assistant:
    state: {topic: none, "user:language": en}
"""


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind."""
    with place(kind, tmp_path) as url:
        yield url


@asynccontextmanager
async def two_servers(store: str, script: Any, config: str) -> AsyncIterator[tuple[Served, Served, ScriptedUpstream]]:
    """Run two servers of one database in front of one model."""
    clock = TickingClock()
    async with ScriptedUpstream(script) as upstream:
        text = config_text(upstream.url, config)
        async with serving(text, store=store, clock=clock) as one, serving(text, store=store, clock=clock) as other:
            yield one, other, upstream


async def run_turn(served: Served, text: str, **fields: Any) -> Any:
    """Run a turn that must succeed; return its reply."""
    reply = await served.chat(text, **fields)
    assert reply["status"] == 200, reply
    return reply


async def change(served: Served, path: str, values: dict[str, Any]) -> None:
    response = await served.http.patch(path, json=values)
    assert response.status_code == 200, response.text


def system(upstream: ScriptedUpstream, at: int = -1) -> str:
    """Return the system prompt of a call."""
    return str(upstream.requests[at].body["messages"][0]["content"])


async def test_state_is_visible_in_instructions(store: str) -> None:
    """State of the session, user and app; both servers see the values at the time of the call."""
    told = "User's preferred language: {}\nCurrent topic: {}\nApp version: {}\n"
    async with two_servers(store, ["ok"] * 4, TEMPLATE) as (one, other, upstream):
        await change(one, "/v1/state?user_id=ada", {"user:language": "en"})
        await change(one, "/v1/state?user_id=bob", {"user:language": "fr"})
        await change(other, "/v1/state?scope=tenant", {"app:version": "2.0.0"})
        await run_turn(one, "hi", model="assistant", user="ada")
        assert system(upstream) == told.format("en", "", "2.0.0")
        await change(other, "/v1/sessions/s/state?user_id=ada", {"current_topic": "infrastructure"})
        await run_turn(one, "and now", model="assistant", user="ada")
        assert system(upstream) == told.format("en", "infrastructure", "2.0.0")
        await run_turn(other, "hi", model="assistant", user="bob", session_id="his")
        assert system(upstream) == told.format("fr", "", "2.0.0")
        await change(one, "/v1/state?scope=tenant", {"app:version": "2.0.1", "app:announcement": "Maintenance at 2 AM"})
        await run_turn(other, "and now", model="assistant", user="bob", session_id="his")
        assert system(upstream) == told.format("fr", "", "2.0.1")


async def test_preferences_across_sessions(store: str) -> None:
    """A session's user state is in the next session's prompt, on another server and after a restart, but not for
    other users.
    """
    config = "agents: {assistant: {instruction: 'Theme: {user:theme?}', output_key: 'user:theme'}}"
    async with gateway(["dark"], config, store=store) as (served, upstream):
        await run_turn(served, "hi", model="assistant", user="ada", session_id="one")
        assert system(upstream) == "Theme: "
    async with gateway(["ok", "ok"], config, store=store) as (served, upstream):
        await run_turn(served, "hi", model="assistant", user="ada", session_id="two")
        await run_turn(served, "hi", model="assistant", user="bob", session_id="three")
        assert [system(upstream, at) for at in (0, 1)] == ["Theme: dark", "Theme: "]
        assert (await served.http.delete("/v1/sessions/one?user_id=ada")).status_code == 200
        assert (await served.http.get("/v1/state?user_id=ada")).json() == {"user:theme": "ok"}


async def test_temporary_state_lasts_for_one_invocation(store: str) -> None:
    """Later agents of the invocation see it; the next invocation does not, and nothing that can be read contains it."""
    async with two_servers(store, ["a draft", "done", "another", Reply(status=400, error="no")], DRAFTS) as (
        one,
        other,
        upstream,
    ):
        await run_turn(one, "hi", model="article")
        assert [system(upstream, at) for at in (0, 1)] == ["Before: .", "Draft: a draft."]
        assert (await other.chat("again", model="article"))["status"] == 400  # also if the invocation fails
        assert [system(upstream, at) for at in (2, 3)] == ["Before: .", "Draft: another."]
        for served in (one, other):
            assert (await served.http.get("/v1/sessions/s/state")).json() == {"last": "done"}
            assert "temp:" not in (await served.http.get("/v1/sessions/s")).text


async def test_artifacts_persist_with_the_session(store: str) -> None:
    """An artifact saved by one agent is available to another, also on another server; it is deleted only with the
    session.
    """
    picture = {"name": "kelp.bin", "content": "AAEC/w==", "encoding": "base64"}
    to = {agent: Reply(tool_calls=[("transfer_to_agent", {"agent_name": agent})]) for agent in ("researcher", "writer")}
    script = [
        to["researcher"],
        Reply(tool_calls=[("save_artifact", {"name": "notes.md", "content": "60 m"}), ("save_artifact", picture)]),
        "saved",
    ]
    async with gateway(script, FILES, store=store) as (served, _):
        reply = await run_turn(served, "Look it up.", model="coordinator")
        assert {one["name"] for one in reply["session"]["artifacts"]} == {"notes.md", "kelp.bin"}
        assert (await served.http.post("/v1/sessions", json={"id": "other"})).status_code == 201
    script = [to["writer"], Reply(tool_calls=[("load_artifact", {"name": "notes.md"})]), "60 m it is"]
    async with gateway(script, FILES, store=store) as (served, upstream):
        await run_turn(served, "Now write.", model="coordinator")
        assert system(upstream) == "Notes: 60 m"
        assert "60 m" in upstream.requests[-1].body["messages"][-1]["content"]
        files = "/v1/sessions/s/artifacts"
        assert (await served.http.get(f"{files}/kelp.bin")).content == b"\x00\x01\x02\xff"
        assert (await served.http.get("/v1/sessions/other/artifacts")).json()["data"] == []
        assert (await served.http.delete("/sessions/s")).status_code == 200
        assert (await served.http.get(f"{files}/notes.md")).status_code == 404


async def test_session_routes(store: str) -> None:
    """List, details and delete in Hector's form, newest first."""
    async with two_servers(store, ["one", "two", "three"], DEFAULTS) as (one, other, _):
        for served, user, name in ((one, "user123", "sess_def"), (other, "user123", "sess_abc"), (one, "eve", "x")):
            await run_turn(served, "hi", model="assistant", user=user, session_id=name)
        for served in (one, other):
            listed = (await served.http.get("/sessions?user_id=user123")).json()
            assert list(listed) == ["sessions"]
            assert [(found["id"], found["agent"]) for found in listed["sessions"]] == [
                ("sess_abc", "assistant"),
                ("sess_def", "assistant"),
            ]
            times = [found["updated_at"] for found in listed["sessions"]]
            assert times == sorted(times, reverse=True)
            assert all(time.endswith("Z") for time in times)
        found = (await other.http.get("/sessions/sess_def")).json()
        assert (found["id"], found["agent"]) == ("sess_def", "assistant")
        assert [message["content"] for message in found["messages"]] == ["hi", "one"]
        assert found["state"] == {"topic": "none", "user:language": "en"}
        assert (await one.http.delete("/sessions/sess_abc")).status_code == 200
        assert (await other.http.get("/sessions/sess_abc")).status_code == 404
        listed = (await other.http.get("/sessions?user_id=user123")).json()
        assert [found["id"] for found in listed["sessions"]] == ["sess_def"]


async def test_session_is_created_with_its_first_message(store: str) -> None:
    """It has a unique id, the default state, and all events."""
    async with gateway(["hello", "hello", "ok"], DEFAULTS, store=store) as (served, _):
        first = (await run_turn(served, "hi", session_id=None, model="assistant"))["session_id"]
        second = (await run_turn(served, "hi", session_id=None, model="assistant", user="ada"))["session_id"]
        assert first != second
        await change(served, f"/v1/sessions/{first}/state", {"topic": "kelp"})
        await run_turn(served, "go on", session_id=first, model="assistant")
        assert await served.log(first) == [
            ("user", "hi"),
            ("assistant", "hello"),
            ("user", "go on"),
            ("assistant", "ok"),
        ]
        for name, user, topic in ((first, "default", "kelp"), (second, "ada", "none")):
            state = (await served.http.get(f"/v1/sessions/{name}/state?user_id={user}")).json()
            assert state == {"topic": topic, "user:language": "en"}


async def test_sessions_can_be_deleted_and_expire(store: str) -> None:
    """By request, by ttl, and all of a user's sessions with their shared state."""
    config = DEFAULTS + "short_term: {session_ttl: 1h}\n"
    clock = TickingClock()
    async with gateway(["ok"] * 3, config, store=store, clock=clock) as (served, _):
        for name, user in (("old", "ada"), ("new", "ada"), ("his", "bob")):
            if name != "old":
                clock.now += 3_600_000
            await run_turn(served, "hi", model="assistant", user=user, session_id=name)
        statuses = {}
        for name, user in (("old", "ada"), ("new", "ada"), ("his", "bob")):
            statuses[name] = (await served.http.get(f"/v1/sessions/{name}?user_id={user}")).json()["status"]
        assert statuses == {"old": "closed", "new": "closed", "his": "active"}
        assert (await served.http.delete("/v1/users/ada")).status_code == 200
        assert (await served.http.get("/sessions?user_id=ada")).json() == {"sessions": []}
        assert (await served.http.get("/v1/state?user_id=ada")).json() == {}
        assert (await served.http.get("/v1/state?user_id=bob")).json() == {"user:language": "en"}


async def test_concurrent_sessions_of_one_user_lose_no_state(store: str) -> None:
    """Twenty sessions on two servers, each with a hundred `user:` keys in five writes and one counter:

    2,000 keys and the exact count.
    """
    async with two_servers(store, [], DEFAULTS) as (one, other, _):

        async def write(session: int) -> None:
            served = (one, other)[session % 2]
            made = await served.http.post("/v1/sessions", json={"id": f"s{session}", "user_id": "ada"})
            assert made.status_code == 201, made.text
            for start in range(0, 100, 20):
                changes: list[Any] = [
                    {"op": "set", "key": f"user:k{session}.{at}", "value": at} for at in range(start, start + 20)
                ]
                changes.append({"op": "increment", "key": "user:count"})
                path = f"/v1/state?session_id=s{session}&user_id=ada"
                told = await served.http.post(path, json={"changes": changes})
                assert told.status_code == 200, told.text

        await asyncio.gather(*(write(session) for session in range(20)))
        for served in (one, other):
            found = (await served.http.get("/v1/state?user_id=ada")).json()
            assert found.pop("user:count") == 100
            assert found == {f"user:k{session}.{at}": at for session in range(20) for at in range(100)}
