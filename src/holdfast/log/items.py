"""The parts in which a reply arrives, in the same form for every API.

A client of an upstream decodes each of the upstream's events to a list of deltas, and an API of the gateway encodes each list to an event.
A list may be empty. Nothing that an upstream sends is lost: what has no type here is `Opaque`, or `extra` of the delta that it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class Head(msgspec.Struct, frozen=True, tag="head"):
    """Fields of the whole reply, such as `id`, `created` and `model`. They are sent first, and again if they change."""

    fields: dict[str, Any]


class Text(msgspec.Struct, frozen=True, tag="text"):
    """A piece of the text of a choice."""

    text: str
    choice: int = 0


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning"):
    """A piece of the unsigned reasoning of a choice."""

    text: str
    choice: int = 0
    name: str = "reasoning_content"
    """Field of Chat Completions in which the provider sends it."""


class CallStart(msgspec.Struct, frozen=True, tag="call_start"):
    """The beginning of a tool call."""

    at: int
    """Number of the call in its choice."""
    id: str | None
    name: str | None
    choice: int = 0
    kind: str = "function"
    extra: dict[str, Any] = {}
    """Other fields of the call. Those of its function are below the name of its kind."""


class CallArguments(msgspec.Struct, frozen=True, tag="call_arguments"):
    """A piece of the arguments of a tool call, which is JSON, or of the input of a custom tool, which is text."""

    at: int
    text: str
    choice: int = 0
    kind: str = "function"
    extra: dict[str, Any] = {}


class Opaque(msgspec.Struct, frozen=True, tag="opaque"):
    """A piece of any other field."""

    name: str
    value: Any
    choice: int | None = 0
    """Number of the choice; None: a field of the whole reply that belongs to one event."""
    in_message: bool = True
    """True: a field of the message. Its pieces are joined, as `holdfast.models.collect` describes. False: a field of the choice, such as
    `logprobs`."""


class Usage(msgspec.Struct, frozen=True, tag="usage"):
    """The token usage so far, in Chat Completions format, with the provider's own numbers."""

    numbers: dict[str, Any]


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """The end of a choice."""

    reason: str
    choice: int = 0
    extra: dict[str, Any] = {}
    """Other fields of the choice, such as `native_finish_reason` and `stop_sequence`."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """A report by Holdfast on a tool, or on an agent of a workflow. It is the only delta of its list."""

    fields: dict[str, Any]
    head: dict[str, Any] = {}
    """Fields of the reply, if no `Head` was sent yet."""

    @property
    def comment(self) -> str:
        """The report as one line of text for people."""
        status = self.fields
        return f"{'tool' if 'tool' in status else 'agent'} {status.get('tool') or status['agent']} {status['status']}"


Delta = Head | Text | Reasoning | CallStart | CallArguments | Opaque | Usage | Finish | Progress


def has_content(deltas: Sequence[Delta]) -> bool:
    """Return True if a list contains more than a beginning, for example text, a tool call or the end of a choice."""
    for delta in deltas:
        if isinstance(delta, Text | Reasoning):
            if delta.text:
                return True
        elif isinstance(delta, Opaque):
            if delta.in_message and delta.choice is not None and delta.value:
                return True
        elif isinstance(delta, CallStart | CallArguments | Finish):
            return True
    return False


def get_text(deltas: Sequence[Delta], choice: int = 0) -> str:
    """Return the text of a choice in a list of deltas."""
    return "".join(delta.text for delta in deltas if isinstance(delta, Text) and delta.choice == choice)
