"""`GET /v1/status`: the rules in force, and a preview that agrees with what a sweep then does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.lifecycle import retention
from tests.clocks import Clock
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway

HOUR, DAY = 3_600_000, 86_400_000
RULES = "sessions: {ttl: 1d, max_sessions: 4}\nstorage: {sessions: {retention: 7d}}"


async def read(served: Served) -> dict[str, Any]:
    answer = await served.http.get("/v1/status")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["retention"]
    return found


async def create(served: Served, *names: str, **fields: Any) -> None:
    for name in names:
        assert (await served.http.post("/v1/sessions", json={"id": name, **fields})).status_code == 201


def counts(answer: dict[str, Any]) -> list[int]:
    """Return the counts of an answer, all of which are complete."""
    assert not any(answer[name]["more"] for name in ("expired", "surplus", "retired"))
    return [answer["active"], *(answer[name]["count"] for name in ("expired", "surplus", "retired"))]


async def test_preview_agrees_with_the_next_sweep(tmp_path: Path) -> None:
    """Reading it changes nothing."""
    clock = Clock()
    async with gateway([], RULES, clock=clock, store=f"sqlite:///{tmp_path}/s.db") as (served, _):
        answer = await read(served)
        rules = ("session_ttl", "max_sessions", "retention", "ended")
        assert [answer[name] for name in rules] == [DAY, 4, 7 * DAY, "closed"]
        assert counts(answer) == [0, 0, 0, 0]
        await create(served, "old", "older")
        await create(served, "later", ttl=0)  # unused as long, but closed later
        for name in ("old", "older"):
            await served.hf.close_session(SessionRef("default", name))
        clock.now += 6 * DAY
        await served.hf.close_session(SessionRef("default", "later"))
        clock.now += HOUR
        await create(served, "idle", "brief", ttl=2 * DAY)
        await create(served, "kept", ttl=0)
        clock.now += 2 * DAY
        await create(served, "new")
        for _ in range(2):
            assert counts(await read(served)) == [4, 2, 0, 2]
        swept = await served.hf.sweep()
        assert (swept.expired, swept.evicted, swept.deleted) == (2, 0, 2)
        assert counts(await read(served)) == [2, 0, 0, 0]


async def test_counts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(retention, "_PAGE", 2)
    monkeypatch.setattr(retention, "PREVIEWED_SESSIONS", 4)
    async with gateway([], RULES, clock=clock, store=f"sqlite:///{tmp_path}/s.db") as (served, _):
        for name in "abcdef":
            await create(served, name)
            await served.hf.close_session(SessionRef("default", name))
        clock.now += 8 * DAY
        await create(served, *"wxyz")
        clock.now += 2 * DAY
        answer = await read(served)
        assert (answer["expired"], answer["retired"]) == ({"count": 4, "more": True}, {"count": 4, "more": True})


async def test_rules_that_are_off_apply_to_nothing() -> None:
    """A store in memory deletes sessions that end."""
    rules = "sessions: {ttl: 0, max_sessions: 0}"
    async with gateway([], rules, clock=Clock(), store="sqlite://:memory:") as (served, _):
        await create(served, "s")
        answer = await read(served)
        assert counts(answer) == [1, 0, 0, 0]
        assert answer["ended"] == "deleted"


async def test_a_key_of_one_user_cannot_read_the_rules() -> None:
    async with gateway([], clock=Clock()) as (served, _):
        for fields, status in (({"user_id": "ada"}, 403), ({"role": "read"}, 200)):
            key = bearer(await create_stored_key(served.hf, **fields))
            assert (await served.http.get("/v1/status", headers=key)).status_code == status
