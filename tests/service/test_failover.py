"""Failover: which model is called when one fails, with which prompt, and what the turn's summary reports."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import Any

import pytest

from holdfast.access import ForwardedHeaders
from holdfast.agents import Llm, Roster
from holdfast.context.settings import ContextSettings
from holdfast.errors import (
    ContextTooLong,
    InvalidRequest,
    ModelBusy,
    ModelProtocolError,
    ModelRejected,
    ModelUnavailable,
)
from holdfast.holdfast import Holdfast
from holdfast.limits import COOL_DOWN_FIRST_SECONDS
from holdfast.turns.respond import respond
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.wire.openai import parse_message
from tests.clocks import Clock
from tests.service.failover_kit import DOWN, NamedModel, add_long_conversation, ask, log, open_holdfast
from tests.service.scripted_model import REF, make_chunks

# -- what fails over ---------------------------------------------------------------

FAILS_OVER: dict[str, Exception] = {
    "down": DOWN,
    "unreachable": ModelUnavailable("cannot be reached"),
    "a long pause": ModelUnavailable("too many", status=429, retry_after=3600),
    "busy": ModelBusy("one", 1, 2),
    "no answer": ModelProtocolError("an HTML page"),
    "a wrong key": ModelRejected("no", status=401),
    "no money": ModelRejected("no", status=402),
    "not allowed": ModelRejected("no", status=403),
    "no such model": ModelRejected("no", status=404),
}
FINAL: dict[str, Exception] = {
    "a bad request": ModelRejected("messages: wrong", status=400),
    "too large": ModelRejected("too large", status=413),
    "not understood": ModelRejected("tools: wrong", status=422),
    "refused in the stream": ModelRejected("invalid"),
    "cannot be sent": InvalidRequest("n is more than 1", param="n"),
}


@pytest.mark.parametrize("error", FAILS_OVER.values(), ids=FAILS_OVER)
async def test_fallback_model_is_called(error: Exception) -> None:
    one, two = NamedModel("one", error), NamedModel("two", "hello")
    async with open_holdfast(one, two) as (hf, _):
        said, turn = await ask(hf)
        assert said == "hello"
        status = getattr(error, "status", None)
        failed = {"model": "one", "code": error.code, "status": status}  # type: ignore[attr-defined]
        assert turn.summarize()["upstream"] == {"model": "two", "failed": [failed]}
        assert await log(hf) == ["hi", "hello"]
        assert len(one.bodies) == len(two.bodies) == 1


@pytest.mark.parametrize("error", FINAL.values(), ids=FINAL)
async def test_errors_of_the_request_are_raised_without_failover(error: Exception) -> None:
    one, two = NamedModel("one", error), NamedModel("two", "hello")
    async with open_holdfast(one, two) as (hf, _):
        with pytest.raises(type(error)) as caught:
            await ask(hf)
        assert caught.value is error
        assert two.bodies == []
        assert await log(hf) == ["hi"]


async def test_no_failover_after_the_first_content() -> None:
    one, two = NamedModel("one", lambda _: [*make_chunks("half a")[:3], DOWN]), NamedModel("two", "hello")
    async with open_holdfast(one, two) as (hf, _):
        with pytest.raises(ModelUnavailable):
            await ask(hf)
        assert two.bodies == []
        (_, part) = await hf.store.entries(REF)
        assert part.message.text == "half a"
        assert part.metadata is not None
        assert part.metadata["interrupted"]


async def test_chunk_with_only_a_role_allows_failover() -> None:
    """Many models send one before they find that they cannot answer."""
    one, two = NamedModel("one", lambda _: [make_chunks("half")[0], DOWN]), NamedModel("two", "hello")
    async with open_holdfast(one, two) as (hf, _):
        said, turn = await ask(hf)
        assert said == "hello"
        assert turn.summarize()["upstream"]["model"] == "two"


async def test_summary_has_no_upstream_without_a_failure() -> None:
    one, two = NamedModel("one", "hello"), NamedModel("two", "never")
    async with open_holdfast(one, two) as (hf, _):
        _, turn = await ask(hf)
        assert "upstream" not in turn.summarize()
        assert two.bodies == []


async def test_fallbacks_are_called_in_order_and_are_not_transitive() -> None:
    """Fallbacks of a fallback were not configured for this model."""
    one, two, three, four = (
        NamedModel(name, DOWN if name in {"one", "two"} else name) for name in ("one", "two", "three", "four")
    )
    fields: dict[str, dict[str, Any]] = {"one": {"fallbacks": ("two", "three")}, "two": {"fallbacks": ("four",)}}
    async with open_holdfast(one, two, three, four, fields=fields) as (hf, _):
        said, turn = await ask(hf)
        assert said == "three"
        assert [failed["model"] for failed in turn.summarize()["upstream"]["failed"]] == ["one", "two"]
        assert four.bodies == []


async def test_models_may_be_fallbacks_of_each_other() -> None:
    one, two = NamedModel("one", DOWN), NamedModel("two", DOWN)
    fields: dict[str, dict[str, Any]] = {"one": {"fallbacks": ("two", "one")}, "two": {"fallbacks": ("one",)}}
    async with open_holdfast(one, two, fields=fields) as (hf, _):
        with pytest.raises(ModelUnavailable):
            await ask(hf)
        assert (len(one.bodies), len(two.bodies)) == (1, 1)


async def test_error_names_all_failed_models() -> None:
    """The error and status are the first model's; `retry_after` is the shortest of all."""
    one = NamedModel("one", ModelUnavailable("one is down", status=429, retry_after=60))
    two = NamedModel("two", ModelRejected("two: no such model", status=404))
    three = NamedModel("three", ModelUnavailable("three is down", status=503, retry_after=7))
    async with open_holdfast(one, two, three) as (hf, _):
        with pytest.raises(ModelUnavailable) as caught:
            await ask(hf)
        assert (caught.value.status, caught.value.retry_after) == (429, 7)
        for words in ("one is down", "two: no such model", "three is down"):
            assert words in str(caught.value)
        assert await log(hf) == ["hi"]
        one.say = lambda _: "back"
        hf.roster._upstreams.clear()
        assert (await ask(hf, "again"))[0] == "back"


async def test_request_rejected_by_a_fallback_goes_to_the_next() -> None:
    """The request was valid for the original model, so it is not an error of the client."""
    one, two, three = NamedModel("one", DOWN), NamedModel("two", FINAL["a bad request"]), NamedModel("three", "hello")
    async with open_holdfast(one, two, three) as (hf, _):
        assert (await ask(hf))[0] == "hello"
    one, two = NamedModel("one", DOWN), NamedModel("two", FINAL["a bad request"])
    async with open_holdfast(one, two) as (hf, _):
        with pytest.raises(ModelUnavailable):
            await ask(hf)


@pytest.mark.parametrize("models", [1, 2])
async def test_failed_turns_are_freed_without_garbage_collection(models: int) -> None:
    """Errors and frames must not form a cycle that keeps the prompt in memory."""

    def down(_: Any) -> None:
        raise ModelUnavailable("down")

    async def one() -> weakref.ref[Turn]:
        responder, incoming = hf.roster.find_responder(), (parse_message({"role": "user", "content": "hi"}),)
        turn = Turn(hf.engine, TurnRequest(ref=REF, responder=responder, incoming=incoming))
        try:
            async for _ in respond(turn):
                pass
        except ModelUnavailable:
            pass
        return weakref.ref(turn)

    async with open_holdfast(*(NamedModel(name, down) for name in ("one", "two")[:models])) as (hf, _):
        gc.collect()
        gc.disable()
        try:
            assert (await one())() is None
        finally:
            gc.enable()


# -- prompts ------------------------------------------------------------------------


async def test_fallback_prompt_fits_its_window_without_changing_the_primarys() -> None:
    """A smaller window gets a smaller prompt in a separate view; the primary's view is built on as before."""
    outcomes = iter(["a", DOWN, "c"])
    one, two = NamedModel("one", lambda _: next(outcomes)), NamedModel("two", "b")
    same = NamedModel("one", lambda body: {"t0": "a", "t1": "b", "t2": "c"}[body["messages"][-1]["content"][:2]])
    context = ContextSettings("token_window", {"budget": 100_000})
    fields = {"one": {"context_window": 40_000, "max_tokens": 500}, "two": {"context_window": 8_000, "max_tokens": 500}}
    hashes = []
    for models in ((one, two), (same,)):
        async with open_holdfast(*models, fields=fields, context=context) as (hf, clock):
            await add_long_conversation(hf)
            for text in ("t0", "t1", "t2"):
                await ask(hf, text)
                clock.now += 10**7
            calls = await hf.store.calls(REF)
            hashes.append([call.hash for call in calls])
            assert [call.model for call in calls] == ["gpt-4o"] * 3
    stood_in, usual = hashes
    assert (stood_in[0], stood_in[2]) == (usual[0], usual[2])
    assert stood_in[1] != usual[1]
    assert len(one.bodies[1]["messages"]) > len(two.bodies[0]["messages"]) > 1
    assert one.bodies[1] == {**same.bodies[1]}


async def test_fallback_with_a_too_small_window_is_not_called() -> None:
    one, two = NamedModel("one", DOWN), NamedModel("two", "never")
    async with open_holdfast(one, two, fields={"two": {"context_window": 1_000, "max_tokens": 990}}) as (hf, _):
        with pytest.raises(ModelUnavailable, match="two: "):
            await ask(hf, "word " * 2_000, body={"max_tokens": 990})
        assert two.bodies == []


async def test_too_long_prompt_goes_to_a_fallback_with_a_larger_window() -> None:
    """It is first made smaller, then built in full only for fallbacks with a larger window."""
    too_long = ContextTooLong("too long", status=400)
    one, two, three = NamedModel("one", lambda _: too_long), NamedModel("two", "never"), NamedModel("three", "hello")
    fields = {
        "one": {"context_window": 16_000},
        "two": {"context_window": 16_000},
        "three": {"context_window": 64_000},
    }
    async with open_holdfast(one, two, three, fields=fields) as (hf, _):
        await add_long_conversation(hf)
        said, turn = await ask(hf)
        assert said == "hello"
        assert len(one.bodies) == 4
        sizes = [len(str(body["messages"])) for body in (*one.bodies, *three.bodies)]
        assert sizes == [max(sizes[:-1]), *sorted(sizes[1:-1], reverse=True), max(sizes)]
        assert two.bodies == []
        assert [failed["code"] for failed in turn.summarize()["upstream"]["failed"]] == ["context_length_exceeded"]
    one, two = NamedModel("one", lambda _: too_long), NamedModel("two", "never")
    async with open_holdfast(
        one, two, fields={"one": {"context_window": 16_000}, "two": {"context_window": 8_000}}
    ) as (hf, _):
        with pytest.raises(ContextTooLong, match="rejected every prompt as too long"):
            await ask(hf)


# -- cool-down ----------------------------------------------------------------------


async def test_failed_model_is_skipped_during_its_cool_down() -> None:
    """Afterwards one call tries it again, and all return to it if it answers."""
    outcomes: list[Any] = [DOWN, DOWN, "back", "stays"]
    one, two = NamedModel("one", lambda _: outcomes.pop(0)), NamedModel("two", "hello")
    async with open_holdfast(one, two) as (hf, clock):
        await ask(hf)
        said, turn = await ask(hf, "again")
        assert said == "hello"
        assert len(one.bodies) == 1
        passed = {"model": "one", "code": "passed_over", "status": None}
        assert turn.summarize()["upstream"] == {"model": "two", "failed": [passed]}
        clock.now += int(COOL_DOWN_FIRST_SECONDS * 1000)
        assert (await ask(hf, "it fails again"))[0] == "hello"
        assert len(one.bodies) == 2
        clock.now += int(COOL_DOWN_FIRST_SECONDS * 1000)
        await ask(hf, "the second pause is longer")
        assert len(one.bodies) == 2
        clock.now += int(COOL_DOWN_FIRST_SECONDS * 1000)
        assert [(await ask(hf, text))[0] for text in ("now", "and now")] == ["back", "stays"]


async def test_no_prompt_is_built_for_a_skipped_model() -> None:
    """During an outage turns do not build a second prompt: the cached view is that of the answering model."""
    one, two = NamedModel("one", DOWN), NamedModel("two", "hello")
    async with open_holdfast(one, two, fields={"one": {"context_window": 16_000}}) as (hf, _):
        await ask(hf)
        kept = hf.engine.warm.get(REF)
        await ask(hf, "again")
        assert hf.engine.warm.get(REF) is kept


async def test_model_without_fallbacks_is_never_skipped() -> None:
    one = NamedModel("one", DOWN)
    async with open_holdfast(one) as (hf, _):
        for number in range(3):
            with pytest.raises(ModelUnavailable):
                await ask(hf, str(number))
        assert len(one.bodies) == 3


async def test_all_models_are_called_if_all_are_cooling_down() -> None:
    """Skipped models are called last."""
    outcomes: list[Any] = [DOWN, "back"]
    one, two = NamedModel("one", lambda _: outcomes.pop(0)), NamedModel("two", DOWN)
    async with open_holdfast(one, two) as (hf, _):
        with pytest.raises(ModelUnavailable):
            await ask(hf)
        assert (await ask(hf, "again"))[0] == "back"


async def test_skipped_model_is_called_when_the_others_fail() -> None:
    outcomes: list[Any] = [DOWN, "back"]
    answers: list[Any] = ["hello", DOWN]
    one, two = NamedModel("one", lambda _: outcomes.pop(0)), NamedModel("two", lambda _: answers.pop(0))
    async with open_holdfast(one, two) as (hf, _):
        assert (await ask(hf))[0] == "hello"
        assert (await ask(hf, "again"))[0] == "back"


async def begin_probe(hf: Holdfast, clock: Clock, model: NamedModel) -> tuple[asyncio.Task[Any], asyncio.Event]:
    """Let a model fail, and return the call that tries it again later, with the event that lets this call go on."""
    await ask(hf)
    clock.now += int(COOL_DOWN_FIRST_SECONDS * 1000)
    gate = model.gate = asyncio.Event()
    model.asked = asyncio.Event()
    probe = asyncio.create_task(ask(hf, "probe"))
    await model.asked.wait()
    return probe, gate


async def test_only_one_call_probes_a_failed_model() -> None:
    """Until it has answered, all other calls use the fallback."""
    outcomes: list[Any] = [DOWN, "back", "stays"]
    one, two = NamedModel("one", lambda _: outcomes.pop(0)), NamedModel("two", "hello")
    async with open_holdfast(one, two) as (hf, clock):
        probe, gate = await begin_probe(hf, clock, one)
        others = []
        for name in ("t", "u", "v"):
            handle = await hf.session(name)
            others.append((await handle.send("hi"))["choices"][0]["message"]["content"])
        assert others == ["hello"] * 3
        assert len(one.bodies) == 2
        gate.set()
        assert (await probe)[0] == "back"
        assert (await ask(hf, "after"))[0] == "stays"


async def test_cancelled_probe_lets_the_next_call_probe() -> None:
    outcomes: list[Any] = [DOWN, "never", "back"]
    one, two = NamedModel("one", lambda _: outcomes.pop(0)), NamedModel("two", "hello")
    async with open_holdfast(one, two) as (hf, clock):
        probe, _ = await begin_probe(hf, clock, one)
        probe.cancel()
        await asyncio.wait([probe])
        one.gate = None
        outcomes.pop(0)
        assert (await ask(hf, "again"))[0] == "back"


# -- a client's own key --------------------------------------------------------------


async def test_wrong_key_of_the_client_causes_no_failover() -> None:
    one, two = NamedModel("one", ModelRejected("no", status=401), "https://a"), NamedModel("two", "never", "https://a")
    async with open_holdfast(one, two) as (hf, _):
        with pytest.raises(ModelRejected):
            await ask(hf, headers=ForwardedHeaders(authorization="Bearer sk-client"))
        assert two.bodies == []


# -- in a turn with tools ------------------------------------------------------------


def make_call_chunks(name: str) -> list[dict[str, Any]]:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return make_chunks("Let me see. ", tool_calls=[call])


async def test_failover_in_a_later_tool_round_stays_with_the_fallback() -> None:
    """Earlier rounds are kept, and the tool result is in the fallback's prompt."""

    def look() -> str:
        """Look."""
        return "seen"

    outcomes: list[Any] = [make_call_chunks("look"), DOWN]
    answers: list[Any] = [make_call_chunks("look"), "It is there."]
    one, two = NamedModel("one", lambda _: outcomes.pop(0)), NamedModel("two", lambda _: answers.pop(0))
    async with open_holdfast(one, two, tools=[look]) as (hf, _):
        said, turn = await ask(hf)
        assert said.split() == ["Let", "me", "see.", "Let", "me", "see.", "It", "is", "there."]
        assert turn.summarize()["upstream"]["model"] == "two"
        assert [call.model for call in await hf.store.calls(REF)] == ["gpt-4o"] * 3
        assert [entry.message.role for entry in await hf.store.entries(REF)] == [
            "user", "assistant", "tool", "assistant", "tool", "assistant",
        ]  # fmt: skip
    assert [message["role"] for message in two.bodies[0]["messages"]] == ["user", "assistant", "tool"]
    assert len(one.bodies) == 2


# -- model names ---------------------------------------------------------------------


async def test_fallback_model_name_uses_the_default_endpoint() -> None:
    """A fallback that is not a configured LLM is a model name at the default's endpoint."""
    one, two = NamedModel("one", DOWN), NamedModel("two", "hello")
    llms = {
        "default": Llm(name="default", model="big", client=two),
        "fast": Llm(name="fast", model="small", client=one, fallbacks=("middling",)),
    }
    async with Holdfast("sqlite://:memory:", roster=Roster(llms), clock=Clock()) as hf:
        await hf.session("s")
        said, turn = await ask(hf, model="fast")
        assert said == "hello"
        assert turn.summarize()["upstream"]["model"] == "middling"
        assert two.bodies[0]["model"] == "middling"
        assert [call.model for call in await hf.store.calls(REF)] == ["middling"]


async def test_failover_is_logged_in_one_line_without_content(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    secret = ModelUnavailable("http://one answered 503: you said XYZZY", status=503)
    async with open_holdfast(NamedModel("one", secret), NamedModel("two", "hello")) as (hf, _):
        await ask(hf, "XYZZY")
    (record,) = [record for record in caplog.records if record.name == "holdfast.models"]
    assert record.levelno == logging.WARNING
    fields = record.__dict__["fields"]
    assert fields == {
        "llm": "one", "model": "gpt-4o", "code": "upstream_unavailable", "status": 503, "seconds": 0.0,
    }  # fmt: skip
    assert "XYZZY" not in caplog.text
