"""Convert rows to structs and back. Only this module depends on the order of columns.

"A row of `x`" is a row that the statement `x` returns; "the parameters of `x`" are those of the statement `x`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import astuple, force_setattr

from holdfast.domain.messages import Message, decode_payload
from holdfast.domain.session import (
    Claim,
    Entry,
    Kind,
    ModelCall,
    PromptText,
    Session,
    SessionRef,
    StoredCompaction,
    Tail,
    Usage,
    get_kind,
)
from holdfast.domain.state import TEMP, select_own
from holdfast.errors import StoreCorrupt
from holdfast.stores.log import SavedView
from holdfast.stores.logic.steps import Row
from holdfast.stores.matching import Sighting, make_key

KINDS: tuple[Kind, ...] = ("system", "user", "assistant", "calls", "result", "note")
"""The kinds of entries. A kind is stored as its index here. SQL statements contain the indexes of `calls` and `result`."""
_NUMBER_OF = {kind: number for number, kind in enumerate(KINDS)}
_FIRST_HIDDEN: Final = 3
"""Index of the first kind that clients do not see; see `Message.visible`."""
ENDLESS = 2**62
"""Means "no upper bound" as a parameter of statements, in every dialect."""

IN_STATE: Final = ((f"{TEMP}turns", "state_turns", dict),)
"""The fields of `Session` that are stored in the state column: key, name of the field, type.

The keys cannot be keys of the session's own state. The default of a field must be an empty value (`""`, `{}`, 0); it is not
stored. If the stored value has another type, it is damaged, and the default is used.
"""

_encode = msgspec.json.Encoder().encode
_decode_messages = msgspec.json.Decoder(tuple[Message, ...]).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_Counts = tuple[tuple[int, int, int, int], int, int, int | None, Kind | None, tuple[str, ...]]
_NO_COUNTS: Final[_Counts] = ((0, 0, 0, 0), -1, -1, None, None, ())
_decode_counts = msgspec.json.Decoder(_Counts).decode
_decode_compaction = msgspec.json.Decoder(StoredCompaction).decode
_pack = msgspec.msgpack.Encoder().encode
_decode_call = msgspec.json.Decoder(ModelCall).decode
_decode_view = msgspec.msgpack.Decoder(tuple[int, bytes, tuple[int, ...]]).decode


def decode_text(column: str | bytes) -> str:
    """Return an identifier from its column as text.

    In dialects whose text columns do not compare byte for byte, the column contains bytes. Bytes that are not UTF-8, from a
    damaged row, are replaced by U+FFFD; `_decode_exact_text` raises an error instead.
    """
    return column if isinstance(column, str) else column.decode(errors="replace")


def _decode_exact_text(column: str | bytes) -> str:
    """Return an identifier from its column as text. Raises one of `UNDECODABLE` if the column is damaged."""
    return column if isinstance(column, str) else column.decode()


_DECODED: Final = (
    (16, "tail", _decode_counts),
    (17, "system_messages", _decode_messages),
    (18, "state", _decode_object),
    (19, "metadata", _decode_object),
)
"""Columns of `session_rows` to decode: position, field and decoder. If one cannot be decoded, the session is returned without it."""
_NAMES: Final = {1: "tenant", 2: "user_id", 3: "id", 4: "agent", 24: "withdrawn", 25: "identity", 26: "claim"}
_TEXTS: Final = {**_NAMES, 8: "status", 22: "end_reason"}
"""Columns of `session_rows` that are text: position and field."""
UNDECODABLE: Final = (msgspec.MsgspecError, LookupError, TypeError, ValueError)
"""Exceptions that decoding a damaged column can raise."""


def get_identity(row: Row) -> str:
    """Return the identity of the session in a row of `session_rows`."""
    return decode_text(row[25])


def decode_session(row: Row) -> Session:
    """Decode a row of `session_rows`. Fields that cannot be decoded are empty, and `Session.damaged` names them."""
    try:
        return _decode_session(row)
    except UNDECODABLE:
        return _decode_damaged_session(row)


def decode_intact_session(row: Row) -> Session:
    """Decode a row of `session_rows`. Raises `StoreCorrupt` if a field cannot be decoded."""
    try:
        return _decode_session(row)
    except UNDECODABLE:
        return _decode_damaged_session(row).require_intact()


def _decode_damaged_session(row: Row) -> Session:
    columns, damaged = list(row), []
    for at, name in _TEXTS.items():
        if isinstance(columns[at], bytes):
            try:
                columns[at] = columns[at].decode()
            except UnicodeDecodeError:
                columns[at] = decode_text(columns[at])
                damaged.append(name)
    for at, name, decode in _DECODED:
        try:
            if columns[at] is not None:
                decode(columns[at])
        except UNDECODABLE:
            columns[at] = None
            damaged.append(name)
    return msgspec.structs.replace(_decode_session(columns), damaged=tuple(damaged))


def _decode_session(row: Row) -> Session:
    _, tenant, user_id, id_, agent, version, created_at, updated_at, status, ttl, messages, size = row[:12]
    next_seq, total, digest, last_seq, counts, system_messages, state, metadata = row[12:20]
    accessed_at, ended_at, end_reason, _, withdrawn, identity, holder, until, wanted, reshaped = row[20:30]
    usage, turn_id, unit, anchor, last_kind, open_calls = _NO_COUNTS if counts is None else _decode_counts(counts)
    given = {} if state is None else _decode_object(state)
    session = Session(
        tenant=tenant if type(tenant) is str else tenant.decode(),
        user_id=user_id if type(user_id) is str else user_id.decode(),
        id=id_ if type(id_) is str else id_.decode(),
        agent=agent if agent is None or type(agent) is str else agent.decode(),
        version=version,
        created_at=created_at,
        updated_at=updated_at,
        accessed_at=accessed_at,
        status=status if type(status) is str else status.decode(),  # type: ignore[arg-type]  # a store wrote it
        ended_at=ended_at,
        end_reason=end_reason if end_reason is None or type(end_reason) is str else end_reason.decode(),  # type: ignore[arg-type]
        system_messages=() if system_messages is None else _decode_messages(system_messages),
        state=select_own(given) if given else given,
        metadata={} if metadata is None else _decode_object(metadata),
        ttl=ttl,
        withdrawn=withdrawn if type(withdrawn) is str else withdrawn.decode(),
        identity=identity if type(identity) is str else identity.decode(),
        reshaped=reshaped,
        claim=Claim(holder if type(holder) is str else holder.decode(), until, wanted == 1) if holder else None,
        messages=messages,
        bytes=size,
        usage=Usage(*usage),
        tail=Tail(
            next_seq=next_seq,
            turn_id=turn_id,
            total=total,
            digest=digest,
            last_seq=last_seq,
            last_kind=last_kind,
            unit=unit,
            open_calls=open_calls,
            anchor=anchor,
        ),
    )
    for key, name, kind in IN_STATE if given else ():
        if type(value := given.get(key)) is kind:
            force_setattr(session, name, value)  # nothing else has the new session yet
    return session


def encode_claim(claim: Claim | None) -> Row:
    """Return a claim as columns. No claim is stored as an empty holder."""
    return ("", 0, 0) if claim is None else (claim.holder, claim.until, 1 if claim.wanted else 0)


def encode_life(session: Session) -> Row:
    """Return the columns from `updated_at` to `end_reason` of the statement `session_advance`, in order."""
    expires_at = session.accessed_at + session.ttl if session.ttl else None
    return session.updated_at, session.accessed_at, expires_at, session.status, session.ended_at, session.end_reason


def encode_counters(session: Session) -> Row:
    """Return the columns from `messages` to `counts`, in the order of `session_advance`."""
    tail = session.tail
    counts = (astuple(session.usage), tail.turn_id, tail.unit, tail.anchor, tail.last_kind, tail.open_calls)
    return session.messages, session.bytes, tail.next_seq, tail.total, tail.digest, tail.last_seq, _encode(counts)


def encode_profile(session: Session) -> Row | None:
    """Return the large fields of a session as columns; None if all these fields are empty."""
    state = session.state
    for key, name, _ in IN_STATE:
        if value := getattr(session, name):
            state = {**state, key: value}
    if not (state or session.system_messages or session.metadata):
        return None
    return _encode(session.system_messages), _encode(state), _encode(session.metadata)


def decode_entry(row: Row) -> Entry:
    """Decode the columns of an entry (`entry_columns`). If it is damaged, raise `StoreCorrupt` with the entry's `seq` in the message."""
    try:
        return _decode_entry(row)
    except UNDECODABLE as exc:
        raise StoreCorrupt(f"message {row[1]} is damaged and cannot be decoded ({exc})") from exc


def _decode_entry(row: Row) -> Entry:
    (
        _,
        seq,
        turn_id,
        unit_back,
        timestamp,
        tokens,
        total,
        digest,
        agent,
        importance,
        pinned,
        retired_by,
        erased,
        metadata,
        payload,
    ) = row
    return Entry(
        seq=seq,
        turn_id=turn_id,
        unit=seq - unit_back,
        timestamp=timestamp,
        tokens=tokens,
        total=total,
        digest=digest,
        message=decode_payload(payload),
        metadata=None if metadata is None else _decode_object(metadata),
        agent=None if agent is None else _decode_exact_text(agent),
        importance=importance,
        pinned=pinned == 1,
        retired_by=retired_by,
        erased=erased == 1,
    )


def encode_entry(session: int, entry: Entry, payload: bytes, scope: bytes) -> Row:
    """Return the parameters of `entry_insert`.

    Args:
        session: primary key of the session.
        entry: the entry.
        payload: its encoded message.
        scope: the value from `holdfast.stores.matching.make_scope` for the session's user.
    """
    kind = _NUMBER_OF[get_kind(entry.message)]
    return (
        session,
        entry.seq,
        entry.turn_id,
        entry.seq - entry.unit,
        entry.timestamp,
        entry.tokens,
        entry.total,
        kind,
        entry.digest,
        entry.agent,
        entry.importance,
        1 if entry.pinned else 0,
        None if entry.metadata is None else _encode(entry.metadata),
        payload,
        make_key(scope, entry.digest) if kind < _FIRST_HIDDEN else None,
        None if entry.alias is None else make_key(scope, entry.alias),
        entry.retired_by,
        1 if entry.erased else 0,
    )


def encode_entries(session: int, entries: Sequence[Entry], payloads: Sequence[bytes], scope: bytes) -> list[Row]:
    """Return the parameters of `entry_insert` for several entries and their payloads."""
    pairs = zip(entries, payloads, strict=True)
    return [encode_entry(session, entry, payload, scope) for entry, payload in pairs]


def encode_metadata(metadata: Mapping[str, Any] | None) -> bytes | None:
    """Return an entry's metadata as a column; NULL if there are none."""
    return None if metadata is None else _encode(metadata)


def encode_array(items: Iterable[Any]) -> str:
    """Return values as one parameter, a JSON array, so that one statement can read any number of them."""
    return _encode(list(items)).decode()


def decode_call(row: Row) -> ModelCall:
    """Decode a row of `calls_newest`."""
    return _decode_call(row[0])


def encode_call(session: int, call: ModelCall) -> Row:
    """Return the parameters of `call_insert`."""
    return session, call.turn_id, _encode(msgspec.structs.replace(call, texts=(), built_at=None))


def encode_prompt_text(session: int, text: PromptText) -> Row:
    """Return the parameters of `prompt_text_put`."""
    return session, text.id, text.source or "", text.first, text.last, text.data


def decode_prompt_text(row: Row) -> PromptText:
    """Decode a row of `prompt_texts_all`."""
    id_, data, source, first, last = row
    return PromptText(id_, bytes(data), decode_text(source) or None, first, last)


def decode_view(column: bytes | None) -> SavedView | None:
    """Decode a saved view; None if there is none, or if it is damaged: it is derived data, which is computed again from the log."""
    try:
        return None if column is None else SavedView(*_decode_view(column))
    except UNDECODABLE:
        return None


def encode_view(view: SavedView) -> bytes:
    """Encode a saved view as a column."""
    return _pack((view.frontier, view.state, view.keep))


def decode_compaction(row: Row) -> StoredCompaction:
    """Decode a row of `compactions_list`."""
    id_, status, data = row
    return msgspec.structs.replace(_decode_compaction(data), id=id_, status=status)


def encode_compaction(one: StoredCompaction) -> bytes:
    """Encode a compaction as a column. Its id and status have columns of their own."""
    return _encode(one)


def decode_sighting(user_id: str, mark: int, row: Row) -> Sighting:
    """Decode a row of `mark_places`; `mark` is the index of the digest that was found."""
    id_, identity, updated_at, last_digest, seq, digest, retired_by = row
    live = retired_by is None
    return Sighting(
        ref=SessionRef(user_id, decode_text(id_)),
        identity=decode_text(identity),
        mark=mark,
        seq=seq,
        digest=digest,
        live=live,
        last=live and digest == last_digest,
        updated_at=updated_at,
    )
