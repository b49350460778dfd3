"""Prepare and complete one summary: choose its messages, read the summarizer's input, and build the stored record.

A *digest* is a text made without a model that replaces older messages in the prompt. If the prompt already contains a digest, the
messages that the digest replaces are read from the log again, and are summarized too.

This module reads from the store, but writes nothing. `holdfast.overlays.compactor` decides when a summary is made, and stores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Llm
from holdfast.context.build import Request
from holdfast.context.strategies import Strategy
from holdfast.context.summaries import (
    PROMPT,
    Plan,
    collect_texts,
    count_room_for_text,
    find_lost,
    load_compaction,
    make_compaction,
    make_summarized_view,
    plan_summary,
)
from holdfast.context.units import group_units
from holdfast.context.view import FoldedView, encode_state
from holdfast.context.window import Room, Window
from holdfast.domain.session import Entry, NewCompaction, Session, SessionRef, StoredCompaction
from holdfast.overlays.session_cache import ReadView, is_heavy, read_view
from holdfast.overlays.summarizers import (
    Draft,
    SummaryCost,
    SummaryInput,
    Writer,
    compute_capacity,
    compute_summary_tokens,
)
from holdfast.stores.base import Store
from holdfast.stores.log import SavedView

_CALLS: Final = 8
"""Maximum number of model calls for which messages replaced by a digest are read from the log again. If the messages need more calls,
the model reads only the newest messages, together with the digest.
"""
_FUNCTION_TOKENS: Final = 500_000
"""Maximum tokens of messages replaced by a digest that are read from the log again, if a user-defined function writes the summary."""
_GAP_ENTRIES: Final = 5_000
"""Maximum number of entries replaced by a digest that are read from the log again."""
_SHOWN_IDENTIFIER: Final = 200
"""Maximum number of characters of each lost identifier in the report about a summary."""

Trigger = Literal["after", "inline", "asked"]
"""Reason for a summary. `after`: one was due after a turn. `inline`: the next call would not fit. `asked`: a client requested it."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The task to make one summary of a session."""

    ref: SessionRef
    key: str
    """Key of the view that is summarized."""
    request: Request
    """The request for which working sets of the view are built."""
    how: Strategy
    """Strategy that decides if a summary is due and which messages it covers. It is the strategy of the view, or one made from a
    client's options.
    """
    writer: Writer
    trigger: Trigger
    preview: bool = False

    def compute_room(self, strategy: Strategy) -> Room:
        """Return the token limit of a prompt that is built with `strategy`.

        Raises:
            BudgetTooSmall: System prompt and tools leave no tokens for the conversation.
        """
        request = msgspec.structs.replace(self.request, strategy=strategy)
        return request.make_widest_room()


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A session's view as read from the store, and the messages that are to be summarized."""

    session: Session
    entries: Sequence[Entry]
    """The live entries from the view's frontier to the end of the log, after the earlier entries that prompts still contain."""
    live: StoredCompaction | None
    window: Window
    plan: Plan


async def find_source(store: Store, job: Job) -> Source | None:
    """Read the view of a job, and choose the messages to summarize. Return None if there are no or too few messages.

    Raises:
        Conflict: The log changed repeatedly while it was read.
        BudgetTooSmall: System prompt and tools leave no tokens for the conversation.
        SessionNotFound: The session does not exist any more.
    """
    read = await read_view(store, job.ref, job.key)
    room = job.compute_room(job.how)
    window = await run_cpu(lambda: _make_full_window(job.request.strategy, room, read), long=is_heavy(read.entries))
    planned = plan_summary(window, job.how, forced=job.trigger == "asked")
    if planned is None:
        return None
    entries = (*read.head, *read.entries)
    return Source(session=read.session, entries=entries, live=read.live, window=window, plan=planned)


def _make_full_window(made: Strategy, room: Room, read: ReadView) -> Window:
    """Return the messages of a view without applying a token limit.

    The result contains all messages that earlier prompts did not leave out.
    """
    unbounded = Strategy(
        name="none", bounded=False, anchored=made.anchored, condense=made.condense, perspective=made.perspective
    )
    if read.state is None and read.live is not None:
        summary = load_compaction(read.live, room.count, room.marker)
        return make_summarized_view(
            unbounded, room, summary, read.entries, anchor=read.session.tail.anchor
        ).make_window(room)
    return FoldedView(unbounded, room, read.state, read.head, read.entries).make_window(room)


async def read_source(store: Store, job: Job, seen: Source) -> SummaryInput:
    """Return the input of the summarizer: the previous summary, and the messages that the new summary replaces.

    If a digest is in use, the messages that it replaced are added, the newest ones first, as many as the summarizer can read. If some
    of them cannot be added, the digest itself is included.

    Raises:
        SummaryError: The context window of the summarizer is too small.
    """
    made, count = seen.plan, job.request.count
    text_tokens = count_room_for_text(made.find_first(made.units), made.last, made.allowance, count, job.request.marker)
    read = SummaryInput(
        units=made.units,
        earlier=seen.live.text if made.earlier is not None and seen.live is not None else None,
        tokens=compute_summary_tokens(job.writer, text_tokens),
        count=count,
        prompt=job.how.prompt or PROMPT,
    )
    if made.gap is None:
        return read
    most = compute_capacity(job.writer, read, _CALLS)
    kept, whole = await _read_gap(store, job, made.gap, _FUNCTION_TOKENS if most is None else int(most / count.factor))
    gap = job.request.strategy.view_units(group_units(entry for entry in kept if entry.seq not in made.apart))
    units = sorted((*made.units, *gap), key=lambda unit: unit.first)
    texts = [read.earlier, None if whole or made.digest is None else made.digest.text]
    return msgspec.structs.replace(read, units=units, earlier="\n".join(filter(None, texts)) or None)


async def _read_gap(store: Store, job: Job, gap: tuple[int, int], tokens: int) -> tuple[list[Entry], bool]:
    """Return the newest entries of a range with at most `tokens` tokens, and True if these are all entries of the range.

    Args:
        store: The store.
        job: The job.
        gap: First `seq` and end `seq` (exclusive) of the range.
        tokens: Maximum tokens of the entries.
    """
    entries = await store.entries(job.ref, start=gap[0], stop=gap[1], limit=_GAP_ENTRIES, descending=True)
    kept: list[Entry] = []
    for entry in entries:
        tokens -= entry.tokens
        if tokens < 0:
            break
        kept.append(entry)
    return kept[::-1], len(kept) == len(entries) < _GAP_ENTRIES


def make_attempt(job: Job, seen: Source, spent: SummaryCost, now: int) -> NewCompaction:
    """Return the record of a summary before its text is written. It is stored if the attempt fails."""
    return NewCompaction(
        view=job.key,
        first=seen.plan.find_first(seen.plan.units),
        last=seen.plan.last,
        kind="summary",
        text="",
        tokens=0,
        source_tokens=seen.plan.source_tokens,
        total=seen.plan.total,
        model=(job.writer.model if isinstance(job.writer, Llm) else job.writer.name)[:100],
        created_at=now,
        through=seen.session.tail.last_seq,
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        built_at=seen.session.version,
    )


def compose(
    job: Job, seen: Source, read: SummaryInput, draft: Draft, begun: NewCompaction
) -> tuple[NewCompaction, SavedView]:
    """Return the record of the completed summary, and the view that contains the summary. The next turns use this view.

    Args:
        job: The job.
        seen: The messages that are summarized, from `find_source`.
        read: The input of the summarizer.
        draft: The written summary.
        begun: The record without a text, from `make_attempt`.
    """
    plan, count = seen.plan, job.request.count
    first = plan.find_first(read.units)
    marker = job.request.marker
    summary = make_compaction(draft.text, first=first, last=plan.last, total=plan.total, count=count, marker=marker)
    earlier = plan.earlier.tokens if plan.earlier else 0
    new = msgspec.structs.replace(
        begun,
        first=first,
        text=draft.text,
        tokens=summary.tokens,
        source_tokens=sum(entry.tokens for unit in read.units for entry in unit.entries) + earlier,
        report=_make_report(seen, read, draft),
    )
    anchor, room = seen.session.tail.anchor, job.compute_room(job.request.strategy)
    candidates = seen.window.candidates
    view = make_summarized_view(job.request.strategy, room, summary, seen.entries, anchor=anchor, candidates=candidates)
    state = view.to_state()
    return new, SavedView(state.frontier, encode_state(state), state.keep, seen.session.version)


def _make_report(seen: Source, read: SummaryInput, draft: Draft) -> dict[str, Any]:
    """Return a report on the quality of a summary.

    It contains the number of chunks, `cut`, and identifiers from the summarized messages that the new prompt does not contain.
    """
    before = [*collect_texts(read.units), *([read.earlier] if read.earlier else [])]
    missing = find_lost(before, [draft.text, *collect_texts(seen.plan.rest)])
    return {
        "lost_identifiers": [word[:_SHOWN_IDENTIFIER] for word in missing.named],
        "lost": missing.count,
        "chunks": draft.chunks,
        "cut": draft.cut,
    }
