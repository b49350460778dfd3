"""Past prompts rebuilt from the log, with summaries created and dropped between calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import InvalidRequest
from holdfast.sessions.context_preview import preview_context
from holdfast.sessions.preview_objects import PreviewRequest
from tests.service.scripted_model import REF
from tests.service.summary_kit import TELLING, Desk, desk, source


async def preview(at: Desk, **given: Any) -> Any:
    session = await at.session()
    return await preview_context(
        at.hf.engine, REF, PreviewRequest(responder=session.responder, settings=session.responder.context, **given)
    )


async def check_past_prompts(at: Desk) -> None:
    """Require that every sent prompt is rebuilt byte for byte."""
    for turn_id, prompt in enumerate(at.chat.prompts):
        found = await preview(at, at_turn=turn_id)
        assert found.call.hash.hex() == found.built.hash, turn_id
        assert [message.text for message in found.built.messages] == [one["content"] for one in prompt], turn_id


def write_numbered_summary(request: dict[str, Any]) -> str:
    return f"{TELLING} So far {len(source(request))}."


async def test_summary_created_during_a_call_is_not_in_that_calls_prompt() -> None:
    """The newest entry is the same for the call before the summary and for one that waited for it."""
    async with desk(write_numbered_summary) as at:
        at.pen.gate = asyncio.Event()
        await at.until_due()
        at.chat.gate = asyncio.Event()
        at.chat.asked.clear()
        talking = asyncio.ensure_future(at.talk(1, idle=False))
        await at.chat.asked.wait()
        at.pen.gate.set()
        await at.compactor.wait_until_idle()
        at.chat.gate.set()
        await talking
        assert len(await at.find("live")) == 1
        await at.talk(3)
        await check_past_prompts(at)


async def test_previews_agree_after_dropping_a_summary() -> None:
    """Including earlier turns, which were built on the dropped summary."""
    async with desk(write_numbered_summary) as at:
        while len(at.chat.prompts) < 30:
            await at.talk(1)
            live = await at.find("live")
            if len(at.chat.prompts) % 7 == 0 and live:
                await (await at.session()).drop_compaction(live[0].id)
            plain, explained = await preview(at), await preview(at, explain=True)
            assert plain.built.hash == explained.built.hash
            assert plain.built.explain()["compactions"] == explained.built.explain()["compactions"]
        assert len(await at.find("dropped")) > 2
        await check_past_prompts(at)


@pytest.mark.parametrize("strategy", ["salience", "digest", "token_window", "head_tail"])
async def test_requested_summary_is_kept_with_any_strategy(strategy: str) -> None:
    """Even when the context is full again and all evicted messages were important."""
    options: dict[str, Any] = {"window_size": 6} if strategy == "head_tail" else {"budget": 1000}
    async with desk(write_numbered_summary, strategy=strategy, **options) as at:
        await at.talk(20)
        made = await (await at.session()).compact(summarizer_llm="pen")
        assert made is not None
        await at.talk(20)
        built = (await preview(at)).built
        laid = built.explain()["compactions"][0]
        assert laid | {"tokens": 0, "source_tokens": 0} == {
            "kind": "summary",
            "from": made.first,
            "to": made.last,
            "tokens": 0,
            "source_tokens": 0,
        }
        assert laid["source_tokens"] > laid["tokens"]
        await check_past_prompts(at)


async def test_past_prompts_are_rebuilt_with_a_summary_that_no_longer_fits() -> None:
    """Required messages come before the summary."""
    async with desk(write_numbered_summary) as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        await at.talk(1, more="much more " * 300)
        await at.talk(4)
        await check_past_prompts(at)


async def test_unknown_turn_is_rejected_with_the_last_valid_turn() -> None:
    async with desk() as at:
        session = await at.session()
        with pytest.raises(InvalidRequest, match="no turn 0: it has none yet"):
            await session.context(at_turn=0)
        await at.talk(2)
        with pytest.raises(InvalidRequest, match="no turn 7: the last one is 1"):
            await session.context(at_turn=7)
        for wrong in ("1", True, -1, 1.0):
            with pytest.raises(InvalidRequest, match="at_turn must be a whole number from 0"):
                await session.context(at_turn=wrong)  # type: ignore[arg-type]


async def test_first_turns_of_a_long_session_are_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one page of calls is read."""
    monkeypatch.setattr("holdfast.sessions.context_preview.PAGE", 5)
    async with desk(write_numbered_summary) as at:
        await at.talk(16)
        assert await at.find("superseded")
        await check_past_prompts(at)
