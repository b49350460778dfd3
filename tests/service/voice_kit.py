"""Shared by tests of voice: a session with some messages, and its log in short."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import holdfast
from holdfast import Holdfast
from holdfast.sessions.handle import SessionHandle
from tests.clocks import START

MEMORY = "sqlite://:memory:"
NOW = START + 1
HEARD = "Why did the scarecrow "
"""What was heard of the joke of `tests.behaviour.kit.voice`."""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def make_reply(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


@asynccontextmanager
async def open_session_and_holdfast(
    *messages: dict[str, Any], **settings: Any
) -> AsyncIterator[tuple[Holdfast, SessionHandle]]:
    """Open a session with these messages at a fixed time, and its Holdfast."""
    async with holdfast.open(MEMORY, clock=lambda: NOW, **settings) as hf:
        session = await hf.session("s")
        if messages:
            await session.append(list(messages))
        yield hf, session
        await session.verify()


async def describe_log(session: SessionHandle) -> list[tuple[Any, ...]]:
    """Return the live path in short: turn, role, text, and the generated text of cut replies."""
    found = []
    for entry in await session.entries():
        original = (entry.metadata or {}).get("original")
        found.append((entry.turn_id, entry.message.role, entry.message.text, *([original] if original else [])))
    return found
