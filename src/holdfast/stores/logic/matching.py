"""Find messages by their digests in a user's logs, and read and write the origins of copied entries.

The functions are generators of statements. An origin records from which session a range of entries was copied. Origins are stored with
the copy, and can be looked up by the session that was copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from holdfast.domain.origins import Origin, get_ranges
from holdfast.domain.session import SessionRef
from holdfast.stores import checks
from holdfast.stores.logic.handle import Handle, read_session_row
from holdfast.stores.logic.rows import decode_sighting, decode_text, encode_array
from holdfast.stores.logic.steps import Many, Query, Rows, Steps
from holdfast.stores.matching import Sighting, make_key, make_scope


class MatchingStore(Handle):
    """Find messages and their copies in the sessions of a user. `holdfast.stores.matching` describes what all methods promise."""

    async def sightings(
        self,
        user_id: str,
        marks: Sequence[bytes],
        *,
        alias: bool = False,
        session: SessionRef | None = None,
        limit: int = 16,
        ends: bool = False,
    ) -> tuple[Sighting, ...]:
        """Return the entries with the last one of `marks` that occurs in any log; empty if none of the digests occurs.

        All returned entries have the same digest. Entries of the newest sessions come first, and within a session the newest
        entries. The cost depends on the number of marks and results, not on the number of sessions or entries.

        Args:
            user_id: search the logs of this user's sessions.
            marks: digests, the preferred one last; at most `MARKS`.
            alias: if True, search for aliases (`Entry.alias`) instead of digests of visible entries.
            session: search only this session of the user. If it does not exist, the result is empty.
            limit: maximum number of results, 1 to `SIGHTINGS`.
            ends: if True, find only sessions whose last visible, not retired message has the digest. The most recently used sessions
                come first. Sessions that contain the digest earlier do not count towards `limit`. Not allowed with `alias` or
                `session`.
        """
        if not marks:
            return ()
        if ends:
            return await self._read(partial(_find_path_ends, self.tenant, user_id, marks, limit))
        steps = partial(_find_sightings, self.tenant, user_id, marks, alias=alias, session=session, limit=limit)
        return await self._read(steps)

    async def share(self, ref: SessionRef, identity: str) -> None:
        """Record that copies of a session are about to be made, so that `sharing` also finds this session.

        Changes neither the session's version nor its times. Does nothing if the session already has origins.

        Args:
            ref: the session.
            identity: the identity that the session must have.

        Raises:
            SessionNotFound: no such session, or it has another identity.
        """
        checks.check_ref(ref)

        def steps() -> Steps[None]:
            row = yield from read_session_row(self.tenant, ref, identity)
            yield from add_origins(row[0], self.tenant, ref, identity, ())

        await self._write(steps, ref)

    async def origins(self, user_id: str, sessions: Collection[str]) -> Mapping[str, Sequence[Origin]]:
        """Return the origins of the given sessions of a user by session id, in order of `first`. Sessions without origins are left out."""
        if not sessions:
            return {}
        ids = _encode_ids(sorted(set(sessions)))
        return _group_by_session(await self._select(tuple, "origins_named", user_id, ids))

    async def sharing(self, user_id: str, source: str) -> Mapping[str, Sequence[Origin]]:
        """Return the origins of each session that contains entries first written in `source`, by session id.

        `source` is the identity of a session. The search covers all sessions of the user, except withdrawn ones. The cost depends on what
        is returned, not on the number of other sessions.
        """
        return _group_by_session(await self._select(tuple, "origins_sharing", user_id, source))


def _find_sightings(
    tenant: str, user_id: str, marks: Sequence[bytes], *, alias: bool, session: SessionRef | None, limit: int
) -> Steps[tuple[Sighting, ...]]:
    """Return the entries with the last one of `marks` that occurs in any log.

    Different digests can have the same key in the database, so the statements also compare the digests.
    """
    pk = None
    if session is not None:
        rows = yield Query("session_get", (tenant, session.id, session.user_id, session.withdrawn))
        if not rows or session.user_id != user_id:
            return ()
        pk = rows[0][0]
    scope = make_scope(tenant, user_id)
    keys = [make_key(scope, mark) for mark in marks]
    wanted = keys if alias else [[key, mark.hex()] for key, mark in zip(keys, marks, strict=True)]
    found = yield Query("alias_last" if alias else "mark_last", (tenant, user_id, pk, encode_array(wanted)))
    at = found[0][0]
    if at is None:
        return ()
    if alias:
        rows = yield Query("alias_places", (tenant, user_id, pk, keys[at], limit))
    else:
        rows = yield Query("mark_places", (tenant, user_id, pk, keys[at], limit, marks[at]))
    return tuple(decode_sighting(user_id, at, row) for row in rows)


def _find_path_ends(tenant: str, user_id: str, marks: Sequence[bytes], limit: int) -> Steps[tuple[Sighting, ...]]:
    """Find sessions whose last visible live message has one of the digests in `marks`.

    Of the digests for which there are such sessions, the last one is used. Return that message of each session.
    """
    at = (yield Query("end_last", (tenant, user_id, encode_array(mark.hex() for mark in marks))))[0][0]
    if at is None:
        return ()
    rows = yield Query("end_places", (tenant, user_id, marks[at], limit))
    return tuple(decode_sighting(user_id, at, row) for row in rows)


# -- origins -------------------------------------------------------------------


def add_origins(pk: int, tenant: str, ref: SessionRef, identity: str, more: Sequence[Origin]) -> Steps[None]:
    """Add ranges to the origins of a session. If the session has no origins yet, first add one for its own entries.

    The last range that the session has, which contains no entry yet, may begin where the first new one begins. It is replaced.
    """
    known = yield Query("origins_named", (tenant, ref.user_id, _encode_ids([ref.id])))
    if known and more:
        yield Query("origin_delete", (pk, more[0].first))
    yield from keep_origins(pk, (*(() if known else get_ranges((), identity)), *more))


def keep_origins(pk: int, origins: Sequence[Origin]) -> Steps[None]:
    """Store ranges of a session's origins."""
    if origins:
        yield Many("origin_insert", [(pk, one.first, one.source, one.source_first) for one in origins])


def read_origins(tenant: str, ref: SessionRef) -> Steps[Sequence[Origin]]:
    """Return the origins of a session, in order; empty if it has none."""
    rows = yield Query("origins_named", (tenant, ref.user_id, _encode_ids([ref.id])))
    return _group_by_session(rows).get(ref.id, ())


def _group_by_session(rows: Rows) -> dict[str, list[Origin]]:
    found: dict[str, list[Origin]] = {}
    for id_, first, source, source_first in rows:
        found.setdefault(decode_text(id_), []).append(Origin(first, decode_text(source), source_first))
    return found


def _encode_ids(ids: Collection[str]) -> str:
    return encode_array(id_.encode().hex() for id_ in ids)
