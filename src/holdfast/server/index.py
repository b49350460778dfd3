"""The REST API over the index: how it is doing. For keys that are of no user."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.server.http import Call
from holdfast.server.replies import Reply


async def status(call: Call) -> Reply:
    """What the tenant's index has, and how far it is behind; without one, that it is switched off."""
    index = call.hf.index
    if index is None:
        return Reply({"object": "index", "enabled": False})
    found: dict[str, Any] = msgspec.to_builtins(await index.status())
    return Reply({"object": "index", "enabled": True, **found})
