"""Describe sessions for lists: first line, state, last prompt, expiry. Sort them by other fields than the last use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.context.parts import decode_record
from holdfast.domain.session import Session
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError
from holdfast.limits import SORTED_SESSIONS
from holdfast.stores.session_changes import is_claimed

SessionState = Literal["active", "busy", "closed", "expired"]
"""State of a session: `busy` while a turn is running, `expired` if it was closed because it was idle for too long, or there were too many."""
SortKey = Literal["updated_at", "turns", "tokens", "sent_tokens", "cached_share"]
FIRST_LINE_CHARS: Final = 200
_READ_CHARS: Final = 4 * FIRST_LINE_CHARS
_READERS: Final = 8
"""Sessions that are read at the same time."""


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list."""

    session: Session
    state: SessionState
    first_line: str
    """First line of the task, at most `FIRST_LINE_CHARS` characters; empty if there is none."""
    prompt_tokens: int | None
    """Tokens of the last prompt, as reported by the provider; None: there was no prompt, or the provider did not report it."""
    cached_share: float | None
    """Fraction of all prompt tokens that the provider read from its cache; None: no usage is known."""
    compactions: int
    """Number of stored summaries that are or were in use."""
    frontier: int
    """`seq` before which the last prompt had no messages verbatim, except pinned ones and the task; 0: it had all messages."""
    expires_at: int | None
    """Time at which the session expires if it is not used, in milliseconds since the epoch; None: never, or it has ended."""


async def summarize_sessions(engine: Engine, sessions: Sequence[Session]) -> list[SessionSummary]:
    """Return summaries of sessions. Three small reads per session, of a few sessions at a time.

    A session that cannot be read, for example because it was deleted meanwhile, has a summary without its content.
    """
    readers = asyncio.Semaphore(_READERS)

    async def summarize(session: Session) -> SessionSummary:
        async with readers:
            return await _summarize(engine, session)

    return list(await asyncio.gather(*map(summarize, sessions)))


async def _summarize(engine: Engine, session: Session) -> SessionSummary:
    line, prompt_tokens, compactions, frontier = "", None, 0, 0
    try:
        line = await _read_first_line(engine, session)
        if session.usage.calls:
            calls = await engine.store.calls(session.ref, limit=1)
            record = decode_record(calls[0].build) if calls else None
            prompt_tokens = (calls[0].prompt_tokens if calls else 0) or None
            frontier = record.frontier if record is not None else 0
            found = await engine.store.compactions(session.ref)
            compactions = sum(one.status in ("live", "superseded") for one in found)
    except HoldfastError:
        pass  # it was deleted meanwhile, or is damaged
    return SessionSummary(
        session=session,
        state=find_state(engine, session),
        first_line=line,
        prompt_tokens=prompt_tokens,
        cached_share=compute_cached_share(session),
        compactions=compactions,
        frontier=frontier,
        expires_at=find_expiry_time(engine, session),
    )


async def _read_first_line(engine: Engine, session: Session) -> str:
    anchor = session.tail.anchor
    if anchor is None:
        return ""
    entries = await engine.store.entries(session.ref, start=anchor, stop=anchor + 1)
    lines = entries[0].message.text[:_READ_CHARS].strip().splitlines() if entries else []
    return lines[0][:FIRST_LINE_CHARS] if lines else ""


def find_state(engine: Engine, session: Session) -> SessionState:
    """Return the state of a session, as stored in `session` and as known to this process."""
    if engine.is_busy(session.ref) or is_claimed(session, engine.clock()):
        return "busy"
    if session.status == "closed":
        return "expired" if session.end_reason in ("ttl", "cap") else "closed"
    return "active"


def find_expiry_time(engine: Engine, session: Session) -> int | None:
    """Return the time at which an active session expires if it is not used; None if it never expires or has ended."""
    settings = engine.life.settings
    own = settings.session_ttl if session.ttl is None else session.ttl
    is_endless = session.status != "active" or settings.still or not own
    return None if is_endless else session.accessed_at + own


def compute_cached_share(session: Session) -> float | None:
    """Return the fraction of the session's prompt tokens that providers read from their caches; None if no usage is known."""
    usage = session.usage
    return usage.cached_tokens / usage.prompt_tokens if usage.prompt_tokens else None


_SORT_KEYS: Final[Mapping[SortKey, Callable[[Session], float]]] = {
    "updated_at": lambda session: session.updated_at,
    "turns": lambda session: session.turns,
    "tokens": lambda session: session.tokens,
    "sent_tokens": lambda session: session.usage.prompt_tokens,
    "cached_share": lambda session: compute_cached_share(session) or 0.0,
}


async def sort_sessions(
    engine: Engine, by: SortKey, *, descending: bool = True, **filters: Any
) -> tuple[list[Session], bool]:
    """Return the newest sessions that match filters, sorted by a field.

    Args:
        engine: the engine of the tenant.
        by: the field.
        descending: True: the largest value comes first.
        filters: filters of `Store.list`.

    Returns:
        At most `SORTED_SESSIONS` sessions, and whether there are older ones that were not considered.
    """
    page = await engine.store.list(**filters, limit=SORTED_SESSIONS)
    return sorted(page.sessions, key=_SORT_KEYS[by], reverse=descending), page.has_more
