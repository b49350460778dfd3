"""Prompts of each strategy with its options, of one short conversation that has a message of each kind."""

from __future__ import annotations

from tests.behaviour.kit.exchanges import Exchange, exchange
from tests.behaviour.kit.prompts import prompt, talk


@exchange()
async def test_windows_by_number(x: Exchange) -> None:
    await talk(x, "s", "orders")
    for strategy in ("buffer_window", "head_tail"):
        for options in (
            {"window_size": 1},
            {"window_size": 6},
            {"window_size": 7},
            {},
            {"window_size": 12, "budget": 200},
        ):
            await prompt(x, "s", strategy=strategy, **options)
    await prompt(x, "s", strategy="head_tail", window_size=6, facts=True, recall="on")
    await prompt(x, "s", strategy="none")


@exchange()
async def test_windows_by_tokens(x: Exchange) -> None:
    await talk(x, "s", "orders")
    for options in (
        {"budget": 150},
        {"budget": 400},
        {"budget": 400, "target": 0.8},
        {"budget": 400, "preserve_recent": 12},
        {},
    ):
        await prompt(x, "s", strategy="token_window", **options)
    await prompt(x, "s", strategy="token_window", budget=500, facts=True)
    await prompt(x, "s", strategy="token_window", budget=500, recall="on")
    await prompt(x, "s", strategy="token_window", budget=20)


@exchange()
async def test_digests(x: Exchange) -> None:
    await talk(x, "s", "orders")
    for options in (
        {"budget": 200},
        {"budget": 500},
        {"budget": 500, "target": 0.7},
        {"budget": 500, "facts": False},
        {"budget": 900},
    ):
        await prompt(x, "s", strategy="digest", **options)
    for recall in ("off", False, "on"):
        await prompt(x, "s", strategy="digest", budget=600, recall=recall)
    await prompt(x, "s", strategy="digest", max_window=9000)
    await prompt(x, "s", strategy="summary_buffer", budget=700, summarizer_llm="none")
    await prompt(x, "s", strategy="summary_buffer", budget=950, summarizer_llm="none", threshold=0.6, target=0.4)


@exchange()
async def test_salience(x: Exchange) -> None:
    await talk(x, "s", "orders")
    for options in (
        {"budget": 200},
        {"budget": 500},
        {"budget": 800},
        {"budget": 800, "target": 0.4},
        {"budget": 500, "facts": False, "recall": "off"},
    ):
        await prompt(x, "s", strategy="salience", **options)


@exchange()
async def test_cleared_results(x: Exchange) -> None:
    await talk(x, "s", "orders")
    few = {"strategy": "clear_tool_results", "clear_at_least": 1}
    for options in (
        {"trigger": 500},
        {"trigger": 500, "keep": 0},
        {"trigger": 500, "keep": 1, "exclude_tools": ["track"]},
        {"trigger": 500, "keep": 0, "keep_latest": True},
        {"trigger_uses": 4, "keep": 2},
        {"trigger_uses": 6, "keep": 2},
        {"trigger": 500, "keep": 1, "clear_tool_inputs": True},
        {"trigger": 500, "keep": 1, "clear_inputs_of": ["track"]},
        {"trigger": 500, "clear_at_least": 130},
        {"trigger": 500, "clear_at_least": 30},
        {"budget": 600, "keep": 1},
    ):
        await prompt(x, "s", **{**few, **options})
    await prompt(x, "s", strategy="token_window", budget=700, clear_tool_results={"keep": 1, "clear_at_least": 10})
    await prompt(x, "s", strategy="token_window", budget=700, clear_tool_results=True)


@exchange()
async def test_what_digests_keep_of_results(x: Exchange) -> None:
    """Rows, tables, listings and nested objects; values that a later result repeats, changes or resolves."""
    await talk(x, "s", "results")
    for options in ({"budget": 600}, {"budget": 1100}, {"budget": 1700, "target": 0.6}):
        await prompt(x, "s", strategy="digest", recall="off", facts=False, **options)
    await prompt(x, "s", strategy="digest", budget=1100)
    await prompt(x, "s", strategy="salience", budget=900)
