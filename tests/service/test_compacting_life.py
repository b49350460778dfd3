"""The life of summaries: one at a time over all processes, inline, undone, dead, asked for, by somebody's own function."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Roster
from holdfast.context.settings import ContextSettings
from holdfast.domain.session import StoredCompaction
from holdfast.errors import CompactionNotFound, Conflict, InvalidRequest
from holdfast.holdfast import Holdfast
from holdfast.models import OfflineModel
from holdfast.overlays.compactor import Pace, _make_lease_name
from holdfast.sessions.context_preview import PreviewRequest, preview_context
from holdfast.stores.lease import Lease
from tests.clocks import Clock
from tests.service.summary_kit import LABEL, TELLING, desk, source
from tests.service.told_model import REF
from tests.waiting import until

# -- one at a time -----------------------------------------------------------


async def test_two_processes_make_exactly_one(tmp_path: Path) -> None:
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
        assert len(await two.found()) == 1
        assert any(message["content"].startswith(LABEL) for message in two.chat.prompts[-1])


async def test_what_a_dead_process_held_is_taken_over(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path / 'x.db'}", Clock()
    async with desk(url=url, clock=clock) as one, desk(url=url, clock=clock) as two:
        one.pen.gate = asyncio.Event()
        await one.until_due()
        await two.talk(1)
        assert two.pen.prompts == []
        clock.now += 60_000
        await two.talk(1)
        assert len(await two.found("live")) == 1
        one.pen.gate.set()
        await one.compactor.wait_until_idle()
        assert [one_.status for one_ in await two.found()] in (["live"], ["live", "dead"])


async def test_closing_gives_up_what_is_written_and_its_lease(tmp_path: Path) -> None:
    """A crash in the midst leaves nothing but the lease, which expires; a clean end not even that."""
    url, clock = f"sqlite:///{tmp_path / 'x.db'}", Clock()
    async with desk(url=url, clock=clock) as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
    async with desk(url=url, clock=clock) as at:
        assert await at.found() == []
        at.asked = 50
        await at.talk(1)
        assert len(await at.found("live")) == 1


async def test_a_lease_is_kept_as_long_as_the_work_takes(monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert len(await at.found("live")) == 1
        assert await at.hf.store.lease(_make_lease_name(REF), "other", now=at.clock.now, until=at.clock.now + 1)


async def test_who_loses_the_lease_stops() -> None:
    async with desk(pace=Pace(lease=60)) as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        at.clock.now += 1_000_000
        await at.hf.store.lease(_make_lease_name(REF), "other", now=at.clock.now, until=at.clock.now + 1000)
        await at.compactor.wait_until_idle()
        assert await at.found() == []


# -- undone, and dead --------------------------------------------------------


async def test_what_is_taken_away_is_verbatim_again_and_stays_so_while_it_fits() -> None:
    async with desk() as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        (made,) = await at.found()
        session = await at.session()
        assert (await session.drop_compaction(made.id)).status == "dropped"
        assert await at.prompt() == [message["content"] for message in await session.messages()]
        at.clock.now += 10_000_000
        await at.talk(1)
        assert len(at.pen.prompts) == 1
        await at.talk(4)
        assert len(await at.found("live")) == 1, "when it does not fit any more"
        with pytest.raises(CompactionNotFound):
            await session.drop_compaction(made.id)


async def test_what_it_had_superseded_stands_again() -> None:
    async with desk(lambda request: f"{TELLING} {len(source(request))}") as at:
        await at.talk(25)
        live, earlier = (await at.found("live"))[0], (await at.found("superseded"))[-1]
        await (await at.session()).drop_compaction(live.id)
        assert [one.id for one in await at.found("live")] == [earlier.id]
        prompt = await at.prompt()
        assert earlier.text in prompt[1]
        log = await (await at.session()).entries()
        assert prompt[2:] == [entry.message.text for entry in log[earlier.last + 1 :]]
        asked = len(at.pen.bodies)
        while len(at.pen.bodies) == asked:
            await at.talk(1)
        assert earlier.text in source(at.pen.bodies[asked]), "the next one includes it"


async def test_a_summary_of_what_was_erased_is_dead_and_made_anew_without_it() -> None:
    async with desk() as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        await at.hf.erase(REF, 2, tokens=3)
        assert [(one.status, one.text) for one in await at.found()] == [("dead", "")]
        at.clock.now += 1_000_000
        await at.talk(3)
        assert len(await at.found("live")) == 1
        assert "ORD-0001" not in source(at.pen.bodies[-1])


async def test_what_is_erased_while_it_is_summarized_is_summarized_again() -> None:
    async with desk() as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        await at.hf.erase(REF, 2, tokens=STILL)
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        assert [one.status for one in await at.found()] == ["dead", "live"]
        assert "ORD-0001" in source(at.pen.bodies[0])
        assert "ORD-0001" not in source(at.pen.bodies[1])


STILL = 60
"""Tokens of an erased entry that leave it due."""


async def test_a_rewind_below_its_end_leaves_no_summary() -> None:
    async with desk() as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        session = await at.session()
        edited = [*(await session.messages())[:2], {"role": "user", "content": "something else"}]
        await session.send(edited)
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        assert [one.status for one in await at.found()] == ["dead"]
        assert not any(text.startswith(LABEL) for text in await at.prompt())


async def test_a_session_that_is_deleted_meanwhile_is_gone() -> None:
    async with desk() as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        await at.hf.delete(REF)
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        assert at.compactor.outcomes["error"] == 0


async def test_a_pin_in_its_range_comes_after_it() -> None:
    """A pin has views forgotten, the summary not: the view is made anew from both."""
    async with desk() as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        await at.hf.store.annotate(REF, 3, pinned=True)
        at.hf.engine.warm.forget(REF)
        await at.talk(1)
        log = await (await at.session()).entries()
        sent = [message["content"] for message in at.chat.prompts[-1]]
        assert sent[1].startswith(LABEL)
        assert sent[2] == log[3].message.text


# -- inline ------------------------------------------------------------------


async def test_a_call_that_would_not_fit_waits_for_a_summary() -> None:
    async with desk() as at:
        await at.talk(6)
        assert at.pen.prompts == []
        await at.talk(1, more="much more " * 300)
        assert len(at.pen.prompts) == 1
        sent = [message["content"] for message in at.chat.prompts[-1]]
        assert sent[1].startswith(LABEL)
        assert not any(text.startswith("[Condensed from") for text in sent)
        assert await at.prompt() != []


async def test_it_waits_no_longer_than_it_may() -> None:
    async with desk(pace=Pace(inline=0.02)) as at:
        at.pen.gate = asyncio.Event()
        await at.talk(6)
        await at.talk(1, idle=False, more="much more " * 300)
        sent = [message["content"] for message in at.chat.prompts[-1]]
        assert any(text.startswith("[Condensed from") for text in sent)
        assert at.compactor.outcomes["late"] == 1
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        assert len(await at.found("live")) == 1
        await at.talk(1)
        sent = [message["content"] for message in at.chat.prompts[-1]]
        assert sent[1].startswith(LABEL)


async def test_a_turn_waits_but_once_for_a_summary_that_does_not_come() -> None:
    """A summarizer that hangs would hold up every turn at which the room is full."""
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
        assert len(await at.found("live")) == 1


async def test_the_digest_covers_where_no_summary_comes_of_it() -> None:
    async with desk(lambda _: "") as at:
        await at.talk(6)
        await at.talk(1, more="much more " * 300)
        sent = [message["content"] for message in at.chat.prompts[-1]]
        assert any(text.startswith("[Condensed from") for text in sent)
        assert at.compactor.outcomes["empty"] == 1


async def test_what_the_digest_covered_is_in_the_next_summary() -> None:
    answers = iter([""])
    async with desk(lambda _: next(answers, TELLING)) as at:
        await at.until_tried()
        await at.talk(4)
        assert any(text.startswith("[Condensed from") for text in await at.prompt())
        at.clock.now += 30_000
        while len(at.pen.prompts) == 1:
            await at.talk(1)
        (made,) = await at.found("live")
        read = source(at.pen.bodies[1])
        assert all(f"[{seq}] " in read for seq in range(1, made.last + 1))


# -- asked for ---------------------------------------------------------------


async def test_one_can_be_made_now() -> None:
    async with desk(budget=50_000) as at:
        await at.talk(10)
        session = await at.session()
        made = await session.compact()
        assert isinstance(made, StoredCompaction)
        assert made.status == "live"
        await at.talk(1)
        assert any(message["content"].startswith(LABEL) for message in at.chat.prompts[-1])


async def test_a_preview_writes_nothing() -> None:
    async with desk(budget=50_000) as at:
        await at.talk(10)
        session = await at.session()
        before = await session.info()
        made = await session.compact(preview=True, prompt="Only names.", target=0.3)
        assert made is not None
        assert made.text == TELLING
        assert at.pen.prompts[0][0]["content"] == "Only names."
        assert await session.info() == before
        assert await at.found() == []
        at.pen.say = lambda _: ""
        failed = await session.compact(preview=True)
        assert failed is not None
        assert failed.error
        assert await at.found() == []


async def test_any_strategy_can_be_summarized_by_hand() -> None:
    async with desk(strategy="digest") as at:
        await at.talk(10)
        made = await (await at.session()).compact(summarizer_llm="pen")
        assert made is not None
        await at.talk(1)
        assert any(message["content"].startswith(LABEL) for message in at.chat.prompts[-1])


async def test_without_enough_there_is_nothing_to_compact() -> None:
    async with desk() as at:
        assert await (await at.session()).compact() is None
        await at.talk(1)
        assert await (await at.session()).compact() is None
        assert at.pen.prompts == []


@pytest.mark.parametrize(
    ("options", "param"),
    [({"summarizer_llm": "none"}, "summarizer_llm"), ({"budgt": 5}, "budgt"), ({"strategy": "digest"}, "strategy")],
)
async def test_what_cannot_be_asked_for_is_refused(options: dict[str, Any], param: str) -> None:
    async with desk() as at:
        with pytest.raises(InvalidRequest) as refused:
            await (await at.session()).compact(**options)
        assert refused.value.param == param


async def test_the_offline_model_writes_none() -> None:
    async with Holdfast("sqlite://:memory:", roster=Roster(context=ContextSettings("summary_buffer"))) as hf:
        assert isinstance(hf.roster.find_llm(None).client, OfflineModel)
        session = await hf.session("s")
        with pytest.raises(InvalidRequest, match="set summarizer_llm"):
            await session.compact()


async def test_a_failed_one_that_was_asked_for_says_why() -> None:
    async with desk(lambda _: "", budget=50_000) as at:
        await at.talk(10)
        failed = await (await at.session()).compact()
        assert isinstance(failed, StoredCompaction)
        assert (failed.status, failed.error) == ("failed", "the summary is empty")


# -- somebody's own function -------------------------------------------------


async def test_a_function_can_write_them() -> None:
    given: list[tuple[list[dict[str, Any]], str | None, int]] = []

    async def mine(messages: list[dict[str, Any]], *, earlier: str | None, tokens: int) -> str:
        given.append((messages, earlier, tokens))
        return TELLING

    async with desk(summarizers={"mine": mine}, summarizer_llm="mine") as at:
        await at.talk(14)
        assert [one.model for one in await at.found("live")] == ["mine"]
        assert given[0][0][0]["role"] == "assistant"
        assert given[0][1] is None
        assert given[1][1] == TELLING
        assert 0 < given[0][2] < 150


def plain(messages: list[dict[str, Any]], *, earlier: str | None, tokens: int) -> str:
    return f"{TELLING} {len(messages)}"


def raising(messages: list[dict[str, Any]], *, earlier: str | None, tokens: int) -> str:
    raise RuntimeError("the password is hunter2")


def numeric(messages: list[dict[str, Any]], *, earlier: str | None, tokens: int) -> Any:
    return 42


def endless(messages: list[dict[str, Any]], *, earlier: str | None, tokens: int) -> Any:
    return "ORD-0001 was asked for. " * 100


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (plain, None),
        (raising, "mine failed: RuntimeError"),
        (numeric, "the summarizer mine returned int instead of a string"),
        (lambda *_, **__: "I'm sorry, I can't.", "the summarizer refused to write"),
        (endless, "the answer has nothing in common with what it should summarize"),
    ],
)
async def test_a_function_is_held_to_what_a_model_is_held_to(function: Any, error: str | None) -> None:
    async with desk(summarizers={"mine": function}, summarizer_llm="mine") as at:
        await at.until_tried()
        (found, *_) = await at.found()
        assert found.error == error
        assert (found.status == "live") == (error is None)


async def test_a_turn_of_another_session_is_not_kept_waiting() -> None:
    async with desk() as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        other = await at.hf.session("other")
        await other.send("hi")
        at.pen.gate.set()
        await at.compactor.wait_until_idle()


async def test_an_image_in_the_range_is_named_not_sent() -> None:
    async with desk(budget=50_000) as at:
        session = await at.session()
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        await session.send([{"role": "user", "content": [{"type": "text", "text": "the task"}]}])
        await session.send([{"role": "user", "content": [picture, {"type": "text", "text": "look"}]}])
        await at.talk(8)
        await session.compact(target=0.3)
        assert "[image_url, not shown]" in source(at.pen.bodies[-1])


async def test_every_past_prompt_can_be_made_again() -> None:
    """From the log, the frozen budgets and the summaries that were laid between the calls, inline ones included."""
    async with desk(lambda request: f"{TELLING} {len(source(request))}") as at:
        await at.talk(12)
        await at.talk(1, more="much more " * 300)
        await at.talk(12)
        assert len(await at.found()) > 3
        session = await at.session()
        for turn in range(at.asked):
            context = await session.context(at_turn=turn)
            assert context.hash == context.sent_hash, turn


async def test_why_there_is_no_summary_is_told_where_the_context_is_explained() -> None:
    """What is live, the error, how often it was tried, and when it is tried again."""
    async with desk(lambda request: "") as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        session = await at.session()
        found = await preview_context(
            at.hf.engine,
            session.ref,
            PreviewRequest(responder=session.responder, settings=session.responder.context, explain=True),
        )
        assert found.summaries is not None
        assert found.summaries["live"] is None
        failed = found.summaries["failed"]
        assert failed["attempts"] == 1
        assert "empty" in failed["error"]
        assert failed["retry_at"] > at.clock.now
