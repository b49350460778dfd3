"""Condensing: the digest of what left, laid over it as a compaction."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.context.digest.choosing import Shown
from holdfast.context.digest.handles import asked_of
from holdfast.context.digest.pool import PoolState, fold_in, opened, rendered
from holdfast.context.squeeze import all_of
from holdfast.context.standing_facts import texts_stated
from holdfast.context.units import Unit, spoken
from holdfast.context.values import pieces_of
from holdfast.context.window import Block, Compaction, Window, WrittenBlock
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


class Digest(Block):
    """The digest of all that left and of what was cut, as of one step.

    Args:
        window: after the step.
        state: the pool, with all that left in it.
        most: see `Block`, as are `last` and `total`.
    """

    def __init__(
        self, window: Window, state: PoolState, cut: Sequence[Unit], *, most: int, last: int, total: int
    ) -> None:
        super().__init__(most, last, total)
        self.state = state
        self._step: tuple[Window, Sequence[Unit]] | None = (window.snapshot(SHOWN), cut)
        self._compaction: Compaction | None = None

    @property
    def saved(self) -> bytes:
        """See `Block.saved`: the pool."""
        return self.state.saved()

    @property
    def compaction(self) -> Compaction | None:
        """See `Block.compaction`; written once, and then the window is let go."""
        if self._step is not None:
            self._compaction, self._step = self._write(*self._step), None
        return self._compaction

    def _write(self, window: Window, cut: Sequence[Unit]) -> Compaction | None:
        room, count, marker = window.room.tokens, window.room.count, window.room.marker
        stated = window.facts.tokens if window.facts else 0
        tokens = min(reserve(room, stated), room - window.body - stated)
        pool = opened(self.saved)
        # What was cut is told only as long as it is cut: when it leaves, it is folded in like anything that leaves.
        if cut:
            fold_in(pool, cut, room=reserve(room))
        first = min([self.last, *(one for one in (pool.first, *(unit.first for unit in cut)) if one >= 0)])
        if window.summary is not None and self.last > window.summary.last:
            first = max(first, window.summary.last + 1)
        overhead = count.message(Message(role="user", content=""))
        shown = _shown(window)
        text = rendered(pool, tokens - overhead, first=first, last=self.last, count=count, shown=shown, marker=marker)
        size = count.message(Message(role="user", content=text)) if text else 0
        return Compaction(first, self.last, text, size, total=self.total) if text and size <= tokens else None


def condensed(window: Window) -> Window:
    """With a digest of what left and of what was cut, the earlier digest included."""
    before = window.digest
    if not window.left and before.last < 0 and not window.cuts:
        return window
    room, stated = window.room.tokens, window.statements.most
    cut = [unit for unit in all_of(window) if _is_cut(window, unit)] if window.cuts else []
    state = before.state if isinstance(before, Digest) else PoolState(before.saved)
    state = state.after(window.left, room=reserve(room)) if window.left else state
    last = max([before.last, *(unit.last for unit in (*window.left, *cut))])
    if last < 0:
        return window.with_digest(WrittenBlock(None, before.saved))
    # Its range ends before the frontier, though what is cut behind it is told, too.
    last = min(last, max(0, window.units[0].first - 1))
    total = max((unit.entries[-1].total for unit in window.left), default=before.total)
    most = max(0, min(reserve(room, stated), room - window.body - stated))
    return window.with_digest(Digest(window, state, cut, most=most, last=last, total=total))


def _is_cut(window: Window, unit: Unit) -> bool:
    """Whether anything of `unit` is missing from what is sent."""
    found = (window.cuts.get(entry.seq) for entry in unit.entries)
    return any(cut is not None and not cut.whole for cut in found)


def _shown(window: Window) -> Shown:
    """What is sent beside the digest; of a long rest only the newest messages, which say what is talked about now."""
    shown = Shown()
    shown.parts.update(texts_stated(window))
    for unit in all_of(window):
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
