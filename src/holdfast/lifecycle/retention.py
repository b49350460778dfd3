"""Find closed sessions whose retention time is over, and preview what the rules for sessions would do now, without doing it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from holdfast.domain.session import Session
from holdfast.lifecycle.expiry import SessionLifecycle
from holdfast.limits import PREVIEWED_SESSIONS
from holdfast.stores.base import Store
from holdfast.stores.walk import iterate_session_pages

_PAGE: Final = 100


class DueSessions(msgspec.Struct, frozen=True):
    """A bounded count of sessions."""

    count: int
    more: bool = False
    """True if there may be more sessions than `count`."""


class RetentionPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions that a sweep would end or delete now."""

    active: int
    """Active sessions of the tenant, expired ones included."""
    expired: DueSessions
    """Active sessions that were idle for longer than their ttl."""
    surplus: DueSessions
    """Active sessions above the maximum number, without expired ones."""
    retired: DueSessions
    """Closed sessions whose retention time is over."""


async def preview_retention(life: SessionLifecycle, now: int) -> RetentionPreview:
    """Count the sessions that a sweep would end or delete at the time `now`, in milliseconds since the epoch."""
    active = await life.store.active()
    idle = await life.store.idle(limit=PREVIEWED_SESSIONS, **life.get_expiry_filters())
    expired = DueSessions(len(idle), more=len(idle) == PREVIEWED_SESSIONS)
    return RetentionPreview(
        active=active,
        expired=expired,
        surplus=_count_surplus(active, expired, life.settings.max_sessions),
        retired=await _count_retired(life, now - life.settings.retention),
    )


def _count_surplus(active: int, expired: DueSessions, most: int) -> DueSessions:
    """Count the active sessions above the maximum `most`, of which 0 means no limit, after the expired ones have ended."""
    surplus = max(0, active - expired.count - most) if most else 0
    # Expired sessions that were not counted may be all that is above the maximum.
    return DueSessions(0, more=True) if surplus and expired.more else DueSessions(surplus)


async def _count_retired(life: SessionLifecycle, until: int) -> DueSessions:
    """Count closed sessions that were not changed, used or ended after `until`, among the `PREVIEWED_SESSIONS` oldest ones."""
    if not life.settings.retention:
        return DueSessions(0)
    count = examined = 0
    async for retired in iterate_retired_sessions(life.store, until, size=_PAGE):
        if examined >= PREVIEWED_SESSIONS:
            return DueSessions(count, more=True)
        count += len(retired)
        examined += _PAGE
    return DueSessions(count)


async def iterate_retired_sessions(store: Store, until: int, *, size: int) -> AsyncIterator[Sequence[Session]]:
    """Yield the closed sessions that were not changed, used or ended after `until`, one list for each page of closed sessions.

    The caller may delete the sessions of a list before it asks for the next one.

    Args:
        store: the handle of the tenant.
        until: milliseconds since the epoch.
        size: number of sessions per page.
    """
    async for page in iterate_session_pages(store, size=size, status="closed"):
        # A session that was imported with its past can have been used after it ended.
        yield [one for one in page if max(one.accessed_at, one.ended_at or 0, one.updated_at) <= until]
        if page[-1].updated_at > until:
            return
