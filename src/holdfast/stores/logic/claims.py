"""Who has a turn of a session open, and what a write makes of that."""

from __future__ import annotations

from holdfast.domain.session import Claim, Session, SessionRef
from holdfast.errors import SessionBusy
from holdfast.stores.base import Append
from holdfast.stores.logic.reads import session_row
from holdfast.stores.logic.steps import Query, Steps


def claimed(session: Session, write: Append) -> Claim | None:
    """The session's claim behind `write`. Raises `SessionBusy`."""
    claim = session.claim if write.claim is None else _taken(session, write.claim, write.timestamp)
    return None if claim is not None and claim.holder == write.release else claim


def _taken(session: Session, new: Claim, timestamp: int) -> Claim:
    old = session.claim
    if old is None or old.holder != new.holder:
        if old is not None and old.until > timestamp:
            raise SessionBusy(session.id, until=old.until)
        return new
    # Who renews may not have heard yet that it is wanted.
    return Claim(new.holder, new.until, new.wanted or old.wanted)


def want(tenant: str, ref: SessionRef, holder: str) -> Steps[None]:
    """See `Store.want`."""
    row = yield from session_row(tenant, ref)
    yield Query("claim_want", (row[0], holder))
