"""The origins of entries: kept with a session that is a copy, and looked up by the session that was copied."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.domain.origins import Origin, origins_or_own
from holdfast.domain.session import SessionRef
from holdfast.errors import SessionNotFound
from holdfast.stores.logic.reads import session_row
from holdfast.stores.logic.rows import array_of, session_of, text_of
from holdfast.stores.logic.steps import Many, Query, Rows, Steps


def share(tenant: str, ref: SessionRef, identity: str) -> Steps[None]:
    """See `MatchingStore.share`."""
    row = yield from session_row(tenant, ref)
    if session_of(row).identity != identity:
        raise SessionNotFound(ref.id)
    if not (yield Query("origins_named", (tenant, ref.user_id, _hex_array([ref.id])))):
        yield from keep(row[0], origins_or_own((), identity))


def keep(pk: int, origins: Sequence[Origin]) -> Steps[None]:
    """Note the origins of a session that has none."""
    if origins:
        yield Many("origin_insert", [(pk, one.first, one.source, one.source_first) for one in origins])


def origins(tenant: str, user_id: str, sessions: Collection[str]) -> Steps[Mapping[str, Sequence[Origin]]]:
    """See `MatchingStore.origins`."""
    if not sessions:
        return {}
    return _by_session((yield Query("origins_named", (tenant, user_id, _hex_array(sorted(set(sessions)))))))


def sharing(tenant: str, user_id: str, source: str) -> Steps[Mapping[str, Sequence[Origin]]]:
    """See `MatchingStore.sharing`."""
    return _by_session((yield Query("origins_sharing", (tenant, user_id, source))))


def _by_session(rows: Rows) -> dict[str, list[Origin]]:
    found: dict[str, list[Origin]] = {}
    for id_, first, source, source_first in rows:
        found.setdefault(text_of(id_), []).append(Origin(first, text_of(source), source_first))
    return found


def _hex_array(ids: Collection[str]) -> str:
    return array_of(id_.encode().hex() for id_ in ids)
