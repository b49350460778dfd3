"""Prompts with messages of every kind: pictures, reasoning, empty and broken messages, and messages that are too long."""

from __future__ import annotations

from typing import Any

from tests.behaviour.kit import assistant, calls
from tests.behaviour.kit.exchanges import Exchange, exchange
from tests.behaviour.kit.prompts import prompt, talk

MODELS = [
    "gpt-4o", "gpt-4o-mini", "gpt-4.1-mini", "gpt-4.1-nano", "gpt-5", "gpt-5.1-2025", "gpt-5-mini", "gpt-5-nano", "gpt-5.4", "gpt-5.4-mini", "o1", "o3-mini", "o4-mini",
    "gpt-4", "gpt-3.5-turbo", "computer-use-preview", "claude-3-opus", "claude-sonnet-4-5", "claude-opus-4-7", "claude-opus-5", "gemini-1.5-pro", "gemini-2.5-flash", "gemini-3-pro",
    "mistral-large", "openai/gpt-4o", "qwen3:8b", "deepseek-chat", "llama3.1", "unknown",
]  # fmt: skip
LLMS = "llms:\n" + "".join(
    f"  m{at}: {{base_url: 'http://localhost:9/v1', api_key: k, model: '{name}'}}\n" for at, name in enumerate(MODELS)
)


@exchange(None, LLMS)
async def test_tokens_of_pictures(x: Exchange) -> None:
    await talk(x, "s", "pictures")
    await talk(x, "t", "oddities")
    for at, name in enumerate(MODELS):
        found = {}
        for session in ("s", "t"):
            for strategy in ("none", "token_window"):
                answer = await x.served.http.post(
                    f"/v1/sessions/{session}/context", json={"model": f"m{at}", "strategy": strategy, "explain": True}
                )
                made = answer.json()
                if answer.is_success:
                    budget = made["build"]["budget"]
                    made = [made["conversation_tokens"], *made["provider_count"].values()]
                found[f"{session} {strategy}"] = made
        x.note(name, {**found, "budget": [*budget.values()]})


@exchange()
async def test_pictures_in_dialects(x: Exchange) -> None:
    await talk(x, "s", "pictures")
    for dialect in ("openai", "anthropic", "gemini"):
        await prompt(x, "s", strategy="none", dialect=dialect)
    for budget in (900, 3000, 9000):
        await prompt(x, "s", strategy="digest", budget=budget)
        await prompt(x, "s", strategy="token_window", budget=budget, preserve_recent=2)


@exchange()
async def test_odd_messages(x: Exchange) -> None:
    await talk(x, "s", "oddities")
    for dialect in ("openai", "anthropic", "gemini"):
        await prompt(x, "s", strategy="none", dialect=dialect)
        await prompt(x, "s", strategy="token_window", budget=330, dialect=dialect)
    await prompt(x, "s", strategy="digest", budget=500)
    await prompt(x, "s", strategy="buffer_window", window_size=3, dialect="anthropic")
    await prompt(x, "s", strategy="clear_tool_results", keep_thinking=1, trigger=10, clear_at_least=1)
    await prompt(x, "s", strategy="clear_tool_results", keep_thinking=2, keep=0, trigger=10, clear_at_least=1)


@exchange()
async def test_long_messages(x: Exchange) -> None:
    await talk(x, "s", "long")
    for strategy in ("token_window", "digest", "head_tail", "salience", "clear_tool_results"):
        for budget in (450, 700, 1100, 2500):
            await prompt(x, "s", strategy=strategy, budget=budget)
    await prompt(x, "s", strategy="token_window", budget=1500, preserve_recent=12)
    await prompt(x, "s", strategy="token_window", budget=1500, preserve_recent=12, dialect="anthropic")


SEALS = "llms: {default: {base_url: 'http://localhost:9/v1', api_key: k, model: m}, pictures: {base_url: 'http://localhost:9/v1', api_key: k, model: m, inputs: [image]}, words: {base_url: 'http://localhost:9/v1', api_key: k, model: m, inputs: [text]}}"
PNG, JPEG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ", "/9j/4AAQSkZJRgABAQAAAQABAAA="
LISTED = [
    {"role": "user", "content": [{"type": "image"}, {"type": "video"}, {"type": "text", "text": "See?"}]},
    calls(("a", "look", {})),
    {"role": "tool", "content": [{"type": "image"}, {"type": "text", "text": "found"}]},
    assistant("I see."),
]
WRONG: list[dict[str, Any]] = [
    *({"images": [PNG]}, {"videos": []}, {"images": [PNG, "no base64!"]}, {"images": [PNG, 7]}),
    *({"videos": [{"fps": 1.0}]}, {"videos": [{"frames": ["?"]}]}),
]


@exchange(None, SEALS)
async def test_media_that_are_listed_after_the_messages(x: Exchange) -> None:
    """As clients of mistral.rs write them; a model without video gets its frames."""
    whole = {"messages": LISTED, "images": [PNG, JPEG], "videos": [{"fps": 1.0, "frames": [PNG] * 10}]}
    await x.put("/v1/sessions/s", **whole)
    for change in WRONG:
        await x.put("/v1/sessions/t", **{**whole, **change})
    await x.get("/v1/sessions/s")
    for model in ("default", "pictures", "words"):
        for dialect in ("openai", "anthropic", "gemini"):
            await prompt(x, "s", model=model, strategy="none", dialect=dialect)
