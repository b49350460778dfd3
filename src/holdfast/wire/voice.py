"""Agora's short-term memory records (seed 003): the history of a session as voice agents keep it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.session import Entry

SOURCES = {
    "user": ("message", "asr", "command"),
    "assistant": ("llm", "greeting", "llm_failure", "silence", "command"),
}
"""Where a message of a role can come from; the first where nothing else is recorded."""


def contents(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The records of what user and assistant said to each other; no system messages, no tools."""
    return [_record(entry) for entry in entries if _said(entry)]


def plain(entries: Sequence[Entry]) -> list[dict[str, str]]:
    """Role and content alone."""
    return [{"role": entry.message.role, "content": entry.message.text} for entry in entries if _said(entry)]


def _said(entry: Entry) -> bool:
    return entry.message.visible and entry.message.role in SOURCES


def _record(entry: Entry) -> dict[str, Any]:
    metadata = {"source": SOURCES[entry.message.role][0], **(entry.metadata or {})}
    return {
        "role": entry.message.role,
        "content": entry.message.text,
        "turn_id": entry.turn_id,
        "timestamp": entry.timestamp,
        "metadata": metadata,
    }
