"""Encode and decode the stored values. Fields that scripts read come first and have a fixed width."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace as evolve

from holdfast.domain.artifact import Artifact
from holdfast.domain.messages import Message, decode_payload
from holdfast.domain.session import (
    Ending,
    Entry,
    Kind,
    ModelCall,
    Session,
    StoredCompaction,
    Tail,
    get_kind,
)
from holdfast.errors import StoreCorrupt
from holdfast.stores.log import SavedView
from holdfast.stores.redis.keys import SessionKeys

T = TypeVar("T", bound=msgspec.Struct)
ENDLESS: Final = 2**62
"""An upper bound that means "no limit"."""
_LONGEST: Final = (1 << 63) - 1
pack = msgspec.msgpack.Encoder().encode
"""Encode any value as MessagePack. Raises `OverflowError` for a number that does not fit into 64 bits."""
_ids = msgspec.json.Decoder(tuple[str, ...]).decode
unpack_list = msgspec.msgpack.Decoder(list[Any]).decode
to_json = msgspec.json.Encoder().encode
_from_object = msgspec.json.Decoder(dict[str, Any]).decode


def check_int64(number: int) -> int:
    """Return the number. Raises `OverflowError` if it does not fit into 64 bits."""
    if not -_LONGEST - 1 <= number <= _LONGEST:
        raise OverflowError(number)
    return number


def pack_fields(one: msgspec.Struct, names: Sequence[str] | None = None, **others: Any) -> bytes:
    """Encode the named fields of an object in this order, or all of them. `others` replace the values of fields."""
    names = one.__struct_fields__ if names is None else names
    return pack([others[name] if name in others else getattr(one, name) for name in names])


def unpack_fields(kind: type[T], data: bytes) -> T:
    """Decode an object whose fields are all stored, in order. New fields are added at the end, and older releases did not store them."""
    return kind(**dict(zip(kind.__struct_fields__, unpack_list(data), strict=False)))


def decode_object(default: dict[str, Any] | None, data: bytes | None) -> dict[str, Any] | None:
    """Decode a JSON object; return `default` if there is no object or it is damaged."""
    try:
        return default if data is None else _from_object(data)
    except msgspec.MsgspecError:
        return default


# -- sessions ----------------------------------------------------------------


class Record(msgspec.Struct, array_like=True, gc=False):
    """The stored record of a session: its small fields, and some other values that nearly every write changes.

    New fields are added at the end.
    """

    session: Session
    compactions_from: int = 0
    """A compaction that was built before this version of the session is recorded as dead."""
    next_compaction: int = 1
    live: dict[str, tuple[int, int]] = {}
    """By view: the id of the view's live compaction, and the session's version at which that compaction was recorded."""
    next_call: int = 0
    last_turn: int = 0
    """The highest turn of all recorded model calls."""
    calls_mixed: bool = False
    """True if model calls were not recorded in the order of their turns: some call was recorded after a call of a later turn."""
    artifacts: bool = False
    """True if the session may have artifacts."""

    @property
    def expires_at(self) -> int | None:
        """Time at which the session expires by its own ttl; None if it has none."""
        session = self.session
        return min(session.accessed_at + session.ttl, _LONGEST) if session.ttl else None


_record = msgspec.msgpack.Decoder(Record).decode
_profile = msgspec.msgpack.Decoder(tuple[bytes, bytes, bytes, bytes]).decode
_messages = msgspec.json.Decoder(tuple[Message, ...]).decode
_LARGE: Final[tuple[tuple[str, Any, Any], ...]] = (
    ("system_messages", _messages, ()),
    ("state", _from_object, {}),
    ("state_turns", msgspec.json.Decoder(dict[str, int]).decode, {}),
    ("metadata", _from_object, {}),
)
"""The fields of a session that are stored in its profile instead of its record: name, decoder and default."""


def decode_record(keys: SessionKeys, data: bytes) -> Record:
    """Decode a session's record. If it cannot be decoded, return an empty record that is marked as damaged."""
    try:
        return _record(data)
    except msgspec.MsgspecError:
        names: dict[str, Any] = {"tenant": keys.tenant, "user_id": keys.user_id, "id": keys.id}
        empty = Session(**names, created_at=0, updated_at=0, tail=Tail(), withdrawn=keys.withdrawn, damaged=("record",))
        return Record(empty, artifacts=True)


def strip_profile(session: Session) -> Session:
    """Return a session without its large fields. Raises `OverflowError` for times that do not fit into 64 bits."""
    check_int64(session.updated_at)
    check_int64(session.accessed_at)
    return evolve(session, system_messages=(), state={}, state_turns={}, metadata={}, damaged=())


def encode_profile(session: Session) -> bytes | None:
    """Encode the large fields of a session, its profile; return None if all are empty."""
    if not (session.system_messages or session.state or session.metadata):
        return None
    return pack([to_json(getattr(session, name)) for name, *_ in _LARGE])


def build_session(record: Record, profile: bytes | None) -> Session:
    """Return the session with the fields of record and profile. Fields that cannot be decoded are empty and named in `Session.damaged`."""
    if profile is None:
        return record.session
    fields: dict[str, Any] = {}
    damaged = [*record.session.damaged]
    try:
        parts: Sequence[bytes] = _profile(profile)
    except msgspec.MsgspecError:
        parts = (b"",) * len(_LARGE)
    for (name, decode, default), part in zip(_LARGE, parts, strict=True):
        try:
            fields[name] = decode(part)
        except msgspec.MsgspecError:
            fields[name] = default
            damaged.append(name)
    return evolve(record.session, damaged=tuple(damaged), **fields)


# -- entries -----------------------------------------------------------------


class _Entry(msgspec.Struct, array_like=True, gc=False):
    """The part of an encoded entry that follows its first `HEAD_BYTES` bytes."""

    turn_id: int
    unit_back: int
    timestamp: int
    tokens: int
    agent: str | None
    importance: float | None
    pinned: int
    erased: int
    metadata: bytes | None
    payload: bytes


_HEAD: Final = struct.Struct(">QQB16s")
HEAD_BYTES: Final = _HEAD.size
"""Number of bytes at the beginning of an encoded entry, which contain `seq`, running total, kind and digest."""
_RETIRED: Final = struct.Struct(">Q")
"""Format of a retired entry's prefix: the `seq` of the entry that retired it."""
RETIRED_BYTES: Final = _RETIRED.size
KINDS: Final[tuple[Kind, ...]] = ("system", "user", "assistant", "calls", "result", "note")
"""The kinds of entries. A kind is stored as its index here."""
CALLS, RESULT = 3, 4
_NUMBER_OF: Final = {kind: number for number, kind in enumerate(KINDS)}
_entry = msgspec.msgpack.Decoder(_Entry).decode


def encode_entry(entry: Entry, payload: bytes) -> bytes:
    """Encode an entry; `payload` is its encoded message."""
    metadata = None if entry.metadata is None else to_json(entry.metadata)
    fields = (entry.agent, entry.importance, int(entry.pinned), int(entry.erased), metadata, payload)
    rest = (entry.turn_id, entry.seq - entry.unit, entry.timestamp, entry.tokens, *fields)
    try:
        head = _HEAD.pack(entry.seq, entry.total, _NUMBER_OF[get_kind(entry.message)], entry.digest)
    except struct.error as exc:
        raise OverflowError(str(exc)) from exc
    data = head + pack(rest)
    return data if entry.retired_by is None else encode_retired_by(entry.retired_by) + data


def decode_entry(data: bytes, *, retired: bool = False) -> Entry:
    """Decode an entry.

    Raises:
        StoreCorrupt: the entry is damaged. The message contains its `seq`.
    """
    retired_by = None
    if retired:
        (retired_by,) = _RETIRED.unpack_from(data)
        data = data[RETIRED_BYTES:]
    seq, total, _, digest = _HEAD.unpack_from(data)
    try:
        rest = _entry(memoryview(data)[HEAD_BYTES:])
        return Entry(
            seq=seq,
            turn_id=rest.turn_id,
            unit=seq - rest.unit_back,
            timestamp=rest.timestamp,
            tokens=rest.tokens,
            total=total,
            digest=digest,
            message=decode_payload(rest.payload),
            metadata=None if rest.metadata is None else _from_object(rest.metadata),
            agent=rest.agent,
            importance=rest.importance,
            pinned=rest.pinned == 1,
            retired_by=retired_by,
            erased=rest.erased == 1,
        )
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError) as exc:
        raise StoreCorrupt(f"message {seq} is damaged and cannot be decoded ({exc})") from exc


def change_entry(data: bytes, *, retired: bool = False, **fields: Any) -> bytes:
    """Return an encoded entry with some fields changed. Its first `HEAD_BYTES` bytes stay the same."""
    begin = HEAD_BYTES + (RETIRED_BYTES if retired else 0)
    return data[:begin] + pack(evolve(_entry(memoryview(data)[begin:]), **fields))


def decode_entry_field(data: bytes, name: str, *, retired: bool = False) -> Any:
    """Decode one field of an encoded entry."""
    return getattr(_entry(memoryview(data)[HEAD_BYTES + (RETIRED_BYTES if retired else 0) :]), name)


def decode_entry_head(data: bytes) -> tuple[int, int, bytes]:
    """Decode `seq`, kind and digest of an encoded live entry."""
    seq, _, kind, digest = _HEAD.unpack_from(data)
    return seq, kind, digest


def encode_retired_by(by: int) -> bytes:
    """Encode the prefix of a retired entry; `by` is the `seq` of the entry that retired it."""
    return _RETIRED.pack(by)


# -- views, compactions, calls -------------------------------------------------

_seqs = msgspec.json.Decoder(tuple[int, ...]).decode


def encode_view(view: SavedView, saved_at: int) -> bytes:
    """Encode a saved view. The frontier and the kept entries come first, because a script reads them. The time follows."""
    return b"%d %s %d\n" % (view.frontier, to_json(view.keep) if view.keep else b"", saved_at) + view.state


def parse_view_order(data: bytes) -> tuple[int, int]:
    """Return the time when a view was saved, and the view's frontier. Return `(0, -1)` if it is damaged or from an older release."""
    try:
        frontier, _, saved_at = data.partition(b"\n")[0].split(b" ")
        return int(saved_at), int(frontier)
    except ValueError:
        return 0, -1


def decode_view(data: bytes | None) -> SavedView | None:
    """Decode a saved view. Return None if it is damaged; the caller then builds the view again from the log."""
    if data is None:
        return None
    head, _, state = data.partition(b"\n")
    frontier, _, rest = head.partition(b" ")
    kept = rest.partition(b" ")[0]
    try:
        return SavedView(int(frontier), state, _seqs(kept) if kept else ())
    except (ValueError, msgspec.MsgspecError):
        return None


decode_compaction = msgspec.msgpack.Decoder(tuple[int, StoredCompaction]).decode
"""Decode the session's version at which a compaction was recorded, and the compaction."""


_CALL: Final = ("timestamp", "model", *ModelCall.__struct_fields__[2:])
"""The stored fields of a model call, in order. New fields are added at the end."""


def encode_call(number: int, call: ModelCall) -> bytes:
    """Encode a model call. Its number comes first, so that the calls of a turn are sorted by number."""
    return struct.pack(">Q", number + (1 << 63)) + pack_fields(call, _CALL)


def decode_call(data: bytes) -> ModelCall:
    """Decode a model call."""
    return ModelCall(**dict(zip(_CALL, unpack_list(data[8:]), strict=True)))


# -- others ------------------------------------------------------------------


_ENDING: Final = Ending.__struct_fields__
_ARTIFACT: Final = ("name", "version", "blob", "mime_type", "size", "sha256", "author", "metadata", "created_at")


def encode_ending(ending: Ending) -> bytes:
    """Encode an ending that hooks must be notified of."""
    return pack_fields(ending, _ENDING, withdrawn=int(ending.withdrawn), hooks=to_json(ending.hooks))


def decode_ending(data: bytes) -> Ending:
    """Decode an ending. A damaged list of hooks is treated as empty, so that the session can be deleted."""
    fields = dict(zip(_ENDING, unpack_list(data), strict=True))
    try:
        hooks = _ids(fields["hooks"])
    except msgspec.MsgspecError:
        hooks = ()
    return Ending(**{**fields, "withdrawn": fields["withdrawn"] == 1, "hooks": hooks})


def encode_artifact(one: Artifact) -> bytes:
    """Encode an artifact version."""
    return pack_fields(one, _ARTIFACT, metadata=to_json(one.metadata) if one.metadata else None)


def decode_artifact(data: bytes) -> Artifact:
    """Decode an artifact version. Damaged metadata are treated as empty."""
    fields = dict(zip(_ARTIFACT, unpack_list(data), strict=True))
    return Artifact(**{**fields, "metadata": decode_object({}, fields["metadata"]) or {}})
