"""The conversation of a voice agent that seed 003 writes out."""

from __future__ import annotations

from typing import Any

JOKE = "Why did the scarecrow win an award? Because he was outstanding in his field!"
HEARD = "Why did the scarecrow "
STORY = "Once upon a time in a land far away, there lived a brave knight who fought dragons and saved princesses."
CUT: dict[str, Any] = {"interrupted": True, "interrupt_timestamp": 1678905225, "original": JOKE, "source": "llm"}


def record(role: str, content: str, turn_id: int, timestamp: int, **metadata: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "turn_id": turn_id, "timestamp": timestamp, "metadata": metadata}


CONTENTS: list[dict[str, Any]] = [
    record("assistant", "How can I help you today?", 1, 1678901234, source="greeting"),
    record("user", "Can you tell me a joke?", 2, 1678901235, source="asr", user="user123"),
    record("assistant", HEARD, 2, 1678901236, **CUT),
    record("user", "You know what? Tell me a story instead.", 3, 1678905235, source="asr", user="user123"),
    record("assistant", STORY, 3, 1678905236, source="llm"),
    record("assistant", "Are you still there?", 4, 1678905236, source="command"),
]
PLAIN: list[dict[str, str]] = [{"role": one["role"], "content": one["content"]} for one in CONTENTS]
SOURCES: dict[str, tuple[str, ...]] = {
    "asr": ("user",),
    "message": ("user",),
    "command": ("user", "assistant"),
    "llm": ("assistant",),
    "greeting": ("assistant",),
    "llm_failure": ("assistant",),
    "silence": ("assistant",),
}
"""Values of `metadata.source`, and the roles that a message with this source can have."""
