"""Who has a turn of a session open, and what a write makes of that."""

from __future__ import annotations

from typing import Final

from holdfast.domain.session import Claim, Session, SessionRef
from holdfast.errors import SessionBusy
from holdfast.liveness import is_alive
from holdfast.stores.log import Append
from holdfast.stores.logic.reads import session_row
from holdfast.stores.logic.steps import Query, Steps

STALLED: Final = 25_000
"""Milliseconds that an expired claim still holds if its process is running on this host."""


def held_until(claim: Claim, now: int) -> int:
    """Return until when a claim keeps other turns out, as far as is known now; milliseconds since the epoch.

    Its holder may be slow: a blocked event loop, or a process that was stopped for a moment, renews nothing. On its own host
    that can be told from a dead one, so its turn keeps the session for longer.
    """
    is_slow = claim.until <= now < claim.until + STALLED and is_alive(claim.holder)
    return claim.until + STALLED if is_slow else claim.until


def claimed(session: Session, write: Append) -> Claim | None:
    """The session's claim behind `write`. Raises `SessionBusy`."""
    claim = session.claim if write.claim is None else _taken(session, write.claim, write.timestamp)
    return None if claim is not None and claim.holder == write.release else claim


def _taken(session: Session, new: Claim, timestamp: int) -> Claim:
    old = session.claim
    if old is None or old.holder != new.holder:
        if old is not None and (until := held_until(old, timestamp)) > timestamp:
            raise SessionBusy(session.id, until=until)
        return new
    # Who renews may not have heard yet that it is wanted.
    return Claim(new.holder, new.until, new.wanted or old.wanted)


def want(tenant: str, ref: SessionRef, holder: str) -> Steps[None]:
    """See `Store.want`."""
    row = yield from session_row(tenant, ref)
    yield Query("claim_want", (row[0], holder))
