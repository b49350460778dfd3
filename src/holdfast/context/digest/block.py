"""The digest in a window: how many tokens it gets, what it covers, and when it is written."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.context.digest.facts import list_argument_names
from holdfast.context.digest.page import SentContext
from holdfast.context.digest.pool import PoolState, decode_pool, fold_in, render_pool
from holdfast.context.standing_facts import map_stated_texts
from holdfast.context.truncation import list_units
from holdfast.context.units import Unit, list_messages
from holdfast.context.values import split_pieces
from holdfast.context.window import Block, Compaction, DeferredBlock, Window
from holdfast.domain.messages import Message

SHARES = ((512, 0.85), (2048, 0.5))
"""Fraction of a window's token limit that a digest may take: 0.85 of the first 512 tokens, and 0.5 of those up to 2,048."""
MORE = 0.25
"""Fraction of all further tokens. It is smaller because the content worth keeping does not grow with the token limit."""
MOST = 2000
"""Maximum tokens of a digest, however large the token limit."""
FACTS_SHARE = 0.5
"""The digest and the tail get smaller by this fraction of the standing facts' tokens, because the facts repeat a part of their content."""
FIRM, YIELDING = 0.8, 0.3
"""Fractions of its tokens that the digest keeps if the other messages need more space: `YIELDING` if the newest unit is a user message that
would be cut otherwise, `FIRM` in all other cases."""
SHOWN = 12
"""Number of newest units that are compared with the digest. Facts that they contain need not be repeated."""

NAMING = 4_000
"""Number of first characters of a user's message in which values that name rows of a result are searched."""


def compute_reserve(room: int, stated: int = 0) -> int:
    """Return the maximum tokens of a digest.

    Args:
        room: token limit of the window.
        stated: tokens of the standing facts, which contain a part of what the digest would contain.
    """
    tokens, below = 0.0, 0
    for until, share in SHARES:
        tokens += share * (min(room, until) - min(room, below))
        below = until
    return min(MOST, int(tokens + MORE * max(0, room - below))) - int(stated * FACTS_SHARE)


class Digest(DeferredBlock):
    """The digest of all evicted units and of the cut parts of other units, written at the first access.

    Args:
        window: the window after the eviction.
        state: the pool with the facts of all evicted units.
        cut: units of the window of which parts are cut.
        most: maximum tokens of the digest.
        last: `seq` of the last entry that the digest covers; -1 if there is none.
        total: stored tokens of all live entries up to and including `last`.
    """

    def __init__(
        self, window: Window, state: PoolState, cut: Sequence[Unit], *, most: int, last: int, total: int
    ) -> None:
        super().__init__(most=most, last=last, total=total)
        self.state = state
        self._step: tuple[Window, Sequence[Unit]] | None = (window.snapshot(SHOWN), cut)

    def save(self) -> bytes:
        """Return the encoded pool."""
        return self.state.save()

    def write(self) -> Compaction | None:
        """Return the digest, and release the memory of the window; None if no fact fits."""
        step, self._step = self._step, None
        return self._write(*step) if step is not None else None

    def _write(self, window: Window, cut: Sequence[Unit]) -> Compaction | None:
        room, count, marker = window.room.tokens, window.room.count, window.room.marker
        stated = window.facts.tokens if window.facts else 0
        tokens = min(compute_reserve(room, stated), room - window.body - stated)
        pool = decode_pool(self.saved)
        # Cut content is added to this digest only, not to the saved pool: the unit is added there when it is evicted.
        if cut:
            fold_in(pool, cut, room=compute_reserve(room))
        first = min([self.last, *(one for one in (pool.first, *(unit.first for unit in cut)) if one >= 0)])
        if window.summary is not None and self.last > window.summary.last:
            first = max(first, window.summary.last + 1)
        overhead = count.message(Message(role="user", content=""))
        shown = _collect_sent(window)
        text = render_pool(
            pool, tokens - overhead, first=first, last=self.last, count=count, shown=shown, marker=marker
        )
        size = count.message(Message(role="user", content=text)) if text else 0
        return Compaction(first, self.last, text, size, total=self.total) if text and size <= tokens else None


def add_digest(window: Window, limit: int | None = None) -> Window:
    """Return the window with a digest of everything that was evicted or cut so far; the same window if there is nothing.

    Args:
        window: the window.
        limit: tokens of the conversation above which the digest takes at most `FIRM` of its maximum size; None: the window's token limit.
    """
    before = window.digest
    if not window.left and before.last < 0 and not window.cuts:
        return window
    room, stated = window.room.tokens, window.statements.most
    cut = [unit for unit in list_units(window) if _is_cut(window, unit)] if window.cuts else []
    state = before.state if isinstance(before, Digest) else PoolState(before.saved)
    state = state.with_step(window.left, room=compute_reserve(room)) if window.left else state
    last = max([before.last, *(unit.last for unit in (*window.left, *cut))])
    if last < 0:
        return window.with_digest(Block(None, before.saved))
    # The digest's range ends before the frontier, although the digest also contains facts that were cut after the frontier.
    last = min(last, max(0, window.units[0].first - 1))
    total = max((unit.entries[-1].total for unit in window.left), default=before.total)
    most = compute_reserve(room, stated)
    free = max((room if limit is None else limit) - window.body - stated, int(most * FIRM))
    most = max(0, min(most, free, room - window.body - stated))
    return window.with_digest(Digest(window, state, cut, most=most, last=last, total=total))


def _is_cut(window: Window, unit: Unit) -> bool:
    """Return True if any part of `unit` is not sent."""
    found = (window.cuts.get(entry.seq) for entry in unit.entries)
    return any(cut is not None and not cut.whole for cut in found)


def _collect_sent(window: Window) -> SentContext:
    """Return the words of the messages that are sent with the digest, on which the choice of facts depends."""
    shown = SentContext()
    shown.parts.update(map_stated_texts(window))
    for unit in list_units(window):
        parts = []
        results = {one.seq for one in unit.overrides or () if one.tool}
        for seq, message in list_messages(unit, window.room.marker):
            sent = window.cuts[seq].message if seq in window.cuts else message
            text = "\n".join((sent.text, *(call.arguments for call in sent.tool_calls)))
            shown.add(unit.first, text, said=sent.role != "tool" and seq not in results)
            parts.append(text)
            if unit.asks and unit.first != window.anchor:
                shown.naming |= split_pieces(sent.text[:NAMING])
            for call in sent.tool_calls:
                shown.asked.update(list_argument_names(call.arguments))
        if _is_cut(window, unit):
            shown.parts[unit.first] = "\n".join((*parts, shown.parts.get(unit.first, "")))
    return shown
