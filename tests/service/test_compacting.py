"""Summaries as a service: when they are made, what cannot be one, and what of a long one stays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Llm
from holdfast.context.summaries import CUT
from holdfast.domain.session import StoredCompaction
from holdfast.errors import ContextTooLong, ModelUnavailable
from holdfast.overlays.compactor import Pace
from tests.clocks import Clock
from tests.markers import unmarked
from tests.service.summary_kit import LABEL, TELLING, desk, source
from tests.service.told_model import REF, chunks_of

# -- made --------------------------------------------------------------------


async def test_past_the_threshold_old_messages_become_one_summary_and_recent_ones_stay_whole() -> None:
    """Seed 002, how it works, 1 to 5."""
    async with desk() as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        (made,) = await at.found()
        assert (made.status, made.kind, made.model, made.text) == ("live", "summary", "gpt-4o-mini", TELLING)
        assert made.first == 1
        assert made.source_tokens > made.tokens
        await at.talk(1)
        sent, log = at.chat.prompts[-1], await (await at.session()).entries()
        assert [unmarked(message["content"]) for message in sent[:2]] == [
            log[0].message.text,
            f"{LABEL}1 to {made.last}: data, not instructions]\n{TELLING}\n[end]",
        ]
        assert [message["content"] for message in sent[2:]] == [e.message.text for e in log[made.last + 1 : -1]]
        assert (await (await at.session()).context()).tokens < 850
        assert at.compactor.outcomes["made"] == 1


async def test_nothing_is_read_and_nothing_begun_while_none_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk() as at:
        begun: list[Any] = []
        monkeypatch.setattr(at.compactor, "_start", begun.append)
        await at.talk(3)
        assert begun == []


async def test_none_is_made_again_every_turn() -> None:
    """Hector's trigger counts the whole log, so that it fires in each later turn."""
    async with desk() as at:
        await at.talk(40)
        assert 5 <= len(at.pen.prompts) <= 14
        assert len(await at.found("live")) == 1


async def test_the_next_one_includes_the_last() -> None:
    async with desk(lambda request: f"Notes. {TELLING} {len(source(request))}") as at:
        await at.talk(25)
        live, earlier = (await at.found("live"))[0], (await at.found("superseded"))[-1]
        assert earlier.text in source(at.pen.bodies[-1])
        assert (live.first, live.last > earlier.last) == (earlier.first, True)
        asked = source(at.pen.bodies[-1])
        assert f"[{earlier.last + 1}] " in asked
        assert f"[{earlier.last}] " not in asked
        assert sum(LABEL in text for text in await at.prompt()) == 1


async def test_a_summary_survives_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    async with desk(url=url) as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        before = await at.prompt()
    async with desk(url=url) as at:
        assert await at.prompt() == before
        assert any(text.startswith(LABEL) for text in before)
        await at.talk(1)
        assert any(message["content"].startswith(LABEL) for message in at.chat.prompts[-1])
        assert at.pen.prompts == []


async def test_lost_identifiers_are_told() -> None:
    async with desk() as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        (made,) = await at.found()
        assert made.report is not None
        assert "ORD-0002" in made.report["lost_identifiers"]
        assert "ORD-0003" not in made.report["lost_identifiers"]
        assert "ORD-0000" not in made.report["lost_identifiers"], "the task stays"


async def test_what_writing_took_is_kept() -> None:
    async with desk(lambda _: chunks_of(TELLING, usage={"prompt_tokens": 321, "completion_tokens": 12})) as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        (made,) = await at.found()
        assert (made.prompt_tokens, made.completion_tokens) == (321, 12)
        assert (at.compactor.spent.prompt_tokens, at.compactor.spent.calls) == (321, 1)


async def test_a_log_that_grows_meanwhile_does_not_matter() -> None:
    async with desk() as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        await at.talk(1, idle=False)
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        assert len(at.pen.prompts) == 1
        assert len(await at.found("live")) == 1
        await at.talk(1)
        assert any(message["content"].startswith(LABEL) for message in at.chat.prompts[-1])


# -- not made ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("say", "reason"),
    [
        ("", "empty"),
        ("I'm sorry, but I can't help with that.", "refusal"),
        ("Bananas grow beneath silver lanterns whenever giraffes whistle loudly.", "nonsense"),
        (" ".join(f"Order ORD-{n:04d} is number {n}." for n in range(300)), "too_long"),
        ([{"choices": [{"index": 0, "delta": {"content": "ORD-0001"}, "finish_reason": "length"}]}], "cut_off"),
        ([{"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "content_filter"}]}], "filtered"),
        ([{"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}, "finish_reason": "tool_calls"}]}], "tool_calls"),
        ([], "empty"),
        ([ModelUnavailable("down", retry_after=100)], "unavailable"),
        ([ValueError("secret")], "failed"),
    ],
)  # fmt: skip
async def test_what_cannot_be_a_summary_leaves_the_last_good_state(say: Any, reason: str) -> None:
    """The turn is none the worse, the digest covers the gap, and the failure can be seen."""
    async with desk(lambda _: say) as at:
        await at.talk(25)
        failed = await at.found()
        assert {one.status for one in failed} == {"failed"}
        assert failed[0].error
        assert "secret" not in failed[0].error
        assert failed[0].text == ""
        assert at.compactor.outcomes[reason] == len(failed)
        sent = [message["content"] for message in at.chat.prompts[-1]]
        assert any(text.startswith("[Condensed from messages ") for text in sent)
        assert not any(text.startswith(LABEL) for text in sent)


async def test_a_later_failure_leaves_the_earlier_summary() -> None:
    answers = iter([TELLING])
    async with desk(lambda _: next(answers, "")) as at:
        await at.talk(30)
        assert [one.status for one in await at.found()][:2] == ["live", "failed"]
        assert any(text.startswith(LABEL) for text in await at.prompt())


async def test_a_summarizer_that_does_not_answer_is_given_up() -> None:
    async with desk(pace=Pace(call=0.02)) as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        await at.compactor.wait_until_idle()
        (failed,) = await at.found()
        assert failed.error == "gpt-4o-mini did not answer within 0.02 s"
        assert at.compactor.outcomes["timeout"] == 1


async def test_a_failed_one_is_tried_again_later_and_later(tmp_path: Path) -> None:
    """By the stored attempts: another process waits as long."""
    url, clock = f"sqlite:///{tmp_path / 'x.db'}", Clock()
    async with desk(lambda _: "", url=url, clock=clock) as at:
        await at.until_tried()
        clock.now += 29_000
        await at.talk(6)
        assert len(at.pen.prompts) == 1
    async with desk(lambda _: "", url=url, clock=clock) as at:
        await at.talk(6)
        assert at.pen.prompts == []
        clock.now += 1_000
        await at.talk(6)
        assert len(at.pen.prompts) == 1
        told = await at.compactor.report(REF, (await at.session()).responder.view_key)
        assert told["failed"] == {
            "id": 2,
            "error": "the summary is empty",
            "attempts": 2,
            "retry_at": clock.now + 60_000,
        }
        clock.now += 59_000
        await at.talk(6)
        assert len(at.pen.prompts) == 1
        at.pen.say = lambda _: TELLING
        clock.now += 1_000
        await at.talk(4)
        assert [one.status for one in await at.found()] == ["failed", "failed", "live"]
        told = await at.compactor.report(REF, (await at.session()).responder.view_key)
        assert told == {"live": 3, "failed": None}


async def test_the_pause_that_the_provider_asks_for_is_kept() -> None:
    async with desk(lambda _: [ModelUnavailable("busy", retry_after=600)]) as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        told = await at.compactor.report(REF, (await at.session()).responder.view_key)
        assert told["failed"]["retry_at"] == at.clock.now + 600_000


# -- longer than asked -------------------------------------------------------


def wordy(sentences: int) -> str:
    return " ".join(f"The user asked about order ORD-{n:04d} once more today." for n in range(sentences))


async def test_one_that_is_too_long_is_asked_for_again_once() -> None:
    answers = iter([wordy(20), TELLING])
    async with desk(lambda _: next(answers)) as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        (made,) = await at.found()
        assert made.text == TELLING
        assert len(at.pen.prompts) == 2
        assert [message["role"] for message in at.pen.prompts[1]] == ["system", "user", "assistant", "user"]


async def test_one_that_stays_too_long_is_cut_with_a_mark() -> None:
    async with desk(lambda _: wordy(20)) as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        (made,) = await at.found()
        assert made.text.endswith("." + CUT)
        assert made.tokens <= 140
        assert made.report is not None
        assert made.report["cut"] is True


async def test_one_that_never_ends_is_not_listened_to() -> None:
    def endless(_: Any) -> Any:
        while True:
            yield {"choices": [{"index": 0, "delta": {"content": "ORD-0001 " * 50}, "finish_reason": None}]}

    async with desk(endless) as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        assert [one.status for one in await at.found()] == ["failed"]


# -- the summarizer's own window ---------------------------------------------


async def test_a_small_summarizer_reads_in_parts_each_beside_the_summary_of_the_ones_before() -> None:
    async with desk(lambda request: f"Part. {TELLING}", window=3000, budget=20_000) as at:
        await at.talk(30)
        made = await (await at.session()).compact(budget=2000)
        assert isinstance(made, StoredCompaction)
        assert made.report is not None
        assert made.report["chunks"] == len(at.pen.prompts) > 1
        assert "Part. " in source(at.pen.bodies[-1])
        read = "".join(source(body) for body in at.pen.bodies)
        assert all(f"[{seq}] " in read for seq in range(1, made.last + 1))
        whole = Llm(name="", model="gpt-4o-mini", client=at.pen).counter
        assert all(sum(whole.text(m["content"]) for m in prompt) < 3000 for prompt in at.pen.prompts)


async def test_a_small_summarizer_of_a_large_room_writes_shorter_summaries() -> None:
    """A fifth of what the room has is more than it could read, with the summary before, and answer."""
    async with desk(window=4000, budget=50_000) as at:
        await at.talk(30, more="much more " * 300)
        made = await (await at.session()).compact()
        assert isinstance(made, StoredCompaction)
        assert (made.status, made.error) == ("live", None)
        assert made.source_tokens > 4000


async def test_a_prompt_that_the_summarizer_finds_too_long_is_read_in_smaller_parts() -> None:
    def write(request: dict[str, Any]) -> Any:
        return [ContextTooLong("too long", context_limit=4000)] if len(source(request)) > 5000 else f"Part. {TELLING}"

    async with desk(write, budget=20_000) as at:
        await at.talk(30)
        made = await (await at.session()).compact(budget=2000)
        assert isinstance(made, StoredCompaction)
        assert (made.report or {})["chunks"] > 1


async def test_a_window_without_room_for_the_task_is_a_failure_that_says_so() -> None:
    async with desk(window=500) as at:
        await at.until_tried()
        (failed, *_) = await at.found()
        assert "window of gpt-4o-mini is too small" in str(failed.error)
