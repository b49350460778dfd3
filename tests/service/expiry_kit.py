"""Shared by tests of session expiry: a Holdfast with a clock moved by hand, and a hook that records its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.session import EndReason, Session, SessionRef
from holdfast.errors import SessionNotFound
from holdfast.holdfast import Holdfast
from holdfast.hooks import EndedSession
from holdfast.hooks.registry import ENDS
from holdfast.lifecycle.hook_delivery import DeliverySchedule
from holdfast.lifecycle.settings import LifeSettings
from tests.clocks import Clock

MEMORY = "sqlite://:memory:"
HOUR = 3_600_000
DAY = 24 * HOUR
PLACES = ("memory", "file")
"""Where an ended session is gone, and where it is closed."""


@pytest.fixture(name="place", params=PLACES)
def _place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store."""
    return MEMORY if request.param == "memory" else file(tmp_path)


def ref(name: str, user: str = "default") -> SessionRef:
    """Return the reference of the session with that id."""
    return SessionRef(user, name)


@asynccontextmanager
async def life(url: str, clock: Clock, **settings: Any) -> AsyncIterator[Holdfast]:
    """Open a Holdfast with these expiry settings that does nothing in the background by itself."""
    hf = Holdfast(url, clock=clock, life=LifeSettings(**{"sweep": False, **settings}))
    async with hf:
        yield hf


def file(path: Path) -> str:
    """Return the URL of a database in a file."""
    return f"sqlite:///{path}/s.db"


async def talk(hf: Holdfast, name: str, text: str = "hello") -> None:
    """Append a message to a session, which is created if needed."""
    session = await hf.session(name)
    await session.append(text)


async def state(hf: Holdfast, name: str) -> str:
    """Return `active`, `closed` or `gone`."""
    try:
        return (await hf.store.get(ref(name))).status
    except SessionNotFound:
        return "gone"


async def rows(hf: Holdfast) -> dict[str, Session]:
    """Return the sessions as stored, expired or not."""
    page = await hf.engine.life.store.list(limit=1000)
    return {session.id: session for session in page.sessions}


class RecordingHook:
    """A hook that records its calls, and fails when told to.

    Attributes:
        heard: Reason and session of each successful call, in order.
        calls: The same for every call, with its delivery id and attempt.
    """

    def __init__(self, name: str = "ear", reasons: Collection[EndReason] = ENDS) -> None:
        self.name = name
        self.reasons = frozenset(reasons)
        self.heard: list[tuple[str, str]] = []
        self.texts: list[list[str]] = []
        self.calls: list[tuple[str, str, str, int]] = []
        self.failing = 0

    async def __call__(self, ended: EndedSession) -> None:
        self.calls.append((ended.reason, ended.id, ended.delivery_id, ended.attempt))
        if self.failing:
            self.failing -= 1
            raise RuntimeError("no ear for it")
        texts = [entry.message.text async for entry in ended.entries()]
        self.heard.append((ended.reason, ended.id))
        self.texts.append(texts)


def change_schedule(hf: Holdfast, **changes: Any) -> DeliverySchedule:
    """Change the time limits of hook delivery."""
    hf.engine.hook_dispatcher.schedule = msgspec.structs.replace(hf.engine.hook_dispatcher.schedule, **changes)
    return hf.engine.hook_dispatcher.schedule


async def list_due_hooks(hf: Holdfast) -> list[tuple[str, ...]]:
    """Return the hooks that are still to be called, for each recorded end."""
    return [ending.hooks for ending in await hf.engine.life.store.endings(due=2**50)]


async def close_with_hooks(hf: Holdfast, name: str = "a") -> None:
    """Close a session and wait until its hooks have been called."""
    await talk(hf, name)
    await hf.close_session(ref(name))
    await hf.engine.hook_dispatcher.wait_until_idle()
