"""Recorded model calls: lists of them, and the prompt of each with its sections, its marks and its difference from the one before."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

import holdfast
from holdfast.context.build import WorkingSet
from holdfast.context.explain import BuildRecord
from holdfast.errors import CallNotFound, InvalidRequest
from holdfast.sessions import message_explanations, prompt_views
from holdfast.sessions.model_calls import CallId, list_calls, parse_call_id
from holdfast.sessions.past_pins import measure_error
from holdfast.sessions.prompt_sections import FREE
from holdfast.sessions.prompt_views import PromptQuery, PromptView, view_prompt

STRATEGIES: dict[str, dict[str, Any]] = {
    "none": {},
    "digest": {"budget": 600},
    "token_window": {"budget": 500},
    "head_tail": {"window_size": 6},
    "buffer_window": {"window_size": 8},
    "salience": {"budget": 600},
    "clear_tool_results": {"budget": 900},
}
TURNS = 12


async def talk(session: Any, turn_id: int, rounds: int) -> list[list[dict[str, Any]]]:
    """Run one turn with tool calls. Return the prompts that were sent."""
    async with session.turn(f"Which towns are near town {turn_id}? My code is K-{4711 + turn_id}.") as turn:
        prompts = [turn.messages]
        for number in range(rounds):
            call = {"id": f"c{turn_id}-{number}", "type": "function", "function": {"name": "find", "arguments": "{}"}}
            turn.add({"role": "assistant", "content": None, "tool_calls": [call]})
            turn.add({"role": "tool", "tool_call_id": call["id"], "content": f"town {turn_id + number}: 7 rooms. " * 9})
            prompts.append(await turn.next())
        turn.add(f"Town {turn_id + 1} is near, with a harbour and a market.")
    return prompts


@asynccontextmanager
async def record_calls(strategy: str = "digest", **options: Any) -> AsyncIterator[tuple[Any, Any, dict[str, Any]]]:
    """Open a session in which turn n has n % 3 rounds of tool calls. Yield it with the prompts that were sent, by id."""
    roster = holdfast.Roster(context=holdfast.settings.ContextSettings(strategy, options or STRATEGIES[strategy]))
    async with holdfast.open("sqlite://:memory:", roster=roster) as hf:
        session = await hf.session("trip", user_id="ada", system="You help travellers.")
        sent = {}
        for turn_id in range(TURNS):
            for number, prompt in enumerate(await talk(session, turn_id, turn_id % 3)):
                sent[f"{turn_id}.{number}"] = prompt
        yield hf, session, sent


async def view(hf: Any, session: Any, **query: Any) -> PromptView:
    return await view_prompt(hf.engine, session.ref, session.responder, PromptQuery(**query))


def check_sections(found: PromptView) -> None:
    """Require that the sections add up: to the prompt, to the conversation and to the window."""
    tokens = {one.name: one.tokens for one in found.sections}
    assert "tools" not in tokens
    assert all(size > 0 for size in tokens.values())
    assert sum(tokens.values()) == found.window == 128_000
    assert found.total_tokens == sum(size for name, size in tokens.items() if name not in FREE)
    conversation = [one for one in found.messages if one.section not in {"system", "introduction", "recalled"}]
    assert sum(one.tokens for one in conversation) == found.tokens <= found.budget
    assert Counter(one.section for one in found.messages) == Counter(
        {one.name: one.messages for one in found.sections if one.messages}
    )
    names = [one.section for one in found.messages]
    assert sum(one.tokens for one in found.messages if one.section == "tail") == tokens.get("tail", 0)
    assert names.count("task") <= 1
    assert names.count("current") <= 1


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_call_of_every_turn_is_rebuilt_as_it_was_sent(strategy: str) -> None:
    """With sections that add up, also for the calls before the last one of a turn."""
    async with record_calls(strategy) as (hf, session, sent):
        for call_id, prompt in sent.items():
            found = await view(hf, session, id=call_id)
            assert (found.exact, found.not_rebuilt, found.id) == (True, None, call_id)
            assert [one.message for one in found.messages] == prompt
            assert found.call is not None
            assert found.call.messages == len(prompt)
            check_sections(found)
        following = await view(hf, session)
        check_sections(following)
        assert (following.call, following.id, following.before) == (None, "next", found.id)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_every_message_of_the_log_has_exactly_one_mark(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole message is in the prompt word by word, a part has words that the prompt has, and later messages are in no prompt."""
    monkeypatch.setattr(prompt_views, "PROMPT_TEXT_CHARS", 100)
    async with record_calls(strategy) as (hf, session, _):
        log = {entry.seq: entry for entry in await session.entries(retired=True)}
        for call_id in ("3.0", "5.1", "11.2", "next"):
            found = await view(hf, session, id=call_id, log_after=-1, log_limit=200)
            assert [mark.seq for mark in found.log] == sorted(log)
            prompt = "\n".join(str(one.message.get("content")) for one in found.messages)
            for mark in found.log:
                text = log[mark.seq].message.text
                assert (mark.text, mark.shortened) == ((text or "{}")[:100], len(text) > 100)
                if mark.state == "whole":
                    assert text in prompt
                    assert mark.block is not None
                elif mark.state == "part":
                    assert all(" ".join(one.words.split()) in " ".join(prompt.split()) for one in mark.excerpts)
                if found.call is not None and found.call.through is not None:
                    assert (mark.decision == "later") == (mark.seq > found.call.through)


async def test_calls_are_listed_page_by_page_in_both_directions() -> None:
    async with record_calls() as (hf, session, sent):
        info = await session.info()
        for descending in (True, False):
            ids = list(reversed(sent)) if descending else list(sent)
            for limit in (1, 2, 3, 5, 100):
                listed, after = list[str](), None
                while True:
                    page = await list_calls(
                        hf.engine, info, session.responder, limit=limit, after=after, descending=descending
                    )
                    listed += [one.id for one in page.calls]
                    if not page.has_more:
                        break
                    assert len(page.calls) == limit
                    after = CallId(page.calls[-1].turn_id, page.calls[-1].number)
                assert listed == ids
        (newest, before) = (await list_calls(hf.engine, info, session.responder, limit=2)).calls
        assert (newest.strategy, newest.budget, newest.model) == ("digest", 600, "offline")
        assert sent[newest.id][: newest.common] == sent[before.id][: newest.common] != []


async def test_neighbours_lead_through_all_calls() -> None:
    async with record_calls() as (hf, session, sent):
        found = await view(hf, session, id="0")
        walked = [found.id]
        while found.next:
            assert (await view(hf, session, id=found.next)).previous == found.id
            found = await view(hf, session, id=found.next)
            walked.append(found.id)
        assert walked == list(sent)
        assert (await view(hf, session)).previous == walked[-1]


async def test_the_difference_names_each_changed_message() -> None:
    """Applying the difference to the prompt before gives the origins of the messages of the later prompt."""
    async with record_calls() as (hf, session, sent):
        for earlier, later in zip(list(sent), list(sent)[1:], strict=False):
            now, before = await view(hf, session, id=later), await view(hf, session, id=earlier)
            difference = now.difference
            assert now.before == earlier
            assert difference is not None
            assert difference.before == len(before.messages)
            common = [one.message for one in now.messages][: difference.common]
            assert common == [one.message for one in before.messages][: difference.common]
            whole = difference.common == len(before.messages)
            assert whole == (now.broken is None)
            if now.broken is not None:
                assert (now.broken.message, bool(now.broken.why)) == (difference.common, True)
            assert len(now.messages) == len(before.messages) + difference.added - difference.removed
            kept = {one.index for one in difference.changes if one.kind != "removed"}
            assert min(kept, default=difference.common) >= difference.common


async def test_other_settings_are_tried_without_a_call() -> None:
    """The log, the version and the number of calls stay the same; the answer says which settings it is for."""
    async with record_calls() as (hf, session, sent):
        info = await session.info()
        found = await view(hf, session, id="8.1", strategy="token_window", budget=300)
        assert found.strategy is not None
        assert (found.strategy["strategy"], found.budget, found.exact, found.not_rebuilt) == (
            "token_window",
            300,
            None,
            None,
        )
        assert found.call is not None
        assert found.messages[-1].message["role"] == "tool"  # the same moment of the turn
        check_sections(found)
        assert (await session.info()) == info
        assert len(await hf.store.calls(session.ref)) == len(sent)


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
async def test_prompts_are_returned_in_the_format_of_a_provider(dialect: Any) -> None:
    async with record_calls() as (hf, session, sent):
        found = await view(hf, session, id="11.0", dialect=dialect)
        assert found.request is not None
        texts = str(found.request)
        for message in sent["11.0"]:
            assert (message["content"] or "")[:30] in texts or dialect != "openai"
        shape = {
            "openai": {"messages"},
            "anthropic": {"system", "messages"},
            "gemini": {"systemInstruction", "contents"},
        }
        assert found.request.keys() == shape[dialect]


async def test_a_long_session_shows_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says so. The next prompt, and `rebuild`, are still built."""
    async with record_calls() as (hf, session, _):
        monkeypatch.setattr(message_explanations, "EXPLAIN_REBUILT", 10)
        found = await view(hf, session, id="8.1", log_after=-1, log_limit=200)
        assert (found.exact, found.messages) == (None, ())
        assert found.not_rebuilt is not None
        assert "longer" in found.not_rebuilt
        marks = {(mark.decision, mark.state, mark.block) for mark in found.log}
        assert marks == {("kept", "whole", "tail"), ("evicted", "no", None), ("later", "no", None)}
        assert found.call is not None
        assert found.budget == 600
        with pytest.raises(InvalidRequest, match="rebuild"):
            await view(hf, session, id="8.1", strategy="none")
        assert (await view(hf, session, id="8.1", rebuild=True)).exact
        assert (await view(hf, session)).messages


async def test_a_rewound_turn_is_not_rebuilt() -> None:
    async with record_calls() as (hf, session, _):
        await session.rewind(at_turn=5)
        found = await view(hf, session, id="9.0", log_after=-1, log_limit=200)
        assert found.not_rebuilt is not None
        assert "rewind" in found.not_rebuilt
        assert "retired" in {mark.decision for mark in found.log}
        assert (await view(hf, session, id="3.0")).exact


@pytest.mark.parametrize(
    ("call_id", "error"),
    [
        ("99", CallNotFound),
        ("0.7", CallNotFound),
        ("x", InvalidRequest),
        ("-1", InvalidRequest),
        ("1.", InvalidRequest),
    ],
)
async def test_unknown_calls_are_refused(call_id: str, error: type[Exception]) -> None:
    async with record_calls() as (hf, session, _):
        with pytest.raises(error):
            await view(hf, session, id=call_id)


def test_ids_of_calls_are_turns_and_numbers() -> None:
    assert (parse_call_id("12"), parse_call_id("12.0")) == ((12, None), (12, 0))


async def test_a_session_without_calls_has_a_next_prompt_only() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        await session.append({"role": "user", "content": "Hello"})
        found = await view(hf, session, log_limit=5)
        assert (found.previous, found.next, found.difference, [one.state for one in found.log]) == (
            None,
            None,
            None,
            ["whole"],
        )


async def test_pinning_does_not_change_past_prompts() -> None:
    """The log does not say when a message was pinned, but the recorded hash shows with which pins a prompt was sent."""
    async with record_calls() as (hf, session, sent):
        before = {key: await view(hf, session, id=key, log_after=-1, log_limit=60) for key in sent}
        evicted = [mark.seq for mark in before["9.0"].log if mark.decision == "compacted" and mark.role == "user"]
        first, second = evicted[:2]
        await session.annotate(first, pinned=True)
        await talk(session, TURNS, 0)
        await session.annotate(second, pinned=True)
        await talk(session, TURNS + 1, 0)
        for key, old in before.items():
            now = await view(hf, session, id=key, log_after=-1, log_limit=60)
            assert now.exact, key
            assert [one.message for one in now.messages] == [one.message for one in old.messages], key
            assert _count_common(now) == _count_common(old), key
        one, two = await view(hf, session, id=f"{TURNS}"), await view(hf, session, id=f"{TURNS + 1}")
        assert (one.exact, two.exact) == (True, True)
        assert _list_pinned(one) == [first]
        assert _list_pinned(two) == [first, second]
        assert two.difference is not None
        assert [change.seqs for change in two.difference.changes if change.section == "pins"] == [(second, second)]


@pytest.mark.parametrize(
    ("messages", "is_rebuilt", "error"), [(6, False, (0, 0)), (7, True, (0, 0)), (7, False, (0, 1)), (6, True, (0, 1))]
)
def test_a_recalled_block_without_recorded_text_is_no_error(
    messages: int, is_rebuilt: bool, error: tuple[int, int]
) -> None:
    """When the pins of a prompt are guessed, the guess with the smallest error is shown."""
    record = BuildRecord(600, 9000, 11, 1.0, "openai", messages=7, common=-1, frontier=4, recalled=("harbour#0",))
    recalled = object() if is_rebuilt else None
    built = SimpleNamespace(view=SimpleNamespace(frontier=4), messages=[None] * messages, recalled=recalled)
    assert measure_error(cast("WorkingSet", built), record) == error


async def test_explanation_of_an_earlier_turn_ignores_later_pins() -> None:
    async with record_calls() as (hf, session, _):
        marks = (await view(hf, session, id="9.0", log_after=-1, log_limit=60)).log
        seq = next(mark.seq for mark in marks if mark.decision == "compacted" and mark.role == "user")
        old = await session.explain(seq=seq, turn=9)
        await session.annotate(seq, pinned=True)
        now = await session.explain(seq=seq, turn=9)
        assert now.exact is True
        assert now.messages[0].state != "whole"
        assert (now.messages[0].state, now.messages[0].departure) == (old.messages[0].state, old.messages[0].departure)
        assert (await session.explain(seq=seq)).messages[0].state == "whole"


def _count_common(prompt: PromptView) -> tuple[int, int] | None:
    return (prompt.difference.common, prompt.difference.common_tokens) if prompt.difference else None


def _list_pinned(prompt: PromptView) -> list[int]:
    return [one.seqs[0] for one in prompt.messages if one.section == "pins"]


async def test_differences_from_the_prompt_that_was_sent_are_listed() -> None:
    async with record_calls() as (hf, session, _):
        assert (await view(hf, session, id="9.0")).differences == ()
        await hf.engine.store.erase(session.ref, 2)
        found = await view(hf, session, id="9.0")
        assert found.exact is False
        assert "erased messages: 1" in found.differences
        assert (await view(hf, session, id="next")).differences == ()
