"""The statements about the origins of entries, on a working copy.

Each user has one hash of them: the ranges of a session, as JSON, under its name. Only sessions that share entries are in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.domain.origins import Origin
from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.redis.keys import names_of
from holdfast.stores.redis.work import State, Work

_decode: Final = msgspec.json.Decoder(list[Origin]).decode
_ids: Final = msgspec.json.Decoder(list[str]).decode


def origin_insert(work: Work, state: State, first: int, source: str, source_first: int) -> None:
    """One more range of a session."""
    ranges = work.overlay.setdefault(("origins", state), [])
    if ranges:
        work.commands.pop()  # wrote the ranges before this one
    ranges.append(Origin(first, source, source_first))
    work.do("HSET", state.keys.shared, state.keys.field, msgspec.json.encode(ranges))


def origins_named(work: Work, tenant: str, user_id: str, ids: str) -> Rows:
    """The origins of some sessions of a user, whose ids come in hexadecimal as a JSON array."""
    names = [bytes.fromhex(one).decode() for one in _ids(ids)]
    fields = [work.keys.session(tenant, user_id, name, "").field for name in names]
    (found,) = work.ask((b"HMGET", work.keys.user(tenant, user_id).shared, *fields))
    return list(_rows((name, data) for name, data in zip(names, found, strict=True) if data is not None))


def origins_sharing(work: Work, tenant: str, user_id: str, source: str) -> Rows:
    """The origins of all sessions of a user that have entries of one session. Costs what all forks of the user have."""
    (flat,) = work.ask((b"HGETALL", work.keys.user(tenant, user_id).shared))
    named = ((names_of(field)[1], data) for field, data in zip(flat[::2], flat[1::2], strict=True))
    return list(_rows(one for one in named if any(range_.source == source for range_ in _decode(one[1]))))


def origins_delete(work: Work, state: State) -> None:
    """With their session."""
    work.do("HDEL", state.keys.shared, state.keys.field)


def _rows(named: Iterable[tuple[str, bytes]]) -> Iterable[Row]:
    for name, data in named:
        for one in _decode(data):
            yield (name, one.first, one.source, one.source_first)
