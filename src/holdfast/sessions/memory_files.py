"""Open the memory files of a user and an agent."""

from __future__ import annotations

from holdfast.domain.artifact import UserRef
from holdfast.engine.engine import Engine
from holdfast.memory.files import NAMESPACE, MemoryFiles
from holdfast.sessions.records import Records


def open_memory_files(engine: Engine, user_id: str, agent: str | None = None) -> MemoryFiles:
    """Return the memory files of a user. With `agent`, return the files that only this agent uses."""
    labels = (NAMESPACE,) if agent is None else (NAMESPACE, agent)
    return MemoryFiles(Records(engine, UserRef(user_id), labels))
