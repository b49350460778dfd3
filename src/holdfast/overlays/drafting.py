"""One summary on its way: what is read for it, what it covers, and the compaction and view that come of it.

Reads the store and stores nothing: when one is made, and by whom, is `holdfast.overlays.compacting`'s affair.
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
    compaction_of,
    lost,
    plan,
    room_for_text,
    stored_compaction,
    summarized,
    texts_of,
)
from holdfast.context.units import units_of
from holdfast.context.view import FoldedView, encode_state
from holdfast.context.window import Room, Window
from holdfast.domain.session import Entry, NewCompaction, Session, SessionRef, StoredCompaction
from holdfast.overlays.session_cache import ReadView, is_heavy, read_view
from holdfast.overlays.summarizers import Draft, Reading, Spent, Writer, allowed, capacity
from holdfast.stores.base import Store
from holdfast.stores.log import SavedView

_CALLS: Final = 8
"""Most calls for which what the digest covered is read from the log again; a longer part goes in as its digest."""
_FUNCTION_TOKENS: Final = 500_000
"""The same for somebody's own function, in tokens."""
_GAP_ENTRIES: Final = 5_000
"""Most entries of that part."""
_SHOWN_IDENTIFIER: Final = 200
"""Characters of a lost identifier in a report."""

Manner = Literal["after", "inline", "asked"]
"""Why a summary is made: after a turn, because the next call would not fit, or because somebody asks."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One summary to be made."""

    ref: SessionRef
    key: str
    """Of the view."""
    request: Request
    """What the view's working sets are built for."""
    how: Strategy
    """When one is due and how far it goes: the view's own strategy, or what somebody asked for."""
    writer: Writer
    manner: Manner
    preview: bool = False

    def room(self, strategy: Strategy) -> Room:
        """What a window may use. Raises `BudgetTooSmall`."""
        request = msgspec.structs.replace(self.request, strategy=strategy)
        return request.room(request.limit(request.overhead()))


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A view as it was read, and what a summary of it would cover."""

    session: Session
    entries: Sequence[Entry]
    """What the view keeps of what is before its frontier, and the live path from there on."""
    live: StoredCompaction | None
    window: Window
    plan: Plan


async def found(store: Store, job: Job) -> Found | None:
    """What is to be summarized; None when nothing is, or is worth it.

    Raises:
        Conflict: the log changed again and again.
        BudgetTooSmall: system prompt and tools leave no room.
        SessionNotFound: it is gone.
    """
    read = await read_view(store, job.ref, job.key)
    room = job.room(job.how)
    window = await run_cpu(lambda: _unsettled(job.request.strategy, room, read), long=is_heavy(read.entries))
    planned = plan(window, job.how, forced=job.manner == "asked")
    if planned is None:
        return None
    entries = (*read.head, *read.entries)
    return Found(session=read.session, entries=entries, live=read.live, window=window, plan=planned)


def _unsettled(made: Strategy, room: Room, read: ReadView) -> Window:
    """The view's window with all that the log has, as it is before its strategy would make it shorter."""
    still = Strategy(
        name="none", bounded=False, anchored=made.anchored, condense=made.condense, perspective=made.perspective
    )
    if read.state is None and read.live is not None:
        summary = stored_compaction(read.live, room.count, room.marker)
        return summarized(still, room, summary, read.entries, anchor=read.session.tail.anchor).window(room)
    return FoldedView(still, room, read.state, read.head, read.entries).window(room)


async def reading(store: Store, job: Job, seen: Found) -> Reading:
    """What is to be read: what will be covered, what the digest covers as far as it can be read, the earlier summary.

    Raises:
        Unwritten: the writer has no room for anything.
    """
    made, count = seen.plan, job.request.count
    text_tokens = room_for_text(made.first(made.units), made.last, made.allowance, count, job.request.marker)
    read = Reading(
        units=made.units,
        earlier=seen.live.text if made.earlier is not None and seen.live is not None else None,
        tokens=allowed(job.writer, text_tokens),
        count=count,
        prompt=job.how.prompt or PROMPT,
    )
    if made.gap is None:
        return read
    most = capacity(job.writer, read, _CALLS)
    kept, whole = await _gap(store, job, made.gap, _FUNCTION_TOKENS if most is None else int(most / count.factor))
    gap = job.request.strategy.seen(units_of(entry for entry in kept if entry.seq not in made.apart))
    units = sorted((*made.units, *gap), key=lambda unit: unit.first)
    told = [read.earlier, None if whole or made.digest is None else made.digest.text]
    return msgspec.structs.replace(read, units=units, earlier="\n".join(filter(None, told)) or None)


async def _gap(store: Store, job: Job, gap: tuple[int, int], tokens: int) -> tuple[list[Entry], bool]:
    """The entries of a gap, the newest ones that take so many tokens; and whether these are all."""
    entries = await store.entries(job.ref, start=gap[0], stop=gap[1], limit=_GAP_ENTRIES, descending=True)
    kept: list[Entry] = []
    for entry in entries:
        tokens -= entry.tokens
        if tokens < 0:
            break
        kept.append(entry)
    return kept[::-1], len(kept) == len(entries) < _GAP_ENTRIES


def attempt(job: Job, seen: Found, spent: Spent, now: int) -> NewCompaction:
    """What is known of a compaction before there is a text."""
    return NewCompaction(
        view=job.key,
        first=seen.plan.first(seen.plan.units),
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


def composed(
    job: Job, seen: Found, read: Reading, draft: Draft, begun: NewCompaction
) -> tuple[NewCompaction, SavedView]:
    """The compaction, and the view that goes on with it."""
    made, count = seen.plan, job.request.count
    first = made.first(read.units)
    marker = job.request.marker
    summary = compaction_of(draft.text, first=first, last=made.last, total=made.total, count=count, marker=marker)
    earlier = made.earlier.tokens if made.earlier else 0
    new = msgspec.structs.replace(
        begun,
        first=first,
        text=draft.text,
        tokens=summary.tokens,
        source_tokens=sum(entry.tokens for unit in read.units for entry in unit.entries) + earlier,
        report=_report(seen, read, draft),
    )
    anchor, room = seen.session.tail.anchor, job.room(job.request.strategy)
    candidates = seen.window.candidates
    view = summarized(job.request.strategy, room, summary, seen.entries, anchor=anchor, candidates=candidates)
    state = view.state()
    return new, SavedView(state.frontier, encode_state(state), state.keep, seen.session.version)


def _report(seen: Found, read: Reading, draft: Draft) -> dict[str, Any]:
    """What is known of a summary's quality."""
    before = [*texts_of(read.units), *([read.earlier] if read.earlier else [])]
    gone = lost(before, [draft.text, *texts_of(seen.plan.rest)])
    return {
        "lost_identifiers": [word[:_SHOWN_IDENTIFIER] for word in gone.named],
        "lost": gone.count,
        "chunks": draft.chunks,
        "cut": draft.cut,
    }
