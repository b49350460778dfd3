"""Shared by tests of the reference tables: sessions with a given log, and the resulting log."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

from tests.service.simulator.gateway import Answer, Gateway
from tests.service.simulator.notation import messages, words

Data = dict[str, Any]


async def create_session(
    gateway: Gateway, log: str, session_id: str = "s", user: str = "default", system: str | None = None
) -> None:
    """Create a session with that log."""
    session = await gateway.hf.session(session_id, user_id=user, system=system)
    if log:
        await session.append(messages(log))


async def live(gateway: Gateway, session_id: str = "s", user: str = "default") -> str:
    return words(await gateway.log(session_id, user))


async def whole(gateway: Gateway, session_id: str = "s", user: str = "default") -> str:
    """Return all messages, including retired ones."""
    return words(await gateway.log(session_id, user, retired=True))


def good(answer: Answer) -> Answer:
    assert answer.status == 200, answer.body
    return answer


def picture(red: int) -> Data:
    """Return a part with a one-pixel image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(bytes([0, red, 0, 0]))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(data).decode()}}


def make_image_message(word: str, *parts: Data) -> Data:
    """Return a user message with images."""
    return {"role": "user", "content": [{"type": "text", "text": word}, *parts]}


def pictures(prompt: list[Data]) -> list[str]:
    """Return the images in a prompt."""
    parts = [part for one in prompt if isinstance(one["content"], list) for part in one["content"]]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


ONE, OTHER = picture(1), picture(2)
URLS = [ONE["image_url"]["url"], OTHER["image_url"]["url"]]


async def with_picture(gateway: Gateway, *more: str) -> None:
    session = await gateway.hf.session("s")
    await session.append([make_image_message("u1", ONE), *messages(" ".join(more))])
