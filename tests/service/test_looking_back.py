"""What was sent, made again from the log, where summaries were laid and taken away between calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import InvalidRequest
from holdfast.sessions.context_preview import PreviewRequest, preview_context
from tests.service.summary_kit import TELLING, Desk, desk, source
from tests.service.told_model import REF


async def look(at: Desk, **given: Any) -> Any:
    session = await at.session()
    return await preview_context(
        at.hf.engine, REF, PreviewRequest(responder=session.responder, settings=session.responder.context, **given)
    )


async def seen_again(at: Desk) -> None:
    """Every prompt that was sent is made again to the byte."""
    for turn_id, prompt in enumerate(at.chat.prompts):
        found = await look(at, at_turn=turn_id)
        assert found.call.hash.hex() == found.built.hash, turn_id
        assert [message.text for message in found.built.messages] == [one["content"] for one in prompt], turn_id


def numbered(request: dict[str, Any]) -> str:
    return f"{TELLING} So far {len(source(request))}."


async def test_a_call_under_way_while_a_summary_was_laid_was_made_without_it() -> None:
    """The newest entry is the same for the call before the summary and for one that waited for it."""
    async with desk(numbered) as at:
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
        assert len(await at.found("live")) == 1
        await at.talk(3)
        await seen_again(at)


async def test_after_an_undo_all_ways_to_look_agree() -> None:
    """Also of the turns before, which had what was taken away."""
    async with desk(numbered) as at:
        while len(at.chat.prompts) < 30:
            await at.talk(1)
            live = await at.found("live")
            if len(at.chat.prompts) % 7 == 0 and live:
                await (await at.session()).drop_compaction(live[0].id)
            plain, explained = await look(at), await look(at, explain=True)
            assert plain.built.hash == explained.built.hash
            assert plain.built.explain()["compactions"] == explained.built.explain()["compactions"]
        assert len(await at.found("dropped")) > 2
        await seen_again(at)


@pytest.mark.parametrize("strategy", ["salience", "digest", "token_window", "head_tail"])
async def test_a_summary_that_was_asked_for_stays_with_any_strategy(strategy: str) -> None:
    """Also when the room is full again, where all that left is what was important until then."""
    options: dict[str, Any] = {"window_size": 6} if strategy == "head_tail" else {"budget": 1000}
    async with desk(numbered, strategy=strategy, **options) as at:
        await at.talk(20)
        made = await (await at.session()).compact(summarizer_llm="pen")
        assert made is not None
        await at.talk(20)
        built = (await look(at)).built
        laid = built.explain()["compactions"][0]
        assert laid | {"tokens": 0, "source_tokens": 0} == {
            "kind": "summary",
            "from": made.first,
            "to": made.last,
            "tokens": 0,
            "source_tokens": 0,
        }
        assert laid["source_tokens"] > laid["tokens"]
        await seen_again(at)


async def test_a_summary_that_there_is_no_room_for_is_still_the_one_that_a_call_was_built_on() -> None:
    """Whatever must stay comes first; what was sent then is made again all the same."""
    async with desk(numbered) as at:
        await at.until_due()
        await at.compactor.wait_until_idle()
        await at.talk(1, more="much more " * 300)
        await at.talk(4)
        await seen_again(at)


async def test_a_turn_that_is_not_there_is_refused_by_what_is() -> None:
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


async def test_turns_from_the_beginning_of_a_long_session_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whose calls no more than a page is read."""
    monkeypatch.setattr("holdfast.sessions.context_preview.PAGE", 5)
    async with desk(numbered) as at:
        await at.talk(16)
        assert await at.found("superseded")
        await seen_again(at)
