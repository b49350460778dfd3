"""`make bench`: one durable turn by length of the session.

A turn is the user's message written, the working set built, a model's answer (made here, at once) written: through
`Holdfast`, on a SQLite file, synchronous FULL. Sessions are imported whole first; the first turn behind an import reads
the log once, to work the view out, and is told apart.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from holdfast.agents import Llm, Roster
from holdfast.context.settings import ContextSettings
from holdfast.holdfast import Holdfast
from holdfast.messages import Message
from holdfast.models import as_chunks
from holdfast.stores.base import NewSession

LENGTHS = (10, 100, 1_000, 10_000, 50_000)
TURNS = 200
BUDGET = 8_000
WORDS = (
    "the",
    "order",
    "was",
    "sent",
    "on",
    "Monday",
    "and",
    "should",
    "arrive",
    "at",
    "the",
    "address",
    "given",
    "today",
)


class Instant:
    """A model that answers at once."""

    name = "instant"

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """One short answer."""
        message = {"role": "assistant", "content": f"Answer to {len(request['messages'])} messages."}
        for chunk in as_chunks(
            {"model": "instant", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        ):
            yield chunk

    async def close(self) -> None:
        """Nothing to let go of."""


def text(number: int) -> str:
    """About sixty tokens that differ from message to message."""
    return f"Message {number}: " + " ".join(WORDS[(number + at) % len(WORDS)] for at in range(55))


async def measured(length: int, folder: Path) -> dict[str, Any]:
    """A row of the table: the first turn and the median of the others, in milliseconds."""
    settings = ContextSettings("digest", {"budget": BUDGET})
    llm = Llm(name="default", model="gpt-4o", client=Instant())
    async with Holdfast(
        f"sqlite:///{folder}/bench-{length}.db", roster=Roster({"default": llm}, context=settings)
    ) as hf:
        roles = ("user", "assistant")
        messages = [Message(role=roles[at % 2], content=text(at)) for at in range(length)]
        entries = await hf.new_entries(messages, [{}] * length)
        await hf.install(NewSession(id="s", user_id="u", timestamp=0), entries)
        session = await hf.session("s", user_id="u")
        times = []
        for turn in range(TURNS):
            started = time.perf_counter()
            await session.send(text(length + turn))
            times.append((time.perf_counter() - started) * 1000)
    first, rest = times[0], sorted(times[1:])
    return {
        "entries": length,
        "first_ms": first,
        "turn_ms": statistics.median(rest),
        "p99_ms": rest[int(len(rest) * 0.99)],
    }


async def main() -> None:
    """Measure each length, print the table, or JSON with `--json`."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [await measured(length, Path(folder)) for length in LENGTHS]
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'entries':>10} {'first turn ms':>14} {'turn ms':>9} {'p99 ms':>8} {'ratio':>6}")
    for row in rows:
        ratio = row["turn_ms"] / rows[0]["turn_ms"]
        print(
            f"{row['entries']:>10,} {row['first_ms']:>14.1f} {row['turn_ms']:>9.2f} {row['p99_ms']:>8.2f} {ratio:>6.2f}"
        )


if __name__ == "__main__":
    asyncio.run(main())
