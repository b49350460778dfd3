"""Explanations of a context, and past contexts rebuilt from the log."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agents import Roster
from holdfast.context import explain
from holdfast.context.settings import STRATEGIES, ContextSettings, parse
from holdfast.context.strategies import make_strategy
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.sessions.context_preview import preview_context
from holdfast.sessions.preview_objects import PreviewRequest

SETTINGS = [
    ContextSettings("digest", {"budget": 400}),
    ContextSettings("token_window", {"budget": 400}),
    ContextSettings("salience", {"budget": 400}),
    ContextSettings("summary_buffer", {"budget": 400}),
    ContextSettings("head_tail", {"window_size": 6}),
    ContextSettings("clear_tool_results", {"budget": 400, "clear_at_least": 50, "keep": 1}),
    ContextSettings("token_window", {"budget": 500, "clear_tool_results": {"clear_at_least": 40, "keep": 0}}),
]
QUESTION = "Where is order ORD-{n}? It was sent to {n} Harbour Street and should have been there on 2026-03-{n}."


def open_holdfast(settings: ContextSettings, url: str = "sqlite://:memory:") -> Holdfast:
    return Holdfast(url, roster=Roster(context=settings))


async def run_turns(hf: Holdfast, turns: int, *, start: int = 0) -> list[dict[str, Any]]:
    """Run turns with a tool round each; return what each model call got, by the turn's own explanation."""
    session = await hf.session("s", user_id="ada", system="Be brief.")
    sent = []
    for n in range(start, start + turns):
        async with session.turn(QUESTION.format(n=n)) as turn:
            call = {"id": f"c{n}", "type": "function", "function": {"name": "find", "arguments": f'{{"order": {n}}}'}}
            turn.add({"role": "assistant", "content": None, "tool_calls": [call]})
            turn.add({"role": "tool", "tool_call_id": f"c{n}", "content": f'{{"order": {n}, "state": "lost"}} ' * 6})
            await turn.next()
            sent.append({"turn": n, "messages": turn.messages, **turn.explanation()})
            turn.add(f"Order ORD-{n} is lost; a new one comes with parcel P{n}.")
    return sent


async def preview(hf: Holdfast, **given: Any) -> Any:
    session = await hf.session("s", user_id="ada")
    asked = PreviewRequest(responder=session.responder, settings=session.responder.context, **given)
    return await preview_context(hf.engine, SessionRef("ada", "s"), asked)


@pytest.mark.parametrize("strategy", ["buffer_window", "head_tail"])
async def test_message_window_explains_that_newer_messages_replaced_older_ones(strategy: str) -> None:
    """The reported frontier is the first message that was sent."""
    async with open_holdfast(ContextSettings(strategy, {"window_size": 6})) as hf:
        await run_turns(hf, 12)
        session = await hf.session("s", user_id="ada")
        await session.append("And now?")
        found = (await preview(hf, explain=True)).built
    told, sent = found.explain(), [run for run in found.list_decisions() if run.decision == "kept"]
    assert told["frontier"] == sent[0].first
    assert told["prefix"]["broken"]["why"].endswith(": newer messages took the place of older ones")


async def test_clearing_and_a_changed_system_prompt_are_explained() -> None:
    async with open_holdfast(SETTINGS[5]) as hf:
        whys = [one["prefix"]["broken"]["why"] for one in await run_turns(hf, 12) if one["prefix"]["broken"]]
        assert "older tool results were cleared" in whys
        session = await hf.session("s", user_id="ada")
        async with session.turn(
            [{"role": "system", "content": "Be long."}, {"role": "user", "content": "Go."}]
        ) as turn:
            assert turn.explanation()["prefix"]["broken"]["why"] == "the system prompt changed"
            assert "the system prompt changed" in turn.explain()


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        *((name, {}) for name in STRATEGIES),
        ("summary_buffer", {"summarizer_llm": "none", "threshold": 0.6, "target": 0.4}),
        ("summary_buffer", {"summarizer_llm": "fast", "prompt": "In short."}),
        ("salience", {"scorer": "fast", "clear_tool_results": {"exclude_tools": ["plan"], "trigger": 900}}),
        ("clear_tool_results", {"budget": 700, "exclude_tools": ["plan"], "keep_latest": True}),
        ("buffer_window", {"budget": 700, "clear_tool_results": True}),
    ],
)
def test_strategy_is_described_by_its_configuration_keys(strategy: str, options: dict[str, Any]) -> None:
    made = make_strategy(ContextSettings(strategy, options))
    told = explain.describe_strategy(made)
    assert told.items() >= {"strategy": strategy}.items()
    assert set(told) - {"strategy"} <= set(STRATEGIES[strategy].keys)
    assert make_strategy(parse(told)) == made


async def test_explained_budget_adds_up() -> None:
    async with open_holdfast(SETTINGS[0]) as hf:
        sent = (await run_turns(hf, 1))[0]
    budget, counted = sent["budget"], sent["counted"]
    shares = budget["max_reply_tokens"] + budget["safety_headroom"] + budget["tool_result_headroom"]
    assert budget["input"] == budget["context_window"] - shares
    assert budget["conversation"] == 400
    assert budget["used"] <= 400
    assert counted == {"tokens": budget["used"] + budget["system_and_tools"], "how": "exact", "margin": 0.0}


async def test_budget_of_a_past_call_is_the_recorded_one() -> None:
    """The current budget would differ: the call had tools, which leave less room."""
    tools = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}]
    async with open_holdfast(ContextSettings("none")) as hf:
        session = await hf.session("s", user_id="ada")
        async with session.turn("Where is it?", tools=tools, max_tokens=9000) as turn:
            sent = turn.explanation()["budget"]
            turn.add("Here.")
        told = (await preview(hf, at_turn=0)).explain()["budget"]
    assert told == {name: sent[name] for name in ("input", "system_and_tools", "conversation", "used", "counter")}


ONE_BY_ONE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.mark.parametrize(
    ("part", "how"),
    [
        ({"type": "image_url", "image_url": {"url": ONE_BY_ONE}}, "exact"),
        ({"type": "image_url", "image_url": {"url": "https://x.test/y.png", "detail": "low"}}, "exact"),
        ({"type": "image_url", "image_url": {"url": "https://x.test/y.png"}}, "estimate"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "estimate"),
    ],
)
async def test_assumed_media_tokens_are_reported_as_an_estimate(part: dict[str, Any], how: str) -> None:
    async with open_holdfast(SETTINGS[0]) as hf:
        session = await hf.session("s", user_id="ada")
        await session.append({"role": "user", "content": [{"type": "text", "text": "Look."}, part]})
        counted = (await session.context("none", model="gpt-4o")).provider_count
        assert (counted["how"], counted["margin"]) == (how, 0.0)
