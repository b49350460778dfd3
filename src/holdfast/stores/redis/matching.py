"""Find digests in the logs of a user, in Redis.

For each user, a sorted set is the index of digests. A member consists of a session's number and the position of an entry in the
session's log. The member's score is computed from the entry's digest. So a search takes about the same time however large the set
is. All members of a session have the same prefix, by which they are removed when the session is deleted.

For each user, a hash contains the origins of entries. A field is the name of a session. Its value is a JSON list of ranges of
entries, each with the session in which the entries were first written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.domain.origins import Origin, get_ranges
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.errors import SessionNotFound
from holdfast.limits import SIGHTINGS
from holdfast.stores import checks
from holdfast.stores.matching import Sighting, make_end_key, make_key, make_scope
from holdfast.stores.redis.connection import Argument, Command, Key
from holdfast.stores.redis.database import Transaction, make_head_command
from holdfast.stores.redis.handle import Handle, read_transaction, resolve_session_keys, write_transaction
from holdfast.stores.redis.keys import ScopeKeys, SessionKeys, decode_names
from holdfast.stores.redis.records import HEAD_BYTES, decode_entry_head, decode_record

USUAL: Final = 16
"""Number of positions of a digest that are read first. More are read only if they are needed."""
_PLACE_BYTES: Final = 6
_DROPPED_BITS: Final = 12
"""Number of bits by which a 64-bit key is shortened. One bit is then added that marks aliases. The result is an integer that a
score can hold exactly.
"""
_END_PLACE: Final = b"\xff" * _PLACE_BYTES
"""Used in place of a position, in a member for the session's last visible live message. Each session has one such member. The
member's score changes when another message becomes the last one.
"""
_END_SEQ: Final = int.from_bytes(_END_PLACE) >> 1
_Place = tuple[int, str]
"""Position of an entry in its log, and id of the session."""
_decode_origins: Final = msgspec.json.Decoder(list[Origin]).decode


class MatchingMethods(Handle):
    """The methods of `holdfast.stores.matching.MatchingStore`."""

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
        checks.check_marks(user_id, marks, session)
        checks.check_limit(limit, highest=SIGHTINGS)
        if not marks or (session is not None and session.user_id != user_id):
            return ()
        scope = make_scope(self.tenant, user_id)
        head = None if session is None else self._make_session_keys(session).head

        async def work(tx: Transaction) -> tuple[Sighting, ...]:
            search = _Search(tx, self._make_scope_keys(user_id), head, limit, alias, ends)
            wanted = [*marks]
            while wanted:
                keys = [make_end_key(scope, one) if ends else make_key(scope, one) for one in wanted]
                at, found = await search.find_last(keys, wanted)
                if found or at < 0:
                    return tuple(found[:limit])
                del wanted[at:]  # the places found belong to other digests with the same score
            return ()

        return await self.run(None if session is None else self._make_session_keys(session), work, write=False)

    @write_transaction(resolve_session_keys)
    async def share(self, tx: Transaction, ref: SessionRef, identity: str) -> None:
        checks.check_id(identity, "identity")
        session, (found,) = await tx.read_session((b"HGET", tx.keys.shared, tx.keys.field))
        if session.identity != identity:
            raise SessionNotFound(ref.id)
        if found is None:
            store_origins(tx, get_ranges((), identity))

    @read_transaction()
    async def origins(self, tx: Transaction, user_id: str, sessions: Collection[str]) -> Mapping[str, Sequence[Origin]]:
        checks.check_id(user_id, "user_id")
        for id_ in sessions:
            checks.check_id(id_, "session_id")
        fields = [self._make_session_keys(SessionRef(user_id, id_)).field for id_ in sorted(set(sessions))]
        found = await tx.read_fields(self._make_scope_keys(user_id).shared, fields)
        return {decode_names(field)[1]: _decode_origins(data) for field, data in found.items()}

    @read_transaction()
    async def sharing(self, tx: Transaction, user_id: str, source: str) -> Mapping[str, Sequence[Origin]]:
        """Return the origins of each session that contains entries first written in the session `source`, by session id.

        The method reads the origins of all forks of the user.
        """
        checks.check_id(user_id, "user_id")
        checks.check_id(source, "source")
        shared = self._make_scope_keys(user_id).shared
        (flat,) = await tx.read((b"HGETALL", shared))
        named = (
            (decode_names(field)[1], _decode_origins(data)) for field, data in zip(flat[::2], flat[1::2], strict=True)
        )
        return {id_: ranges for id_, ranges in named if any(one.source == source for one in ranges)}


class _Search(NamedTuple):
    """A search for entries with given digests."""

    tx: Transaction
    keys: ScopeKeys
    head: bytes | None
    """Key of the head of the only session to search; None: search all sessions of the user."""
    limit: int
    alias: bool
    ends: bool

    async def find_last(self, keys: Sequence[int], marks: Sequence[bytes]) -> tuple[int, list[Sighting]]:
        """Search for several digests, and return the entries with the last digest that is found.

        Args:
            keys: the key of each digest, from which its score is computed.
            marks: the digests themselves.

        Returns:
            The index of the last key that the set of digests contains, and the entries that have this digest. There are no entries
            if only other digests with the same score were found. If no key is found, the index is -1.
        """
        at, places, more = await self._find_places(keys, min(USUAL, self.limit) if self.alias else USUAL)
        if at < 0:
            return at, []
        found = await self._load_sightings(at, marks[at], places)
        if more and len(found) < self.limit:
            _, places, _ = await self._find_places([keys[at]], max(self.limit, USUAL))
            found = await self._load_sightings(at, marks[at], places)
        return at, found

    async def _find_places(self, keys: Sequence[int], limit: int) -> tuple[int, list[_Place], bool]:
        """Return the index of the last key that is found, its newest positions, and True if there may be more positions."""
        scores = [compute_score(key, alias=self.alias) for key in reversed(keys)]
        head: Argument = 0 if self.head is None else Key(self.head)
        command: Command = (b"find_places", self.keys.marks, Key(self.keys.numbers), limit, head, *scores)
        (found,) = await self.tx.database.fetch([command])
        if not found:
            return -1, [], False
        rank, members, ids = found
        # If the server's memory was full when a session was deleted, some members may remain.
        places = [
            (_decode_seq(member), id_.decode()) for member, id_ in zip(members, ids, strict=True) if id_ is not None
        ]
        return len(keys) - rank, places, len(members) == limit

    async def _load_sightings(self, mark: int, digest: bytes, places: Sequence[_Place]) -> list[Sighting]:
        wanted = [place for place in places if (place[0] == _END_SEQ) == self.ends]
        sessions = [self.tx.database.keys.session(self.keys.tenant, self.keys.user_id, id_, "") for _, id_ in wanted]
        commands: list[Command] = [make_head_command(keys) for keys in sessions]
        if not self.ends:
            commands += [
                (b"read_place", keys.log, Key(keys.retired), seq, HEAD_BYTES)
                for (seq, _), keys in zip(wanted, sessions, strict=True)
            ]
        answers = await self.tx.database.fetch(commands)
        found: list[Sighting] = []
        for at, (seq, _) in enumerate(wanted):
            head, placed = answers[at], None if self.ends else answers[len(wanted) + at]
            if head[1] is None or (placed is not None and placed[1] is None):
                continue
            session = decode_record(sessions[at], head[1]).session
            live, own = (
                (True, session.tail.digest) if placed is None else (bool(placed[0]), decode_entry_head(placed[1])[2])
            )
            if self.alias or own == digest:
                place = session.tail.last_seq if self.ends else seq
                found.append(_make_sighting(session, mark, place, own, live=live))
        return sorted(found, key=lambda one: one.updated_at, reverse=True) if self.ends else found


def _make_sighting(session: Session, mark: int, seq: int, digest: bytes, *, live: bool) -> Sighting:
    last = live and digest == session.tail.digest
    fields: dict[str, Any] = {"mark": mark, "seq": seq, "digest": digest, "live": live, "last": last}
    return Sighting(ref=session.ref, identity=session.identity, updated_at=session.updated_at, **fields)


def compute_score(key: int, *, alias: bool) -> int:
    """Return the score for the key of a digest or of an alias. Different keys may have the same score."""
    return key >> _DROPPED_BITS << 1 | alias


def _encode_place(seq: int, *, alias: bool) -> bytes:
    """Encode the position of an entry in its log. In a member, these bytes follow the session's number."""
    return (seq << 1 | alias).to_bytes(_PLACE_BYTES, "big")


def _decode_seq(member: bytes) -> int:
    return int.from_bytes(member[-_PLACE_BYTES:], "big") >> 1


# -- writing -----------------------------------------------------------------


def mark_entry(tx: Transaction, entry: Entry) -> None:
    """Add an entry's digest and alias to the index, if it has them. Entries of withdrawn sessions are not added."""
    if tx.keys.withdrawn:
        return
    scope = make_scope(tx.keys.tenant, tx.keys.user_id)
    if entry.message.visible:
        tx.marks += (compute_score(make_key(scope, entry.digest), alias=False), _encode_place(entry.seq, alias=False))
    if entry.alias is not None:
        tx.marks += (compute_score(make_key(scope, entry.alias), alias=True), _encode_place(entry.seq, alias=True))


def mark_end(tx: Transaction, before: bytes | None, digest: bytes) -> None:
    """Store the digest of a session's last visible live message in the index, in place of the previous one.

    Args:
        tx: the write.
        before: the digest that is stored at the moment; None if there is none.
        digest: the new digest.
    """
    if not tx.keys.withdrawn and digest != before:
        key = make_end_key(make_scope(tx.keys.tenant, tx.keys.user_id), digest)
        tx.marks += (compute_score(key, alias=False), _END_PLACE)


def unmark_alias(tx: Transaction, seq: int) -> None:
    """Remove an entry's alias from the index."""
    tx.queue("unmark", tx.keys.marks, _encode_place(seq, alias=True))


async def load_origins(tx: Transaction, session: Session, more: Sequence[Origin]) -> Sequence[Origin]:
    """Return the origins of a session after the ranges in `more` are added.

    If no origins are stored for the session, the result begins with a range for the session's own entries. If `more` is empty, the
    result is empty, and nothing is read.
    """
    if not more:
        return ()
    (found,) = await tx.read((b"HGET", tx.keys.shared, tx.keys.field))
    known = decode_ranges(found, session.identity)
    return (*(one for one in known if one.first < more[0].first), *more)


def decode_ranges(data: bytes | None, identity: str) -> Sequence[Origin]:
    """Decode the stored origins of a session, or a range for its own entries if it has none."""
    return get_ranges(() if data is None else _decode_origins(data), identity)


def store_origins(tx: Transaction, origins: Sequence[Origin], keys: SessionKeys | None = None) -> None:
    """Store all origins of a session, by default of the one that the transaction writes to."""
    if origins:
        keys = keys or tx.keys
        tx.queue("HSET", keys.shared, keys.field, msgspec.json.encode(list(origins)))
