"""Condensing: the digest of what left, laid over it as a compaction."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.context.digest.choosing import Shown
from holdfast.context.digest.handles import asked_of
from holdfast.context.digest.pool import Pool, encoded, fold_in, opened, rendered
from holdfast.context.squeeze import all_of
from holdfast.context.standing_facts import texts_stated
from holdfast.context.units import Unit, spoken
from holdfast.context.values import pieces_of
from holdfast.context.window import Compaction, Window
from holdfast.domain.messages import Message

SHARES = ((512, 0.85), (2048, 0.5))
"""Part of the room that a digest may take: of its tokens up to so many, each part of the room its own."""
MORE = 0.25
"""The same of all further ones. What has to be told of a session does not grow with the room."""
MOST = 2000
"""Most tokens of a digest, however large the room."""
STATED = 0.5
"""Part of the standing facts' tokens that the digest, and the newest messages after a step, take less: they tell what these would."""
FIRM, YIELDING = 0.8, 0.3
"""Part of the digest's share that it keeps when a long newest unit wants the room, and when that is the user's message."""
SHOWN = 12
"""Newest units that a digest is chosen beside: what they hold needs less telling."""

NAMING = 4_000
"""Characters of a user's message that are searched for values that name rows."""


def reserve(room: int, stated: int = 0) -> int:
    """Return the tokens that a digest may take of a room, beside standing facts of so many, which tell a part of it."""
    told, below = 0.0, 0
    for until, share in SHARES:
        told += share * (min(room, until) - min(room, below))
        below = until
    return min(MOST, int(told + MORE * max(0, room - below))) - int(stated * STATED)


def condensed(window: Window) -> Window:
    """With a digest of what left and of what was cut, the earlier digest included."""
    if not window.left and window.compaction is None and not window.cuts:
        return window
    room = window.room.tokens
    stated = window.facts.tokens if window.facts else 0
    cut, most = _cut_units(window), reserve(room, stated)
    pool = opened(window.pool)
    fold_in(pool, window.left, room=most)
    saved = encoded(pool)
    # What was cut is told only as long as it is cut: when it leaves, it is folded in like anything that leaves.
    if cut:
        fold_in(pool, cut, room=most)
    return window.overlay(_digest(window, pool, cut, min(most, room - window.body - stated)), saved)


def _cut_units(window: Window) -> list[Unit]:
    return [unit for unit in all_of(window) if _is_cut(window, unit)]


def _is_cut(window: Window, unit: Unit) -> bool:
    """Whether anything of `unit` is missing from what is sent."""
    found = (window.cuts.get(entry.seq) for entry in unit.entries)
    return any(cut is not None and not cut.whole for cut in found)


def _shown(window: Window) -> Shown:
    """What is sent beside the digest; of a long rest only the newest messages, which say what is talked about now."""
    shown = Shown()
    shown.parts.update(texts_stated(window))
    for unit in (*window.head, *window.units[-SHOWN:]):
        parts = []
        results = {one.seq for one in unit.told or () if one.tool}
        for seq, message in spoken(unit, window.room.marker):
            sent = window.cuts[seq].message if seq in window.cuts else message
            text = "\n".join((sent.text, *(call.arguments for call in sent.tool_calls)))
            shown.add(unit.first, text, said=sent.role != "tool" and seq not in results)
            parts.append(text)
            if unit.asks and unit.first != window.anchor:
                shown.naming |= pieces_of(sent.text[:NAMING])
            for call in sent.tool_calls:
                shown.asked.update(asked_of(call.arguments))
        if _is_cut(window, unit):
            shown.parts[unit.first] = "\n".join((*parts, shown.parts.get(unit.first, "")))
    return shown


def _digest(window: Window, pool: Pool, cut: Sequence[Unit], tokens: int) -> Compaction | None:
    """The compaction for all that left: its range ends before the frontier, though what is cut behind it is told, too."""
    before = window.compaction
    covered = [(unit.first, unit.last) for unit in (*window.left, *cut)] + (
        [(before.first, before.last)] if before else []
    )
    if not covered:
        return None
    last = min(max(last for _, last in covered), max(0, window.units[0].first - 1))
    first = min(last, *(first for first, _ in covered))
    if window.summary is not None and last > window.summary.last:
        first = max(first, window.summary.last + 1)
    overhead = window.room.count.message(Message(role="user", content=""))
    text = rendered(
        pool,
        tokens - overhead,
        first=first,
        last=last,
        count=window.room.count,
        shown=_shown(window),
        marker=window.room.marker,
    )
    if not text:
        return None
    size = window.room.count.message(Message(role="user", content=text))
    total = max((unit.entries[-1].total for unit in window.left), default=before.total if before else 0)
    return Compaction(first, last, text, size, total=total) if size <= tokens else None
