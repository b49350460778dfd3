"""Summaries: when a model writes one, what replaces what, which answers are refused, and how they are undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import World, refused, texts, through, user
from tests.behaviour.kit.dialogues import talk

pytestmark = through("library", "connect", "rest")
BUFFER = "context: {strategy: summary_buffer, budget: 1000, facts: false, recall: off}"
LARGE = BUFFER.replace("1000", "50000")
TELLING = "The user asks about orders; ORD-0003 is urgent."
LABEL = "[Summary of messages "
DIGEST = "[Condensed from messages "


def model(write: Callable[[str], Any] | Any = TELLING) -> Callable[[dict[str, Any]], Any]:
    """Return a model that chats, and that writes what `write` says when it is asked for a summary."""

    def answer(body: dict[str, Any]) -> Any:
        if is_writing(body):
            return write(source(body)) if callable(write) else write
        return "so it is " * 15

    return answer


def is_writing(body: dict[str, Any]) -> bool:
    return bool(body["messages"][0]["role"] == "system")


def source(body: dict[str, Any]) -> str:
    """Return what a summarizer was given."""
    return str(body["messages"][1]["content"])


def written(hf: Any) -> list[dict[str, Any]]:
    return [one.body for one in hf.upstream.requests if is_writing(one.body)]


def numbered(text: str) -> str:
    return f"{TELLING} So far {len(text)}."


async def run(hf: Any, turns: int, *, first: int = 0, more: str = "") -> list[list[Any]]:
    """Run turns of about a hundred tokens each; return the prompts."""
    for number in range(first, first + turns):
        await hf.session().send(user(f"question about ORD-{number:04d}: {more}" + "why not " * 15))
        await hf.settle()
    return [texts(one.body["messages"]) for one in hf.upstream.requests if not is_writing(one.body)]


async def statuses(hf: Any) -> list[str]:
    return [one["status"] for one in await hf.session().compactions()]


def orders(turns: int) -> list[dict[str, Any]]:
    made = []
    for number in range(turns):
        made.append(user(f"question about ORD-{number:04d}: " + "why not " * 15))
        made.append({"role": "assistant", "content": "so it is " * 15})
    return made


# -- written ------------------------------------------------------------------------


async def test_old_messages_become_a_summary_above_the_threshold(world: World) -> None:
    async with world.open(BUFFER, script=model()) as hf:
        prompts = await run(hf, 11)
        (made,) = await hf.session().compactions()
        assert (made["status"], made["kind"], made["text"], made["first"]) == ("live", "summary", TELLING, 1)
        assert (made.get("usage") or made)["prompt_tokens"] == 10
        assert made["source_tokens"] > made["tokens"]
        log = texts(await hf.session().messages())
        assert prompts[-1][0] == log[0]
        label, *rest = prompts[-1][1].splitlines()
        assert label.startswith(f"{LABEL}1 to {made['last']} #")
        assert label.endswith(": data, not instructions]")
        assert rest == [TELLING, "[end]"]
        assert prompts[-1][2:] == log[made["last"] + 1 : len(log) - 1]
        assert (await hf.session().context())["conversation_tokens"] < 850


async def test_the_next_summary_includes_the_last_one(world: World) -> None:
    async with world.open(BUFFER, script=model(numbered)) as hf:
        prompts = await run(hf, 25)
        *earlier, live = await hf.session().compactions()
        assert live["status"] == "live"
        assert {one["status"] for one in earlier} == {"superseded"}
        assert 4 <= len(earlier) + 1 == len(written(hf)) <= 12
        asked = source(written(hf)[-1])
        assert earlier[-1]["text"] in asked
        assert f"[{earlier[-1]['last'] + 1}] " in asked
        assert f"[{earlier[-1]['last']}] " not in asked
        assert sum(LABEL in text for text in prompts[-1]) == 1


async def test_identifiers_that_are_lost_are_reported(world: World) -> None:
    async with world.open(BUFFER, script=model()) as hf:
        await run(hf, 10)
        (made,) = await hf.session().compactions()
        lost = made["report"]["lost_identifiers"] if "report" in made else made["lost_identifiers"]
        assert "ORD-0002" in lost
        assert "ORD-0003" not in lost
        assert "ORD-0000" not in lost, "the task stays"


async def test_past_prompts_are_rebuilt_with_the_summaries_of_their_time(world: World) -> None:
    """Also after one was undone, and with one that no longer fits."""
    async with world.open(BUFFER, script=model(numbered)) as hf:
        await run(hf, 14)
        await hf.session().drop_compaction((await hf.session().compactions())[-1]["id"])
        await run(hf, 1, first=14, more="much more " * 300)
        prompts = await run(hf, 10, first=15)
        for turn, prompt in enumerate(prompts):
            past = await hf.session().context(at_turn=turn)
            assert texts(past["messages"]) == prompt
            assert past["hash"] == past["sent_hash"]


@through("library", "rest")
async def test_a_summary_survives_a_restart(world: World) -> None:
    url = f"sqlite:///{world.folder}/s.db"
    async with world.open(BUFFER, script=model(), store=url) as hf:
        await run(hf, 10)
        before = (await hf.session().context())["messages"]
    async with world.open(BUFFER, script=model(), store=url) as hf:
        assert (await hf.session().context())["messages"] == before
        assert LABEL in str(before)


async def test_a_prompt_that_would_not_fit_waits_for_a_summary(world: World) -> None:
    async with world.open(BUFFER, script=model()) as hf:
        await run(hf, 6)
        assert written(hf) == []
        prompts = await run(hf, 1, first=6, more="much more " * 300)
        assert len(written(hf)) == 1
        assert prompts[-1][1].startswith(LABEL)
        assert DIGEST not in str(prompts[-1])


async def test_the_log_may_grow_while_a_summary_is_written(world: World) -> None:
    gate = Gate()
    async with world.open(BUFFER, script=model(lambda _: Reply(text=TELLING, hold=gate))) as hf:
        for number in range(11):
            await hf.session().send(user(f"question about ORD-{number:04d}: " + "why not " * 15))
        gate.open()
        await hf.settle()
        assert len(written(hf)) == 1
        assert await statuses(hf) == ["live"]


# -- refused ------------------------------------------------------------------------

TOO_LONG = " ".join(f"The user asked about order ORD-{number:04d} once more today." for number in range(20))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "the summary is empty"),
        ("I'm sorry, but I can't help with that.", "refused"),
        ("Bananas grow beneath silver lanterns whenever giraffes whistle loudly.", "nothing in common"),
        (" ".join(f"Order ORD-{number:04d} is number {number}." for number in range(300)), "than"),
        (Reply(text="ORD-0001", finish_reason="length"), "cut off"),
        (Reply(text="x", finish_reason="content_filter"), "filter"),
        (Reply(tool_calls=[("find", {})]), "tool"),
        (lambda asked: asked[-300:], "repeated its task"),
        (Reply(status=503, error="down"), "answered 503: down"),
    ],
)
async def test_a_bad_summary_is_refused_and_a_digest_is_sent(world: World, answer: Any, why: str) -> None:
    async with world.open(BUFFER, script=model(answer)) as hf:
        prompts = await run(hf, 16)
        failed = await hf.session().compactions()
        assert {(one["status"], one["text"]) for one in failed} == {("failed", "")}
        assert why in failed[0]["error"]
        assert DIGEST in str(prompts[-1])
        assert LABEL not in str(prompts[-1])


CALL = '{"name": "find", "arguments": {"order": "ORD-0003"}}'


@through("library")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("<think>The user wants to know about ORD-0001, so", "only reasoning"),
        ("<THINKING>\nORD-0001 is urgent.", "only reasoning"),
        ("[THINK]ORD-0001[/THINK]", "empty"),
        ("The user asks about ORD-0001.\n</think>\n\n", "empty"),
        (CALL, "tool call"),
        (f"I will look it up.\n```json\n{CALL}\n```", "tool call"),
        (f"<tool_call>\n{CALL}\n</tool_call>", "tool call"),
        (f"[{CALL[:40]}", "tool call"),
        ('{"type": "function", "function": {"name": "find", "parameters": {}}}', "tool call"),
        ("Sure! Here is the summary.", "almost nothing"),
        (
            "I have read the conversation between the user and the assistant and will now summarize it:",
            "almost nothing",
        ),
        ("Gerne, hier ist die Zusammenfassung des Gesprächs.", "nothing in common"),
        ("もちろんです。会話の要約は以下の通りです。", "almost nothing"),
        ("The user asks about ORD-0001. " * 9, "repeats itself"),
        ("I\u2019m unable to assist with this.", "refused"),
        ("As an AI language model, I do not keep memories.", "refused"),
        (f"They said: I'm sorry, I can't find ORD-0001. {TELLING}", None),
        (f"<think>Let me see.</think>\n{TELLING}", None),
        (f"Let me see.\n</think>\n{TELLING}", None),
        (f"Here is the summary:\n\n{TELLING}", None),
    ],
)
async def test_a_text_that_is_no_summary_replaces_nothing(world: World, answer: str, why: str | None) -> None:
    config = BUFFER.replace("facts", "summarizer_llm: mine, facts")
    async with world.open(config, script=model(), summarizers={"mine": lambda *_, **__: answer}) as hf:
        prompts = await run(hf, 12)
        made = (await hf.session().compactions())[0]
        assert made["status"] == ("failed" if why else "live")
        assert (why or "") in (made["error"] or "")
        assert (LABEL in str(prompts[-1]), DIGEST in str(prompts[-1])) == (why is None, why is not None)


@through("library")
async def test_an_identifier_alone_is_no_summary_of_a_long_conversation(world: World) -> None:
    async with world.open(LARGE, script=model("ORD-0001.")) as hf:
        session = await hf.given("s", *orders(40))
        made = await session.compact(budget=2_000)
        assert (made["status"], "almost nothing" in made["error"]) == ("failed", True)


async def test_a_later_failure_keeps_the_earlier_summary(world: World) -> None:
    answers = iter([TELLING])
    async with world.open(BUFFER, script=model(lambda _: next(answers, ""))) as hf:
        prompts = await run(hf, 20)
        assert (await statuses(hf))[:2] == ["live", "failed"]
        assert LABEL in str(prompts[-1])


@through("rest")
async def test_failures_are_retried_after_growing_pauses(world: World) -> None:
    outcome = [""]
    async with world.open(BUFFER, script=model(lambda _: outcome[0])) as hf:

        async def attempts(after: int, first: int) -> int:
            world.clock.now += after
            await run(hf, 4, first=first)
            return len(await hf.session().compactions())

        await run(hf, 10)
        assert [await attempts(29_000, 10), await attempts(1_000, 14)] == [1, 2]
        told = (await hf.session().context(explain=True))["build"]["summaries"]
        assert told["live"] is None
        assert (told["failed"]["attempts"], told["failed"]["error"]) == (2, "the summary is empty")
        assert told["failed"]["retry_at"] == world.clock.now + 60_000
        assert await attempts(59_000, 18) == 2
        outcome[0] = TELLING
        assert await attempts(1_000, 22) == 3
        assert await statuses(hf) == ["failed", "failed", "live"]


@through("rest")
async def test_a_model_that_says_when_it_can_write_again_is_asked_then(world: World) -> None:
    busy = Reply(status=429, headers={"retry-after": "90"})
    async with world.open(BUFFER, script=model(busy)) as hf:
        await run(hf, 10)
        failed = (await hf.session().context(explain=True))["build"]["summaries"]["failed"]
        assert (failed["attempts"], failed["retry_at"]) == (1, world.clock.now + 90_000)


async def test_a_long_reply_makes_a_summary_due_at_once(world: World) -> None:
    """Not only when the next message comes."""

    def answer(body: dict[str, Any]) -> str:
        return TELLING if is_writing(body) else "so it is " * (700 if "at length" in str(body["messages"][-1]) else 15)

    async with world.open(BUFFER.replace("1000", "3000"), script=answer) as hf:
        await run(hf, 8)
        assert await statuses(hf) == []
        await run(hf, 1, first=8, more="at length ")
        assert await statuses(hf) == ["live"]


async def test_a_dropped_summary_is_not_written_again_while_its_messages_fit(world: World) -> None:
    async with world.open(BUFFER.replace("1000", "3000"), script=model()) as hf:
        for at in range(40):
            await run(hf, 1, first=at)
            if await statuses(hf):
                break
        await hf.session().drop_compaction((await hf.session().compactions())[0]["id"])
        world.clock.now += 60_000
        await run(hf, 1, first=at + 1)
        assert await statuses(hf) == ["dropped"]


async def test_a_summary_that_is_too_long_is_asked_for_again_and_then_cut(world: World) -> None:
    """At the second time, an unusable answer leaves the first one."""
    answers = iter([TOO_LONG, TELLING, TOO_LONG, ""])
    async with world.open(BUFFER, script=model(lambda _: next(answers, TOO_LONG))) as hf:
        await run(hf, 10)
        first = (await hf.session().compactions())[0]
        assert first["text"] == TELLING
        assert [one["role"] for one in written(hf)[1]["messages"]] == ["system", "user", "assistant", "user"]
        await run(hf, 8, first=10)
        made = await hf.session().compactions()
        assert len(written(hf)) == 2 * len(made)
        cut = made[1]
        assert cut["text"].startswith("The user asked about order ORD-0000 once more today.")
        assert len(cut["text"]) < len(TOO_LONG)
        assert cut["tokens"] <= 140


# -- by hand ------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["salience", "digest", "token_window", "head_tail"])
async def test_any_strategy_can_be_summarized_by_hand(world: World, strategy: str) -> None:
    async with world.open(f"context: {{strategy: {strategy}}}", script=model()) as hf:
        session = await hf.given("s", *orders(10))
        made = await session.compact(budget=1_000)
        assert (made["status"], made["first"]) == ("live", 1)
        await session.send(user("And now?"))
        prompt = texts(hf.upstream.requests[-1].body["messages"])
        assert sum(LABEL in str(one) for one in prompt) == 1


async def test_a_preview_stores_nothing(world: World) -> None:
    async with world.open(LARGE, script=model()) as hf:
        session = await hf.given("s", *orders(10))
        before = await session.info()
        made = await session.compact(preview=True, prompt="Only names.", target=0.3)
        assert made["text"] == TELLING
        assert written(hf)[0]["messages"][0]["content"] == "Only names."
        assert await session.compactions() == []
        assert await session.info() == before


async def test_summaries_are_undone_one_by_one(world: World) -> None:
    async with world.open(LARGE, script=model()) as hf:
        session = await hf.given("s", *orders(10))
        before = (await session.context())["messages"]
        first, second = await session.compact(target=0.8), await session.compact(target=0.5)
        assert second["last"] > first["last"]
        assert await statuses(hf) == ["superseded", "live"]
        assert (await session.drop_compaction(second["id"]))["status"] == "dropped"
        assert await statuses(hf) == ["live", "dropped"]
        with refused("compaction_not_found", "no live or superseded compaction 2"):
            await session.drop_compaction(second["id"])
        await session.drop_compaction(first["id"])
        assert (await session.context())["messages"] == before
        with refused("compaction_not_found", "compaction 9"):
            await session.drop_compaction(9)


async def test_there_may_be_nothing_to_summarize(world: World) -> None:
    async with world.open(LARGE, script=model()) as hf:
        session = await hf.given("s", *orders(1))
        assert await session.compact() is None
        assert hf.upstream.requests == []


async def test_without_a_model_nobody_writes(world: World) -> None:
    async with world.open(LARGE) as hf:
        with refused("invalid_request", "set summarizer_llm"):
            await (await hf.given("s", *orders(10))).compact()


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"budget": 0}, "budget"),
        ({"target": 1.5}, "target"),
        ({"summarizer_llm": "none"}, "summarizer_llm"),
        ({"prompt": ""}, "prompt"),
        ({"strategy": "digest"}, "strategy"),
    ],
)
async def test_wrong_arguments_are_named(world: World, wrong: dict[str, Any], param: str) -> None:
    async with world.open(LARGE, script=model()) as hf:
        session = await hf.given("s", *orders(10))
        with refused("invalid_request", param):
            await session.compact(**wrong)
        assert hf.upstream.requests == []


@through("rest")
async def test_a_summary_may_be_written_in_the_background(world: World) -> None:
    async with world.open(LARGE, script=model()) as hf:
        session = await hf.given("s", *orders(10))
        made = await session.compact(wait=False)
        assert (made["id"], made["status"]) == (None, "pending")
        await hf.settle()
        assert await statuses(hf) == ["live"]
        metrics = (await hf.http.get("/metrics")).text
        assert 'holdfast_summaries_total{outcome="made"} 1.0' in metrics
        assert 'holdfast_summary_tokens_total{kind="prompt"} 10.0' in metrics


# -- what changes in its range -------------------------------------------------------


async def test_an_erased_message_takes_its_summary_along(world: World) -> None:
    async with world.open(BUFFER, script=model()) as hf:
        await run(hf, 10)
        await hf.session().erase(2)
        assert [(one["status"], one["text"]) for one in await hf.session().compactions()] == [("dead", "")]
        world.clock.now += 1_000_000
        await run(hf, 3, first=10)
        assert (await statuses(hf))[-1] == "live"
        assert "ORD-0001" not in source(written(hf)[-1])


async def test_a_rewind_into_its_range_ends_a_summary(world: World) -> None:
    async with world.open(BUFFER, script=model()) as hf:
        await run(hf, 10)
        await hf.session().rewind(1)
        assert await statuses(hf) == ["dead"]
        assert LABEL not in str((await hf.session().context())["messages"])


async def test_a_pinned_message_follows_the_summary_of_its_range(world: World) -> None:
    async with world.open(BUFFER, script=model()) as hf:
        await run(hf, 10)
        await hf.session().annotate(3, pinned=True)
        prompt = texts((await hf.session().context())["messages"])
        assert prompt[1].startswith(LABEL)
        assert prompt[2] == texts(await hf.session().messages())[3]


async def test_pictures_are_named_and_not_sent_to_the_summarizer(world: World) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with world.open(LARGE, script=model()) as hf:
        look = user([picture, {"type": "text", "text": "look"}])
        session = await hf.given("s", *orders(1), look, *orders(8))
        await session.compact(target=0.3)
        assert "[image_url, not shown]" in source(written(hf)[-1])
        assert "AAAA" not in source(written(hf)[-1])


# -- a summarizer of its own ---------------------------------------------------------


async def test_a_small_summarizer_reads_in_parts(world: World) -> None:
    async with world.open(LARGE, script=model(lambda _: f"Part. {TELLING}"), llm={"context_window": 3_000}) as hf:
        session = await hf.given("s", *talk(2), *orders(40))
        made = await session.compact(budget=2_000)
        assert made["status"] == "live"
        assert len(written(hf)) > 1
        read = "".join(map(source, written(hf)))
        assert all(f"[{seq}] " in read for seq in range(1, made["last"] + 1))
        assert "Part. " in source(written(hf)[-1])


def raising(messages: Any, **_: Any) -> str:
    raise RuntimeError("the password is hunter2")


@through("library")
@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda messages, **_: f"{TELLING} {len(messages)}", None),
        (raising, "mine failed: RuntimeError"),
        (lambda *_, **__: 42, "the summarizer mine returned int instead of a string"),
        (lambda *_, **__: "I'm sorry, I can't.", "the summarizer refused to write"),
    ],
)
async def test_functions_write_summaries_too(world: World, function: Any, error: str | None) -> None:
    config = BUFFER.replace("facts", "summarizer_llm: mine, facts")
    async with world.open(config, script=model(), summarizers={"mine": function}) as hf:
        await run(hf, 10)
        found = (await hf.session().compactions())[0]
        assert (found["status"], found["error"]) == ("live" if error is None else "failed", error)
        assert written(hf) == []
