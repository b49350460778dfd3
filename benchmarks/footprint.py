"""Memory of cached sessions: the cache's estimate compared with what tracemalloc counts."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import cycle, islice

from benchmarks.corpus import TEXT, make_roster
from benchmarks.run import Run
from benchmarks.tables import Column, Table, format_count, format_ratio
from benchmarks.timing import report
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import NewEntry
from holdfast.holdfast import Holdfast
from holdfast.stores.sessions import NewSession
from holdfast.tokens import STORED

WARM_UP = 8
"""Sessions of each kind that fill the caches of analysed words and texts first."""
BUDGETS = (8_000, 150_000)
_COLUMNS = [
    Column("what", ""),
    Column("strategy", "strategy"),
    Column("budget", "budget", format_count),
    Column("sessions", "sessions", format_count),
    Column("estimate", "estimated KB per session", format_count),
    Column("traced", "traced KB per session", format_count),
    Column("ratio", "estimated / traced", format_ratio),
]
WriteMessages = Callable[[int], list[Message]]
"""Returns the messages of session number N; no two sessions share a message."""


async def measure(run: Run) -> list[Table]:
    """Take two turns in each session; the first one loads the session from the store."""
    rows: list[dict[str, int | float | str | None]] = []
    for strategy in ("digest", "token_window"):
        for budget in BUDGETS:
            for name, (number, write) in _KINDS.items():
                report(f"footprint: {name}, {strategy}, {budget}")
                count = max(2, number // 10) if run.quick else number
                estimate, traced = await _measure_footprint(strategy, budget, count, write)
                rows.append(
                    {
                        "what": name,
                        "strategy": strategy,
                        "budget": budget,
                        "sessions": count,
                        "estimate": estimate / count / 1000,
                        "traced": traced / count / 1000,
                        "ratio": estimate / traced,
                    }
                )
    return [Table("footprint", "Memory of cached sessions, including tables for recall", _COLUMNS, rows)]


async def _measure_footprint(strategy: str, budget: int, count: int, write: WriteMessages) -> tuple[int, int]:
    """Return the estimated and the traced bytes of `count` sessions."""
    async with Holdfast(
        "sqlite://:memory:", roster=make_roster(strategy, budget), index=None, cache_bytes=1 << 32
    ) as hf:
        for number in range(count + WARM_UP):
            await _fill(hf, number, write(number))
        await _take_turns(hf, range(WARM_UP))
        gc.collect()
        tracemalloc.start()
        try:
            before = hf.engine.warm.size
            await _take_turns(hf, range(WARM_UP, count + WARM_UP))
            gc.collect()
            return hf.engine.warm.size - before, tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()


async def _fill(hf: Holdfast, number: int, messages: Sequence[Message]) -> None:
    new = [NewEntry(message=one, tokens=STORED.message(one), timestamp=hf.clock()) for one in messages]
    await hf.store.replace(NewSession(id=f"s{number}", user_id="bench", timestamp=hf.clock()), new)


async def _take_turns(hf: Holdfast, numbers: Sequence[int]) -> None:
    for number in numbers:
        for at in range(2):
            session = await hf.session(f"s{number}", user_id="bench")
            async with session.turn(f"Where is order W{number * 7919 + at}, and when will it be here?") as turn:
                turn.add(f"Order W{number * 7919 + at} is at the depot.")
            await asyncio.sleep(0.05)  # tables for recall are filled after the turn


# -- messages ------------------------------------------------------------------


def _make_text(seed: int, words: Sequence[str], number: int, glue: str = " ") -> str:
    start = seed * 31 % len(words)
    return f"{seed}: " + glue.join(islice(cycle(words), start, start + number)) + f" {seed * 7907}."


def _make_chat_writer(messages: int, words: Sequence[str], number: int, glue: str = " ") -> WriteMessages:
    def write(session: int) -> list[Message]:
        seeds = range(session * messages, (session + 1) * messages)
        return [
            Message(role=("user", "assistant")[at % 2], content=_make_text(at, words, number, glue)) for at in seeds
        ]

    return write


def _write_tool_session(session: int) -> list[Message]:
    """Return the messages of ten rounds, each with a tool call and its 20 KB result."""
    messages = list[Message]()
    for at in range(session * 10, session * 10 + 10):
        call = ToolCall(id=f"call_{at}", name="list_orders", arguments=json.dumps({"customer": at}))
        orders = [{"order": f"W{at * 1000 + item}", "city": _WORDS[item % 40], "price": item} for item in range(400)]
        messages += [
            Message(role="user", content=_make_text(at, _WORDS, 30)),
            Message(role="assistant", content=None, tool_calls=(call,)),
            Message(role="tool", content=json.dumps(orders), tool_call_id=call.id),
            Message(role="assistant", content=_make_text(at, _WORDS, 40)),
        ]
    return messages


_WORDS = TEXT.split()
_GERMAN = [
    "die",
    "Bestellung",
    "kam",
    "am",
    "Montag",
    "für",
    "Sie",
    "heraus",
    "und",
    "müsste",
    "heute",
    "schon",
    "bei",
    "Ihnen",
    "sein:",
    "„bitte“",
    "prüfen",
]
_CHINESE = list("订单周一已经发出应该今天到达您的地址请查一下现在在哪里因为我周末之前需要它")
_KINDS: dict[str, tuple[int, WriteMessages]] = {
    "short chat, 12 messages": (100, _make_chat_writer(12, _WORDS, 30)),
    "chat, 100 messages": (40, _make_chat_writer(100, _WORDS, 50)),
    "chat in German, 100 messages": (40, _make_chat_writer(100, _GERMAN, 50)),
    "chat in Chinese, 100 messages": (40, _make_chat_writer(100, _CHINESE, 120, "")),
    "tools, ten results of 20 KB": (20, _write_tool_session),
    "long, 3,000 messages": (4, _make_chat_writer(3_000, _WORDS, 50)),
}
