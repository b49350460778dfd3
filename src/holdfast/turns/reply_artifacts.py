"""Artifacts that a reply is about: those that the turn's tools have saved, and those that it names as `artifact:NAME`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

from holdfast.domain.artifact import artifacts_to, checked_name
from holdfast.domain.session import Entry
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import ARTIFACTS_NAMED
from holdfast.turns.turn import Turn

_MENTION: Final = re.compile(r"\bartifact:((?:user:)?[^\s\"'`<>\[\]{}|\\^*]+)")
_BEHIND: Final = ".,;:!?)"
"""What may stand behind a name and is no part of it, unless there is an artifact that is called so."""


async def with_named_artifacts(turn: Turn, text: str | None, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """`metadata` of the end of a reply, with `artifacts`: what it is about; as it is where that is none.

    Args:
        turn: whose reply.
        text: of it.
        metadata: so far.
    """
    for candidates in _mentions(text or ""):
        await _note(turn, candidates)
    return with_artifacts(turn, metadata)


def with_artifacts(turn: Turn, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """The same with what is known by now."""
    return {**(metadata or {}), "artifacts": artifacts_to(turn.artifacts)} if turn.artifacts else metadata


def take_artifacts(turn: Turn, entry: Entry) -> None:
    """Take from the end of a reply that is told again what it was about."""
    for one in (entry.metadata or {}).get("artifacts", ()):
        turn.artifacts[one["name"]] = one["version"]


def _mentions(text: str) -> Iterator[list[str]]:
    """Of each name that stands in a text what it may be, the longest first."""
    if "artifact:" not in text:
        return
    seen: dict[str, None] = {}
    for found in _MENTION.finditer(text):
        if len(seen) >= ARTIFACTS_NAMED:
            return
        if found[1] not in seen:
            seen[found[1]] = None
            said = unquote(found[1])
            yield list(dict.fromkeys([said, said.rstrip(_BEHIND), said.split(")", 1)[0]]))


async def _note(turn: Turn, candidates: list[str]) -> None:
    """Take note of the first of these that there is. What cannot be looked up now is not told: the reply comes first."""
    for name in candidates:
        try:
            whole = checked_name(name)
        except InvalidRequest:
            continue
        if whole in turn.artifacts:
            return
        try:
            artifact = await turn.engine.artifacts.get(turn.request.ref, whole)
        except HoldfastError:
            continue
        turn.artifacts[artifact.name] = artifact.version
        return
