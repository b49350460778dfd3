"""`SQLiteSession` of the OpenAI Agents SDK, in the benchmark's own environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agents import SQLiteSession

from benchmarks.systems.turns import main


class AgentsSystem:
    """A session whose items are all read in each turn, which is the default."""

    def __init__(self, path: Path) -> None:
        self._session = SQLiteSession("s", path)

    async def run_turn(self, user: str, answer: str) -> None:
        await self._session.add_items([{"role": "user", "content": user}])
        await self._session.get_items()
        await self._session.add_items([{"role": "assistant", "content": answer}])

    async def read_texts(self) -> Sequence[str]:
        return [str(item.get("content")) for item in await self._session.get_items()]

    async def close(self) -> None:
        self._session.close()


async def open_system(_: str, folder: Path) -> AgentsSystem:
    return AgentsSystem(folder / "agents.db")


if __name__ == "__main__":
    main(open_system)
