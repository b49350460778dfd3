"""Statements of document 001 about strategies: windows, tokens, importance, summaries and cleared results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import holdfast
from tests.behaviour.kit import World, assistant, calls, gateway, result, system, texts, through, user
from tests.behaviour.kit.dialogues import TASK, decided, talk, work

pytestmark = through("library", "rest")
SYSTEM = "You are a clerk."
NOW = user("And now?")
SUMMARY = "The user asked what happened to parcels P-1 to P-50. Refund order K-113 of Ada, and never by card."


async def given(hf: Any, messages: list[Any], **fields: Any) -> Any:
    return await hf.given("s", *messages, NOW, system_messages=[SYSTEM], **fields)


def summarizing(body: dict[str, Any]) -> str:
    """Answer as a model that also writes summaries."""
    return SUMMARY if "summar" in str(body["messages"][0]["content"]).lower() else "Noted."


# -- cleared results ---------------------------------------------------------------


async def test_001_26_a_trigger_in_tokens_clears_old_results(world: World) -> None:
    async with world.open() as hf:
        session = await given(hf, work(8))
        keys = {"strategy": "clear_tool_results", "budget": 8_000, "clear_at_least": 1}
        assert "cleared" not in decided(await session.context(**keys)).values()
        found = decided(await session.context(**keys, trigger=500, keep=2))
        assert [seq for seq, decision in found.items() if decision == "cleared"] == [2, 5, 8, 11, 14, 17]


async def test_001_29_the_latest_result_of_each_tool_stays(world: World) -> None:
    async with world.open() as hf:
        messages = [user(TASK)]
        for number, tool in enumerate(["stock", "price", "look", "look", "look"]):
            words = f"{tool} {number}: " + "several words " * 60
            messages += [calls((f"c{number}", tool, {"n": number})), result(f"c{number}", words)]
        session = await given(hf, messages)
        keys = {"strategy": "clear_tool_results", "budget": 8_000, "trigger": 100, "keep": 1, "clear_at_least": 1}
        old = decided(await session.context(**keys))
        latest = decided(await session.context(**keys, keep_latest=True))
        assert [seq for seq in (2, 4, 6, 8, 10) if old[seq] == "kept"] == [10]
        assert [seq for seq in (2, 4, 6, 8, 10) if latest[seq] == "kept"] == [2, 4, 10]


async def test_001_74_an_edit_of_a_request_clears_tool_uses() -> None:
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "tool_uses", "value": 3},
        "keep": {"type": "tool_uses", "value": 2},
    }
    tool: Any = {"name": "read", "input_schema": {"type": "object"}}
    messages: list[Any] = [user("Read the book.")]
    for page in range(8):
        use = {"type": "tool_use", "id": f"u{page}", "name": "read", "input": {"page": page}}
        messages += [
            assistant([use]),
            user([{"type": "tool_result", "tool_use_id": f"u{page}", "content": "x " * 900}]),
        ]
    async with gateway(["Done."]) as served:
        answer = await served.anthropic.beta.messages.create(
            model="gpt-4o",
            max_tokens=100,
            messages=messages,
            tools=[tool],
            betas=["context-management-2025-06-27"],
            context_management={"edits": [edit]},
        )
        sent = [one["content"] for one in served.upstream.requests[0].body["messages"] if one["role"] == "tool"]
        assert ["x x x" in one for one in sent] == [False] * 6 + [True] * 2
        assert answer.context_management.applied_edits[0].cleared_tool_uses == 6


async def test_001_102_calls_stay_when_their_results_are_cleared(world: World) -> None:
    async with world.open() as hf:
        session = await given(hf, work(8))
        keys = {"trigger": 300, "keep": 1, "clear_at_least": 1}
        sent = (await session.context(strategy="clear_tool_results", budget=8_000, **keys))["messages"]
        assert len([one for one in sent if one.get("tool_calls")]) == 8
        results = [one["content"] for one in sent if one["role"] == "tool"]
        assert len(results) == 8
        assert all(one.startswith("[") and "cleared" in one for one in results[:-1])
        assert results[-1].startswith("Result c7_0")


@pytest.mark.parametrize(
    ("keys", "cleared"),
    [
        ({"trigger": 300, "keep": 5, "clear_at_least": 1}, 3),
        ({"trigger": 100_000, "keep": 5, "clear_at_least": 1}, 0),
        ({"trigger": 300, "keep": 5, "clear_at_least": 5_000}, 0),
        ({"trigger": 300, "keep": 5, "clear_at_least": 1, "exclude_tools": ["find"]}, 0),
    ],
)
async def test_001_131_the_knobs_trigger_keep_and_clear_at_least(world: World, keys: Any, cleared: int) -> None:
    async with world.open() as hf:
        session = await given(hf, work(8))
        found = decided(await session.context(strategy="clear_tool_results", budget=16_000, **keys))
        assert list(found.values()).count("cleared") == cleared


# -- windows of messages -----------------------------------------------------------


async def test_001_30_the_last_messages_are_kept(world: World) -> None:
    async with world.open() as hf:
        messages = talk(30)
        session = await given(hf, messages)
        sent = (await session.context(strategy="buffer_window", window_size=6))["messages"]
        assert sent == [system(SYSTEM), *messages[-5:], NOW]
        shortened = await session.context(strategy="token_window", budget=150, preserve_recent=3)
        assert [seq for seq, decision in decided(shortened).items() if decision in {"kept", "cut"}][-3:] == [58, 59, 60]


async def test_001_42_policy_1_is_the_system_prompt_and_the_last_messages(world: World) -> None:
    async with world.open() as hf:
        messages = talk(20)
        sent = (await (await given(hf, messages)).context(strategy="buffer_window", window_size=4))["messages"]
        assert sent == [system(SYSTEM), *messages[-3:], NOW]


@pytest.mark.parametrize("budget", [None, 5_000, 300])
async def test_001_43_policy_1_drops_the_task_too(world: World, budget: int | None) -> None:
    async with world.open() as hf:
        context = await (await given(hf, talk(20))).context(strategy="buffer_window", window_size=4, budget=budget)
        assert user(TASK) not in context["messages"]
        assert decided(context)[0] == "evicted"


async def test_001_46_policy_2_adds_the_first_user_message(world: World) -> None:
    async with world.open() as hf:
        messages = talk(20)
        sent = (await (await given(hf, messages)).context(strategy="head_tail", window_size=4))["messages"]
        assert sent == [system(SYSTEM), user(TASK), *messages[-3:], NOW]


# -- windows of tokens -------------------------------------------------------------


async def test_001_28_the_middle_is_dropped(world: World) -> None:
    async with world.open() as hf:
        messages = talk(60)
        session = await given(hf, messages)
        for strategy in ("digest", "token_window", "salience", "summary_buffer"):
            sent = (await session.context(strategy=strategy, budget=1_500))["messages"]
            assert sent[1] == user(TASK)
            assert sent[-2:] == [messages[-1], NOW]
            assert len(sent) < 60


@pytest.mark.parametrize("strategy", ["token_window", "summary_buffer"])
async def test_001_49_the_default_budget_is_8000_or_that_of_the_model(world: World, strategy: str) -> None:
    """The issue keeps the default of these two; the others take window minus reply minus headroom."""
    async with world.open(script=[]) as hf:
        session = await given(hf, talk(3))
        context = await session.context(strategy=strategy)
        overhead = context["total_tokens"] - context["conversation_tokens"]
        assert context["budget"] == 8_000
        for other in ("digest", "salience", "clear_tool_results"):
            assert (await session.context(strategy=other))["budget"] == 128_000 - 4_096 - 2_048 - overhead


async def test_001_50_the_head_is_counted_first_and_then_the_tail_backwards(world: World) -> None:
    async with world.open() as hf:
        context = await (await given(hf, talk(60))).context(strategy="token_window", budget=600, target=0.9)
        found = decided(context)
        kept = [seq for seq, decision in found.items() if decision == "kept"]
        assert found[0] == "anchored"
        assert kept == list(range(min(kept), 121))
        assert context["conversation_tokens"] <= 600


@pytest.mark.parametrize(("target", "least"), [(0.33, 0.3), (0.95, 0.9)])
async def test_001_51_the_tail_fills_the_share_target(world: World, target: float, least: float) -> None:
    """Contradicted on purpose: a step leaves room, so that the next messages do not rewrite the prompt."""
    async with world.open() as hf:
        used = []
        session = await given(hf, talk(40))
        for number in range(12):
            await session.append(*talk(2, task=f"Task {number}")[2:])
            used.append(
                (await session.context(strategy="token_window", budget=1_500, target=target))["conversation_tokens"]
            )
        assert min(used) >= least * 1_500 - 150
        assert max(used) <= 1_500
        assert (min(used) < 800) == (target < 0.5)


async def test_001_104_strategy_last_is_token_window() -> None:
    messages = [*talk(60), NOW]
    assert holdfast.fit(messages, strategy="token_window", budget=500).messages[-1] == NOW
    with pytest.raises(holdfast.HoldfastError, match="token_window"):
        holdfast.fit(messages, strategy="last", budget=500)


# -- digest ------------------------------------------------------------------------


async def test_001_31_older_redundant_steps_become_one_line(world: World) -> None:
    async with world.open() as hf:
        messages = [user(TASK)]
        for number in range(30):
            messages += [
                calls((f"c{number}", "poll", {"job": "J-7"})),
                result(f"c{number}", f"job J-7 is at {number} %"),
            ]
        context = await (await given(hf, [*messages, *talk(30)])).context(strategy="digest", budget=1_500)
        (digest,) = [one for one in texts(context["messages"]) if "[Condensed from messages" in str(one)]
        assert "29 %" in digest
        assert digest.count("poll(") == 1


async def test_001_89_courtesies_go_and_facts_stay(world: World) -> None:
    async with world.open() as hf:
        messages = [*talk(2), user("The code of gate 7 is KELP-77."), assistant("Thank you, noted.")]
        context = await (await given(hf, [*messages, *talk(40)])).context(strategy="digest", budget=900)
        condensed = [one for one in texts(context["messages"]) if one.endswith("[end]")]
        assert "KELP-77" in str(condensed)
        assert "Thank you" not in str(condensed)


@pytest.mark.parametrize("strategy", ["digest", "summary_buffer"])
async def test_001_88_the_summary_is_between_task_and_tail(world: World, strategy: str) -> None:
    async with world.open(f"context: {{strategy: {strategy}, budget: 1500, facts: false}}", script=summarizing) as hf:
        session = await given(hf, talk(60))
        await session.compact()
        kinds = [one["kind"] for one in (await session.context())["sources"]]
        assert kinds[:3] == ["system", "entry", strategy.removesuffix("_buffer")]
        assert set(kinds[3:]) == {"entry"}


# -- importance --------------------------------------------------------------------


async def test_001_33_the_least_important_goes_and_not_the_oldest(world: World) -> None:
    async with world.open() as hf:
        messages = talk(40)
        messages[5] = assistant("The vault opens with both keys, at night only.", importance=1.0)
        context = await (await given(hf, messages)).context(strategy="salience", budget=900)
        found = decided(context)
        assert found[5] == "kept"
        assert list(found.values()).count("evicted") > 40


async def test_001_60_policy_4_evicts_the_least_important_until_it_fits(world: World) -> None:
    async with world.open() as hf:
        messages = [dict(one, importance=0.9 if at % 4 == 1 else 0.1) for at, one in enumerate(talk(30))]
        context = await (await given(hf, messages)).context(strategy="salience", budget=700)
        kept = [seq for seq, decision in decided(context).items() if decision == "kept"]
        assert 560 < context["conversation_tokens"] <= 700
        assert {seq % 4 for seq in kept if seq < 56} == {1}


@through("library")
async def test_001_61_a_classifier_rates_each_message_once(world: World) -> None:
    seen: list[Any] = []

    def rate(messages: Sequence[Any]) -> list[float]:
        seen.extend(message["content"] for message in messages)
        return [0.25] * len(messages)

    settings = "context: {strategy: salience, budget: 2000, scorer: rate}"
    async with world.open(settings, script=lambda _: "Yes.", scorers={"rate": rate}) as hf:
        for number in range(12):
            await hf.session().send(user(f"Question {number}?"))
            await hf.settle()
        assert [one for one in seen if one != "Yes."] == [f"Question {number}?" for number in range(12)]
        stored = [one.importance for one in await (await hf.session().native()).entries()]
        assert set(stored[:20]) == {0.25}


async def test_001_63_importance_is_a_number_for_each_message(world: World) -> None:
    async with world.open() as hf:
        session = await given(hf, talk(2))
        assert (await session.annotate(1, importance=0.75))["importance"] == 0.75
