"""Session lifecycle over HTTP: close, expiry on every route, use, metrics; and the command `close`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import TickingClock
from tests.edges.cli_kit import make_session, sessions, store
from tests.edges.rest_kit import create_session, path
from tests.edges.server import Served, gateway
from tests.service.expiry_kit import DAY, RecordingHook, file

TTL = "short_term: {session_ttl: 1h}"
HOUR = 3_600_000


def advance_clock(served: Served, by: int) -> None:
    """Move the server's clock forward."""
    clock = served.hf.clock
    assert isinstance(clock, TickingClock)
    clock.now += by


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A store that keeps ended sessions."""
    return file(tmp_path)


async def test_expired_session_is_closed_on_every_route(place: str) -> None:
    """Swept or not; with its own ttl too, in lists and their filter."""
    async with gateway((), TTL, store=place) as (served, _):
        await create_session(served, "usual")
        await create_session(served, "own", ttl=DAY)
        await create_session(served, "never", ttl=0)
        advance_clock(served, HOUR)
        listed = {one["id"]: one["status"] for one in (await served.http.get("/v1/sessions")).json()["data"]}
        assert listed == {"usual": "closed", "own": "active", "never": "active"}
        for status in ("active", "closed"):
            found = (await served.http.get("/v1/sessions", params={"status": status})).json()["data"]
            assert {one["id"] for one in found} == {name for name, what in listed.items() if what == status}
        short = (await served.http.get("/sessions", params={"status": "closed"})).json()["sessions"]
        assert [one["id"] for one in short] == ["usual"]
        assert (await served.http.get(path("usual"))).json()["end_reason"] == "ttl"
        changed = await served.http.patch(path("usual"), json={"metadata": {"a": 1}})
        assert (changed.status_code, changed.json()["status"]) == (200, "closed")


async def test_touch_must_be_a_boolean(place: str) -> None:
    async with gateway(store=place) as (served, _):
        await create_session(served)
        answer = await served.http.post(path("s", "context"), json={"touch": "no"})
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            400,
            "touch must be true or false or null, not a string",
        )


async def test_metrics_count_ends_and_hooks(place: str) -> None:
    """By reason; by hook and outcome."""
    async with gateway((), "short_term: {max_sessions: 1}", store=place) as (served, _):
        ear = RecordingHook()
        ear.failing = 1
        served.hf.add_hook(ear)
        for name in "abc":
            await create_session(served, name)
        await served.http.post(path("c", "close"))
        await served.hf.engine.hook_dispatcher.wait_until_idle()
        lines = (await served.http.get("/metrics")).text.splitlines()
        assert 'holdfast_sessions_ended_total{reason="cap"} 2.0' in lines
        assert 'holdfast_sessions_ended_total{reason="close"} 1.0' in lines
        assert 'holdfast_hook_deliveries_total{hook="ear",outcome="told"} 2.0' in lines
        assert 'holdfast_hook_deliveries_total{hook="ear",outcome="failed"} 1.0' in lines
        assert "holdfast_endings_pending 0.0" in lines


def test_command_line_closes_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once; none if one is missing."""
    monkeypatch.chdir(tmp_path)
    store(make_session("hello", name="a"), make_session("hello", name="b"))
    missing = sessions("close", "a", "none")
    assert missing.exit_code == 1
    assert json.loads(sessions("show", "a", "--json").stdout)["status"] == "active"
    told = sessions("close", "a", "b")
    assert (told.exit_code, told.stdout) == (0, "Closed 2 sessions.\n")
    again = json.loads(sessions("close", "a", "--json").stdout)
    assert [(one["id"], one["status"]) for one in again] == [("a", "closed")]


async def test_slow_hook_does_not_block_requests(place: str) -> None:
    """Delete and close answer at once."""
    async with gateway(store=place) as (served, _):
        release = asyncio.Event()

        async def slow(session: Any, reason: str) -> None:
            await release.wait()

        served.hf.on_expire(slow, name="slow")
        await create_session(served)
        assert (await served.http.post(path("s", "close"))).status_code == 200
        assert (await served.http.delete(path("s"))).status_code == 200
        assert (await served.http.get(path("s"))).status_code == 404
        release.set()
