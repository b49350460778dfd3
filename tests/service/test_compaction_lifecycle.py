"""Writing summaries: one writer over all processes, waiting, and limits of a summarizer. What users see is tested by
`tests/behaviour/prompts/test_summaries.py`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import StoredCompaction
from holdfast.errors import Conflict, ContextTooLong, ModelUnavailable
from holdfast.overlays.compactor import Pace, _make_lease_name
from holdfast.stores.lease import Lease
from tests.clocks import Clock
from tests.service.scripted_model import REF
from tests.service.summary_kit import LABEL, TELLING, desk, source
from tests.waits import until

# -- one at a time -----------------------------------------------------------


async def test_two_processes_create_exactly_one_summary(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path / 'x.db'}", Clock()
    async with desk(url=url, clock=clock) as one, desk(url=url, clock=clock) as two:
        one.pen.gate = asyncio.Event()
        await one.until_due()
        await two.talk(1)
        assert two.pen.prompts == []
        with pytest.raises(Conflict):
            await (await two.session()).compact()
        one.pen.gate.set()
        await one.compactor.wait_until_idle()
        await two.talk(1)
        assert len(await two.find()) == 1
        assert any(message["content"].startswith(LABEL) for message in two.chat.prompts[-1])


async def test_lease_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path / 'x.db'}", Clock()
    async with desk(url=url, clock=clock) as one, desk(url=url, clock=clock) as two:
        one.pen.gate = asyncio.Event()
        await one.until_due()
        await two.talk(1)
        assert two.pen.prompts == []
        clock.now += 60_000
        await two.talk(1)
        assert len(await two.find("live")) == 1
        one.pen.gate.set()
        await one.compactor.wait_until_idle()
        assert [one_.status for one_ in await two.find()] in (["live"], ["live", "dead"])


async def test_closing_cancels_the_summary_and_releases_its_lease(tmp_path: Path) -> None:
    """A crash leaves only the lease, which expires."""
    url, clock = f"sqlite:///{tmp_path / 'x.db'}", Clock()
    async with desk(url=url, clock=clock) as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
    async with desk(url=url, clock=clock) as at:
        assert await at.find() == []
        at.asked = 50
        await at.talk(1)
        assert len(await at.find("live")) == 1


async def test_lease_is_renewed_while_a_summary_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(pace=Pace(lease=60)) as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        renewed: list[int] = []
        renew = Lease.renew

        async def noting(lease: Lease) -> bool:
            renewed.append(at.clock.now)
            return await renew(lease)

        monkeypatch.setattr(Lease, "renew", noting)
        for _ in range(3):
            at.clock.now += 50
            await until(lambda: at.clock.now in renewed)
        assert not await at.hf.store.lease(_make_lease_name(REF), "other", now=at.clock.now, until=at.clock.now + 1)
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        assert len(await at.find("live")) == 1
        assert await at.hf.store.lease(_make_lease_name(REF), "other", now=at.clock.now, until=at.clock.now + 1)


async def test_writer_that_loses_the_lease_stops() -> None:
    async with desk(pace=Pace(lease=60)) as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        at.clock.now += 1_000_000
        await at.hf.store.lease(_make_lease_name(REF), "other", now=at.clock.now, until=at.clock.now + 1000)
        await at.compactor.wait_until_idle()
        assert await at.find() == []


# -- dropped and invalidated ----------------------------------------------------


async def test_erasing_during_a_compaction_repeats_it() -> None:
    async with desk() as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        await at.hf.erase(REF, 2, tokens=STILL)
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        assert [one.status for one in await at.find()] == ["dead", "live"]
        assert "ORD-0001" in source(at.pen.bodies[0])
        assert "ORD-0001" not in source(at.pen.bodies[1])


STILL = 60
"""Tokens of an erased entry that leave it due."""


async def test_session_may_be_deleted_during_a_compaction() -> None:
    async with desk() as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        await at.hf.delete(REF)
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        assert at.compactor.outcomes["error"] == 0


# -- inline ------------------------------------------------------------------


async def test_call_waits_for_a_summary_only_up_to_the_timeout() -> None:
    async with desk(pace=Pace(inline=0.02)) as at:
        at.pen.gate = asyncio.Event()
        await at.talk(6)
        await at.talk(1, idle=False, more="much more " * 300)
        sent = [message["content"] for message in at.chat.prompts[-1]]
        assert any(text.startswith("[Condensed from") for text in sent)
        assert at.compactor.outcomes["late"] == 1
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        assert len(await at.find("live")) == 1
        await at.talk(1)
        sent = [message["content"] for message in at.chat.prompts[-1]]
        assert sent[1].startswith(LABEL)


async def test_only_one_turn_waits_for_a_hanging_summarizer() -> None:
    """Otherwise it would delay every turn while the context is full."""
    async with desk(pace=Pace(inline=0.02)) as at:
        at.pen.gate = asyncio.Event()
        await at.talk(6)
        for _ in range(3):
            before = [one["content"] for one in at.chat.prompts[-1]]
            await at.talk(1, idle=False, more="much more " * 300)
            assert [one["content"] for one in at.chat.prompts[-1]][1] != before[1], "the digest had to take a step"
        assert at.compactor.outcomes["late"] == 1
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        await at.talk(1)
        assert len(await at.find("live")) == 1


async def test_messages_covered_by_the_digest_are_in_the_next_summary() -> None:
    answers = iter([""])
    async with desk(lambda _: next(answers, TELLING)) as at:
        await at.until_tried()
        await at.talk(4)
        assert any(text.startswith("[Condensed from") for text in await at.prompt())
        at.clock.now += 30_000
        while len(at.pen.prompts) == 1:
            await at.talk(1)
        (made,) = await at.find("live")
        read = source(at.pen.bodies[1])
        assert all(f"[{seq}] " in read for seq in range(1, made.last + 1))


# -- functions ---------------------------------------------------------------


async def test_function_can_write_summaries() -> None:
    given: list[tuple[list[dict[str, Any]], str | None, int]] = []

    async def mine(messages: list[dict[str, Any]], *, earlier: str | None, tokens: int) -> str:
        given.append((messages, earlier, tokens))
        return TELLING

    async with desk(summarizers={"mine": mine}, summarizer_llm="mine") as at:
        await at.talk(14)
        assert [one.model for one in await at.find("live")] == ["mine"]
        assert given[0][0][0]["role"] == "assistant"
        assert given[0][1] is None
        assert given[1][1] == TELLING
        assert 0 < given[0][2] < 150


async def test_turn_of_another_session_does_not_wait() -> None:
    async with desk() as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        other = await at.hf.session("other")
        await other.send("hi")
        at.pen.gate.set()
        await at.compactor.wait_until_idle()


# -- a summarizer that is late or small ---------------------------------------


async def test_summarizer_call_times_out() -> None:
    async with desk(pace=Pace(call=0.02)) as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        await at.compactor.wait_until_idle()
        (failed,) = await at.find()
        assert failed.error == "gpt-4o-mini did not answer within 0.02 s"
        assert at.compactor.outcomes["timeout"] == 1


async def test_retry_after_of_the_provider_is_respected() -> None:
    async with desk(lambda _: [ModelUnavailable("busy", retry_after=600)]) as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        told = await at.compactor.report(REF, (await at.session()).responder.view_key)
        assert told["failed"]["retry_at"] == at.clock.now + 600_000


# -- longer than allowed -----------------------------------------------------


async def test_endless_summary_is_aborted() -> None:
    def endless(_: Any) -> Any:
        while True:
            yield {"choices": [{"index": 0, "delta": {"content": "ORD-0001 " * 50}, "finish_reason": None}]}

    async with desk(endless) as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        assert [one.status for one in await at.find()] == ["failed"]


# -- the summarizer's own window ---------------------------------------------


async def test_prompt_too_long_for_the_summarizer_is_split() -> None:
    def write(request: dict[str, Any]) -> Any:
        return [ContextTooLong("too long", context_limit=4000)] if len(source(request)) > 5000 else f"Part. {TELLING}"

    async with desk(write, budget=20_000) as at:
        await at.talk(30)
        made = await (await at.session()).compact(budget=2000)
        assert isinstance(made, StoredCompaction)
        assert (made.report or {})["chunks"] > 1


async def test_window_too_small_for_the_task_is_reported() -> None:
    async with desk(window=500) as at:
        await at.until_tried()
        (failed, *_) = await at.find()
        assert "window of gpt-4o-mini is too small" in str(failed.error)
