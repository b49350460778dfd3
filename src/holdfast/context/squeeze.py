"""Cutting what must stay: the last thing a step does, when dropping was not enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from holdfast.context.units import Unit
from holdfast.context.window import ANCHOR_SHARE, Window

MUST = 0.5
"""Part of the room that what must stay is cut to, where it has to be cut at all: the rest is for what is chosen."""


def with_stub(window: Window, floor: int, *, everywhere: bool = False) -> Window:
    """The anchor in at most its share of the room, once it stands alone in the head.

    Args:
        window: what is cut.
        floor: tokens below which no message is cut.
        everywhere: also where it does not stand in the head yet, unless it is in the newest unit.
    """
    most = max(floor, int(ANCHOR_SHARE * window.room.tokens))
    for unit in older(window) if everywhere else window.head:
        if window.anchored and unit.first == window.anchor and window.size(unit) > most:
            return window.cut({unit.first: most})
    return window


def with_room_to_choose(window: Window, must: Window, floor: int) -> Window:
    """`window` with what must stay cut, because it does not fit: further than it would have to be.

    Otherwise one long result would leave no room for anything, and all that was worth keeping until now would be gone.

    Args:
        window: before anything left.
        must: what is left of it when all leaves that can.
        floor: tokens below which no message is cut.
    """
    room = window.room.tokens
    must = squeezed(with_stub(must, floor), room, floor, older)
    must = squeezed(must, int(MUST * room), floor, all_of)
    return window.cut({seq: cut.tokens for seq, cut in must.cuts.items() if window.cuts.get(seq) is not cut})


def older(window: Window) -> Iterable[Unit]:
    """Every unit but the newest."""
    return (*window.head, *window.units[:-1])


def all_of(window: Window) -> Iterable[Unit]:
    """Every unit that is sent."""
    return (*window.head, *window.units)


def squeezed(window: Window, allowed: int, floor: int, which: Callable[[Window], Iterable[Unit]]) -> Window:
    """With the longest messages of some units cut, oldest first, until the body takes `allowed` tokens."""
    tried: dict[int, int] = {}
    while (over := window.body - allowed) > 0:
        caps = _caps(_cuttable(window, which(window), floor), over, tried, floor)
        if not caps:
            break
        tried |= caps
        window = window.cut(caps)
    return window


def _cuttable(window: Window, units: Iterable[Unit], floor: int) -> list[tuple[int, int]]:
    """`(seq, tokens)` of the messages in `units` that are long enough to be cut: results, then texts, each oldest first.

    What a result loses is told again in a digest, and shorter; what a person said is not.
    """
    units = tuple(units)
    results = {entry.seq for unit in units for entry in unit.entries if entry.kind == "result"}
    return sorted(window.cuttable(units, floor), key=lambda sized: sized[0] not in results)


def _caps(cuttable: Iterable[tuple[int, int]], over: int, tried: Mapping[int, int], floor: int) -> dict[int, int]:
    """How short to make which messages to save `over` tokens; one that did not get that short is asked for the least."""
    caps = {}
    for seq, tokens in cuttable:
        if over <= 0:
            break
        failed = tokens > tried.get(seq, tokens)
        if failed and tried[seq] == floor:
            continue
        caps[seq] = floor if failed else max(floor, tokens - over)
        over -= tokens - caps[seq]
    return caps
