"""`holdfast.fit`: a conversation in, the messages to send out, with every rule of a working set and nothing stored."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.errors import BudgetTooSmall, InvalidMessage, InvalidRequest
from holdfast.models.offline import OfflineModel
from tests.behaviour.kit.anthropic import check_prompt

Json = dict[str, Any]


def make_call(number: int, *, result: str | None) -> list[Json]:
    function = {"name": "find_order", "arguments": f'{{"order": {number}}}'}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    asked: list[Json] = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    return asked if result is None else [*asked, {"role": "tool", "tool_call_id": f"call_{number}", "content": result}]


def make_conversation(rounds: int, *, answered: bool = True) -> list[Json]:
    messages: list[Json] = [
        {"role": "system", "content": "You help with orders."},
        {"role": "user", "content": "Find my orders. I never pay by card."},
    ]
    for number in range(rounds):
        messages += make_call(
            number, result=f"Order {number} is on its way, parcel {number * 17}. " * 4 if answered else None
        )
        messages += [
            {"role": "assistant", "content": f"Order {number} is on its way."},
            {"role": "user", "content": f"And where is order {number + 1}?"},
        ]
    return messages


@pytest.mark.parametrize("strategy", ["digest", "token_window", "salience", "head_tail", "buffer_window"])
def test_a_long_conversation_fits_and_is_valid(strategy: str) -> None:
    given = make_conversation(40)
    context = holdfast.fit(given, budget=900, strategy=strategy)
    assert context.conversation_tokens <= 900
    assert context.messages[0] == given[0]
    assert context.messages[-1] == given[-1]
    assert 4 < len(context.messages) < len(given)
    check_roles(context.messages)


def check_roles(messages: list[Json]) -> None:
    """Check that each result follows its call, and that each call has its result."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    assert not waiting


def test_a_short_conversation_comes_back_unchanged() -> None:
    given = make_conversation(2)
    assert holdfast.fit(given, model="gpt-4o").messages == given


def test_calls_without_results_get_one() -> None:
    context = holdfast.fit([*make_conversation(3, answered=False)], budget=4_000)
    check_roles(context.messages)
    assert [source.kind for source in context.sources].count("added") == 3


def test_sources_name_the_given_messages() -> None:
    given = make_conversation(40)
    context = holdfast.fit(given, budget=900, strategy="digest")
    assert len(context.sources) == len(context.messages)
    kinds = [source.kind for source in context.sources]
    assert kinds[0] == "system"
    assert "digest" in kinds
    verbatim = [(m, s) for m, s in zip(context.messages, context.sources, strict=True) if s.verbatim]
    assert len(verbatim) > 4
    for message, source in verbatim:
        assert message == given[1 + source.seqs[0]]
    digest = context.sources[kinds.index("digest")].seqs
    assert digest[0] == 1
    assert digest[-1] + 1 == context.sources[kinds.index("digest") + 1].seqs[0]


def test_sources_of_messages_that_anthropic_merges() -> None:
    context = holdfast.fit(make_conversation(3), budget=4_000, dialect="anthropic")
    assert context.system is not None
    assert [seq for source in context.sources for seq in source.seqs] == [*range(len(make_conversation(3)) - 1)]
    two = [{"role": "user", "content": "One."}, {"role": "user", "content": "Two."}]
    merged = holdfast.fit(two, budget=4_000, dialect="anthropic")
    assert [(list(source.seqs), source.verbatim) for source in merged.sources] == [([0, 1], False)]


def test_media_of_results_move_and_keep_their_source() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
    call = make_call(1, result="")
    call[1]["content"] = [{"type": "text", "text": "A picture."}, image]
    given = [{"role": "user", "content": "Show it."}, *call, {"role": "assistant", "content": "There."}]
    context = holdfast.fit([*given, {"role": "user", "content": "Thanks."}], budget=4_000)
    assert [message["role"] for message in context.messages] == [
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
        "user",
    ]
    assert [list(source.seqs) for source in context.sources] == [[0], [1], [2], [2], [3], [4]]
    assert [source.verbatim for source in context.sources] == [True, True, False, False, True, True]


async def test_a_session_gives_its_strategy_budget_and_model_but_not_its_log() -> None:
    given = make_conversation(30)
    async with holdfast.open("sqlite://:memory:", strategy="token_window", budget=900) as hf:
        session = await hf.session("s")
        await session.append({"role": "user", "content": "Of the log."})
        context = holdfast.fit(given, session=session)
        assert context.messages == holdfast.fit(given, strategy="token_window", budget=900).messages
        assert "Of the log." not in str(context.messages)
        assert holdfast.fit(given, budget=500, session=session).budget == 500
        named = holdfast.fit(given, strategy="digest", budget=900, session=session)
        assert named.messages == holdfast.fit(given, budget=900).messages
    small = holdfast.Llm(name="default", model="m", client=OfflineModel(), context_window=8_000)
    roster = holdfast.Roster({"default": small})
    async with holdfast.open("sqlite://:memory:", roster=roster) as hf:
        assert holdfast.fit(given, session=await hf.session("s")).budget < 8_000


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidRequest, match="budget"):
        holdfast.fit(make_conversation(1))
    with pytest.raises(InvalidRequest, match="did you mean 'digest'"):
        holdfast.fit(make_conversation(1), budget=100, strategy="digets")
    with pytest.raises(InvalidRequest, match="windw"):
        holdfast.fit(make_conversation(1), budget=100, windw=3)
    with pytest.raises(InvalidMessage, match=r"messages\[1\]"):
        holdfast.fit([{"role": "user", "content": "a"}, {"role": "nobody", "content": "b"}], budget=100)
    with pytest.raises(BudgetTooSmall):
        holdfast.fit(make_conversation(10), budget=5)


@given(
    st.integers(0, 25), st.sampled_from([200, 500, 900, 2_000]), st.booleans(), st.sampled_from(["openai", "anthropic"])
)
def test_every_result_is_valid_within_budget_and_repeatable(
    rounds: int, budget: int, answered: bool, dialect: Any
) -> None:
    given = make_conversation(rounds, answered=answered)
    context = holdfast.fit(given, budget=budget, dialect=dialect)
    assert context.conversation_tokens <= budget
    assert context == holdfast.fit(given, budget=budget, dialect=dialect)
    if dialect == "openai":
        check_roles(context.messages)
    else:
        assert check_prompt({"system": context.system or [], "messages": context.messages}) == []


def test_the_beginning_stays_while_messages_are_added() -> None:
    """Most consecutive prompts begin with the whole previous prompt, so that a provider's cache is used."""
    given = make_conversation(40)
    prompts = [holdfast.fit(given[: 2 + 4 * number], budget=2_000).messages for number in range(1, 41)]
    pairs = list(itertools.pairwise(prompts))
    assert sum(newer[: len(older)] == older for older, newer in pairs) > 0.7 * len(pairs)
