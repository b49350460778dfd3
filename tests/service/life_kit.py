"""What the tests of a session's life share: a Holdfast whose clock is moved by hand, and hooks that write down what they hear."""

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
    """A store's URL."""
    return MEMORY if request.param == "memory" else file(tmp_path)


def get_ended_state(place: str) -> str:
    """What becomes of a session that has ended there."""
    return "gone" if place == MEMORY else "closed"


def ref(name: str, user: str = "default") -> SessionRef:
    """The session of that id."""
    return SessionRef(user, name)


@asynccontextmanager
async def life(url: str, clock: Clock, **settings: Any) -> AsyncIterator[Holdfast]:
    """A Holdfast that does nothing in the background by itself, with these settings of sessions' life."""
    hf = Holdfast(url, clock=clock, life=LifeSettings(**{"sweep": False, **settings}))
    async with hf:
        yield hf


def file(path: Path) -> str:
    """A database in a file."""
    return f"sqlite:///{path}/s.db"


async def talk(hf: Holdfast, name: str, text: str = "hello") -> None:
    """A message to a session, made if there is none."""
    session = await hf.session(name)
    await session.append(text)


async def state(hf: Holdfast, name: str) -> str:
    """What becomes of who asks for a session: `active`, `closed`, or `gone`."""
    try:
        return (await hf.store.get(ref(name))).status
    except SessionNotFound:
        return "gone"


async def rows(hf: Holdfast) -> dict[str, Session]:
    """The sessions as the database has them, expired or not."""
    page = await hf.engine.life.store.list(limit=1000)
    return {session.id: session for session in page.sessions}


class RecordingHook:
    """A hook that writes down what it is told, and fails when it is to.

    Attributes:
        heard: reason and session of each call that was answered, in order.
        calls: the same of each call, with its delivery id and attempt.
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


def patience(hf: Holdfast, **changes: Any) -> DeliverySchedule:
    """Change how long telling hooks may take."""
    hf.engine.hook_dispatcher.schedule = msgspec.structs.replace(hf.engine.hook_dispatcher.schedule, **changes)
    return hf.engine.hook_dispatcher.schedule


async def list_due_hooks(hf: Holdfast) -> list[tuple[str, ...]]:
    """The hooks that are left to be told of each end that is recorded."""
    return [ending.hooks for ending in await hf.engine.life.store.endings(due=2**50)]


async def close_with_hooks(hf: Holdfast, name: str = "a") -> None:
    """A session that is closed, and its hooks told as far as they let themselves be."""
    await talk(hf, name)
    await hf.close_session(ref(name))
    await hf.engine.hook_dispatcher.wait_until_idle()
