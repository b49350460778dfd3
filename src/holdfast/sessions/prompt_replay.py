"""Rebuild prompts that were sent, from the log and the records of model calls. Nothing here reads the store.

The view of a call is computed again from the log, with the recorded budget of each call and with the summaries that were made between
calls. The hash that was recorded with a call shows if the rebuilt prompt equals the sent one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.context.build import Draft, Request, WorkingSet, build, build_from_view, draft_from_view
from holdfast.context.explain import BuildRecord
from holdfast.context.prefix_diff import PromptSnapshot, explain_departure
from holdfast.context.presence import DepartureLog
from holdfast.context.recalled import Introduction, Recall, RecalledBlock
from holdfast.context.summaries import load_compaction, make_summarized_view
from holdfast.context.truncation import find_refused
from holdfast.context.view import make_view
from holdfast.context.window import Window
from holdfast.domain.session import Entry, ModelCall, SessionRef, StoredCompaction
from holdfast.errors import InvalidRequest
from holdfast.limits import PIN_GUESSES
from holdfast.recall.passages import Passage
from holdfast.sessions.preview_objects import Preview, PreviewRequest, SentPrompt
from holdfast.sessions.prompt_sections import divide_prompt
from holdfast.turns.recall import make_item

Calls = Sequence[tuple[ModelCall, BuildRecord]]
"""Recorded model calls, each with its build record, oldest first."""


class Past(NamedTuple):
    """The messages, model calls and summaries from which past prompts can be rebuilt."""

    entries: Sequence[Entry]
    """The messages of the session that are in force, in order."""
    calls: Sequence[tuple[ModelCall, BuildRecord]]
    """Recorded model calls that used the view, each with its build record, oldest first.

    For a very long session, these are only the newest calls and the calls of the requested turn.
    """
    summaries: Sequence[StoredCompaction]
    """All summaries that still have their text, in order, whatever their status."""
    introductions: Mapping[tuple[str, ...], Introduction | None] = {}
    """Introductions of the requested call and the one before, by `BuildRecord.known`. Other calls use the present one."""

    @property
    def live(self) -> StoredCompaction | None:
        """The summary that is now in use, or None."""
        return next((one for one in reversed(self.summaries) if one.status == "live"), None)


class _PromptReplay:
    """Rebuilds past prompts from the log, one model call after the other.

    The record of each call names the summary that the call used. The log alone does not show it: a summary may have been made while another
    call was running, or dropped again later.
    """

    def __init__(self, request: Request, past: Past, ref: SessionRef) -> None:
        self._past, self._ref = past, ref
        self._entry = 0
        self._prepare(request)
        self.view = make_view(self.request.strategy, self._room, None, (), ())

    def _prepare(self, request: Request) -> None:
        self.request = request
        self._room = request.make_widest_room()
        laid = ((load_compaction(one, self._room.count, request.marker), one) for one in self._past.summaries)
        self._summaries = {compaction.mark: one for compaction, one in laid}

    def advance(self, seq: int, summary: str, marker: str) -> None:
        """Bring the rebuilt view to the state of a later call.

        Args:
            seq: add entries up to and including this `seq`.
            summary: identifies the summary to use; an empty string means no summary.
            marker: random text that marks blocks written by Holdfast in the prompt.
        """
        self._extend(seq)
        now = self.view.summary.mark if self.view.summary else ""
        moved = (
            marker != self.request.marker
        )  # the session was imported later: earlier prompts had the marker of the original session
        if moved:
            self._prepare(self.request.with_marker(marker))
        if now != summary or moved:
            self._apply_summary(self._summaries.get(summary))

    def _apply_summary(self, one: StoredCompaction | None) -> None:
        """Rebuild the view so that it continues after a summary, as the original view did; None: from the beginning of the log."""
        strategy, room, before = self.request.strategy, self._room, self.view
        entries = self._past.entries[: self._entry]
        if one is None:
            self.view = make_view(strategy, room, None, (), entries)
        else:
            anchor = next((entry.seq for entry in entries if entry.kind == "user"), None)
            self.view = make_summarized_view(
                strategy, room, load_compaction(one, room.count, room.marker), entries, anchor=anchor
            )
        self.view.prefix_tracker, self.view.mark = before.prefix_tracker, before.mark

    def pass_call(self, call: ModelCall, record: BuildRecord) -> Window:
        """Bring the view to its state after `call`, and return the window of its prompt.

        Unlike `rebuild_call`, this does not write digests or messages, so it is faster.
        """
        self.advance(call.through, record.summary, record.marker)
        return self.view.make_window(self.request.make_room(record.limit))

    def rebuild_call(self, call: ModelCall, record: BuildRecord) -> WorkingSet:
        """Return the working set that was built for `call`, within its recorded budget."""
        self.advance(call.through, record.summary, record.marker)
        introduction = self._past.introductions.get(record.known, self.request.introduction)
        request = msgspec.structs.replace(self.request, introduction=introduction)
        # Other recalled items are not stored, and their tokens are not part of the conversation's budget.
        frozen = msgspec.structs.replace(
            request,
            input_budget=record.limit + request.count_overhead(),
            dialect=record.dialect,
            recall=self._rebuild_recall(record),
        )
        return build_from_view(frozen, self.view)

    def _rebuild_recall(self, record: BuildRecord) -> Recall:
        """Rebuild the block of earlier messages that the prompt quoted ("recalled"). Text that was erased since then is marked."""
        if not record.passages:
            return Recall()
        entries = {entry.seq: entry for entry in self._past.entries}
        items = [
            make_item(self._ref, entries.get(seq), Passage(seq, start, stop, 0.0), size=size)
            for seq, start, stop, size in record.passages
        ]
        return Recall(block=RecalledBlock.from_items(items, record.marker), searched=True)

    def _extend(self, seq: int) -> None:
        entries, end = self._past.entries, self._entry
        while end < len(entries) and entries[end].seq <= seq:
            end += 1
        self.view.extend(entries[self._entry : end])
        self._entry = end


class PromptLog(DepartureLog):
    """A `DepartureLog` that also keeps the prompt before the requested one.

    Attributes:
        before: the prompt before the requested one; None if there is none, or if `compare` is False.
    """

    def __init__(self, seqs: frozenset[int], *, compare: bool) -> None:
        super().__init__(seqs)
        self._traces, self._compares = bool(seqs), compare
        self.before: SentPrompt | None = None

    def replay(self, replay: _PromptReplay, calls: Sequence[tuple[ModelCall, BuildRecord]]) -> None:
        """Replay the calls before the requested prompt. Only the prompt of the last one is rebuilt completely."""
        before = None
        for call, record in calls[:-1]:
            window = replay.pass_call(call, record)
            if self._traces:
                now = PromptSnapshot.without_digest(window)
                refused = {s for s, one in find_refused(window, replay.request.upstream, {}).items() if not one.parts}
                self.note_window(call, window, refused, explain_departure(before, now, replay.request.strategy))
                before = now
        for call, record in calls[-1:]:
            built = replay.rebuild_call(call, record)
            why = explain_departure(before, PromptSnapshot.without_digest(built.window), built.request.strategy)
            self.note_window(call, built.window, built.refused, why)
            if self._compares:
                self.before = SentPrompt(call, divide_prompt(built, record), call.hash.hex() == built.hash)

    def use_before(self, replay: _PromptReplay, before: Preview) -> None:
        """Compare the next prompt with another prompt than the one that was replayed."""
        assert before.call is not None, "only prompts of recorded calls are compared"
        replay.view.prefix_tracker, replay.view.mark = before.built.view.prefix_tracker, before.built.view.mark
        if self._compares:
            self.before = SentPrompt(before.call, divide_prompt(before.built, before.record), is_exact=True)


def draft_after_last(request: Request, past: Past, look: PreviewRequest, ref: SessionRef, log: PromptLog) -> Draft:
    """Return a draft of the working set for the current log, with a comparison with the last prompt that was sent."""
    replay = _PromptReplay(request, past, ref)
    log.replay(replay, past.calls)
    if _may_have_other_pins(log.before, past):
        before = _rebuild_last(request, past, msgspec.structs.replace(look, compare=False), ref, past.calls)
        if before.is_exact:
            log.use_before(replay, before)
    live = load_compaction(past.live, request.count, request.marker).mark if past.live else ""
    replay.advance(past.entries[-1].seq if past.entries else -1, live, request.marker)
    return draft_from_view(request, replay.view)


def rebuild_turn(request: Request, past: Past, look: PreviewRequest, ref: SessionRef) -> Preview:
    """Return the prompt of the last model call of a turn.

    If there was no such call, or the newest message of that call has since left the live path, return the prompt that the turn would get
    now.
    """
    turn_id = look.at_turn
    assert turn_id is not None, "only past turns are rebuilt"
    before = _select_entries(past.entries, turn_id, look.through)
    upto = [(call, record) for call, record in past.calls if call.turn_id <= turn_id]
    if not upto or upto[-1][0].turn_id != turn_id or all(entry.seq != upto[-1][0].through for entry in past.entries):
        return Preview(build(request, None, (), before), entries=past.entries)
    found = _rebuild_last(request, past, look, ref, upto)
    if _may_have_other_pins(found.before, past):
        before_this = _rebuild_last(request, past, msgspec.structs.replace(look, compare=False), ref, upto[:-1])
        if before_this.is_exact:
            found = _replay_to(request, past._replace(entries=found.entries), look, ref, upto, before=before_this)
    return found


def _rebuild_last(request: Request, past: Past, look: PreviewRequest, ref: SessionRef, calls: Calls) -> Preview:
    """Return the prompt of the last of `calls`.

    The log does not record when messages were pinned. So the prompt is rebuilt with several guesses, until its hash is the recorded one. If
    no guess is exact, the result is the one that is closest to the record.
    """
    guessed: list[Preview] = []
    record = calls[-1][1]
    for entries in iter_pin_guesses(past.entries, calls[-1][0].through):
        guessed.append(_replay_to(request, past._replace(entries=entries), look, ref, calls))
        if guessed[-1].is_exact:
            return guessed[-1]
    return min(guessed, key=lambda found: measure_error(found.built, record))._replace(entries=past.entries)


def _replay_to(
    request: Request,
    past: Past,
    look: PreviewRequest,
    ref: SessionRef,
    calls: Calls,
    *,
    before: Preview | None = None,
) -> Preview:
    """Return the prompt of the last of `calls`, with the pins of `past`.

    Args:
        before: the prompt before, if it had other pins; None: it had the same.
    """
    log = PromptLog(look.trace, compare=look.compare)
    replay = _PromptReplay(request, past, ref)
    log.replay(replay, calls[:-1])
    if before is not None:
        log.use_before(replay, before)
    call, record = calls[-1]
    built = replay.rebuild_call(call, record)
    log.note(call, built)
    return Preview(built, call, record, entries=past.entries, departures=log.found, before=log.before)


def _may_have_other_pins(before: SentPrompt | None, past: Past) -> bool:
    """Return True if a prompt was perhaps not rebuilt exactly because messages were pinned at another time."""
    return before is not None and not before.is_exact and any(entry.pinned for entry in past.entries)


def _select_entries(entries: Sequence[Entry], turn_id: int, through: int | None) -> Sequence[Entry]:
    """Return the entries that existed at a model call of a turn.

    These are the entries up to `through` or, if it is None, all entries up to the turn without the reply that ended it.
    """
    before = [entry for entry in entries if entry.turn_id <= turn_id]
    if not before or before[-1].turn_id != turn_id:
        last = entries[-1].turn_id if entries else None
        there = "it has none yet" if last is None else f"the last one is {last}"
        raise InvalidRequest(f"the session has no turn {turn_id}: {there}", param="at_turn")
    if through is not None:
        return [entry for entry in before if entry.seq <= through]
    while before and before[-1].kind == "assistant" and before[-1].turn_id == turn_id:
        before.pop()
    return before


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
