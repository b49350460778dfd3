"""What is asked of digests: where they stand, in the logs of a user."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.session import SessionRef
from holdfast.stores.logic.rows import array_of, sighting_of
from holdfast.stores.logic.steps import Query, Steps
from holdfast.stores.matching import Sighting, key_of, scope_of


def sightings(
    tenant: str, user_id: str, marks: Sequence[bytes], *, alias: bool, session: SessionRef | None, limit: int
) -> Steps[tuple[Sighting, ...]]:
    """See `MatchingStore.sightings`. A digest is compared too: keys may meet by chance."""
    pk = None
    if session is not None and marks:
        rows = yield Query("session_get", (tenant, session.id, session.user_id, session.withdrawn))
        if not rows or session.user_id != user_id:
            return ()
        pk = rows[0][0]
    scope = scope_of(tenant, user_id)
    keys = [key_of(scope, mark) for mark in marks]
    if not keys:
        return ()
    wanted = keys if alias else [[key, mark.hex()] for key, mark in zip(keys, marks, strict=True)]
    found = yield Query("alias_last" if alias else "mark_last", (tenant, user_id, pk, array_of(wanted)))
    at = found[0][0]
    if at is None:
        return ()
    if alias:
        rows = yield Query("alias_places", (tenant, user_id, pk, keys[at], limit))
    else:
        rows = yield Query("mark_places", (tenant, user_id, pk, keys[at], limit, marks[at]))
    return tuple(sighting_of(user_id, at, row) for row in rows)


def endings(tenant: str, user_id: str, marks: Sequence[bytes], limit: int) -> Steps[tuple[Sighting, ...]]:
    """Find the sessions whose live path ends with the last of `marks` that any live path ends with."""
    if not marks:
        return ()
    at = (yield Query("end_last", (tenant, user_id, array_of(mark.hex() for mark in marks))))[0][0]
    if at is None:
        return ()
    rows = yield Query("end_places", (tenant, user_id, marks[at], limit))
    return tuple(sighting_of(user_id, at, row) for row in rows)
