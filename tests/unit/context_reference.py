"""A slow and obvious builder, written from the rules of a working set: which units a strategy keeps, where the design leaves no choice.

The log is folded from its first unit, each time anew. A model may be called behind any unit but a plain assistant
message; only there does a strategy look at what it has. Everything is counted by adding up.

What the design leaves open, and is read here as follows:

- "Until only `target` of the room is used": by what is sent verbatim; beside it head and tail have to fit the room.
- Recent messages are kept by whole units.
- What was kept before the frontier stays until the frontier moves (rule 5): also a user message that is no longer the
  current one. Count windows promise no stable prefix: there it leaves as soon as it is not current.

Nothing is ever cut here: it is for histories in which no message is long enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.context.agent_view import Perspective
from holdfast.domain.session import Entry
from tests.unit.context_units import anchor_of, current_of, groups_of
from tests.unit.perspective_reference import Group, replace_unit


class Kept(NamedTuple):
    """The messages of a log that are sent."""

    head: list[Group]
    tail: list[Group]

    @property
    def seqs(self) -> list[int]:
        """Every entry that is sent."""
        return [entry.seq for group in (*self.head, *self.tail) for entry in group]

    @property
    def tokens(self) -> int:
        """Total tokens of the sent entries."""
        return _tokens(self.head) + _tokens(self.tail)


def token_window(
    entries: Sequence[Entry], *, budget: int, preserve_recent: int, target: float, eyes: Perspective | None = None
) -> Kept:
    """Return what `token_window` sends; more than `budget` tokens if it has to fail."""
    kept = Kept([], [])
    for until, group in _calls(entries, eyes):
        kept = Kept(kept.head, [*kept.tail, *group])
        if kept.tokens <= budget:
            continue
        for number in range(len(kept.tail)):
            moved = _evict_oldest(kept, number, until, anchored=True)
            on_target = _tokens(moved.tail) <= int(target * budget) and moved.tokens <= budget
            if on_target or _only_recent(moved.tail, preserve_recent):
                break
        kept = _fitting(moved, budget, until, anchored=True)
    return kept


def count_window(
    entries: Sequence[Entry],
    *,
    window_size: int,
    budget: int | None,
    anchored: bool,
    eyes: Perspective | None = None,
) -> Kept:
    """Return what `head_tail` (anchored) and `buffer_window` send."""
    kept = Kept([], [])
    for until, group in _calls(entries, eyes):
        kept = Kept(kept.head, [*kept.tail, *group])
        # The oldest unit is evicted while the others have `window_size` messages: no unit is cut.
        while sum(map(len, kept.tail[1:])) >= window_size:
            kept = _evict_oldest(kept, 1, until, anchored=anchored)
        kept = _evict_oldest(kept, 0, until, anchored=anchored)
        if budget is not None:
            kept = _fitting(kept, budget, until, anchored=anchored)
    return kept


def salience(entries: Sequence[Entry], *, budget: int, target: float) -> Kept:
    """Return what `salience` sends if every message is rated; more than `budget` tokens if it has to fail."""
    kept = Kept([], [])
    for until, group in _calls(entries):
        kept = Kept(kept.head, [*kept.tail, *group])
        if kept.tokens <= budget:
            continue
        chosen = _most_important(kept, int(target * budget), until)
        if chosen.tokens > budget:
            # Required messages leave no room for important ones.
            for number in range(len(kept.tail)):
                chosen = _evict_oldest(kept, number, until, anchored=True)
                if chosen.tokens <= budget and _tokens(chosen.tail) <= int(target * budget):
                    break
        kept = _fitting(chosen, budget, until, anchored=True)
    return kept


def _most_important(kept: Kept, goal: int, until: Sequence[Entry]) -> Kept:
    """Evict the least important units, the oldest of equals first, until `goal` tokens are left."""
    units = [*kept.head, *kept.tail]
    free = [group for group in units[:-1] if not _must_stay(group, until, anchored=True)]
    left: list[Group] = []
    for group in sorted(free, key=lambda group: (max(entry.importance or 0 for entry in group), group[0].seq)):
        if _tokens(units) - _tokens(left) <= goal:
            break
        left.append(group)
    tail = kept.tail
    while any(group in left for group in tail):
        tail = tail[1:]
    return Kept([group for group in units[: len(units) - len(tail)] if group not in left], tail)


def clear_results(entries: Sequence[Entry], *, trigger: int, keep: int, clear_at_least: int, marker: int) -> set[int]:
    """Return the results that `clear_tool_results` replaces before `none`, if every marker takes `marker` tokens."""
    gone: set[int] = set()
    until: list[Entry] = []
    for _, new in _calls(entries):
        until += [entry for group in new for entry in group]
        if sum(marker if entry.seq in gone else entry.tokens for entry in until) <= trigger:
            continue
        results = [entry for entry in until if entry.message.role == "tool"]
        older = results[: max(0, len(results) - keep)]
        may = [e for e in older if not (e.seq in gone or e.pinned or e.tokens < 48 or e.unit == until[-1].unit)]
        if may and sum(entry.tokens - marker for entry in may) >= clear_at_least:
            gone |= {entry.seq for entry in may}
    return gone


# -- helpers ---------------------------------------------------------------


def _calls(entries: Sequence[Entry], eyes: Perspective | None = None) -> list[tuple[list[Entry], list[Group]]]:
    """Yield each point at which a model may be called: the log up to it, and the new units."""
    places: list[tuple[list[Entry], list[Group]]] = []
    until: list[Entry] = []
    new: list[Group] = []
    groups = groups_of(entries)
    for at, group in enumerate(groups):
        until = [*until, *group]
        new = [*new, group]
        said = group[0].message.role == "assistant" and not group[0].message.tool_calls
        said = said and replace_unit(eyes, group) is None
        if not said or at == len(groups) - 1:
            places.append((until, new))
            new = []
    return places


def _tokens(groups: Sequence[Group]) -> int:
    return sum(entry.tokens for group in groups for entry in group)


def _must_stay(group: Group, seen: Sequence[Entry], *, anchored: bool) -> bool:
    anchor, current = anchor_of(seen), current_of(seen)
    if any(entry.pinned for entry in group) or (current and group[0].seq == current.seq):
        return True
    return anchored and anchor is not None and group[0].seq == anchor.seq


def _evict_oldest(kept: Kept, number: int, seen: Sequence[Entry], *, anchored: bool) -> Kept:
    """Evict the `number` oldest units of the tail; required ones move to the head."""
    older = [*kept.head, *kept.tail[:number]]
    return Kept([group for group in older if _must_stay(group, seen, anchored=anchored)], kept.tail[number:])


def _fitting(kept: Kept, budget: int, seen: Sequence[Entry], *, anchored: bool) -> Kept:
    """Evict oldest first, until it fits or only the newest unit is left."""
    while kept.tokens > budget and len(kept.tail) > 1:
        kept = _evict_oldest(kept, 1, seen, anchored=anchored)
    return kept


def _only_recent(tail: Sequence[Group], messages: int) -> bool:
    """Return True if the newest `messages` messages need all units of `tail`; the newest unit is always kept."""
    return len(tail) == 1 or sum(map(len, tail[1:])) < messages
