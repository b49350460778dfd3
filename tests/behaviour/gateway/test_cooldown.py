"""Which model answers when one fails: order, prompts, and how long a model is left alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.behaviour.kit import Served, World, answer_of, through, user

pytestmark = through("library", "rest")
DOWN = Reply(status=503, error="down")


def models(world: World, *scripts: Any, **fields: Any) -> Any:
    """A gateway with the models `default`, `m1`, `m2`…; each is a fallback of the first. `fields` are those of a model, by its name."""
    names = ["default", *(f"m{at}" for at in range(1, len(scripts)))]
    others = {
        name: (ScriptedUpstream(script), {"fallbacks": ["default"], **fields.get(name, {})})
        for name, script in zip(names[1:], scripts[1:], strict=True)
    }
    llm = {"fallbacks": names[1:], **fields.get("default", {})}
    return world.gateway(scripts[0], models=others, llm=llm)


def numbers(served: Served) -> list[int]:
    """Return how often each model was called."""
    return [len(server.requests) for server in served.models.values()]


async def say(served: Served, text: str = "Hi", session_id: str = "s", **fields: Any) -> Any:
    answer = await served.chat(text, session_id, **fields)
    assert answer["status"] == 200, answer
    return answer


@pytest.mark.parametrize("status", [401, 402, 403, 404, 408, 429, 500, 503, 529])
@through("rest")
async def test_a_failure_that_the_request_did_not_cause_goes_to_the_next_model(world: World, status: int) -> None:
    async with models(world, [Reply(status=status)], ["hello"]) as served:
        answer = await say(served)
        assert answer_of(answer) == "hello"
        failed = answer["session"]["upstream"]
        assert (failed["model"], failed["failed"][0]["model"], failed["failed"][0]["status"]) == (
            "m1",
            "default",
            status,
        )
        assert (await served.rest.session().calls())[0]["model"] == "gpt-4o"


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_failure_that_the_request_caused_is_the_clients(world: World, status: int) -> None:
    async with models(world, [Reply(status=status, error="messages: wrong")], ["never"]) as served:
        assert (await served.chat("Hi"))["status"] == status
        assert numbers(served) == [1, 0]


async def test_fallbacks_are_asked_in_order_and_the_error_names_all(world: World) -> None:
    """The client may try again when the first of them can answer."""
    down, busy = (Reply(status=status, headers={"retry-after": after}) for status, after in ((503, "9"), (429, "7")))
    async with models(world, [down], [busy], [Reply(status=400)]) as served:
        answer = await served.chat("Hi")
        assert (answer["status"], answer["headers"]["retry-after"]) == (503, "7")
        assert all(name in answer["error"]["message"] for name in ("m1", "m2"))
        assert numbers(served) == [1, 1, 1]


@pytest.mark.parametrize(("window", "asked"), [(16_000, 1), (8_000, 0)])
async def test_a_prompt_that_is_too_long_goes_to_models_with_a_larger_window(
    world: World, window: int, asked: int
) -> None:
    """Larger than the window that the first model reports, whatever is known of it."""
    error = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
    async with models(
        world, lambda _: Reply(status=400, error=error), ["hello"], m1={"context_window": window}
    ) as served:
        assert (await served.chat("Hi"))["status"] == (200 if asked else 400)
        assert numbers(served)[1] == asked


async def test_after_the_first_text_no_other_model_is_asked(world: World) -> None:
    async with models(world, [Reply(text="One two three.", cut_after=2)], ["never"]) as served:
        assert (await served.chat("Hi"))["status"] == 502
        assert numbers(served) == [1, 0]


async def test_a_fallback_that_answers_a_round_answers_the_rest_of_the_turn(world: World) -> None:
    def shout(text: str) -> str:
        """Shout."""
        return text.upper()

    call = Reply(tool_calls=[("shout", {"text": "x"})])
    default, other = ScriptedUpstream([call, DOWN]), ScriptedUpstream([call, "Done."])
    llms = {"fallbacks": ["m1"]}
    async with world.gateway((), upstream=default, llm=llms, models={"m1": (other, {})}, tools=[shout]) as served:
        assert answer_of(await say(served)) == "Done."
        assert numbers(served) == [2, 2]


async def test_a_fallback_gets_a_prompt_for_its_own_window(world: World) -> None:
    """The view of the first model does not change: its next prompt begins with what it had."""
    long = [
        part for at in range(40) for part in (user(f"{at} " + "word " * 300), {"role": "assistant", "content": "Yes."})
    ]
    async with models(
        world,
        ["a", DOWN, "c"],
        ["b"],
        default={"context_window": 60_000},
        m1={"context_window": 8_000, "max_tokens": 500},
    ) as served:
        await served.rest.given("s", *long)
        for text in ("one", "two", "three"):
            await say(served, text)
            served.clock.now += 10**7
        first, failed, third = [sent.body["messages"] for sent in served.models["default"].requests]
        (other,) = [sent.body["messages"] for sent in served.models["m1"].requests]
        assert len(other) < len(failed) == len(first) + 2
        assert third[: len(failed)] == failed


@through("rest")
async def test_a_model_that_failed_is_left_alone_for_longer_and_longer(world: World) -> None:
    async with models(world, [DOWN, DOWN, "back", "stays"], lambda _: "hello") as served:
        await say(served)
        passed = (await say(served, "again"))["session"]["upstream"]
        assert passed == {"model": "m1", "failed": [{"model": "default", "code": "passed_over", "status": None}]}
        for calls in (2, 2, 3):
            served.clock.now += 5_000
            answer = await say(served, "now?")
            assert numbers(served)[0] == calls
        assert (answer_of(answer), answer_of(await say(served, "and now?"))) == ("back", "stays")


@pytest.mark.parametrize(("seconds", "wait"), [("3600", 3_600), ("90000", 3_600), ("0", 5)])
async def test_the_time_that_a_provider_names_counts(world: World, seconds: str, wait: int) -> None:
    """At most an hour."""
    async with models(
        world, [Reply(status=429, headers={"retry-after": seconds}), "back"], lambda _: "hello"
    ) as served:
        await say(served)
        served.clock.now += wait * 1000 - 1
        assert answer_of(await say(served, "early")) == "hello"
        served.clock.now += 1
        assert answer_of(await say(served, "now")) == "back"


async def test_models_that_were_left_alone_are_asked_if_no_other_answers(world: World) -> None:
    async with models(world, [DOWN, "back"], ["hello", DOWN]) as served:
        assert answer_of(await say(served)) == "hello"
        assert answer_of(await say(served, "again")) == "back"


async def test_a_model_without_fallbacks_is_always_asked(world: World) -> None:
    async with world.gateway(lambda _: DOWN) as served:
        assert [(await served.chat(f"{at}"))["status"] for at in range(3)] == [503] * 3
        assert len(served.upstream.requests) == 3


async def test_one_call_at_a_time_tries_a_model_again(world: World) -> None:
    """If its client goes away, the next call tries."""
    gate = Gate()
    script = [DOWN, Reply(text="never", hold=gate), "back"]
    async with models(world, script, lambda _: "hello") as served:
        await say(served)
        served.clock.now += 5_000
        probe = asyncio.create_task(say(served, "probe", "p"))
        await served.upstream.until(lambda: len(served.upstream.requests) == 2)
        assert [answer_of(await say(served, "hi", name)) for name in "tu"] == ["hello"] * 2
        probe.cancel()
        await served.upstream.until(lambda: served.upstream.disconnects == 1)
        for at in range(100):
            if answer_of(await say(served, "now", f"n{at}")) == "back":
                break
        assert len(served.upstream.requests) == 3


async def test_one_line_of_the_log_names_the_failure_without_the_prompt(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with models(world, [Reply(status=503, error="the word is kelp")], ["hello"]) as served:
        await say(served, "kelp")
        lines = [record for record in caplog.records if record.name == "holdfast.models"]
        assert len(lines) == 1
        assert "kelp" not in json.dumps(vars(lines[0]), default=str)
