"""The statements about digests in the logs of a user, on a working copy.

Each user has one sorted set of them. A member is a session's number and a place in its log; its score is the key of what was said
there. So a look-up is a search in that set, whatever is in it, and a session leaves it by what its members begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.matching import end_key_of, scope_of
from holdfast.stores.redis.connection import Argument, Command, Key
from holdfast.stores.redis.records import HEAD_BYTES, LAST_DIGEST, LAST_SEQ, head_of, record_from
from holdfast.stores.redis.work import State, Work, head_command

USUAL: Final = 16
"""Places that are read of a digest before it is known how many are wanted."""
_PLACE_BYTES: Final = 6
_DROPPED_BITS: Final = 12
"""Of a key of 64: with one more that tells aliases from digests, the others are a whole number that a score holds exactly."""
_LAST_DIGEST: Final = 3
"""Which column of a row is that of the session's last visible message."""
_OWN_DIGEST: Final = 5
"""Which column of a row of `mark_places` is the entry's."""
_END_PLACE: Final = b"\xff" * _PLACE_BYTES
"""Stands for the end of a live path, behind the session's number: a session has one such member, whose score moves."""
_END_SEQ: Final = int.from_bytes(_END_PLACE) >> 1
_Place = tuple[int, str]
"""Place in the log, and id of the session."""
_marks = msgspec.json.Decoder(list[tuple[int, str]]).decode
_digests = msgspec.json.Decoder(list[str]).decode
_aliases = msgspec.json.Decoder(list[int]).decode


def score_of(key: int, *, alias: bool) -> int:
    """Under which score a digest, or an alias, stands; a few others may stand there too."""
    return key >> _DROPPED_BITS << 1 | alias


def place_of(seq: int, *, alias: bool) -> bytes:
    """Where it stands: what follows the session's number."""
    return (seq << 1 | alias).to_bytes(_PLACE_BYTES, "big")


def _seq_of(member: bytes) -> int:
    return int.from_bytes(member[-_PLACE_BYTES:], "big") >> 1


# -- writing -----------------------------------------------------------------


def marked(work: Work, state: State, seq: int, mark: int | None, alias: int | None) -> None:
    """An entry is found from now on, by its digest and its alias, as far as it has them. Those of withdrawn sessions are not."""
    if state.keys.withdrawn:
        return
    for key, is_alias in ((mark, False), (alias, True)):
        if key is not None:
            work.marks += (score_of(key, alias=is_alias), place_of(seq, alias=is_alias))


def mark_end(work: Work, state: State, digest: bytes) -> None:
    """Index a session by the last visible message of its live path, in place of the one before."""
    keys = state.keys
    if keys.withdrawn or (state.base is not None and not state.fresh and state.base.counters[LAST_DIGEST] == digest):
        return
    key = _end_key(keys.tenant, keys.user_id, digest)
    work.marks += (score_of(key, alias=False), _END_PLACE)


def unaliased(work: Work, state: State, seq: int) -> None:
    """An entry is not found by its alias any more."""
    work.do("unmark", state.keys.marks, place_of(seq, alias=True))


# -- reading -----------------------------------------------------------------


def end_last(work: Work, tenant: str, user_id: str, marks: str) -> Rows:
    """Return the index of the last of some digests, given as hexadecimals, that a live path of the user ends with."""
    wanted = [bytes.fromhex(digest) for digest in _digests(marks)]
    while wanted:
        keys = [_end_key(tenant, user_id, digest) for digest in wanted]
        at, places = _sighted(work, tenant, user_id, None, keys, USUAL, alias=False)
        if any(row[_LAST_DIGEST] == wanted[at] for row in _ends(work, tenant, user_id, places)):
            return [[at]]
        del wanted[max(at, 0) :]
    return [[None]]


def end_places(work: Work, tenant: str, user_id: str, digest: bytes, limit: int) -> Rows:
    """Return the sessions of the user whose live path ends with a digest, most recently used first of those made last."""
    key = _end_key(tenant, user_id, digest)
    _, places = _sighted(work, tenant, user_id, None, [key], max(limit, USUAL), alias=False)
    rows = [row for row in _ends(work, tenant, user_id, places) if row[_LAST_DIGEST] == digest]
    return sorted(rows, key=lambda row: row[2], reverse=True)[:limit]


def _end_key(tenant: str, user_id: str, digest: bytes) -> int:
    return end_key_of(scope_of(tenant, user_id), digest)


def _ends(work: Work, tenant: str, user_id: str, places: Sequence[_Place]) -> list[Row]:
    """Return a row of `end_places` for each session that has a member for its end among some places."""
    places = [place for place in places if place[0] == _END_SEQ]
    sessions = [work.keys.session(tenant, user_id, id_, "") for _, id_ in places]
    rows: list[Row] = []
    for (_, id_), (_, data, _) in zip(places, work.ask(*map(head_command, sessions)), strict=True):
        if data is not None:
            record = record_from(data)
            digest = record.counters[LAST_DIGEST]
            rows.append((id_, record.identity, record.updated_at, digest, record.counters[LAST_SEQ], digest, None))
    return rows


def mark_last(work: Work, tenant: str, user_id: str, session: State | None, marks: str) -> Rows:
    """The last of some digests, which come with their keys as a JSON array, that stands in a user's logs, or in one session."""
    wanted = [(key, bytes.fromhex(digest)) for key, digest in _marks(marks)]
    while wanted:
        at, places = _sighted(work, tenant, user_id, session, [key for key, _ in wanted], USUAL, alias=False)
        if any(row[_OWN_DIGEST] == wanted[at][1] for row in _rows(work, tenant, user_id, places)):
            return [[at]]
        del wanted[max(at, 0) :]
    return [[None]]


def alias_last(work: Work, tenant: str, user_id: str, session: State | None, aliases: str) -> Rows:
    """The last of some aliases, whose keys come as a JSON array, that stands in a user's logs, or in one session."""
    at, _ = _sighted(work, tenant, user_id, session, _aliases(aliases), USUAL, alias=True)
    return [[None if at < 0 else at]]


def mark_places(
    work: Work, tenant: str, user_id: str, session: State | None, key: int, limit: int, digest: bytes
) -> Rows:
    """Where a digest stands, in the sessions that were made last first; with what tells whether it is the last of the live path."""
    rows = _placed(work, tenant, user_id, session, key, max(limit, USUAL), alias=False)
    return [row for row in rows if row[_OWN_DIGEST] == digest][:limit]


def alias_places(work: Work, tenant: str, user_id: str, session: State | None, key: int, limit: int) -> Rows:
    """Where an alias stands; the rest is as above."""
    return _placed(work, tenant, user_id, session, key, limit, alias=True)


def _sighted(
    work: Work, tenant: str, user_id: str, session: State | None, keys: Sequence[int], limit: int, *, alias: bool
) -> tuple[int, list[_Place]]:
    """The last one of some keys that stands anywhere, by its index, and its places; -1 where none does."""
    of_user = work.keys.user(tenant, user_id)
    scores = [score_of(key, alias=alias) for key in reversed(keys)]
    head: Argument = 0 if session is None else Key(session.keys.head)
    command: Command = (b"sighted", of_user.marks, Key(of_user.numbers), limit, head, *scores)
    (found,) = work.ask(command)
    if not found:
        return -1, []
    rank, members, ids = found
    # What went with memory that was full may have left a member behind.
    places = [(_seq_of(member), id_.decode()) for member, id_ in zip(members, ids, strict=True) if id_ is not None]
    work.overlay["sighted", scores[rank - 1]] = (len(members) < limit, places)
    return len(keys) - rank, places


def _placed(
    work: Work, tenant: str, user_id: str, session: State | None, key: int, limit: int, *, alias: bool
) -> list[Row]:
    """Rows of the places of one key, of which those that are read already are not looked for again."""
    all_of_them, places = work.overlay.get(("sighted", score_of(key, alias=alias)), (False, []))
    if not all_of_them and len(places) < limit:
        _, places = _sighted(work, tenant, user_id, session, [key], limit, alias=alias)
    return _rows(work, tenant, user_id, places[:limit])


def _rows(work: Work, tenant: str, user_id: str, places: Sequence[_Place]) -> list[Row]:
    """Places with what there is to know of their sessions and entries; keys may meet by chance, so ends are left out."""
    places = [place for place in places if place[0] != _END_SEQ]
    sessions = [work.keys.session(tenant, user_id, id_, "") for _, id_ in places]
    heads = [head_command(keys) for keys in sessions]
    entries: list[Command] = [
        (b"placed", keys.live, Key(keys.retired), seq, HEAD_BYTES)
        for (seq, _), keys in zip(places, sessions, strict=True)
    ]
    answers = work.ask(*heads, *entries)
    rows: list[Row] = []
    for (seq, id_), (_, data, _), (live, entry) in zip(places, answers, answers[len(heads) :], strict=False):
        if data is not None and entry is not None:
            record = record_from(data)
            standing = (record.identity, record.updated_at, record.counters[LAST_DIGEST])
            rows.append((id_, *standing, seq, head_of(entry)[2], None if live else seq))
    return rows
