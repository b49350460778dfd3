"""What belongs to a tenant and to no session: leases, and what was learned of models."""

from __future__ import annotations

from typing import Final

from holdfast.limits import LEARNED_MODELS
from holdfast.stores.logic.rows import text_of
from holdfast.stores.logic.steps import Query, Steps

_STALE: Final = 3_600_000
"""Milliseconds after which an expired lease is forgotten: a caller whose clock is ahead must not forget those in use."""


def lease(tenant: str, name: str, holder: str, now: int, until: int) -> Steps[bool]:
    """See `Store.lease`. One statement takes it or does not; the next one only looks who has it."""
    yield Query("lease_put", (tenant, name, holder, until, now))
    rows = yield Query("lease_get", (tenant, name))
    yield Query("leases_clean", (tenant, now - _STALE))
    return text_of(rows[0][0]) == holder


def leased_by(tenant: str, name: str, now: int) -> Steps[str | None]:
    """See `Store.leased_by`."""
    rows = yield Query("lease_get", (tenant, name))
    return text_of(rows[0][0]) if rows and rows[0][1] > now else None


def release(tenant: str, name: str, holder: str) -> Steps[None]:
    """See `Store.release`."""
    yield Query("lease_delete", (tenant, name, holder))


def learn(tenant: str, model: str, data: bytes, timestamp: int, expect: bytes | None) -> Steps[bool]:
    """See `Store.learn`."""
    rows = yield Query("learned_get", (tenant, model))
    if (rows[0][0] if rows else None) != expect:
        return False
    yield Query("learned_new" if expect is None else "learned_put", (tenant, model, timestamp, data))
    if expect is None:
        yield Query("learned_trim", (tenant, LEARNED_MODELS))
    return True
