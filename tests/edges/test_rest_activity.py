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


async def test_turns_calls_and_tokens_are_counted() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 50}}
    async with gateway(lambda _: Reply(text="Yes.", usage=usage)) as (served, _):
        assert set((await read_total(served)).values()) == {0}
        for text in ("Hello", "And now?"):
            assert (await served.chat(text))["status"] == 200
        total = await read_total(served)
        assert (total["turns"], total["failed_turns"], total["calls"], total["failed_calls"]) == (2, 0, 2, 0)
        assert total["sent_tokens"] == total["full_tokens"] == total["measured_tokens"] > 0
        assert total["cached_tokens"] == pytest.approx(total["sent_tokens"] / 2, abs=1)
        assert total["completion_tokens"] == 14


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


async def test_results_of_tools_continue_a_turn() -> None:
    """The sum is that of the sessions' `turns`, and each model call is counted."""

    def answer(body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["role"] == "tool":
            return Reply(text="Sunny.")
        function = {"name": "weather", "arguments": "{}"}
        return Reply(tool_calls=[{"id": "call_1", "type": "function", "function": function}])

    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    async with gateway(answer) as (served, _):
        for session in ("a", "b"):
            await served.chat("How is the weather?", session, tools=[tool])
            await served.chat([{"role": "tool", "tool_call_id": "call_1", "content": "sun"}], session, tools=[tool])
        total = await read_total(served)
        sessions = (await served.http.get("/v1/sessions")).json()["data"]
        assert (total["turns"], total["calls"]) == (2, 4)
        assert sum(one["turns"] for one in sessions) == 2


async def test_whole_log_is_compared_after_a_restart_as_before(tmp_path: Path) -> None:
    """The size of the log at the previous call is read from the prompt, so it is known after a restart."""
    usage = {"prompt_tokens": 2000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1000}}
    costs = []
    for number, restarts in enumerate((False, True)):
        url = f"sqlite:///{tmp_path}/{number}.db"
        for texts in ((LONG,), (LONG,)) if restarts else ((LONG, LONG),):
            async with gateway(lambda _: Reply(text="Noted.", usage=usage), store=url) as (served, _):
                for text in texts:
                    await served.chat(text)
                total = await read_total(served)
        costs.append((total["cost"], total["full_cost"], total["full_tokens"]))
    assert costs[0] == costs[1]


async def test_cold_cache_of_the_provider_is_assumed_for_whole_logs_too() -> None:
    async with gateway(lambda _: Reply(text="Noted.", usage={"prompt_tokens": 2000})) as (served, _):
        for _ in range(2):
            await served.chat(LONG)
        total = await read_total(served)
        assert total["full_tokens"] == total["sent_tokens"]
        assert total["full_cost"] == total["cost"]


async def test_failures_are_counted_apart() -> None:
    """A message after one without an answer belongs to the same turn, as in the log."""
    async with gateway([Reply(status=500, error="down"), "Back."]) as (served, _):
        assert (await served.chat("Hello"))["status"] >= 500
        assert (await served.chat("Hello again"))["status"] == 200
        total = await read_total(served)
        assert (total["turns"], total["failed_turns"], total["calls"], total["failed_calls"]) == (1, 1, 1, 1)


async def test_repeated_request_is_not_counted_again() -> None:
    async with gateway(lambda _: "Once.") as (served, _):
        for _ in range(2):
            await served.chat("Hello", headers={"idempotency-key": "k"})
        assert (await read_total(served))["turns"] == 1


async def test_series_has_one_item_per_step_and_survives_a_restart(tmp_path: Path) -> None:
    clock, url = Clock(START), f"sqlite:///{tmp_path}/holdfast.db"
    async with gateway(lambda _: "ok", store=url, clock=clock) as (served, _):
        await served.chat("Hello")
        clock.now += 2 * HOUR
        await served.chat("Hello again")
    async with gateway(lambda _: "ok", store=url, clock=clock) as (served, _):
        answer = (await served.http.get(f"/v1/status?since={START}&until={clock.now + 1}")).json()["activity"]
        assert [item["counts"]["turns"] for item in answer["data"]] == [1, 0, 1]
        assert [item["start"] % HOUR for item in answer["data"]] == [0, 0, 0]
        assert answer["since"] == answer["data"][0]["start"] == START - START % HOUR
        fine = (await served.http.get(f"/v1/status?step=5m&since={START}&until={clock.now + 1}")).json()["activity"]
        assert (len(fine["data"]), fine["total"]["turns"]) == (25, 2)
        days = (await served.http.get("/v1/status?step=1d&since=2023-11-01")).json()["activity"]
        assert [item["counts"]["turns"] for item in days["data"]][-2:] == [1, 1]


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


async def test_old_counts_make_room_for_new_ones(tmp_path: Path) -> None:
    clock, url = Clock(START), f"sqlite:///{tmp_path}/holdfast.db"
    async with gateway(lambda _: "ok", store=url, clock=clock) as (served, _):
        for _ in range(50):
            await served.chat("Hello", "s")
            await served.hf.engine.activity.save()
            clock.now += 24 * HOUR
        since = clock.now - 900 * HOUR
        assert 35 <= (await read_total(served, f"?since={since}&until={clock.now}"))["turns"] <= 42


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


async def test_other_processes_see_counts_after_a_while(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(activity, "SAVE_AFTER", 0.0)
    url = f"sqlite:///{tmp_path}/holdfast.db"
    async with holdfast.open(url) as hf, holdfast.open(url) as other:
        await take_turn(hf)
        async with asyncio.timeout(10):
            while not await count_turns(other):
                pass


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


async def test_counts_of_a_short_program_are_saved(tmp_path: Path) -> None:
    """It closes before the first save, in the step of time in which it began."""
    url = f"sqlite:///{tmp_path}/holdfast.db"
    async with holdfast.open(url, clock=Clock()) as hf:
        await take_turn(hf)
    async with holdfast.open(url, clock=Clock()) as hf:
        assert await count_turns(hf) == 1


async def test_key_of_one_user_cannot_read_the_activity() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        one, everybody = await create_stored_key(served.hf, user_id="ada"), await create_stored_key(served.hf)
        other = await create_stored_key(served.hf, tenant="other")
        assert (await served.http.get("/v1/status", headers=bearer(one))).status_code == 403
        await served.chat("Hello", headers=bearer(everybody))
        assert (await read_total(served, **bearer(everybody)))["turns"] == 1
        assert (await read_total(served, **bearer(other)))["turns"] == 0


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?since=2023-11-15&until=2023-11-14", "since"),
        ("?since=2020-01-01&step=5m", "step"),
        ("?step=1m", "step"),
        ("?since=yesterday", "since"),
    ],
)
async def test_wrong_ranges_are_refused(query: str, param: str) -> None:
    async with gateway(lambda _: "ok") as (served, _):
        answer = await served.http.get(f"/v1/status{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
