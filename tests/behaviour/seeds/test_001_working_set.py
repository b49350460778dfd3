"""Statements of document 001 about the working set: what is in a prompt, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.testing import Reply
from tests.behaviour.kit import World, assistant, calls, gateway, refused, result, system, texts, through, user
from tests.behaviour.kit.dialogues import STRATEGIES, TASK, decided, find_orphans, talk, work

pytestmark = through("library", "rest")
SYSTEM = "You are a clerk. Customers know you as Kim."
NOW = "And now?"
EVERY = pytest.mark.parametrize("strategy", STRATEGIES)
KEEP_TASK = [name for name in STRATEGIES if name != "buffer_window"]


async def prompt_of(hf: Any, messages: list[Any], strategy: str, budget: int | None = 1_500, **keys: Any) -> Any:
    session = await hf.given("s", *messages, user(NOW), system_messages=[SYSTEM])
    return await session.context(strategy=strategy, budget=budget, **keys)


@EVERY
async def test_001_5_the_current_message_is_the_last_of_each_prompt(world: World, strategy: str) -> None:
    async with world.open() as hf:
        assert (await prompt_of(hf, work(20), strategy))["messages"][-1] == user(NOW)


@pytest.mark.parametrize("budget", [80, 200, 500, 1_000])
@EVERY
async def test_001_7_a_bounded_list_is_built_and_sent(world: World, strategy: str, budget: int) -> None:
    async with world.open() as hf:
        context = await prompt_of(hf, talk(40), strategy, budget)
        assert context["conversation_tokens"] <= context["budget"] == budget


async def test_001_8_it_lives_across_turns_of_a_session() -> None:
    async with gateway(["Hello Ada.", "Ada."]) as served:
        await served.chat("I am Ada.")
        await served.chat("Who am I?")
        assert texts(served.upstream.requests[1].body["messages"]) == ["I am Ada.", "Hello Ada.", "Who am I?"]


async def test_001_9_it_is_not_carried_into_another_session() -> None:
    async with gateway(["Hello Ada.", "I do not know."]) as served:
        await served.chat("I am Ada.", "first")
        await served.chat("Who am I?", "second")
        assert texts(served.upstream.requests[1].body["messages"]) == ["Who am I?"]


@through("library")
async def test_001_10_the_bound_is_tokens_or_messages_or_your_own(world: World) -> None:
    def every_tenth(units: list[Any], budget: int) -> set[int]:
        return {unit.seq for unit in units if unit.seq % 10 == 0}

    async with world.open(strategies={"every_tenth": every_tenth}) as hf:
        session = await hf.given("s", *talk(30), user(NOW))
        assert (await session.context(strategy="token_window", budget=300))["conversation_tokens"] <= 300
        assert len((await session.context(strategy="buffer_window", window_size=6))["messages"]) == 6
        own = decided(await session.context(strategy="every_tenth", budget=800))
        gone = [seq for seq, decision in own.items() if decision == "evicted"]
        assert gone == [seq for seq in range(1, max(gone) + 1) if seq % 10]


async def test_001_11_each_eviction_has_a_decision_and_a_reason(world: World) -> None:
    async with world.open() as hf:
        context = await prompt_of(hf, talk(30), "token_window")
        runs = [(run["decision"], run["reason"]) for run in context["decisions"]]
        assert ("evicted", "over the budget") in runs


async def test_001_12_what_is_listed_is_what_the_model_saw(world: World) -> None:
    async with world.open("context: {strategy: token_window, budget: 300}", script=["Yes."]) as hf:
        session = await hf.given("s", *talk(30))
        await session.send(user(NOW))
        (call,) = await session.calls()
        shown = await session.prompt(call["id"])
        assert [one["message"] for one in shown["messages"]] == hf.upstream.requests[0].body["messages"]
        assert shown["exact"] is True
        past = await session.context(at_turn=call["turn_id"])
        assert past["hash"] == past["sent_hash"] == call["hash"]


async def test_001_13_the_log_is_not_the_working_set(world: World) -> None:
    async with world.open() as hf:
        context = await prompt_of(hf, talk(60), "buffer_window", None, window_size=7)
        assert len(await hf.session().messages()) == 121
        assert len(context["messages"]) == 8


@EVERY
async def test_001_14_the_same_log_gives_the_same_prompt(world: World, strategy: str) -> None:
    async with world.open() as hf:
        first = await prompt_of(hf, work(20), strategy)
        again = await hf.session().context(strategy=strategy, budget=1_500)
        assert first["messages"] == again["messages"]
        assert first["hash"] == again["hash"]


async def test_001_15_the_log_grows_and_the_working_set_does_not(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *talk(2))
        for size in (10, 100, 400):
            await session.append(*talk(size)[2:])
            assert (await session.context(strategy="digest", budget=1_000))["conversation_tokens"] <= 1_000
        assert len(await session.messages()) > 1_000


@EVERY
async def test_001_16_the_system_prompt_is_first_and_unchanged(world: World, strategy: str) -> None:
    async with world.open(script=[]) as hf:
        assert (await prompt_of(hf, talk(30), strategy))["messages"][0] == system(SYSTEM)
        session = await hf.given("large", user(NOW), system_messages=["long words " * 5_000])
        with refused(
            "budget_too_small", "at least 10009 tokens (system prompt and tool schemas alone), the budget is 5632"
        ):
            await session.context(strategy=strategy, model="gpt-4")


@EVERY
async def test_001_17_the_newest_messages_are_the_tail(world: World, strategy: str) -> None:
    async with world.open() as hf:
        messages = talk(60)
        sent = (await prompt_of(hf, messages, strategy))["messages"]
        assert sent[-3:] == [*messages[-2:], user(NOW)]


@pytest.mark.parametrize("strategy", ["token_window", "digest", "summary_buffer", "head_tail"])
async def test_001_18_the_middle_goes_first(world: World, strategy: str) -> None:
    async with world.open("context: {summarizer_llm: none, strategy: summary_buffer}") as hf:
        found = decided(await prompt_of(hf, talk(30), strategy))
        gone = [seq for seq, decision in found.items() if decision in {"evicted", "compacted"}]
        assert gone == list(range(1, max(gone) + 1))
        assert found[0] == "anchored"
        assert {found[seq] for seq in range(max(gone) + 1, 61)} == {"kept"}


async def test_001_21_the_default_is_not_oldest_first(world: World) -> None:
    async with world.open("context: {budget: 500}") as hf:
        session = await hf.given("s", *talk(60), user(NOW))
        explained = await session.explain(seq=0)
        assert explained["strategy"] == "digest"
        assert (explained["messages"][0]["state"], explained["messages"][0]["decision"]) == ("whole", "anchored")


@EVERY
async def test_001_22_a_pinned_message_never_goes(world: World, strategy: str) -> None:
    async with world.open() as hf:
        messages = talk(40)
        session = await hf.given("s", *messages, user(NOW))
        await session.annotate(5, pinned=True)
        context = await session.context(strategy=strategy, budget=1_200)
        assert messages[5] in context["messages"]
        assert decided(context)[5] == "pinned"


async def test_001_23_then_oldest_first_does_for_the_rest(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *talk(40), user(NOW))
        await session.annotate(3, pinned=True)
        found = decided(await session.context(strategy="token_window", budget=400))
        kept = [seq for seq, decision in found.items() if decision == "kept"]
        assert (found[0], found[3]) == ("anchored", "pinned")
        assert kept == list(range(min(kept), 81))
        assert {found[seq] for seq in range(4, min(kept))} == {"evicted"}


@EVERY
async def test_001_32_a_system_message_of_the_log_stays(world: World, strategy: str) -> None:
    async with world.open() as hf:
        rule = system("From now on: prices in crowns.")
        context = await prompt_of(hf, [*talk(3), rule, *talk(30)[2:]], strategy)
        assert context["messages"][:2] == [system(SYSTEM), rule]


@pytest.mark.parametrize(
    ("dialect", "keys"),
    [("openai", {"role", "content"}), ("anthropic", {"role", "content"}), ("gemini", {"role", "parts"})],
)
async def test_001_34_the_prompt_has_the_shape_of_the_api(world: World, dialect: str, keys: set[str]) -> None:
    async with world.open() as hf:
        context = await prompt_of(hf, talk(3), "none", None, dialect=dialect)
        assert all(set(one) == keys for one in context["messages"])
        assert (SYSTEM in str(context.get("system"))) == (dialect != "openai")


async def test_001_35_several_system_prompts_are_in_front(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *talk(20), user(NOW), system_messages=["First.", "Second."])
        context = await session.context(strategy="buffer_window", window_size=4)
        assert context["messages"][:2] == [system("First."), system("Second.")]


async def test_001_36_tools_and_schemas_are_counted() -> None:
    tool = {"type": "function", "function": {"name": "find", "description": "Find an order. " * 20}}
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    async with gateway(["Yes."]) as served:
        await served.chat("Hello.", tools=[tool], response_format=schema)
        sent = served.upstream.requests[0].body
        assert (sent["tools"], sent["response_format"]) == ([tool], schema)
        plain = await served.rest.session().context()
        counted = await served.rest.session().context(tools=[tool])
        assert counted["total_tokens"] - plain["total_tokens"] > 80
        assert counted["conversation_tokens"] == plain["conversation_tokens"]


@pytest.mark.parametrize("strategy", KEEP_TASK)
async def test_001_37_the_first_user_message_is_protected(world: World, strategy: str) -> None:
    async with world.open() as hf:
        context = await prompt_of(hf, talk(60), strategy, 300)
        assert user(TASK) in context["messages"]
        assert decided(context)[0] == "anchored"


async def test_001_38_recalled_text_is_directly_before_the_current_message() -> None:
    config = "context: {strategy: token_window, budget: 400, recall: on}"
    async with gateway(lambda _: "Noted.", config) as served:
        await served.chat("Keep a log.")
        await served.chat("The mooring of the Kittiwake costs 420 a month.")
        for day in range(30):
            await served.chat(f"Day {day}, and what is it like today, out at sea?")
        await served.chat("What does the mooring cost?")
        sent = texts(served.upstream.requests[-1].body["messages"])
        assert "mooring of the Kittiwake costs 420" in sent[-2]
        assert sent[-1] == "What does the mooring cost?"


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_001_39_the_tail_has_calls_and_results(world: World, strategy: str) -> None:
    async with world.open() as hf:
        messages = work(20)
        sent = (await prompt_of(hf, messages, strategy))["messages"]
        assert sent[-4:-1] == messages[-3:]


@EVERY
async def test_001_40_the_current_message_is_whole_and_last(world: World, strategy: str) -> None:
    async with world.open() as hf:
        long = user("Please read: " + "several words " * 60)
        session = await hf.given("s", *talk(40), long)
        assert (await session.context(strategy=strategy, budget=400))["messages"][-1] == long


@pytest.mark.parametrize("strategy", KEEP_TASK)
async def test_001_41_what_goes_is_between_task_and_tail(world: World, strategy: str) -> None:
    async with world.open() as hf:
        found = decided(await prompt_of(hf, talk(40), strategy, 1_200))
        gone = [seq for seq, decision in found.items() if decision in {"evicted", "compacted"}]
        assert min(gone) >= 1
        assert max(gone) < 78
        assert found[0] == "anchored"
        assert found[80] == "kept"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 29])
@pytest.mark.parametrize("strategy", ["buffer_window", "head_tail"])
async def test_001_47_a_cut_leaves_no_result_without_its_call(world: World, strategy: str, size: int) -> None:
    async with world.open() as hf:
        messages = work(15, parallel=2)
        context = await prompt_of(hf, messages, strategy, None, window_size=size)
        assert find_orphans(context["messages"]) == []
        whole = size // 4 + 1
        assert all(one in context["messages"] for one in messages[-4 * (whole - 1) or len(messages) :])


@EVERY
async def test_001_48_a_call_and_its_result_go_together(world: World, strategy: str) -> None:
    async with world.open() as hf:
        context = await prompt_of(hf, work(20, parallel=2), strategy, 700)
        assert find_orphans(context["messages"]) == []
        found = decided(context)
        for step in range(20):
            gone = {found[seq] in {"evicted", "compacted"} for seq in range(4 * step + 1, 4 * step + 4)}
            assert len(gone) == 1


@EVERY
async def test_001_52_a_fat_result_pushes_nothing_out(world: World, strategy: str) -> None:
    async with world.open() as hf:
        fat = [calls(("fat", "read", {})), result("fat", "line of a file " * 10_000)]
        sent = (await prompt_of(hf, [*talk(2), *fat], strategy, 1_000))["messages"]
        assert sent[0] == system(SYSTEM)
        assert sent[-1] == user(NOW)
        assert (user(TASK) in sent) == (strategy != "buffer_window")


async def test_001_53_size_counts_and_not_the_number(world: World) -> None:
    async with world.open() as hf:
        fat = [calls(("fat", "read", {})), result("fat", "line of a file " * 3_000)]
        context = await prompt_of(hf, [*talk(2), *fat, assistant("I have read it.")], "token_window", 1_000)
        assert [seq for seq, decision in decided(context).items() if decision == "cut"] == [5]


async def test_001_93_one_call_takes_all_and_returns_the_list() -> None:
    messages = [system(SYSTEM), *talk(40), user(NOW)]
    context = holdfast.fit(messages, budget=500)
    assert context.conversation_tokens <= 500
    assert (context.messages[0], context.messages[-1]) == (system(SYSTEM), user(NOW))


async def test_001_94_the_system_prompt_has_its_own_field(world: World) -> None:
    async with world.open() as hf:
        context = await prompt_of(hf, talk(30), "digest", dialect="anthropic")
        assert SYSTEM in str(context["system"])
        assert SYSTEM not in str(context["messages"])
        assert {one["role"] for one in context["messages"]} == {"user", "assistant"}


def test_001_95_without_history_only_the_current_message_is_sent() -> None:
    assert holdfast.fit([user(NOW)], budget=500).messages == [user(NOW)]


@pytest.mark.parametrize("strategy", KEEP_TASK)
def test_001_96_the_task_stays_if_it_fits(strategy: str) -> None:
    assert user(TASK) in holdfast.fit([*talk(50), user(NOW)], strategy=strategy, budget=300).messages


@through("library")
async def test_001_97_the_tail_grows_unit_by_unit(world: World) -> None:
    seen: list[list[tuple[int, int]]] = []

    def watch(units: list[Any], budget: int) -> set[int]:
        seen.append([(unit.seq, unit.last) for unit in units])
        return set()

    async with world.open(strategies={"watch": watch}) as hf:
        await prompt_of(hf, work(10, parallel=3), "watch", 1_200)
        assert seen[0][:4] == [(0, 0), (1, 4), (5, 5), (6, 9)]


@EVERY
async def test_001_98_a_task_that_is_too_big_becomes_one_line(world: World, strategy: str) -> None:
    async with world.open() as hf:
        context = await prompt_of(
            hf, talk(30, task="First words. " + "more words " * 900 + "Last words."), strategy, 600
        )
        lines = [one for one in texts(context["messages"]) if one.startswith("[original task #")]
        assert len(lines) == (0 if strategy == "buffer_window" else 1)
        assert all("First words." in line and "Last words." in line for line in lines)


async def test_001_99_the_line_is_a_user_message_and_recent_turns_stay(world: World) -> None:
    async with world.open() as hf:
        messages = talk(30, task="First words. " + "more words " * 900)
        sent = (await prompt_of(hf, messages, "token_window", 900, target=0.9))["messages"]
        assert sent[1]["role"] == "user"
        assert sent[1]["content"].startswith("[original task #")
        assert sent[-9:] == [*messages[-8:], user(NOW)]


@EVERY
async def test_001_100_a_call_with_several_results_is_one_unit(world: World, strategy: str) -> None:
    async with world.open() as hf:
        found = decided(await prompt_of(hf, work(20, parallel=3), strategy, 900))
        for step in range(20):
            gone = {found[seq] in {"evicted", "compacted"} for seq in range(5 * step + 1, 5 * step + 5)}
            assert len(gone) == 1


async def test_001_101_build_call_and_append_is_one_turn(world: World) -> None:
    async with world.open(script=[Reply(text="Yes.")]) as hf:
        session = hf.session()
        await session.send(user("One."), max_tokens=55)
        sent = hf.upstream.requests[0].body
        assert 55 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))
        await session.turn(user("Two."), reply="Also.")
        assert texts(await session.messages()) == ["One.", "Yes.", "Two.", "Also."]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("budget", [150, 300, 700])
async def test_001_111_every_strategy_keeps_pairs_whole(world: World, strategy: str, budget: int) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *work(15, parallel=2), user(NOW))
        for dialect in ("openai", "anthropic"):
            sent = (await session.context(strategy=strategy, budget=budget, dialect=dialect))["messages"]
            assert find_orphans(sent if dialect == "openai" else to_openai(sent)) == []


def to_openai(messages: list[Any]) -> list[Any]:
    """Return calls and results of Anthropic's messages as messages of Chat Completions."""
    made: list[Any] = []
    for message in messages:
        blocks = message["content"] if isinstance(message["content"], list) else []
        made += [{"role": "tool", "tool_call_id": one["tool_use_id"]} for one in blocks if one["type"] == "tool_result"]
        ids = [{"id": one["id"]} for one in blocks if one["type"] == "tool_use"]
        made += [{"role": message["role"], "tool_calls": ids}]
    return made


async def test_001_114_a_system_message_within_the_list_is_not_dropped() -> None:
    async with gateway(lambda _: "Yes.", "context: {strategy: buffer_window, window_size: 3}") as served:
        messages = [system("At index 0."), *talk(4), system("In the middle."), *talk(20)[8:], user(NOW)]
        await served.chat(messages)
        sent = texts(served.upstream.requests[0].body["messages"])
        assert sent[:2] == ["At index 0.", "In the middle."]
        assert len(sent) == 5
    fitted = holdfast.fit(messages, budget=200)
    assert texts(fitted.messages)[:2] == ["At index 0.", "In the middle."]
