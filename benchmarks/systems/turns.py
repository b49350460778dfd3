"""Play a conversation with a memory system, and print the figures as a line of JSON.

Each program gets three arguments: a JSON file with the turns, the URL of the scripted model, and an empty folder.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Protocol

EDGE = 20
"""Turns at the start and at the end whose median times are compared."""


class System(Protocol):
    """A memory system with one conversation."""

    async def run_turn(self, user: str, answer: str) -> None:
        """Store the user's message, read what the model is to see, and store the answer."""

    async def read_texts(self) -> Sequence[str]:
        """Return all texts that the system's API returns for the conversation."""

    async def close(self) -> None:
        """Close the system's files."""


Open = Callable[[str, Path], Awaitable[System]]
"""Opens a system with the URL of the model and an empty folder."""


async def _play(open_system: Open, turns: Sequence[tuple[str, str]], url: str, folder: Path) -> dict[str, Any]:
    system = await open_system(url, folder)
    times: list[float] = []
    for user, answer in turns:
        started = time.perf_counter()
        await system.run_turn(user, answer)
        times.append(time.perf_counter() - started)
    edge = min(EDGE, len(times) // 2)
    texts = await system.read_texts()
    await system.close()
    return {
        "first": median(times[1 : edge + 1]),  # without the turn that loads everything
        "last": median(times[-edge:]),
        "readable": sum(any(part in text for text in texts) for turn in turns for part in turn),
        "messages": 2 * len(turns),
    }


def main(open_system: Open) -> None:
    """Play the conversation and print the figures on the last line."""
    turns = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(sys.argv[3])
    figures = asyncio.run(_play(open_system, turns, sys.argv[2], folder))
    figures["bytes"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(json.dumps(figures), flush=True)
