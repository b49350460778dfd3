"""What became of every entry of a log in a working set, and why: told as runs, so that telling it does not grow with the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from holdfast.context.dialects import Dialect
from holdfast.context.settings import CLEARING, STRATEGIES
from holdfast.context.strategies import Strategy
from holdfast.context.units import Unit
from holdfast.context.window import Compaction, Window

_NONE: Mapping[int, str] = MappingProxyType({})


class Run(msgspec.Struct, frozen=True, gc=False):
    """One decision over a run of entries: what became of them, and why."""

    first: int
    last: int
    decision: str
    reason: str
    tokens: int
    """What they take in the log; for what is cut, what is sent of them."""

    def to_wire(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "from": self.first,
            "to": self.last,
            "decision": self.decision,
            "reason": self.reason,
            "tokens": self.tokens,
        }


class CompactionSize(msgspec.Struct, frozen=True, gc=False):
    """A compaction of a prompt, and how much it stands for."""

    kind: str
    first: int
    last: int
    tokens: int
    """Of the message it becomes."""
    source_tokens: int
    """Of the messages that are not sent because of it, as stored."""

    def __str__(self) -> str:
        sizes = f"{self.source_tokens:,} tokens in {self.tokens:,}"
        return f"{self.kind} of messages {self.first} to {self.last}: {sizes}"

    def to_wire(self) -> dict[str, Any]:
        """Return it as the API shows it."""
        fields = msgspec.structs.asdict(self)
        return {"kind": fields.pop("kind"), "from": fields.pop("first"), "to": fields.pop("last"), **fields}


class BuildRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What is kept with each model call of the build behind it: the frozen budget it can be made again with, and figures."""

    limit: int
    """Tokens the conversation could have."""
    input_budget: int
    overhead: int
    """Tokens of system prompt, tool schemas and what begins the reply."""
    factor: float
    """Stored counts were taken times this."""
    dialect: Dialect
    messages: int
    common: int
    """Messages that the view's prompt before began with too; -1: that one was not known."""
    frontier: int
    summary: str = ""
    """`Compaction.mark` of the summary that it had; empty: it had none."""
    recalled: tuple[str, ...] = ()
    """What was recalled in it, by `RecalledItem.id`: as many of them as fit in `RECALLED_BYTES`."""
    recalled_tokens: int = 0
    """Of the message that tells it."""
    missed: tuple[str, ...] = ()
    """Why something was not recalled that might have been."""
    known: tuple[str, ...] = ()
    """Ids of the promoted memories that the session was told when it began."""
    marker: str = ""
    """The session's marker then: another one where the session was imported since."""
    passages: tuple[tuple[int, int, int, int], ...] = ()
    """What was recalled of the session itself: its entry's `seq`, from which character until before which, and how many of these
    are shown, -1 for all. Enough to make the block again, if nothing else was recalled."""

    def describe_recalled(self) -> dict[str, Any]:
        """What was recalled, as `describe_recalled` tells it."""
        return describe_recalled(self.recalled, self.recalled_tokens, self.missed, self.known)


RECALLED_BYTES = 4096
"""What a record may take for the ids of what was recalled, in UTF-8."""
encode_record = msgspec.json.Encoder().encode
_decode_record = msgspec.json.Decoder(BuildRecord).decode


def decode_record(data: bytes) -> BuildRecord | None:
    """A stored record; None for what another version wrote."""
    try:
        return _decode_record(data)
    except msgspec.MsgspecError:
        return None


def describe_strategy(made: Strategy) -> dict[str, Any]:
    """A strategy as it is told: the strategy and its keys, those left to their defaults too, as they could be asked for."""
    fields = msgspec.to_builtins(msgspec.structs.replace(made, perspective=None, choose=None))
    clearing = fields.pop("clearing")
    fields |= clearing or {} if made.name == CLEARING else {CLEARING: clearing}
    if made.summarizer is not None:
        # The agent's own model has no name here. With a model, `threshold` is when a summary is due, not when the view changes.
        fields |= {"summarizer_llm": made.summarizer or None, "threshold": made.summarize_at}
    elif made.threshold is not None:
        fields |= {"summarizer_llm": "none"}
    keys = {key: fields.get(key) for key in STRATEGIES[made.name].keys}
    told = {"strategy": made.name, **{key: value for key, value in keys.items() if value is not None}}
    return told | ({"max_history_turns": made.history} if made.history else {})


def describe_recalled(
    ids: Sequence[str], tokens: int, missed: Sequence[str], known: Sequence[str] = ()
) -> dict[str, Any]:
    """What is recalled in a prompt, by id, and why something is not that might be; and what the session was told when it began."""
    told: dict[str, Any] = {"ids": [*ids], "tokens": tokens} if ids else {}
    return told | ({"missed": [*missed]} if missed else {}) | ({"known": [*known]} if known else {})


def truncate_ids(ids: Iterable[str]) -> tuple[str, ...]:
    """As many of them as a record has room for."""
    kept, room = list[str](), RECALLED_BYTES
    for one in ids:
        room -= len(one.encode(errors="surrogatepass"))
        if room < 0:
            break
        kept.append(one)
    return tuple(kept)


def measure_compactions(window: Window, runs: Sequence[Run]) -> list[CompactionSize]:
    """Return the compactions that are sent, and how much each stands for.

    Args:
        window: see above.
        runs: its `list_decisions`.
    """
    return [
        CompactionSize(
            one.kind,
            one.first,
            one.last,
            one.tokens,
            sum(run.tokens for run in runs if _is_covered(one, run)),
        )
        for one in window.list_compactions()
    ]


def _is_covered(compaction: Compaction, run: Run) -> bool:
    return run.decision == "compacted" and compaction.first <= run.last and run.first <= compaction.last


def list_decisions(window: Window, strategy: Strategy, refused: Mapping[int, str] = _NONE) -> list[Run]:
    """What became of every entry of the live path, as runs in order; its length follows the window, not the log."""
    return _merge_runs(_iter_decisions(window, strategy, refused))


def sum_decisions(window: Window, strategy: Strategy, refused: Mapping[int, str] = _NONE) -> dict[str, int]:
    """Tokens by decision: the short form, without the runs."""
    sums, in_log, last, outside = dict[str, int](), 0, 0, window.outside
    before = unseen_within = 0
    frontier = _find_frontier(window)
    cuts = {seq: cut for seq, cut in window.cuts.items() if not cut.whole}
    for unit, decision, _ in _iter_sent_units(window, strategy):
        for entry in unit.entries:
            if entry.seq > frontier and (gap := entry.total - entry.tokens - last) > 0:
                unseen_within += gap
            in_log += entry.tokens
            before += entry.tokens if outside and entry.seq < outside.before else 0
            last = max(last, entry.total)
            cut = cuts.get(entry.seq) if cuts else None
            name = ("cleared" if cut.cleared else "cut") if cut else decision
            if refused and entry.seq in refused:
                name, cut = "refused", None
            sums[name] = sums.get(name, 0) + (cut.tokens if cut else entry.tokens)
    unseen = outside.total - before if outside else 0
    start = outside.before if outside else 0
    passed = sum(one.tokens for one in window.left_out if start <= one.first < frontier)
    left = last - in_log - unseen - unseen_within - passed
    beyond = window.beyond.total - last if window.beyond else 0
    for name, tokens in (
        ("compacted" if window.compaction or window.summary else "evicted", left),
        ("evicted", unseen + unseen_within + beyond + passed),
    ):
        if tokens > 0:
            sums[name] = sums.get(name, 0) + tokens
    return sums


# -- inside ------------------------------------------------------------------


def _iter_decisions(window: Window, strategy: Strategy, refused: Mapping[int, str]) -> Iterator[Run]:
    """One run an entry that is sent, and one for each gap between them: what the running totals say was there."""
    place, before = 0, 0
    frontier = _find_frontier(window)
    for unit, decision, why in _iter_sent_units(window, strategy):
        for entry in unit.entries:
            gap = Gap(place, entry.seq, before, entry.total - entry.tokens)
            yield from _iter_unsent(window, strategy, gap, within=place <= frontier)
            place, before = entry.seq + 1, entry.total
            cut = window.cuts.get(entry.seq)
            if entry.seq in refused:
                yield Run(entry.seq, entry.seq, "refused", refused[entry.seq], entry.tokens)
            elif cut is None or cut.whole:
                yield Run(entry.seq, entry.seq, decision, why, entry.tokens)
            elif cut.cleared:
                yield Run(entry.seq, entry.seq, "cleared", "an older tool result", cut.tokens)
            else:
                yield Run(entry.seq, entry.seq, "cut", f"{decision}, {why}, too long to be whole", cut.tokens)
    if window.beyond is not None:
        gap = Gap(place, window.beyond.seq + 1, before, window.beyond.total)
        yield from _iter_unsent(window, strategy, gap, within=False)


class Gap(NamedTuple):
    """Entries that are not sent: from one `seq` to before another, with the running totals before and behind them."""

    first: int
    end: int
    before: int
    after: int


def _find_frontier(window: Window) -> int:
    """The entry behind which all is sent that is seen."""
    first = window.units[0].first if window.units else 0
    return first if window.outside is None else max(first, window.outside.before)


def _iter_unsent(window: Window, strategy: Strategy, gap: Gap, *, within: bool) -> Iterator[Run]:
    """Entries that are not sent: those that no prompt has, each with its reason, and between them the others.

    Args:
        within: whether they are before the frontier.
    """

    def others(part: Gap) -> Iterator[Run]:
        return _iter_gap(window, strategy, part) if within else _iter_unseen(part)

    for one in window.left_out:
        if gap.first <= one.first and one.last < gap.end:
            start = one.total - one.tokens
            yield from others(Gap(gap.first, one.first, gap.before, start))
            yield Run(one.first, one.last, "evicted", one.reason, one.tokens)
            gap = Gap(one.last + 1, gap.end, one.total, gap.after)
    yield from others(gap)


def _iter_unseen(gap: Gap) -> Iterator[Run]:
    """Entries behind the frontier that are not sent: nothing else is left out there."""
    if gap.after > gap.before:
        yield Run(gap.first, gap.end - 1, "evicted", UNSEEN, gap.after - gap.before)


def _iter_gap(window: Window, strategy: Strategy, gap: Gap) -> Iterator[Run]:
    """What became of entries that are not sent: summarized up to where the summary ends, then condensed, or left out."""
    if gap.after <= gap.before:
        return
    summary, outside, place, before = window.summary, window.outside, gap.first, gap.before
    if outside is not None and before < outside.total:
        within = min(gap.after, outside.total)
        yield Run(place, min(outside.before, gap.end) - 1, "evicted", OUTSIDE, within - before)
        place, before = outside.before, within
    if summary is not None and place <= summary.last:
        within = min(gap.after, summary.total)
        yield Run(place, min(summary.last, gap.end - 1), "compacted", SUMMARIZED, within - before)
        place, before = summary.last + 1, within
    if gap.after > before:
        gone, reason = (
            ("compacted", "condensed") if window.compaction else ("evicted", STRATEGIES[strategy.name].left or UNSEEN)
        )
        yield Run(place, gap.end - 1, gone, reason, gap.after - before)


OUTSIDE = "out of the buffer: max_history_turns"
"""Why a strategy did not even get to see it."""
UNSEEN = "of another branch"
"""Why a view does not see it: an agent that speaks side by side with this one wrote it, or a joined reply stands for it."""
SUMMARIZED = "summarized"
"""Why what a model's summary stands for is not sent; of what a digest stands for it is another word."""


def _iter_sent_units(window: Window, strategy: Strategy) -> Iterator[tuple[Unit, str, str]]:
    """Every unit that is sent: what it is, and why it is there."""
    anchor = window.anchor if window.anchored else None
    chosen = STRATEGIES[strategy.name].chosen if strategy.choose is not None else ""
    before = len(window.head) if chosen else 0
    for number, unit in enumerate((*window.head, *window.units)):
        entries = unit.entries
        first = entries[0].seq
        if first == anchor:
            yield unit, "anchored", "the task"
        elif entries[0].pinned or (len(entries) > 1 and any(entry.pinned for entry in entries)):
            yield unit, "pinned", "pinned"
        elif first in window.standing:
            yield unit, "kept", "a system message that no later one replaces"
        elif first == window.current:
            yield unit, "kept", "the current user message"
        else:
            yield unit, "kept", chosen if number < before else "recent"


def _merge_runs(runs: Iterator[Run]) -> list[Run]:
    joined: list[Run] = []
    for run in runs:
        last = joined[-1] if joined else None
        if last and (last.decision, last.reason) == (run.decision, run.reason) and run.decision != "cut":
            joined[-1] = msgspec.structs.replace(last, last=run.last, tokens=last.tokens + run.tokens)
        else:
            joined.append(run)
    return joined
