"""Explain what happened to each entry of a log in a prompt: a lookup in the record of the prompt.

Each reason is a `Cause`, which is worded only here. Consecutive entries with the same decision share one `Run`, so that the explanation
does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.context.parts import Part, PromptRecord
from holdfast.context.prefix_diff import Prefix
from holdfast.context.settings import CLEARING, STRATEGIES
from holdfast.context.strategies import Strategy
from holdfast.domain.objects import Count, JsonObject

DecisionKind = Literal["kept", "pinned", "anchored", "cut", "cleared", "compacted", "evicted", "refused"]
Cause = Literal[
    "task",
    "pinned",
    "standing",
    "item",
    "current",
    "chosen",
    "recent",
    "result",
    "arguments",
    "refused",
    "summarized",
    "condensed",
    "budget",
    "outside",
    "branch",
    "empty",
    "unreadable",
    "later",
    "note",
    "erased",
    "retired",
]
"""The reason for a decision, as a word for programs:

- `task`, `pinned`, `standing` (a system message in force), `item` (a provider's compaction item), `current`, `chosen` by the strategy,
  `recent`: why a message is sent.
- `result`, `arguments`: what was cleared. `refused`: by the provider.
- `summarized`, `condensed`: a summary or a digest replaces it. `budget`: the strategy left it out. `outside`: too old for the strategy to
  see. `branch`: the agent does not see it. `empty`, `unreadable`: the provider accepts no such message.
- `later`, `note`, `erased`, `retired`: no prompt has its content.
"""
_WORDS: Final[Mapping[Cause, str]] = MappingProxyType(
    {
        "task": "the task",
        "pinned": "pinned",
        "standing": "a system message that is still in force",
        "item": "the newest compaction item of the provider",
        "current": "the current user message",
        "recent": "recent",
        "result": "an older tool result",
        "arguments": "arguments of older calls",
        "summarized": "replaced by a summary",
        "condensed": "replaced by a digest",
        "outside": "out of the buffer: max_history_turns",
        "branch": "of another branch",
        "empty": "no content: providers refuse such a message",
        "unreadable": "a compaction item, which only models with the Responses API can read",
        "later": "written after this prompt",
        "note": "a note, which is never sent",
        "erased": "its content was erased on request; [erased] is sent in its place",
    }
)


def word_cause(cause: Cause, record: PromptRecord | None = None, seq: int = -1) -> str:
    """Return a reason in words.

    Args:
        cause: the reason.
        record: the prompt; None: the reason does not depend on it.
        seq: the message.
    """
    if record is not None and cause in ("chosen", "budget"):
        spec = STRATEGIES.get(record.strategy)
        if cause == "chosen":
            return spec.chosen if spec else f"chosen by the strategy {record.strategy}"
        return (spec.left if spec else f"not chosen by the strategy {record.strategy}") or _WORDS["branch"]
    if record is not None and cause == "refused":
        return record.refused.get(seq, cause)
    return _WORDS.get(cause, cause)


def join_reason(decision: str, reason: str) -> str:
    """Return a decision and its reason as one text."""
    return decision if reason == decision else f"{decision}: {reason}"


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
    cause: Cause
    """Reason of the decision, as a word for programs."""

    @property
    def state(self) -> Literal["whole", "part", "no"]:
        """The share of the entries in the prompt. A compaction counts as a part, although it may leave out some of them."""
        if self.decision in ("kept", "pinned", "anchored"):
            return "whole"
        return "part" if self.decision in ("cut", "cleared", "compacted") else "no"

    @property
    def why(self) -> str:
        """The decision and its reason, as one text."""
        return join_reason(self.decision, self.reason)

    def __str__(self) -> str:
        place = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return _format_row(place, self.decision, self.tokens, self.reason)


class CompactionSize(msgspec.Struct, frozen=True, gc=False, rename={"first": "from", "last": "to"}):
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


RECALLED_BYTES = 4096
"""Maximum number of bytes (UTF-8) of the ids of recalled items in a record."""


class Overhead(msgspec.Struct, frozen=True, gc=False):
    """Tokens of the prompt that are not part of the conversation."""

    system: Count
    """Tokens of the system prompt."""
    tools: Count
    """Tokens of the tools' schemas."""
    introduction: Count
    """Tokens of promoted memories that introduce the session."""
    recalled: Count
    """Tokens of the recalled block."""

    @classmethod
    def from_record(cls, record: PromptRecord) -> Overhead:
        """Return the tokens of a prompt."""
        return cls(*record.overhead[:3], record.recalled_tokens)


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """Messages and memories that were recalled into this prompt. The recalled block is in the prompt only, not in the log."""

    ids: Sequence[str] | UnsetType = UNSET
    """Ids of the recalled items: `session#seq` for messages, and ids of memories."""
    tokens: Count | UnsetType = UNSET
    """Tokens of the recalled block."""
    missed: Sequence[str] | UnsetType = UNSET
    """Reasons why some messages or memories were not searched, or not recalled."""
    known: Sequence[str] | UnsetType = UNSET
    """Ids of the memories that introduce the session."""

    @classmethod
    def from_record(cls, record: PromptRecord) -> Recalled | UnsetType:
        """Return what a prompt recalls; UNSET if there is nothing to say."""
        if not (record.recalled or record.missed or record.known):
            return UNSET
        return cls(
            ids=record.recalled or UNSET,
            tokens=record.recalled_tokens if record.recalled else UNSET,
            missed=record.missed or UNSET,
            known=record.known or UNSET,
        )


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """Details about how a prompt was built."""

    strategy: JsonObject
    """`strategy` and its options, including defaults. A request with these fields builds the same prompt."""
    budget: JsonObject
    """Token budget: how the model's context window is divided, the tokens for the conversation, the tokens used, and how they were
    counted."""
    overhead: Overhead
    recalled: Recalled | UnsetType = UNSET
    not_sent: str | UnsetType = UNSET
    """With `at_turn`, if no prompt of the turn is recorded: the reason. The messages are what the settings would give."""
    frontier: Count
    """Number (`seq`) of the first entry that is sent because it is recent. Older entries can be left out or summarized."""
    compactions: list[CompactionSize]
    prefix: JsonObject
    """Comparison with the previous prompt. `messages`: number of messages at the beginning that are equal; `before`: number of messages in
    the previous prompt; `whole`: true if these two are equal; `broken`: the first message that differs, with its seq and the reason."""
    hash: str
    """Hash of the prompt; same as `Context.hash`."""
    summaries: JsonObject | UnsetType = UNSET
    """For the strategy `summary_buffer`: `live`, the id of the summary in use, and `failed`, a failed attempt with `error`, `attempts`
    and `retry_at`."""


def format_table(overhead: Overhead, runs: Sequence[Run]) -> Iterator[str]:
    """Yield one line for each part of a prompt before the conversation, and for each run of messages."""
    for name in ("system", "tools", "introduction"):
        if tokens := getattr(overhead, name):
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


def truncate_ids(ids: Sequence[str]) -> tuple[str, ...]:
    """Return as many of the first `ids` as fit into `RECALLED_BYTES`."""
    kept, room = list[str](), RECALLED_BYTES
    for one in ids:
        room -= len(one.encode(errors="surrogatepass"))
        if room < 0:
            break
        kept.append(one)
    return tuple(kept)


# -- decisions ----------------------------------------------------------------


def measure_compactions(record: PromptRecord) -> list[CompactionSize]:
    """Return the size of each compaction in a prompt, and of the messages that it replaces."""
    runs = [run for run in list_decisions(record) if run.decision == "compacted"]
    found = []
    for part in record.parts:
        if part.kind in ("facts", "summary", "digest"):
            replaced = sum(run.tokens for run in runs if part.first <= run.last and run.first <= part.last)
            found.append(CompactionSize(part.kind, part.first, part.last, part.tokens, replaced))
    return found


def sum_decisions(record: PromptRecord) -> dict[str, int]:
    """Return the total tokens of each kind of decision."""
    sums = dict[str, int]()
    for run in list_decisions(record):
        sums[run.decision] = sums.get(run.decision, 0) + run.tokens
    return sums


def list_decisions(record: PromptRecord) -> list[Run]:
    """Return what happened to every live entry of the log (not removed by an edit or a rewind), as runs in the order of the log."""
    joined: list[Run] = []
    for run in _iter_decisions(record):
        last = joined[-1] if joined else None
        if last and (last.decision, last.reason) == (run.decision, run.reason) and run.decision != "cut":
            joined[-1] = msgspec.structs.replace(last, last=run.last, tokens=last.tokens + run.tokens)
        else:
            joined.append(run)
    return joined


def _iter_decisions(record: PromptRecord) -> Iterator[Run]:
    """Yield runs for the entries that are sent, and for those between them, which are known only by their total token counts."""
    place, before = 0, 0
    frontier = max(record.frontier, record.outside[0])
    for part in record.log_parts:
        gap = _Gap(place, part.first, before, part.before)
        yield from _iter_unsent(record, gap, within=place <= frontier)
        place, before = part.last + 1, part.after
        yield from _iter_sent(record, part)
    last, total = record.end
    yield from _iter_unsent(record, _Gap(place, last + 1, before, total), within=False)


def _iter_sent(record: PromptRecord, part: Part) -> Iterator[Run]:
    """Yield runs for a part. Messages that are sent for a reason of their own have runs of their own."""
    usual = cast("Cause", part.kind)
    if usual == "chosen" and not word_cause("chosen", record):
        usual = "recent"
    if part.texts:
        yield _make_sent_run(record, part, (part.first, part.last), part.tokens, _find_cause(record, part, usual))
        return
    first, before = part.first, part.before
    for mark in sorted(record.marks, key=lambda mark: mark.seq):
        cause = _find_cause(record, part, usual, mark.seq)
        if first <= mark.seq <= part.last and cause != usual:
            if mark.seq > first:
                yield _make_sent_run(record, part, (first, mark.seq - 1), mark.before - before, usual)
            yield _make_sent_run(record, part, (mark.seq, mark.seq), mark.after - mark.before, cause)
            first, before = mark.seq + 1, mark.after
    if first <= part.last:
        yield _make_sent_run(record, part, (first, part.last), part.after - before, usual)


def _find_cause(record: PromptRecord, part: Part, usual: Cause, seq: int | None = None) -> Cause:
    """Return why a message of a part is sent."""
    causes = [mark.cause for mark in record.marks if mark.seq == (part.first if seq is None else seq)]
    if usual == "pinned" and "task" not in causes:
        return usual
    return causes[0] if causes else usual


_DECISIONS: Final[Mapping[str, DecisionKind]] = {"task": "anchored", "pinned": "pinned"}


def _make_sent_run(record: PromptRecord, part: Part, span: tuple[int, int], tokens: int, cause: Cause) -> Run:
    first, last = span
    reason = word_cause(cause, record)
    match part.form:
        case "refused":
            return Run(first, last, "refused", word_cause("refused", record, first), tokens, "refused")
        case "cut":
            return Run(first, last, "cut", f"{reason}; too long to send whole", tokens, cause)
        case "cleared":
            return Run(first, last, "cleared", word_cause("result"), tokens, "result")
        case "trimmed":
            return Run(first, last, "cleared", word_cause("arguments"), tokens, "arguments")
        case _:
            return Run(first, last, _DECISIONS.get(cause, "kept"), reason, tokens, cause)


class _Gap(NamedTuple):
    """Consecutive entries that are not sent."""

    first: int
    """`seq` of the first entry."""
    end: int
    """`seq` after the last entry."""
    before: int
    """Stored tokens of all live entries before the gap."""
    after: int
    """Stored tokens of all live entries up to the end of the gap."""


def _iter_unsent(record: PromptRecord, gap: _Gap, *, within: bool) -> Iterator[Run]:
    """Yield runs for the entries of a gap. Units in `PromptRecord.left_out` have their own reasons.

    Args:
        record: the record of the prompt.
        gap: the entries that are not sent.
        within: True if the gap is before the frontier.
    """
    for one in record.left_out:
        if gap.first <= one.first and one.last < gap.end:
            yield from _iter_gap(record, _Gap(gap.first, one.first, gap.before, one.total - one.tokens), within=within)
            yield Run(one.first, one.last, "evicted", word_cause(one.reason), one.tokens, one.reason)
            gap = _Gap(one.last + 1, gap.end, one.total, gap.after)
    yield from _iter_gap(record, gap, within=within)


def _iter_gap(record: PromptRecord, gap: _Gap, *, within: bool) -> Iterator[Run]:
    """Yield runs for a gap: first for entries too old for the strategy to see, then for summarized ones, then for others.

    Entries after the frontier that are not sent can only be such that the view does not see.
    """
    if gap.after <= gap.before:
        return
    if not within:
        yield Run(gap.first, gap.end - 1, "evicted", word_cause("branch"), gap.after - gap.before, "branch")
        return
    place, before, outside = gap.first, gap.before, record.outside
    if before < outside[1]:
        reached = min(gap.after, outside[1])
        yield Run(place, min(outside[0], gap.end) - 1, "evicted", word_cause("outside"), reached - before, "outside")
        place, before = outside[0], reached
    summary = record.find_text("summary")
    if summary is not None and place <= summary.last:
        reached, last = min(gap.after, summary.after), min(summary.last, gap.end - 1)
        yield Run(place, last, "compacted", word_cause("summarized"), reached - before, "summarized")
        place, before = summary.last + 1, reached
    if gap.after > before:
        condensed = record.find_text("digest") is not None
        cause: Cause = "condensed" if condensed else "budget"
        decision: DecisionKind = "compacted" if condensed else "evicted"
        yield Run(place, gap.end - 1, decision, word_cause(cause, record), gap.after - before, cause)


# -- changes between prompts -----------------------------------------------------

ChangeKind = Literal[
    "unknown",
    "system",
    "recalled",
    "summarized",
    "unsummarized",
    "frontier",
    "already",
    "cleared",
    "cut",
    "older",
    "message",
]
"""The first difference between two prompts. `older`: something before the frontier. `already`: the
first prompt had this frontier. `message`: one message."""


class PrefixChange(msgspec.Struct, frozen=True, gc=False):
    """The first difference between a prompt and the one before, for which messages left it or a provider's cache broke."""

    kind: ChangeKind
    frontier: tuple[int, int] | None = None
    """The frontier before and now, if it moved."""
    slides: bool = False
    """True if the strategy keeps a number of messages; False: the budget was full."""

    def __str__(self) -> str:
        words: Mapping[ChangeKind, str] = {
            "unknown": "the previous prompt is not known",
            "system": "the system prompt changed",
            "recalled": "the recalled text changed: it belongs to one turn only",
            "summarized": "a summary was added",
            "unsummarized": "the summary was removed",
            "cleared": "older tool results were cleared",
            "cut": "messages were cut: the room was full",
            "older": "the messages before the frontier changed",
            "message": "the message changed: results arrived, or it was edited",
        }
        if self.frontier is None:
            return words[self.kind]
        if self.kind == "already":
            return f"the frontier was already at {self.frontier[1]}"
        why = "newer messages took the place of older ones" if self.slides else "the room was full"
        return f"the frontier moved from {self.frontier[0]} to {self.frontier[1]}: {why}"


def find_change(before: PromptRecord | None, now: PromptRecord) -> PrefixChange:
    """Return the first difference in the conversation of two prompts that explains why messages left it."""
    if before is None:
        return PrefixChange("unknown")
    old, new = before.find_text("summary"), now.find_text("summary")
    if (old and old.texts) != (new and new.texts):
        return PrefixChange("summarized" if new else "unsummarized")
    if now.frontier != before.frontier:
        return PrefixChange("frontier", (before.frontier, now.frontier), now.slides)
    if (cuts := _list_shortened(now)) != (earlier := _list_shortened(before)):
        return PrefixChange("cleared" if any(form != "cut" for _, form, _ in cuts - earlier) else "cut")
    if _list_older(now) != _list_older(before):
        return PrefixChange("older")
    return PrefixChange("message")


def _list_shortened(record: PromptRecord) -> set[tuple[int, str, tuple[int, ...]]]:
    return {(part.first, part.form, part.texts) for part in record.parts if part.form in ("cut", "cleared", "trimmed")}


def _list_older(record: PromptRecord) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """Return what identifies the messages and texts before the frontier."""
    older = [part for part in record.parts if part.kind != "added" and part.first < record.frontier]
    return [(part.kind, part.first, part.last, part.texts) for part in older]


class CacheBreak(msgspec.Struct, frozen=True, gc=False):
    """The first message at which a prompt differs from the one before, so that a provider's cache cannot reuse it."""

    message: int
    """Index of the message in the prompt."""
    seq: int | None
    """`seq` of its log entry; null if it has none, or if the prompt has no message there."""
    why: str
    change: PrefixChange
    """The same for programs."""


def find_break(prefix: Prefix, before: PromptRecord | None, now: PromptRecord) -> CacheBreak | None:
    """Return the first difference from the previous prompt, with its reason.

    Return None if the prompt begins with the previous one, or if the previous prompt is not known.

    Args:
        prefix: the common prefix.
        before: the record of the previous prompt; None if that prompt is not known.
        now: the record of the prompt.
    """
    if before is None or prefix.before is None or prefix.whole:
        return None
    at, seqs = prefix.messages, now.list_seqs()
    if at in (before.recalled_at, now.recalled_at):
        change = PrefixChange("recalled")
    elif at < max(len(before.leading), len(now.leading)):
        change = PrefixChange("system")
    else:
        change = find_change(before, now)
    return CacheBreak(at, seqs[at] if at < len(seqs) else None, str(change), change)


def describe_build(
    record: PromptRecord,
    hashed: str,
    prefix: Prefix,
    broken: CacheBreak | None,
    *,
    strategy: JsonObject | None = None,
    budget: JsonObject | None = None,
) -> Build:
    """Return how a prompt was built.

    Args:
        record: the record of the prompt.
        hashed: hash of the prompt.
        prefix: the common prefix with the previous prompt.
        broken: where the prefix ends; None: the prompt begins with the previous one, or that is not known.
        strategy: the strategy with all its options; None: with those that were set.
        budget: the calculation of the budget; None: the figures in the record.
    """
    recorded = {
        "input": record.input_budget,
        "system_and_tools": sum(record.overhead),
        "conversation": record.limit,
        "used": record.tokens,
    }
    return Build(
        strategy=strategy or {"strategy": record.strategy, **record.options},
        budget=budget or recorded,
        overhead=Overhead.from_record(record),
        recalled=Recalled.from_record(record),
        frontier=record.frontier,
        compactions=measure_compactions(record),
        prefix={
            "messages": prefix.messages,
            "before": prefix.before,
            "whole": None if prefix.before is None else prefix.whole,
            "broken": broken,
        },
        hash=hashed,
    )
