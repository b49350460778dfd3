"""When messages left a view's prompts: noted while past prompts are rebuilt, or worked out from recorded frontiers."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from holdfast.context.build import WorkingSet
from holdfast.context.explain import BuildRecord
from holdfast.domain.session import ModelCall


class Departure(msgspec.Struct, frozen=True, gc=False):
    """The first recorded prompt that no longer had a message whole, and has not had it since."""

    turn_id: int
    timestamp: int
    """Of the model call, milliseconds since the epoch."""
    reason: str
    """What changed."""


class DepartureLog:
    """Follows messages through the prompts of a view, oldest first.

    Args:
        seqs: the messages.

    Attributes:
        found: by `seq`, those that were in a prompt whole and are not in the last one.
    """

    def __init__(self, seqs: Collection[int]) -> None:
        self._seqs = seqs
        self._seen: set[int] = set()
        self.found: dict[int, Departure] = {}

    def note(self, call: ModelCall, built: WorkingSet) -> None:
        """Take in the prompt of a recorded call."""
        if not self._seqs:
            return
        whole = built.window.whole() - built.refused.keys()
        for seq in self._seqs:
            if seq in whole:
                self._seen.add(seq)
                self.found.pop(seq, None)
            elif seq in self._seen and seq not in self.found:
                why = built.broken.why if built.broken else "the prompt before it is not known"
                self.found[seq] = Departure(call.turn_id, call.timestamp, why)


def first_beyond(calls: Iterable[tuple[ModelCall, BuildRecord]], seq: int) -> Departure | None:
    """Return the first of some calls, oldest first, whose verbatim tail began after a message.

    Args:
        calls: with what was recorded of their prompts.
        seq: the message.
    """
    before: int | None = None
    for call, record in calls:
        if call.through >= seq and record.frontier > seq:
            moved = f"the frontier moved from {before} to {record.frontier}"
            why = moved if before is not None else f"the frontier was at {record.frontier} already"
            return Departure(call.turn_id, call.timestamp, why)
        before = record.frontier
    return None
