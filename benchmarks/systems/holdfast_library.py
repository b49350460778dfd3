"""Holdfast's library on SQLite with its default strategy, in the benchmark's own environment.

With the argument `search`, each turn also searches the user's sessions for the user's message, as other systems do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import holdfast
from benchmarks.systems.turns import main

BUDGET = 8_000


class HoldfastSystem:
    """A session."""

    def __init__(self, hf: holdfast.Holdfast, session: holdfast.SessionHandle, *, search: bool) -> None:
        self._hf = hf
        self._session = session
        self._search = search

    async def run_turn(self, user: str, answer: str) -> None:
        if self._search:
            await self._hf.search(user, "bench")
        async with self._session.turn(user) as turn:
            assert turn.messages[-1]["content"] == user
            turn.add({"role": "assistant", "content": answer})

    async def read_texts(self) -> Sequence[str]:
        return [entry.message.text for entry in await self._session.entries()]

    async def close(self) -> None:
        await self._hf.close()


async def open_system(_: str, folder: Path) -> HoldfastSystem:
    hf = await holdfast.open(f"sqlite:///{folder}/holdfast.db", budget=BUDGET).__aenter__()
    return HoldfastSystem(hf, await hf.session("s", user_id="bench"), search="search" in sys.argv[4:])


if __name__ == "__main__":
    main(open_system)
