"""The note in a log that makes a request of the Responses API a stored response.

The note is written with the request's messages, before the model is called. Everything else of the response is in the log: its output are
the replies after the note, its input are the messages before the note.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.wire.responses_items import ToolName

_KEY: Final = "response"
ECHOED: Final = (
    "background",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
)
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

    def to_origin(self) -> dict[str, Any]:
        """Return the note as the origin of an entry."""
        return {_KEY: msgspec.to_builtins(self)}


def make_note(note: ResponseNote) -> ResponseNote:
    """Return a note without what need not be stored: large fields, and tools whose functions have their names."""
    echo = {name: value for name, value in note.echo.items() if len(msgspec.json.encode(value)) <= _LARGE}
    names = {name: tool for name, tool in note.names.items() if tool != ToolName(name)}
    return msgspec.structs.replace(note, echo=echo, names=names)


def parse_note(origin: Any) -> ResponseNote | None:
    """Return the response whose note has this origin, or None if it is another note.

    Programs can write notes too, so such a note can repeat only what a request can.
    """
    data = origin.get(_KEY) if isinstance(origin, Mapping) else None
    try:
        note = msgspec.convert(data, ResponseNote)
    except msgspec.ValidationError:
        return None
    return msgspec.structs.replace(note, echo={name: note.echo[name] for name in ECHOED if name in note.echo})
