"""`GET /v1/status`: what turns of the gateway and the library count, over time and over several servers of one database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain.activity import merge_block
from holdfast.engine import activity
from holdfast.engine.activity import ActivityLog
from holdfast.errors import StoreUnavailable
from holdfast.holdfast import Holdfast
from holdfast.testing import Reply
from tests.clocks import START, Clock
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway

HOUR = 3_600_000
LONG = "The kelp forest of the north coast is home to otters and urchins. " * 120


async def read_total(served: Served, query: str = "", **headers: str) -> dict[str, Any]:
    """Return the sums of the activity."""
    answer = await served.http.get(f"/v1/status{query}", headers=headers)
    assert answer.status_code == 200, answer.text
    total: dict[str, Any] = answer.json()["activity"]["total"]
    return total


async def take_turn(hf: Holdfast) -> None:
    """Take a turn in a program."""
    session = await hf.session("s")
    async with session.turn("Hello") as turn:
        turn.add("Hi.")


async def count_turns(hf: Holdfast) -> int:
    """Return the turns of the last hour."""
    now = hf.clock()
    return sum(one.counts.turns for one in await hf.engine.activity.read(now - HOUR, now + 1, HOUR))


async def test_whole_logs_are_compared_with_the_prompts_that_were_sent() -> None:
    usage = {"prompt_tokens": 2000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1000}}
    async with gateway(lambda _: Reply(text="Noted.", usage=usage)) as (served, _):
        for _ in range(4):
            await served.chat(LONG, budget=2000)
        total = await read_total(served)
        assert total["full_tokens"] > 1.5 * total["sent_tokens"]
        cached = total["cached_tokens"]
        assert total["cost"] == pytest.approx(0.1 * cached + 1.25 * (total["sent_tokens"] - cached), abs=0.1)
        # Sending everything would have read the log of the call before from the cache.
        assert 0.1 * total["full_tokens"] < total["full_cost"] < total["full_tokens"]


async def test_counts_of_several_processes_add_up(tmp_path: Path) -> None:
    """A library program and a server with the same database."""
    clock, url = Clock(START), f"sqlite:///{tmp_path}/holdfast.db"
    async with gateway(lambda _: "ok", store=url, clock=clock) as (served, _), Holdfast(url, clock=clock) as program:
        await served.chat("Hello")
        session = await program.session("library")
        async with session.turn("Hello") as turn:
            turn.add("Hi.")
        await asyncio.gather(served.hf.engine.activity.save(), program.engine.activity.save())
        await served.chat("And again")
        total = await read_total(served, f"?since={START}&until={START + HOUR}")
        assert (total["turns"], total["calls"]) == (3, 3)


async def test_counts_are_kept_while_the_store_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/holdfast.db"
    async with holdfast.open(url) as hf:
        await take_turn(hf)

        async def fail(*_: object, **__: object) -> None:
            raise StoreUnavailable("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(ActivityLog, "_save_block", fail)
            with pytest.raises(StoreUnavailable):
                await hf.engine.activity.save()
        assert await count_turns(hf) == 1
    async with holdfast.open(url) as hf:
        assert await count_turns(hf) == 1


async def test_closing_saves_counts_that_came_during_a_save(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(activity, "SAVE_AFTER", 0.0)
    url, is_saving = f"sqlite:///{tmp_path}/holdfast.db", asyncio.Event()
    async with holdfast.open(url) as hf:
        log = hf.engine.activity

        def count_and_merge(*given: Any) -> bytes | None:
            if not is_saving.is_set():
                log.count_turn(begun=True, failed=False)
            is_saving.set()
            return merge_block(*given)

        monkeypatch.setattr(activity, "merge_block", count_and_merge)
        log.count_turn(begun=True, failed=False)
        await is_saving.wait()
    async with holdfast.open(url) as hf:
        assert await count_turns(hf) == 2


async def test_key_of_one_user_cannot_read_the_activity() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        one, everybody = await create_stored_key(served.hf, user_id="ada"), await create_stored_key(served.hf)
        other = await create_stored_key(served.hf, tenant="other")
        assert (await served.http.get("/v1/status", headers=bearer(one))).status_code == 403
        await served.chat("Hello", headers=bearer(everybody))
        assert (await read_total(served, **bearer(everybody)))["turns"] == 1
        assert (await read_total(served, **bearer(other)))["turns"] == 0
