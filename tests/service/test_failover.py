"""Failover: which model is called when one fails, with which prompt, and what the turn's summary reports."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from holdfast.access import ForwardedHeaders
from holdfast.agents import Llm, Roster
from holdfast.errors import (
    ContextTooLong,
    ModelRejected,
    ModelUnavailable,
)
from holdfast.holdfast import Holdfast
from holdfast.turns.respond import respond
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.wire.openai import parse_message
from tests.clocks import Clock
from tests.service.failover_kit import DOWN, NamedModel, add_long_conversation, ask, open_holdfast
from tests.service.scripted_model import REF

# -- what fails over ---------------------------------------------------------------


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


async def test_no_prompt_is_built_for_a_skipped_model() -> None:
    """During an outage turns do not build a second prompt: the cached view is that of the answering model."""
    one, two = NamedModel("one", DOWN), NamedModel("two", "hello")
    async with open_holdfast(one, two, fields={"one": {"context_window": 16_000}}) as (hf, _):
        await ask(hf)
        kept = hf.engine.warm.get(REF)
        await ask(hf, "again")
        assert hf.engine.warm.get(REF) is kept


# -- a client's own key --------------------------------------------------------------


async def test_wrong_key_of_the_client_causes_no_failover() -> None:
    one, two = NamedModel("one", ModelRejected("no", status=401), "https://a"), NamedModel("two", "never", "https://a")
    async with open_holdfast(one, two) as (hf, _):
        with pytest.raises(ModelRejected):
            await ask(hf, headers=ForwardedHeaders(authorization="Bearer sk-client"))
        assert two.bodies == []


# -- in a turn with tools ------------------------------------------------------------


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
