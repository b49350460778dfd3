"""Messages that several sessions of a user share are found once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.domain.origins import EntryOrigin, Origin, find_copies, find_origin
from holdfast.recall.hits import Hit
from holdfast.stores.base import Store

LeaveOut = Callable[[str, int], bool]
"""Return True for an entry, by session and `seq`, that is not wanted."""


class _Look(NamedTuple):
    """The properties that an entry and its copies share in an index."""

    at: int
    role: str
    length: int
    name: str | None


async def drop_twins(
    store: Store, user_id: str, ranked: Sequence[Hit], *, leave_out: LeaveOut | None, not_session: str | None
) -> list[Hit]:
    """Return the hits, in order, of each shared message only the best one, without those that are left out.

    A message is left out in all sessions that share it. Reads nothing without `not_session`, unless several sessions have hits
    that look alike.

    Args:
        store: of the tenant.
        user_id: whose conversations.
        ranked: hits, best first.
        leave_out: see `LeaveOut`; None: all are wanted.
        not_session: a session whose messages are not wanted, and are not among the hits.
    """
    shared = await _load_origins(store, user_id, ranked, not_session)
    origins = [_origin(hit, shared) for hit in ranked]
    unwanted = shared.get(not_session or "", ())
    seen = {origin for hit, origin in zip(ranked, origins, strict=True) if origin and _is_left_out(hit, leave_out)}
    kept: list[Hit] = []
    for hit, origin in zip(ranked, origins, strict=True):
        if origin in seen or _is_left_out(hit, leave_out) or (origin and find_copies(unwanted, origin)):
            continue
        if origin is not None:
            seen.add(origin)
        kept.append(hit)
    return kept


def _is_left_out(hit: Hit, leave_out: LeaveOut | None) -> bool:
    return leave_out is not None and leave_out(hit.candidate.session, hit.candidate.seq)


async def _load_origins(
    store: Store, user_id: str, ranked: Sequence[Hit], not_session: str | None
) -> Mapping[str, Sequence[Origin]]:
    """Return the origins of the sessions that may share a hit with another one."""
    sessions: dict[_Look, set[str]] = {}
    for hit in ranked:
        sessions.setdefault(_look_of(hit), {not_session} if not_session else set()).add(hit.candidate.session)
    alike = {id_ for several in sessions.values() if len(several) > 1 for id_ in several}
    return await store.origins(user_id, alike) if alike else {}


def _origin(hit: Hit, shared: Mapping[str, Sequence[Origin]]) -> EntryOrigin | None:
    """Return the origin of a hit; None if its session shares nothing."""
    found = hit.candidate
    return find_origin(shared[found.session], found.seq) if found.session in shared else None


def _look_of(hit: Hit) -> _Look:
    found = hit.candidate
    return _Look(found.at, found.role, found.length, found.name)
