"""Guess which messages were pinned when a past prompt was sent: the log says only which ones are pinned now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.context.build import WorkingSet
from holdfast.context.explain import BuildRecord
from holdfast.domain.session import Entry
from holdfast.limits import PIN_GUESSES


def iter_pin_guesses(entries: Sequence[Entry], through: int) -> Iterator[Sequence[Entry]]:
    """Yield the log with different pins: the present ones, none, all but one of them, and only one of them.

    There are at most `PIN_GUESSES` guesses, because each costs a replay of the log.

    Args:
        entries: the log with the pins of now.
        through: `seq` of the last message of the prompt. Later messages keep their pins.
    """
    pinned = [entry.seq for entry in entries if entry.pinned and entry.seq <= through]
    yield entries
    later = [frozenset({seq}) for seq in reversed(pinned)]
    everything = frozenset(pinned)
    guesses = dict.fromkeys((everything, *later, *(everything - one for one in later)))
    guesses.pop(frozenset(), None)
    for unpinned in list(guesses)[: PIN_GUESSES - 1]:
        yield [msgspec.structs.replace(entry, pinned=False) if entry.seq in unpinned else entry for entry in entries]


def measure_error(built: WorkingSet, record: BuildRecord) -> tuple[int, int]:
    """Return how far a rebuilt prompt is from the record of its call: in the frontier, and in messages."""
    unknown = 1 if record.recalled and built.recalled is None else 0  # the recalled block, whose text is not recorded
    return abs(built.view.frontier - record.frontier), abs(len(built.messages) + unknown - record.messages)
