"""Find out if a prompt contains a message of the log completely, in part or not at all, in which block, and why.

If a message is not sent completely, its words are searched in the text of all compactions, the introduction and the recalled block. This module
does not depend on how such a block was made, so new kinds of compaction need no change here.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.digest.texts import split_text
from holdfast.context.escaping import escape_inline, escape_lines, to_json_line
from holdfast.context.explain import BuildRecord, Run
from holdfast.context.fitting import RESERVE
from holdfast.context.prefix_diff import UNKNOWN_BEFORE
from holdfast.context.values import NUMBERED, weigh_value
from holdfast.context.window import Window
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, ModelCall
from holdfast.errors import BudgetTooSmall
from holdfast.limits import EXPLAIN_CHARS, EXPLAIN_EXCERPTS, EXPLAIN_PHRASES

State = Literal["whole", "part", "no"]
LEAST_WORDS: Final = 8
"""Minimum length of a phrase that is searched, in characters. Shorter phrases may occur in another message by chance."""
LEAST_SHORT: Final = 4
"""Minimum length for identifiers and for text that is not ASCII, because other scripts say more with each character."""


class Excerpt(msgspec.Struct, frozen=True, gc=False):
    """Words of a message that a block of the prompt contains."""

    block: str
    """Name of the block: `task`, `pins`, `tail`, …, or the kind of a compaction, such as `digest`."""
    words: str
    """The words exactly as the prompt has them. Empty if the message was in the block, but its words there were not recorded."""


class Presence(msgspec.Struct, frozen=True, gc=False):
    """The extent to which a prompt contains a message, and the reason."""

    state: State
    decision: str
    """The decision as in `Run`. Also `erased`, `retired` (removed by an edit or a rewind) or `later` (written after the prompt), or
    `note` (not a message)."""
    reason: str
    block: str | None = None
    """The block in which the message is sent; None if it is not sent as a message of its own."""
    excerpts: tuple[Excerpt, ...] = ()
    """Words of the message that the prompt contains, if it does not contain the complete message; at most `EXPLAIN_EXCERPTS`."""


WRITTEN_LATER: Final = Presence("no", "later", "written after this prompt")


class PromptContents:
    """The content of a working set, in a form in which messages of the log can be searched.

    Args:
        built: the working set.
        recalled: `seq` of entries that the working set recalled, but whose recalled words were not recorded.
    """

    def __init__(self, built: WorkingSet, recalled: Collection[int] = ()) -> None:
        self._marker = built.request.marker
        self._refused = built.refused
        self._whole = built.window.list_whole_seqs()
        self._blocks = map_blocks(built.window)
        self._runs: Sequence[Run] = built.list_decisions()
        self._firsts = [run.first for run in self._runs]
        self._sent: dict[int, list[Message]] = {}
        for seq, message in zip(built.list_seqs(), built.messages, strict=True):
            if seq is not None:
                self._sent.setdefault(seq, []).append(message)
        self._others = _list_other_blocks(built)
        self._recalled = recalled
        self._items = built.recalled.items if built.recalled else ()

    def find_presence(self, entry: Entry) -> Presence:
        """Return the extent to which the prompt contains an entry, and the reason."""
        if (absence := explain_absence(entry)) is not None:
            return absence
        run = self._find_run(entry.seq)
        if run is None:
            return WRITTEN_LATER
        block = self._blocks.get(entry.seq) if entry.seq in self._sent else None
        if self._is_whole(entry):
            return Presence("whole", run.decision, run.reason, block)
        if self._is_whole_in_cut(entry):
            return Presence("whole", "kept", "short enough to be whole", block)
        excerpts = tuple(dict.fromkeys(self._iter_excerpts(entry)))[:EXPLAIN_EXCERPTS]
        return Presence("part" if excerpts else "no", run.decision, run.reason, block, excerpts)

    def _find_run(self, seq: int) -> Run | None:
        at = bisect_right(self._firsts, seq) - 1
        return self._runs[at] if at >= 0 and seq <= self._runs[at].last else None

    def _is_whole(self, entry: Entry) -> bool:
        sent = self._sent.get(entry.seq)
        if not sent or entry.seq not in self._whole or entry.seq in self._refused:
            return False
        said = entry.message.text
        if any(said in message.text for message in sent):
            return True
        # Another agent's words are quoted: indented and escaped.
        forms = (escape_inline(said, self._marker), escape_lines(said, self._marker))
        return any(_normalize_spaces(form) in _normalize_spaces(message.text) for message in sent for form in forms)

    def _is_whole_in_cut(self, entry: Entry) -> bool:
        """Return True if a message was cut or shortened as the task, but its shortened form still contains all of it."""
        said = entry.message
        return entry.seq not in self._refused and any(
            message == said
            or (
                said.text in message.text
                and not said.tool_calls
                and message.media == said.media
                and message.extra == said.extra
            )
            for message in self._sent.get(entry.seq, ())
        )

    def _iter_excerpts(self, entry: Entry) -> Iterator[Excerpt]:
        """Yield the words of an entry that the prompt contains: first those in its shortened message, then those in other blocks."""
        if entry.seq not in self._refused:
            block = self._blocks.get(entry.seq, "tail")
            for message in self._sent.get(entry.seq, ()):
                ends = _find_ends(entry.message.text, message.text, self._marker)
                yield from (Excerpt(block, words) for words in ends)
        items = [item for item in self._items if item.seq == entry.seq]
        yield from (Excerpt("recalled", to_json_line(item.text)[1:-1]) for item in items)
        if entry.seq in self._recalled and not items:
            yield Excerpt("recalled", "")
        for phrase in split_phrases(entry.message):
            for block, text, flat in self._others:
                if words := _find(phrase, text, flat, self._marker):
                    yield Excerpt(block, words)


def explain_absence(entry: Entry) -> Presence | None:
    """Return why no prompt contains the entry's content. Return None if the entry is a live message, which no edit or rewind has removed."""
    if entry.is_note:
        return Presence("no", "note", "a note, which is never sent")
    if entry.erased:
        return Presence("no", "erased", "its content was erased on request; [erased] is sent in its place")
    if entry.retired_by is not None:
        return Presence("no", "retired", f"removed by an edit or a rewind; message {entry.retired_by} came next")
    return None


def split_phrases(message: Message) -> list[str]:
    """Split a message into phrases that another block may quote: sentences, or the values of its JSON."""
    phrases: list[str] = []
    for text in (message.text, *(call.arguments for call in message.tool_calls)):
        decoded = _decode_json(text)
        phrases += split_text(text[:EXPLAIN_CHARS]) if decoded is None else _iter_values(decoded)
    return [phrase for phrase in dict.fromkeys(phrases) if _is_distinctive(phrase)][:EXPLAIN_PHRASES]


def _is_distinctive(words: str) -> bool:
    least = LEAST_WORDS if words.isascii() else LEAST_SHORT
    return len(words) >= least or (len(words) >= LEAST_SHORT and weigh_value(words) >= NUMBERED)


def _decode_json(text: str) -> Any:
    if not text.startswith(("{", "[")) or len(text) > EXPLAIN_CHARS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _iter_values(decoded: Any) -> Iterator[str]:
    """Yield the strings and numbers in decoded JSON. Strings are split into sentences."""
    waiting = [decoded]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += reversed([*value.values()])
        elif isinstance(value, list):
            waiting += reversed(value)
        elif isinstance(value, str):
            yield from split_text(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(value)


def map_blocks(window: Window) -> dict[int, str]:
    """Return, by `seq`, the name of the block of each entry that is sent as a message."""
    anchor = window.anchor if window.anchored else None
    heads = {unit.first for unit in window.head}
    blocks: dict[int, str] = {}
    for unit in (*window.head, *window.units):
        if unit.first == anchor:
            block = "task"
        elif any(entry.pinned for entry in unit.entries):
            block = "pins"
        elif unit.first in window.standing:
            block = "system"
        elif unit.first == window.current:
            block = "current"
        else:
            block = "head" if unit.first in heads else "tail"
        blocks |= dict.fromkeys((entry.seq for entry in unit.entries), block)
    return blocks


def _list_other_blocks(built: WorkingSet) -> list[tuple[str, str, str]]:
    """Return the blocks that may quote messages. Each has its name, its text, and its text with normalized white space."""
    names: list[tuple[str, str]] = [(one.text, one.kind) for one in built.window.list_compactions()]
    if built.request.introduction is not None:
        names.append((built.request.introduction.message.text, "introduction"))
    if built.recalled is not None:
        names.append((built.recalled.message.text, "recalled"))
    return [(name, text, _normalize_spaces(text)) for text, name in names if text]


def _normalize_spaces(text: str) -> str:
    return " ".join(text.split())


def _find(phrase: str, text: str, flat: str, marker: str) -> str:
    """Return the part of a text that equals a phrase except for white space and escapes; empty if there is none.

    Args:
        phrase: the phrase.
        text: the text.
        flat: the text with normalized white space.
        marker: the session's marker.
    """
    escaped = escape_inline(phrase, marker)
    for form in dict.fromkeys((phrase, escaped, to_json_line(phrase)[1:-1])):
        if _normalize_spaces(form) in flat:
            pattern = r"\s+".join(map(re.escape, form.split()))
            before = r"(?<![a-zA-Z0-9])" if form[:1].isascii() and form[:1].isalnum() else ""
            after = r"(?![a-zA-Z0-9])" if form[-1:].isascii() and form[-1:].isalnum() else ""
            if found := re.search(before + pattern + after, text):
                return found[0]
    return ""


def _find_ends(said: str, sent: str, marker: str) -> list[str]:
    """Return as much of the beginning and of the end of a message as its shortened form contains.

    Args:
        said: the text of the message.
        sent: the text of its shortened form.
        marker: the session's marker.
    """
    best: list[str] = []
    start = said[:EXPLAIN_CHARS]
    for form in dict.fromkeys((said, escape_lines(start, marker), escape_inline(start, marker))):
        head = _find_longest_start(form, sent)
        tail = _find_longest_start(form[len(head) :][::-1], sent[::-1])[::-1]
        found = [words for words in (head.strip(), tail.strip()) if _is_distinctive(words)]
        best = max(best, found, key=lambda words: sum(map(len, words)))
    return best


def _find_longest_start(text: str, within: str) -> str:
    """Return the longest beginning of `text` that `within` contains."""
    low, high = 0, min(len(text), len(within))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text[:middle] in within else (low, middle - 1)
    return text[:low]


class Departure(msgspec.Struct, frozen=True, gc=False):
    """The first recorded prompt that no longer contained a message completely."""

    turn_id: int
    timestamp: int
    """Time of the model call, in milliseconds since the epoch."""
    reason: str
    """Description of the change in the prompt."""


class DepartureLog:
    """Finds, for each message, the first prompt that no longer contained the message completely.

    Call `note` with each prompt of a view, oldest first. If a later prompt contains the message completely again, the search starts over.

    Args:
        seqs: `seq` of each message to look for.

    Attributes:
        found: by `seq`, that prompt for each message that an earlier prompt contained completely and the last one does not.
    """

    def __init__(self, seqs: Collection[int]) -> None:
        self._seqs = seqs
        self._seen: set[int] = set()
        self.found: dict[int, Departure] = {}

    def note(self, call: ModelCall, built: WorkingSet) -> None:
        """Process the next prompt, which is the prompt of a recorded model call, rebuilt as a working set."""
        why = built.broken.why if built.broken else UNKNOWN_BEFORE
        self.note_window(call, built.window, built.refused, why)

    def note_window(self, call: ModelCall, window: Window, refused: Container[int], why: str) -> None:
        """Process the next prompt, of which only the window is known.

        Args:
            call: the recorded model call.
            window: the window of its prompt.
            refused: `seq` of messages that are left out because the provider refused them.
            why: the reason why messages left the prompt, if any did.
        """
        if not self._seqs:
            return
        whole = window.list_whole_seqs()
        for seq in self._seqs:
            if seq in whole and seq not in refused:
                self._seen.add(seq)
                self.found.pop(seq, None)
            elif seq in self._seen and seq not in self.found:
                self.found[seq] = Departure(call.turn_id, call.timestamp, why)


def find_first_beyond(calls: Iterable[tuple[ModelCall, BuildRecord]], seq: int) -> Departure | None:
    """Return the first model call whose prompt had its frontier (the beginning of its tail) after a message; None if there is none.

    Args:
        calls: recorded calls with the records of their prompts, oldest first.
        seq: `seq` of the message.
    """
    before: int | None = None
    for call, record in calls:
        if call.through >= seq and record.frontier > seq:
            moved = f"the frontier moved from {before} to {record.frontier}"
            why = moved if before is not None else f"the frontier was already at {record.frontier}"
            return Departure(call.turn_id, call.timestamp, why)
        before = record.frontier
    return None


CLOSE_ENOUGH: Final = 0.05
"""Accepted error of the budget that `find_least_budget` returns, as a fraction of that budget."""
ROUND: Final = 10
"""Budgets are tried in multiples of this number of tokens."""
STEPS: Final = 4
"""Maximum number of budgets that are tried with the complete strategy, after a search without its digest. Each budget is a tenth larger than
the one before."""


def find_least_budget(request: Request, entries: Sequence[Entry], seq: int, current: int) -> int | None:
    """Return a budget close to the smallest one with which the prompt contains a complete message.

    The search builds without digests, which take most of the time of a build. Its result is then tried with the complete strategy.

    Args:
        request: the inputs of the build.
        entries: the live entries of the log.
        seq: `seq` of the message.
        current: maximum number of tokens that the conversation may take now.

    Returns:
        A budget in tokens that was tried with success. None if the budget alone does not decide what the strategy keeps, or if the model
        has no budget that is large enough.
    """
    strategy = request.strategy
    if strategy.window_size is not None or strategy.summarizer is not None or strategy.history or not strategy.bounded:
        return None
    unlimited = msgspec.structs.replace(request, strategy=msgspec.structs.replace(strategy, budget=None))
    cap = unlimited.compute_limit(unlimited.count_overhead())
    total = entries[-1].total if entries else 0
    high = min(cap, _round_up(total * request.count.factor + RESERVE))
    low = current
    if low >= high or not _has_message(request, entries, seq, high):
        return None
    quick = msgspec.structs.replace(request, strategy=msgspec.structs.replace(strategy, condense=False))
    found = high
    while found - low > max(ROUND, found * CLOSE_ENOUGH):
        middle = min(found, _round_up((low + found) / 2))
        if middle == found:
            break
        low, found = (low, middle) if _has_message(quick, entries, seq, middle) else (middle, found)
    for _ in range(STEPS):
        if found >= high or _has_message(request, entries, seq, found):
            break
        found = min(high, _round_up(found * 1.1))
    else:
        return high
    return min(found, high)


def _round_up(tokens: float) -> int:
    return math.ceil(tokens / ROUND) * ROUND


def _has_message(request: Request, entries: Sequence[Entry], seq: int, budget: int) -> bool:
    """Return True if a prompt with this budget contains the complete message."""
    tried = msgspec.structs.replace(request, strategy=msgspec.structs.replace(request.strategy, budget=budget))
    try:
        built = build(tried, None, (), entries)
    except BudgetTooSmall:
        return False
    return seq in built.window.list_whole_seqs() and seq not in built.refused
