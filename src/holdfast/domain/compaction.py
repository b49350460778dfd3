"""Compactions that requests ask for."""

from __future__ import annotations

import msgspec


class CompactionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """When a request wants its session to be compacted, and what it gets."""

    threshold: int | None = None
    """The session is compacted if the prompt has more tokens than this; None: only because of `summarized`."""
    summarized: int = -1
    """The session is compacted if its summary does not cover this `seq`. The client has an item of a summary that does, made for another
    model; it gets no new item."""
    prompt: str | None = None
    """Instructions for the model that writes the summary; None: those of the strategy."""
    is_alone: bool = False
    """True: the session is always compacted, and no model answers."""
    pauses: bool = False
    """True: if the session was compacted, no model answers."""


def add_summarized(order: CompactionOrder | None, summarized: int) -> CompactionOrder | None:
    """Return the order for a request with an item whose summary covers the messages up to `summarized`; unchanged if that is -1."""
    return order if summarized < 0 else msgspec.structs.replace(order or CompactionOrder(), summarized=summarized)
