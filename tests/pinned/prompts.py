"""Make the pinned prompts, through public names only. The same conversation gives the same bytes in each process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal
from unittest import mock

import holdfast
from holdfast.errors import BudgetTooSmall
from tests.pinned.dialogues import DIALOGUES, Dialogue, read_dialogue, read_recorded

Prompt = dict[str, Any]
"""`messages` and `system` in the format of a dialect, and `tokens` and `total`; `decisions`; or only `error`."""
Prompts = dict[str, Prompt]
"""Prompts by name, such as `digest 800 openai`."""
Dialect = Literal["openai", "anthropic", "gemini"]
DIALECTS: Final[tuple[Dialect, ...]] = ("openai", "anthropic", "gemini")
BUDGETS: Final = (800, 3000, 9000)
"""Tokens. Every dialogue of `benchmarks/` is longer than the last one. Below 1,024, a digest follows other rules; `salience` changes between 2,048 and 8,192."""
RECORDED_BUDGETS: Final = (400, 1200, 3000)
"""Tokens. A session of the airline or the shop has 1,500 to 9,000 without its system prompt."""
STRATEGIES: Final = (
    "buffer_window",
    "clear_tool_results",
    "digest",
    "head_tail",
    "none",
    "salience",
    "summary_buffer",
    "token_window",
)
_NOW: Final = 1_800_000_000_000


def hash_prompt(prompt: Prompt) -> str:
    """Return a short hash of a prompt."""
    text = json.dumps(prompt, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def make_prompts(name: str, recordings: Path | None = None) -> Prompts:
    """Return the prompts of one conversation. `recordings` is the folder of the recorded sessions."""
    if name in DIALOGUES:
        return asyncio.run(_make_dialogue(read_dialogue(name)))
    if recordings is None:
        raise LookupError(f"{name} is a recorded session: set HOLDFAST_TEST_DATA to the folder of the recordings")
    return asyncio.run(_make_recorded(read_recorded(recordings, name)))


def get_options(strategy: str, budget: int) -> dict[str, Any]:
    """Return the settings with which a strategy is pinned."""
    match strategy:
        case "none":
            return {}
        case "buffer_window" | "head_tail":
            return {"budget": budget, "window_size": 12}
        case "clear_tool_results":
            return {"budget": budget, "trigger": budget // 2, "keep": 2, "clear_at_least": 100}
        case _:
            return {"budget": budget}


def write_outline(messages: Sequence[Mapping[str, Any]], *, earlier: str | None, tokens: int) -> str:
    """Write a summary in place of a model: the beginning of what each one said."""
    said = [f"{one['role']}: {one['content'][:60]}" for one in messages if isinstance(one.get("content"), str)]
    return "\n".join([*([earlier] if earlier else []), *said])[: 2 * tokens]


async def _make_dialogue(dialogue: Dialogue) -> Prompts:
    """Build each prompt in a session that has built none in another dialect: a session continues from its last prompt."""
    found: Prompts = {}
    async with _open() as hf:
        for dialect in DIALECTS:
            session = await _write(hf, dialogue, dialect)
            for strategy, budget in _list_settings(BUDGETS):
                handle = session
                options = get_options(strategy, budget)
                if strategy == "summary_buffer":
                    handle, options = await hf.session(session.id, agent=f"summary_{budget}"), {}
                    await handle.compact()
                    strategy_name = None
                else:
                    strategy_name = strategy
                name = f"{strategy} {budget}" if budget else strategy
                found |= await _build(handle, name, dialect, strategy_name, options)
    return found


async def _make_recorded(dialogue: Dialogue) -> Prompts:
    """Build the prompts of an early, a middle and the last turn."""
    found: Prompts = {}
    async with _open() as hf:
        session = await _write(hf, dialogue, "recorded")
        turns = sorted({one["turn_id"] for one in await session.export()})
        chosen = dict.fromkeys((turns[len(turns) // 4], turns[len(turns) // 2], turns[-1]))
        for turn in chosen:
            for strategy, budget in _list_settings(RECORDED_BUDGETS):
                name = f"turn {turn} {strategy} {budget}" if budget else f"turn {turn} {strategy}"
                for dialect in DIALECTS:
                    options = {**get_options(strategy, budget), "at_turn": turn}
                    found |= await _build(session, name, dialect, strategy, options)
    return found


def _list_settings(budgets: Sequence[int]) -> Iterator[tuple[str, int]]:
    for strategy in STRATEGIES:
        yield from ((strategy, budget) for budget in (budgets if strategy != "none" else (0,)))


async def _build(
    session: holdfast.SessionHandle, name: str, dialect: Dialect, strategy: str | None, options: Mapping[str, Any]
) -> Prompts:
    try:
        made = await session.context(strategy, dialect=dialect, touch=False, **options)
    except BudgetTooSmall as refused:
        return {f"{name} {dialect}": {"error": str(refused)}}
    prompt = {
        "system": made.system,
        "messages": made.messages,
        "tokens": made.conversation_tokens,
        "total": made.total_tokens,
    }
    found: Prompts = {f"{name} {dialect}": prompt}
    if dialect == "openai":
        runs = [f"{run.first}-{run.last} {run.decision} ({run.tokens}): {run.reason}" for run in made.decisions]
        found[f"{name} decisions"] = {"decisions": runs}
    return found


async def _write(hf: holdfast.open, dialogue: Dialogue, name: str) -> holdfast.SessionHandle:
    session = await hf.session(name)
    rest = iter(dialogue.messages)
    while page := list(islice(rest, 100)):
        await session.append(page)
    if dialogue.question is not None:
        await session.append({"role": "user", "content": dialogue.question})
    return session


@asynccontextmanager
async def _open() -> AsyncIterator[holdfast.open]:
    settings = {"summarizer_llm": "outline"}
    context = [holdfast.settings.ContextSettings("summary_buffer", {"budget": size, **settings}) for size in BUDGETS]
    agents = [holdfast.Agent(name=f"summary_{size}", context=one) for size, one in zip(BUDGETS, context, strict=True)]
    roster = holdfast.Roster(agents={one.name: one for one in agents})
    with _steady():
        async with holdfast.open(
            "sqlite://:memory:",
            roster=roster,
            summarizers={"outline": write_outline},
            index=None,
            session_ttl=0,
            clock=lambda: _NOW,
        ) as hf:
            yield hf


@contextmanager
def _steady() -> Iterator[None]:
    """Leave out chance: markers come from constants."""
    with ExitStack() as patches:
        patches.enter_context(mock.patch("secrets.token_bytes", return_value=bytes(32)))
        patches.enter_context(mock.patch("uuid.uuid4", return_value=uuid.UUID(int=7)))
        yield
