"""State in the examples of document 002, on a real server with every store, and on a second server of the same database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import ScriptedUpstream
from tests.clocks import TickingClock
from tests.edges.server import Served, config_text, gateway, serving
from tests.service.turns_kit import SHARED
from tests.stores.servers import place
from tests.unit.blocks import TEMPLATE

pytestmark = SHARED
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
