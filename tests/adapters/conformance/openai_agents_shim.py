"""A pytest plugin: the SDK's own tests of `SQLiteSession` and `AsyncSQLiteSession` then test `HoldfastSession`.

Each path is a database of its own, opened by a portal, because the tests use sessions in several event loops.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import agents
import agents.extensions.memory
import agents.memory

import holdfast
from holdfast.adapters.openai_agents import HoldfastSession

_portals: dict[Path | int, holdfast.Portal] = {}


class ShimSession(HoldfastSession):
    """`HoldfastSession` with the constructor of `SQLiteSession`."""

    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        *tables: str,
        session_settings: Any = None,
        **options: Any,
    ) -> None:
        in_memory = str(db_path) == ":memory:"
        key = len(_portals) if in_memory else Path(db_path)
        if key not in _portals:
            _portals[key] = holdfast.Portal("sqlite://:memory:" if in_memory else f"sqlite:///{db_path}").start()
        super().__init__(_portals[key], session_id, session_settings=session_settings)

    def close(self) -> None:
        """Do nothing: a session of Holdfast has nothing to close."""


class AsyncShimSession(ShimSession):
    """The same with the method of `AsyncSQLiteSession`."""

    async def close(self) -> None:  # type: ignore[override]
        """Do nothing: a session of Holdfast has nothing to close."""


def pytest_sessionfinish() -> None:
    """Close the databases."""
    for portal in _portals.values():
        portal.close()


for module in (agents, agents.memory):
    module.SQLiteSession = ShimSession  # type: ignore[misc, assignment]
agents.extensions.memory.AsyncSQLiteSession = AsyncShimSession  # type: ignore[attr-defined]
