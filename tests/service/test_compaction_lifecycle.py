"""Lifecycle of summaries: one writer over all processes, inline, dropped, invalidated, on request, and written by functions."""

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
from holdfast.sessions.context_preview import preview_context
from holdfast.sessions.preview_objects import PreviewRequest
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


async def test_messages_of_a_dropped_summary_are_verbatim_again_while_they_fit() -> None:
    async with desk() as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        (made,) = await at.find()
        session = await at.session()
        assert (await session.drop_compaction(made.id)).status == "dropped"
        assert await at.prompt() == [message["content"] for message in await session.messages()]
        at.clock.now += 10_000_000
        await at.talk(1)
        assert len(at.pen.prompts) == 1
        await at.talk(4)
        assert len(await at.find("live")) == 1, "when it does not fit any more"
        with pytest.raises(CompactionNotFound):
            await session.drop_compaction(made.id)


async def test_dropping_a_summary_restores_the_superseded_one() -> None:
    async with desk(lambda request: f"{TELLING} {len(source(request))}") as at:
        await at.talk(25)
        live, earlier = (await at.find("live"))[0], (await at.find("superseded"))[-1]
        await (await at.session()).drop_compaction(live.id)
        assert [one.id for one in await at.find("live")] == [earlier.id]
        prompt = await at.prompt()
        assert earlier.text in prompt[1]
        log = await (await at.session()).entries()
        assert prompt[2:] == [entry.message.text for entry in log[earlier.last + 1 :]]
        asked = len(at.pen.bodies)
        while len(at.pen.bodies) == asked:
            await at.talk(1)
        assert earlier.text in source(at.pen.bodies[asked]), "the next one includes it"


async def test_erasing_a_message_invalidates_its_summary() -> None:
    async with desk() as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        await at.hf.erase(REF, 2, tokens=3)
        assert [(one.status, one.text) for one in await at.find()] == [("dead", "")]
        at.clock.now += 1_000_000
        await at.talk(3)
        assert len(await at.find("live")) == 1
        assert "ORD-0001" not in source(at.pen.bodies[-1])


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


async def test_rewinding_into_its_range_invalidates_a_summary() -> None:
    async with desk() as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        session = await at.session()
        edited = [*(await session.messages())[:2], {"role": "user", "content": "something else"}]
        await session.send(edited)
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        assert [one.status for one in await at.find()] == ["dead"]
        assert not any(text.startswith(LABEL) for text in await at.prompt())


async def test_session_may_be_deleted_during_a_compaction() -> None:
    async with desk() as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        await at.hf.delete(REF)
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        assert at.compactor.outcomes["error"] == 0


async def test_pinned_message_in_its_range_follows_the_summary() -> None:
    """Pinning invalidates views but not the summary: the view is rebuilt from both."""
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


async def test_call_that_would_not_fit_waits_for_a_summary() -> None:
    async with desk() as at:
        await at.talk(6)
        assert at.pen.prompts == []
        await at.talk(1, more="much more " * 300)
        assert len(at.pen.prompts) == 1
        sent = [message["content"] for message in at.chat.prompts[-1]]
        assert sent[1].startswith(LABEL)
        assert not any(text.startswith("[Condensed from") for text in sent)
        assert await at.prompt() != []


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


async def test_digest_is_used_when_the_summary_fails() -> None:
    async with desk(lambda _: "") as at:
        await at.talk(6)
        await at.talk(1, more="much more " * 300)
        sent = [message["content"] for message in at.chat.prompts[-1]]
        assert any(text.startswith("[Condensed from") for text in sent)
        assert at.compactor.outcomes["empty"] == 1


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


# -- on request --------------------------------------------------------------


async def test_summary_can_be_requested() -> None:
    async with desk(budget=50_000) as at:
        await at.talk(10)
        session = await at.session()
        made = await session.compact()
        assert isinstance(made, StoredCompaction)
        assert made.status == "live"
        await at.talk(1)
        assert any(message["content"].startswith(LABEL) for message in at.chat.prompts[-1])


async def test_compaction_preview_writes_nothing() -> None:
    async with desk(budget=50_000) as at:
        await at.talk(10)
        session = await at.session()
        before = await session.info()
        made = await session.compact(preview=True, prompt="Only names.", target=0.3)
        assert made is not None
        assert made.text == TELLING
        assert at.pen.prompts[0][0]["content"] == "Only names."
        assert await session.info() == before
        assert await at.find() == []
        at.pen.say = lambda _: ""
        failed = await session.compact(preview=True)
        assert failed is not None
        assert failed.error
        assert await at.find() == []


async def test_any_strategy_can_be_summarized_by_hand() -> None:
    async with desk(strategy="digest") as at:
        await at.talk(10)
        made = await (await at.session()).compact(summarizer_llm="pen")
        assert made is not None
        await at.talk(1)
        assert any(message["content"].startswith(LABEL) for message in at.chat.prompts[-1])


async def test_compacting_a_short_session_returns_none() -> None:
    async with desk() as at:
        assert await (await at.session()).compact() is None
        await at.talk(1)
        assert await (await at.session()).compact() is None
        assert at.pen.prompts == []


async def test_offline_model_cannot_write_summaries() -> None:
    async with Holdfast("sqlite://:memory:", roster=Roster(context=ContextSettings("summary_buffer"))) as hf:
        assert isinstance(hf.roster.find_llm(None).client, OfflineModel)
        session = await hf.session("s")
        with pytest.raises(InvalidRequest, match="set summarizer_llm"):
            await session.compact()


async def test_failed_requested_summary_has_an_error() -> None:
    async with desk(lambda _: "", budget=50_000) as at:
        await at.talk(10)
        failed = await (await at.session()).compact()
        assert isinstance(failed, StoredCompaction)
        assert (failed.status, failed.error) == ("failed", "the summary is empty")


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
async def test_summaries_of_functions_are_checked_like_those_of_models(function: Any, error: str | None) -> None:
    async with desk(summarizers={"mine": function}, summarizer_llm="mine") as at:
        await at.until_tried()
        (found, *_) = await at.find()
        assert found.error == error
        assert (found.status == "live") == (error is None)


async def test_turn_of_another_session_does_not_wait() -> None:
    async with desk() as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        other = await at.hf.session("other")
        await other.send("hi")
        at.pen.gate.set()
        await at.compactor.wait_until_idle()


async def test_images_are_named_but_not_sent_to_the_summarizer() -> None:
    async with desk(budget=50_000) as at:
        session = await at.session()
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        await session.send([{"role": "user", "content": [{"type": "text", "text": "the task"}]}])
        await session.send([{"role": "user", "content": [picture, {"type": "text", "text": "look"}]}])
        await at.talk(8)
        await session.compact(target=0.3)
        assert "[image_url, not shown]" in source(at.pen.bodies[-1])


async def test_every_past_prompt_can_be_rebuilt() -> None:
    """From the log, the stored budgets and the summaries created between calls, including inline ones."""
    async with desk(lambda request: f"{TELLING} {len(source(request))}") as at:
        await at.talk(12)
        await at.talk(1, more="much more " * 300)
        await at.talk(12)
        assert len(await at.find()) > 3
        session = await at.session()
        for turn in range(at.asked):
            context = await session.context(at_turn=turn)
            assert context.hash == context.sent_hash, turn


async def test_explained_context_reports_failed_summaries() -> None:
    """The live summary, the error, the number of attempts, and the time of the next one."""
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
