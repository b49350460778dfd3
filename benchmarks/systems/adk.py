"""`DatabaseSessionService` of Google ADK on SQLite, in the benchmark's own environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService
from google.genai.types import Content, Part

from benchmarks.systems.turns import main

NAME = {"app_name": "bench", "user_id": "bench", "session_id": "s"}


class AdkSystem:
    """A session whose events are all read in each turn, which is the default."""

    def __init__(self, service: Any) -> None:
        self._service = service

    async def run_turn(self, user: str, answer: str) -> None:
        session = await self._service.get_session(**NAME)
        for author, text in (("user", user), ("bench", answer)):
            content = Content(role="user" if author == "user" else "model", parts=[Part(text=text)])
            await self._service.append_event(session, Event(author=author, invocation_id="i", content=content))

    async def read_texts(self) -> Sequence[str]:
        session = await self._service.get_session(**NAME)
        return [event.content.parts[0].text for event in session.events]

    async def close(self) -> None:
        await self._service.db_engine.dispose()


async def open_system(_: str, folder: Path) -> AdkSystem:
    service = DatabaseSessionService(f"sqlite+aiosqlite:///{folder}/adk.db")
    await service.create_session(**NAME)
    return AdkSystem(service)


if __name__ == "__main__":
    main(open_system)
