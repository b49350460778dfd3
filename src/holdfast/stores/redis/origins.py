"""The origins of entries: each user has a hash of them, the ranges of a session as JSON under its name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.domain.origins import Origin, origins_or_own
from holdfast.domain.session import SessionRef
from holdfast.errors import SessionNotFound
from holdfast.stores import checks
from holdfast.stores.redis.database import Transaction, in_parts
from holdfast.stores.redis.handle import Handle, read_transaction, session_keys, write_transaction
from holdfast.stores.redis.keys import names_of

_decode: Final = msgspec.json.Decoder(list[Origin]).decode


class OriginMethods(Handle):
    """Origins of entries; see `holdfast.stores.matching.MatchingStore`."""

    @write_transaction(session_keys)
    async def share(self, tx: Transaction, ref: SessionRef, identity: str) -> None:
        checks.check_id(identity, "identity")
        session, (found,) = await tx.session((b"HGET", tx.keys.shared, tx.keys.field))
        if session.identity != identity:
            raise SessionNotFound(ref.id)
        if found is None:
            keep(tx, origins_or_own((), identity))

    @read_transaction()
    async def origins(self, tx: Transaction, user_id: str, sessions: Collection[str]) -> Mapping[str, Sequence[Origin]]:
        checks.check_id(user_id, "user_id")
        for id_ in sessions:
            checks.check_id(id_, "session_id")
        ids = sorted(set(sessions))
        fields = [self._session_keys(SessionRef(user_id, id_)).field for id_ in ids]
        shared = self._scope_keys(user_id).shared
        found = [data for some in await tx.read(*in_parts(b"HMGET", shared, fields)) for data in some]
        return {id_: _decode(data) for id_, data in zip(ids, found, strict=True) if data is not None}

    @read_transaction()
    async def sharing(self, tx: Transaction, user_id: str, source: str) -> Mapping[str, Sequence[Origin]]:
        """Reads what all forks of the user have."""
        checks.check_id(user_id, "user_id")
        checks.check_id(source, "source")
        shared = self._scope_keys(user_id).shared
        (flat,) = await tx.read((b"HGETALL", shared))
        named = ((names_of(field)[1], _decode(data)) for field, data in zip(flat[::2], flat[1::2], strict=True))
        return {id_: ranges for id_, ranges in named if any(one.source == source for one in ranges)}


def keep(tx: Transaction, origins: Sequence[Origin]) -> None:
    """Note the origins of a session that has none."""
    if origins:
        tx.do("HSET", tx.keys.shared, tx.keys.field, msgspec.json.encode(list(origins)))
