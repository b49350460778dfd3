"""Find closed sessions whose retention time is over, and preview what the rules for sessions would do now, without doing it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from holdfast.domain.objects import Count
from holdfast.domain.session import Session
from holdfast.lifecycle.expiry import SessionLifecycle
from holdfast.limits import PREVIEWED_SESSIONS
from holdfast.stores.base import Store
from holdfast.stores.walk import iterate_session_pages

_PAGE: Final = 100


class DueCount(msgspec.Struct, frozen=True):
    """A bounded count of sessions."""

    count: Count
    more: bool = False
    """True if there may be more sessions than `count`."""


class RetentionPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions that a sweep would end or delete now."""

    active: Count
    """Number of active sessions, expired ones included."""
    expired: DueCount
    """Active sessions that would end now, because they were idle for too long. At most 1,000 are counted."""
    surplus: DueCount
    """Active sessions that would end now, because there are too many. If not all expired sessions are counted, the number is unknown: 0,
    and `more` is true."""
    retired: DueCount
    """Closed sessions that would be deleted now. The oldest 1,000 closed sessions are examined."""


async def preview_retention(life: SessionLifecycle, now: int) -> RetentionPreview:
    """Count the sessions that a sweep would end or delete at the time `now`, in milliseconds since the epoch."""
    active = await life.store.active()
    idle = await life.store.idle(limit=PREVIEWED_SESSIONS, **life.get_expiry_filters())
    expired = DueCount(len(idle), more=len(idle) == PREVIEWED_SESSIONS)
    surplus = max(0, active - expired.count - life.settings.max_sessions) if life.settings.max_sessions else 0
    # Expired sessions that were not counted may be all that is above the maximum.
    return RetentionPreview(
        active=active,
        expired=expired,
        surplus=DueCount(0, more=True) if surplus and expired.more else DueCount(surplus),
        retired=await _count_retired(life, now - life.settings.retention),
    )


async def _count_retired(life: SessionLifecycle, until: int) -> DueCount:
    """Count closed sessions that were not changed, used or ended after `until`, among the `PREVIEWED_SESSIONS` oldest ones."""
    if not life.settings.retention:
        return DueCount(0)
    count = examined = 0
    async for retired in iterate_retired_sessions(life.store, until, size=_PAGE):
        if examined >= PREVIEWED_SESSIONS:
            return DueCount(count, more=True)
        count += len(retired)
        examined += _PAGE
    return DueCount(count)


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
