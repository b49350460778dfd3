"""A caller that wants the turn which another one has open."""

from __future__ import annotations

from holdfast.domain.session import SessionRef
from holdfast.stores.logic.reads import session_row
from holdfast.stores.logic.steps import Query, Steps


def want(tenant: str, ref: SessionRef, holder: str) -> Steps[None]:
    """See `Store.want`."""
    row = yield from session_row(tenant, ref)
    yield Query("claim_want", (row[0], holder))
