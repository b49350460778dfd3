"""Notes in a log for OpenAI's Responses API: those that make a request a stored response, and those of compactions.

The note of a response is written with the request's messages, before the model is called. Everything else of the response is in the log: its
output are the replies after the note, its input are the messages before the note.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.models.codecs.responses.tools import ToolName

_RESPONSE: Final = "response"
_COMPACTION: Final = "compaction"
ECHO_DEFAULTS: Final[Mapping[str, Any]] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "auto",
    "user": None,
}
"""Fields of the request that the Response object always repeats, with their values if the request does not set them."""
ECHOED: Final = (*ECHO_DEFAULTS, "prompt_cache_key", "safety_identifier")
"""Fields of the request that the Response object repeats."""
_LARGE: Final = 4_096
"""Maximum size in bytes of a field that is stored. A larger one, usually `tools` or `instructions`, is left out."""


class ResponseNote(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a stored response that its messages do not contain."""

    secret: str
    """Random part of the id."""
    created_at: int
    """Seconds since the epoch."""
    model: str = ""
    """Name of the model in the request."""
    echo: dict[str, Any] = {}
    """Fields of the request that the Response object repeats, without large ones."""
    names: dict[str, ToolName] = {}
    """The client's tools, by the names of their functions, if the names differ."""
    conversation: str | None = None
    """Id of the conversation that the request named."""
    system: list[dict[str, Any]] | UnsetType = UNSET
    """Items of the input that are the session's system prompt, and so not in its log. UNSET if there are none, or if they are large."""

    def to_origin(self) -> dict[str, Any]:
        """Return the note as the origin of an entry."""
        return {_RESPONSE: msgspec.to_builtins(self)}


def make_note(note: ResponseNote) -> ResponseNote:
    """Return a note without what need not be stored: large fields, and tools whose functions have their names."""
    echo = {name: value for name, value in note.echo.items() if not _is_large(value)}
    names = {name: tool for name, tool in note.names.items() if tool != ToolName(name)}
    system = note.system if note.system and not _is_large(note.system) else UNSET
    return msgspec.structs.replace(note, echo=echo, names=names, system=system)


def _is_large(value: Any) -> bool:
    return len(msgspec.json.encode(value)) > _LARGE


def parse_note(origin: Any) -> ResponseNote | None:
    """Return the response whose note has this origin, or None if it is another note.

    Programs can write notes too, so such a note can repeat only what a request can.
    """
    data = origin.get(_RESPONSE) if isinstance(origin, Mapping) else None
    try:
        note = msgspec.convert(data, ResponseNote)
    except msgspec.ValidationError:
        return None
    return msgspec.structs.replace(note, echo={name: note.echo[name] for name in ECHOED if name in note.echo})


class CompactionNote(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a compaction item that the log does not contain otherwise."""

    secret: str
    """Random part of the reference, in hex."""
    through: int
    """`seq` of the last message that the item stands for; -1 if there is none."""
    summary: int | None = None
    """Id of the session's summary that the item begins with; None: there was none."""
    summarized: int = -1
    """`seq` of the last message that this summary covers; -1 without a summary."""

    def to_origin(self) -> dict[str, Any]:
        """Return the note as the origin of an entry."""
        return {_COMPACTION: msgspec.to_builtins(self)}


def parse_compaction_note(origin: Any) -> CompactionNote | None:
    """Return the compaction whose note has this origin; None if it is another note."""
    data = origin.get(_COMPACTION) if isinstance(origin, Mapping) else None
    try:
        return msgspec.convert(data, CompactionNote)
    except msgspec.ValidationError:
        return None
