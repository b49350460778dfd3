"""Explain what happened to each entry of a log in a working set.

Consecutive entries with the same decision share one `Run`, so that the explanation does not grow with the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.context.dialects import Dialect
from holdfast.context.settings import CLEARING, STRATEGIES, ContextSettings, examine
from holdfast.context.strategies import Strategy
from holdfast.context.units import Unit
from holdfast.context.window import Compaction, Window
from holdfast.domain.objects import Count

_NONE: Mapping[int, str] = MappingProxyType({})


DecisionKind = Literal["kept", "pinned", "anchored", "cut", "cleared", "compacted", "evicted", "refused"]


class Run(msgspec.Struct, frozen=True, gc=False, rename={"first": "from", "last": "to"}):
    """The prompt's decision on a range of log entries, such as `kept` or `evicted`, and the reason."""

    first: Count
    """Seq of the first entry."""
    last: Count
    """Seq of the last entry."""
    decision: DecisionKind
    reason: str
    """Reason of the decision."""
    tokens: Count
    """Tokens of the entries in the log. For entries that were cut, only the tokens in the prompt."""

    def __str__(self) -> str:
        place = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return _format_row(place, self.decision, self.tokens, self.reason)

    def to_wire(self) -> dict[str, Any]:
        """Return the run as the API shows it."""
        return {
            "from": self.first,
            "to": self.last,
            "decision": self.decision,
            "reason": self.reason,
            "tokens": self.tokens,
        }


class CompactionSize(msgspec.Struct, frozen=True, gc=False):
    """The size of a compaction in a prompt, and of the messages that it replaces."""

    kind: str
    first: int
    last: int
    tokens: int
    """Tokens of the compaction's message."""
    source_tokens: int
    """Stored tokens of the messages that the compaction replaces."""

    def __str__(self) -> str:
        sizes = f"{self.source_tokens:,} tokens in {self.tokens:,}"
        return f"{self.kind} of messages {self.first} to {self.last}: {sizes}"

    def to_wire(self) -> dict[str, Any]:
        """Return the sizes as the API shows them."""
        fields = msgspec.structs.asdict(self)
        return {"kind": fields.pop("kind"), "from": fields.pop("first"), "to": fields.pop("last"), **fields}


class BuildRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The record of a built prompt that is stored with its model call. The prompt can be rebuilt from it and the log."""

    limit: int
    """Maximum number of tokens that the conversation was allowed to take."""
    input_budget: int
    overhead: int
    """Tokens of system prompt, introduction, tool schemas and the start of the reply."""
    factor: float
    """`ModelCount.factor` of the token counter."""
    dialect: Dialect
    messages: int
    common: int
    """Number of messages at the beginning that equal those of the view's previous prompt; -1 if that prompt was not known."""
    frontier: int
    summary: str = ""
    """`Compaction.mark` of the prompt's summary; empty if the view had none."""
    recalled: tuple[str, ...] = ()
    """`RecalledItem.id` of the recalled items, as many as fit into `RECALLED_BYTES`."""
    recalled_tokens: int = 0
    """Tokens of the recalled block."""
    missed: tuple[str, ...] = ()
    """Reasons why items may be missing from the recalled block."""
    known: tuple[str, ...] = ()
    """Ids of the promoted memories in the session's introduction."""
    marker: str = ""
    """The session's marker when the prompt was built. Importing the session changes its marker."""
    passages: tuple[tuple[int, int, int, int], ...] = ()
    """Passages recalled from this session. Each has the `seq` of the entry, the first character, the end character (exclusive), and the
    number of characters shown (-1 for all). If nothing else was recalled, the recalled block can be rebuilt from them."""
    strategy: str = ""
    """Name of the strategy; empty if it was not recorded."""
    options: dict[str, Any] | None = None
    """Options that were set for the strategy; None if they were not recorded, or need more than `OPTIONS_BYTES`."""

    @property
    def settings(self) -> ContextSettings | None:
        """The settings of the view; None if they were not recorded, or if this process does not have the strategy."""
        if self.options is None:
            return None
        _, problems = examine({"strategy": self.strategy, **self.options})
        return None if problems else ContextSettings(self.strategy, self.options)

    def describe_recalled(self) -> dict[str, Any]:
        """Return what was recalled, as the API shows it."""
        return describe_recalled(self.recalled, self.recalled_tokens, self.missed, self.known)


RECALLED_BYTES = 4096
"""Maximum number of bytes (UTF-8) of the ids of recalled items in a record."""
OPTIONS_BYTES = 512
"""Maximum number of bytes (JSON) of a strategy's options in a record. Only a long `prompt` or list of tools needs more."""
encode_record = msgspec.json.Encoder().encode
_decode_record = msgspec.json.Decoder(BuildRecord).decode


def decode_record(data: bytes) -> BuildRecord | None:
    """Return a stored record; None if another version wrote it in a different format."""
    try:
        return _decode_record(data)
    except msgspec.MsgspecError:
        return None


def format_table(overhead: Mapping[str, int], runs: Sequence[Run]) -> Iterator[str]:
    """Yield one line for each part of a prompt before the conversation, and for each run of messages.

    Args:
        overhead: tokens in addition to the conversation, as `Overhead.to_wire` returns them.
        runs: the decisions about the messages.
    """
    for name in ("system", "tools", "introduction"):
        if tokens := overhead.get(name, 0):
            yield f"  {_format_row(name, 'sent', tokens, 'not part of the conversation and its budget')}"
    yield from (f"  {run}" for run in runs)


def _format_row(place: str, decision: str, tokens: int, reason: str) -> str:
    return f"{place:>12}  {decision:<9}  {tokens:>7,} tokens  {reason}"


def describe_strategy(strategy: Strategy) -> dict[str, Any]:
    """Return a strategy's name and all its options, defaults included, in the form in which a request sets them."""
    fields = msgspec.to_builtins(msgspec.structs.replace(strategy, perspective=None, choose=None))
    clearing = fields.pop("clearing")
    fields |= clearing or {} if strategy.name == CLEARING else {CLEARING: clearing}
    if strategy.summarizer is not None:
        # The agent's own model is shown as None. With a model, `threshold` is the share above which a summary is made.
        fields |= {"summarizer_llm": strategy.summarizer or None, "threshold": strategy.summarize_at}
    elif strategy.threshold is not None:
        fields |= {"summarizer_llm": "none"}
    keys = {key: fields.get(key) for key in STRATEGIES[strategy.name].keys}
    shown = {"strategy": strategy.name, **{key: value for key, value in keys.items() if value is not None}}
    return shown | ({"max_history_turns": strategy.history} if strategy.history else {})


def describe_recalled(
    ids: Sequence[str], tokens: int, missed: Sequence[str], known: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what a prompt recalls, as the API shows it. Fields without a value are left out.

    Args:
        ids: ids of the recalled items.
        tokens: tokens of the recalled block.
        missed: reasons why items may be missing.
        known: ids of the memories in the session's introduction.
    """
    shown: dict[str, Any] = {"ids": [*ids], "tokens": tokens} if ids else {}
    return shown | ({"missed": [*missed]} if missed else {}) | ({"known": [*known]} if known else {})


def truncate_ids(ids: Iterable[str]) -> tuple[str, ...]:
    """Return as many of the first `ids` as fit into `RECALLED_BYTES`."""
    kept, room = list[str](), RECALLED_BYTES
    for one in ids:
        room -= len(one.encode(errors="surrogatepass"))
        if room < 0:
            break
        kept.append(one)
    return tuple(kept)


def limit_options(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options of a strategy for a `BuildRecord`, or None if they need more than `OPTIONS_BYTES`."""
    return dict(options) if not options or len(msgspec.json.encode(options)) <= OPTIONS_BYTES else None


def measure_compactions(window: Window, runs: Sequence[Run]) -> list[CompactionSize]:
    """Return the size of each compaction in a window, and of the messages that it replaces.

    Args:
        window: the window.
        runs: the result of `list_decisions` for the window.
    """
    return [
        CompactionSize(
            compaction.kind,
            compaction.first,
            compaction.last,
            compaction.tokens,
            sum(run.tokens for run in runs if _is_covered(run, compaction)),
        )
        for compaction in window.list_compactions()
    ]


def _is_covered(run: Run, compaction: Compaction) -> bool:
    return run.decision == "compacted" and compaction.first <= run.last and run.first <= compaction.last


def list_decisions(window: Window, strategy: Strategy, refused: Mapping[int, str] = _NONE) -> list[Run]:
    """Return what happened to every live entry of the log (not removed by an edit or a rewind), as runs in the order of the log.

    The number of runs depends on the size of the window, not on that of the log.

    Args:
        window: the window from which the prompt was made.
        strategy: the strategy of the view.
        refused: messages that were left out because the provider refused them, with the reasons.
    """
    return _merge_runs(_iter_decisions(window, strategy, refused))


class Tally:
    """Tokens of the first units of a window, which stay the same while units are only added at its end."""

    def __init__(self) -> None:
        self.units = 0
        self.sums = defaultdict[str, int](int)
        self.in_log = self.last = self.before = self.unseen = 0

    def copy(self) -> Tally:
        """Return a copy that can count further units."""
        made = Tally()
        made.__dict__.update(self.__dict__, sums=self.sums.copy())
        return made

    def add(self, window: Window, unit: Unit, decision: str, frontier: int, refused: Mapping[int, str]) -> None:
        """Count the next unit."""
        self.units += 1
        outside, cuts = window.outside, window.cuts
        for entry in unit.entries:
            if entry.seq > frontier and (gap := entry.total - entry.tokens - self.last) > 0:
                self.unseen += gap
            self.in_log += entry.tokens
            if outside and entry.seq < outside.before:
                self.before += entry.tokens
            self.last = max(self.last, entry.total)
            cut = cuts.get(entry.seq) if cuts else None
            if refused and entry.seq in refused:
                self.sums["refused"] += entry.tokens
            elif cut and not cut.whole:
                self.sums["cleared" if cut.cleared else "cut"] += cut.tokens
            else:
                self.sums[decision] += entry.tokens


def sum_decisions(window: Window, strategy: Strategy, refused: Mapping[int, str] = _NONE) -> dict[str, int]:
    """Return the total tokens of each kind of decision. The arguments are those of `list_decisions`."""
    outside, frontier = window.outside, _find_frontier(window)
    tally = Tally() if refused or window.tally is None else window.tally
    sent = _list_sent_units(window, strategy, tally.units)
    for unit, decision, _ in sent[:-1]:
        tally.add(window, unit, decision, frontier, refused)
    window.tally = None if refused else tally
    tally = tally.copy()
    for unit, decision, _ in sent[-1:]:  # the newest one may still grow
        tally.add(window, unit, decision, frontier, refused)
    unseen = outside.total - tally.before if outside else 0
    start = outside.before if outside else 0
    passed = sum(one.tokens for one in window.left_out if start <= one.first < frontier)
    left = tally.last - tally.in_log - unseen - tally.unseen - passed
    beyond = window.beyond.total - tally.last if window.beyond else 0
    for name, tokens in (
        ("compacted" if window.compaction or window.summary else "evicted", left),
        ("evicted", unseen + tally.unseen + beyond + passed),
    ):
        if tokens > 0:
            tally.sums[name] += tokens
    return dict(tally.sums)


# -- helpers -----------------------------------------------------------------


def _iter_decisions(window: Window, strategy: Strategy, refused: Mapping[int, str]) -> Iterator[Run]:
    """Yield a run for each entry that is sent, and runs for the entries between them, which are known only by their total token counts."""
    place, before = 0, 0
    frontier = _find_frontier(window)
    for unit, decision, why in _list_sent_units(window, strategy):
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
                what = "an older tool result" if entry.message.role == "tool" else "arguments of older calls"
                yield Run(entry.seq, entry.seq, "cleared", what, cut.tokens)
            else:
                yield Run(entry.seq, entry.seq, "cut", f"{why}; too long to send whole", cut.tokens)
    if window.beyond is not None:
        gap = Gap(place, window.beyond.seq + 1, before, window.beyond.total)
        yield from _iter_unsent(window, strategy, gap, within=False)


class Gap(NamedTuple):
    """Consecutive entries that are not sent."""

    first: int
    """`seq` of the first entry."""
    end: int
    """`seq` after the last entry."""
    before: int
    """Stored tokens of all live entries before the gap."""
    after: int
    """Stored tokens of all live entries up to the end of the gap."""


def _find_frontier(window: Window) -> int:
    """Return the lowest `seq` such that the entry with this `seq` and all later entries are sent, as far as the view sees them."""
    first = window.units[0].first if window.units else 0
    return first if window.outside is None else max(first, window.outside.before)


def _iter_unsent(window: Window, strategy: Strategy, gap: Gap, *, within: bool) -> Iterator[Run]:
    """Yield runs for the entries of a gap. Units in `Window.left_out` have their own reasons.

    Args:
        window: the window.
        strategy: the strategy of the view.
        gap: the entries that are not sent.
        within: True if the gap is before the frontier.
    """

    def iter_rest(part: Gap) -> Iterator[Run]:
        return _iter_gap(window, strategy, part) if within else _iter_unseen(part)

    for one in window.left_out:
        if gap.first <= one.first and one.last < gap.end:
            start = one.total - one.tokens
            yield from iter_rest(Gap(gap.first, one.first, gap.before, start))
            yield Run(one.first, one.last, "evicted", one.reason, one.tokens)
            gap = Gap(one.last + 1, gap.end, one.total, gap.after)
    yield from iter_rest(gap)


def _iter_unseen(gap: Gap) -> Iterator[Run]:
    """Yield a run for entries after the frontier that are not sent. The only possible reason is that the view does not see them."""
    if gap.after > gap.before:
        yield Run(gap.first, gap.end - 1, "evicted", UNSEEN, gap.after - gap.before)


def _iter_gap(window: Window, strategy: Strategy, gap: Gap) -> Iterator[Run]:
    """Yield runs for a gap before the frontier: first for entries too old for the strategy to see, then for summarized ones, then for others."""
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
        left = gap.after - before
        if window.compaction:
            yield Run(place, gap.end - 1, "compacted", "condensed", left)
        else:
            yield Run(place, gap.end - 1, "evicted", STRATEGIES[strategy.name].left or UNSEEN, left)


OUTSIDE = "out of the buffer: max_history_turns"
"""Reason for entries that are too old for the strategy to see."""
UNSEEN = "of another branch"
"""Reason for entries that the view does not see, because an agent in a parallel branch wrote them or a joined reply replaces them."""
SUMMARIZED = "summarized"
"""Reason for entries that a model's summary replaces. Entries that a digest replaces have the reason "condensed"."""


def _list_sent_units(window: Window, strategy: Strategy, start: int = 0) -> list[tuple[Unit, DecisionKind, str]]:
    """Return every unit that is sent, from number `start` on, with the decision about it and the reason."""
    anchor = window.anchor if window.anchored else None
    chosen = STRATEGIES[strategy.name].chosen if strategy.choose is not None else ""
    before = len(window.head) if chosen else 0
    decided: list[tuple[Unit, DecisionKind, str]] = []
    for number, unit in enumerate([*window.head, *window.units][start:], start):
        entries = unit.entries
        first = entries[0].seq
        if first == anchor:
            decided.append((unit, "anchored", "the task"))
        elif entries[0].pinned or (len(entries) > 1 and any(entry.pinned for entry in entries)):
            decided.append((unit, "pinned", "pinned"))
        elif first in window.standing:
            decided.append((unit, "kept", "a system message that is still in force"))
        elif first == window.compacting:
            decided.append((unit, "kept", "the newest compaction item of the provider"))
        elif first == window.current:
            decided.append((unit, "kept", "the current user message"))
        else:
            decided.append((unit, "kept", chosen if number < before else "recent"))
    return decided


def _merge_runs(runs: Iterator[Run]) -> list[Run]:
    joined: list[Run] = []
    for run in runs:
        last = joined[-1] if joined else None
        if last and (last.decision, last.reason) == (run.decision, run.reason) and run.decision != "cut":
            joined[-1] = msgspec.structs.replace(last, last=run.last, tokens=last.tokens + run.tokens)
        else:
            joined.append(run)
    return joined
