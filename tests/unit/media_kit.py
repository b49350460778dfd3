"""Media as clients write them, with made-up contents."""

from __future__ import annotations

import base64
from typing import Any


def png(width: int = 640, height: int = 480, size: int = 1500, seed: int = 0) -> bytes:
    """Return bytes that start like a PNG of this size, with this many bytes after the header."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return head + bytes((at * 7 + seed) % 251 for at in range(size))


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def image_url(content: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64(content)}", **more}}


def anthropic(content: bytes, kind: str = "image", mime: str = "image/png", **more: Any) -> dict[str, Any]:
    return {"type": kind, "source": {"type": "base64", "media_type": mime, "data": b64(content)}, **more}
