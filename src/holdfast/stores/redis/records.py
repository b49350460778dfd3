"""What lies under the keys, as bytes: rows to bytes and back. Numbers come first where a script has to read them."""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from holdfast.errors import StoreCorrupt
from holdfast.stores.logic.rows import ENDLESS
from holdfast.stores.logic.steps import Row

LAYOUT: Final = 4
"""Of what is described here. A place with a newer one is refused. Sessions of the first have no number: they get one when they
are written to, and what they said before is not found by `sightings`. The third has state that sessions share beside the rest, the
fourth memories."""
_encode = msgspec.msgpack.Encoder().encode
_LONGEST: Final = (1 << 63) - 1


# -- sessions ----------------------------------------------------------------

NEXT_SEQ: Final = 6
LAST_DIGEST: Final = 9
LAST_SEQ: Final = 10
"""Places among a session's counters, see `holdfast.stores.logic.rows.counters`."""
NOBODY: Final = ("", 0, 0)
"""The claim of a session that has none."""


class Record(msgspec.Struct, array_like=True, gc=False):
    """A session without its profile: what nearly every write changes. Fields are added at the end."""

    agent: str | None
    version: int
    created_at: int
    updated_at: int
    status: str
    ttl: int | None
    counters: list[Any]
    """From `messages` to `anchor`, see `holdfast.stores.logic.rows.counters`."""
    accessed_at: int
    ended_at: int | None = None
    end_reason: str | None = None
    views_from: int = 0
    compactions_from: int = 0
    next_compaction: int = 1
    live: dict[str, tuple[int, int, int, int]] = {}
    """The live compaction of each view: id, the version it was laid at, first and last entry."""
    next_call: int = 0
    last_turn: int = 0
    """The highest of a recorded model call."""
    calls_mixed: bool = False
    """Whether a call was recorded behind one of a later turn."""
    artifacts: bool = False
    """Whether there may be any."""
    identity: str = ""
    claim: tuple[str, int, int] = NOBODY
    """Whose turn is open, until when, and whether it is wanted."""

    @property
    def expires_at(self) -> int | None:
        """When it expires by its own ttl."""
        return min(self.accessed_at + self.ttl, _LONGEST) if self.ttl else None


_record = msgspec.msgpack.Decoder(Record).decode
_profile = msgspec.msgpack.Decoder(tuple[bytes, bytes, bytes]).decode


_DAMAGED: Final = b"damaged"
"""Takes the place of what cannot be decoded: it is no JSON, so what reads the row finds the damage."""
_OPEN_CALLS: Final = 13
"""Place among a session's counters, as above."""


def record_from(data: bytes) -> Record:
    """Return a session's record; for one that cannot be decoded, an empty one whose counters are damaged."""
    try:
        return _record(data)
    except msgspec.MsgspecError:
        counters = [0, 0, 0, 0, 0, 0, 0, -1, 0, b"", -1, None, -1, _DAMAGED, None]
        return Record(None, 0, 0, 0, "active", None, counters, accessed_at=0, artifacts=True)


def check_record(record: Record) -> None:
    """Refuse to change a record that could not be decoded: the change would hide that. Raises `StoreCorrupt`."""
    if record.counters[_OPEN_CALLS] == _DAMAGED:
        raise StoreCorrupt("its record is damaged and cannot be decoded")


def packed(value: Any) -> bytes:
    """Anything as bytes. Raises `OverflowError` for a number that does not fit into 64 bits."""
    return _encode(value)


def profile_from(data: bytes | None) -> Row:
    """Return system messages, state and metadata as the columns of a row; damaged ones cannot be decoded there either."""
    try:
        return (None, None, None) if data is None else _profile(data)
    except msgspec.MsgspecError:
        return (_DAMAGED,) * 3


def row_of(state: Any, keys: Any, record: Record, profile: bytes | None) -> Row:
    """A row of `session_rows`; `state` stands for its primary key."""
    return (
        state,
        keys.tenant,
        keys.user_id,
        keys.id,
        record.agent,
        record.version,
        record.created_at,
        record.updated_at,
        record.status,
        record.ttl,
        *record.counters,
        *profile_from(profile),
        record.accessed_at,
        record.ended_at,
        record.end_reason,
        record.expires_at,
        keys.withdrawn,
        record.identity,
        *record.claim,
        record.views_from,
    )


# -- entries -----------------------------------------------------------------


class _Entry(msgspec.Struct, array_like=True, gc=False):
    """What stands behind an entry's head."""

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
"""Of an entry without payload: `seq`, running total, kind, digest."""
TOTAL_AT: Final = 8
"""Where the running total stands, of eight bytes. Of a retired entry all is eight bytes further on."""
_RETIRED: Final = struct.Struct(">Q")
_entry = msgspec.msgpack.Decoder(_Entry).decode


def entry_bytes(row: Row) -> bytes:
    """An entry from the parameters of `entry_insert`, the session left out."""
    seq, turn_id, unit_back, timestamp, tokens, total, kind, digest, agent, importance, pinned, metadata, payload = row
    rest = (turn_id, unit_back, timestamp, tokens, agent, importance, pinned, 0, metadata, payload)
    try:
        return _HEAD.pack(seq, total, kind, digest) + _encode(rest)
    except struct.error as exc:
        raise OverflowError(str(exc)) from exc


def entry_row_of(state: Any, data: bytes, *, retired: bool = False) -> Row:
    """A row of `entry_rows`."""
    retired_by = None
    if retired:
        (retired_by,) = _RETIRED.unpack_from(data)
        data = data[_RETIRED.size :]
    seq, total, _, digest = _HEAD.unpack_from(data)
    try:
        rest = _entry(memoryview(data)[HEAD_BYTES:])
    except msgspec.MsgspecError as exc:
        raise StoreCorrupt(f"message {seq} is damaged and cannot be decoded ({exc})") from exc
    return (
        state,
        seq,
        rest.turn_id,
        rest.unit_back,
        rest.timestamp,
        rest.tokens,
        total,
        digest,
        rest.agent,
        rest.importance,
        rest.pinned,
        retired_by,
        rest.erased,
        rest.metadata,
        rest.payload,
    )


def changed_entry(data: bytes, *, retired: bool = False, **fields: Any) -> bytes:
    """An entry with other fields, its head as it was."""
    begin = HEAD_BYTES + (_RETIRED.size if retired else 0)
    rest = msgspec.structs.replace(_entry(memoryview(data)[begin:]), **fields)
    return data[:begin] + _encode(rest)


def importance_of(data: bytes) -> float | None:
    """A live entry's importance."""
    return _entry(memoryview(data)[HEAD_BYTES:]).importance


def head_of(data: bytes) -> tuple[int, int, bytes]:
    """A live entry's `seq`, kind and digest."""
    seq, _, kind, digest = _HEAD.unpack_from(data)
    return seq, kind, digest


def retired_part(by: int) -> bytes:
    """What stands before an entry that was retired."""
    return _RETIRED.pack(by)


# -- views -------------------------------------------------------------------


def view_bytes(frontier: int, state: bytes, kept: bytes | None) -> bytes:
    """A saved view: what is to be read with it stands first, for a script."""
    return b"%d %s\n" % (frontier, kept or b"") + state


def view_of(data: bytes) -> tuple[int, bytes, bytes | None]:
    """Frontier, state, and the kept entries as JSON."""
    head, _, state = data.partition(b"\n")
    frontier, _, kept = head.partition(b" ")
    return int(frontier), state, kept or None


# -- compactions -------------------------------------------------------------


class Laying(msgspec.Struct, array_like=True, gc=False):
    """A compaction without what it says."""

    status: str
    view: str
    laid_at: int
    first: int
    last: int
    kind: str
    tokens: int
    source_tokens: int
    total: int
    model: str | None
    created_at: int
    through: int
    prompt_tokens: int
    completion_tokens: int


_laying = msgspec.msgpack.Decoder(Laying).decode
_saying = msgspec.msgpack.Decoder(tuple[bytes | None, bytes | None, bytes]).decode


def laying_from(data: bytes) -> Laying:
    """A compaction without what it says."""
    return _laying(data)


def compaction_row_of(state: Any, id_: int, one: Laying, body: bytes) -> Row:
    """A row of `compaction_rows`."""
    error, report, text = _saying(body)
    ranges = (one.view, one.first, one.last, one.kind, one.tokens, one.source_tokens, one.total, one.model)
    made = (one.created_at, one.through, one.prompt_tokens, one.completion_tokens)
    return (state, id_, one.status, *ranges, *made, error, report, text)


def erased_body(body: bytes, error: bytes) -> bytes:
    """What is left of what a compaction said; `error` stands in place of one that it had."""
    return _encode((None if _saying(body)[0] is None else error, None, b""))


# -- others ------------------------------------------------------------------

_keyed = msgspec.msgpack.Decoder(tuple[bytes, int, int, int]).decode
_list = msgspec.msgpack.Decoder(list[Any]).decode


def keyed_from(data: bytes) -> Row:
    """What an idempotency key stood for: fingerprint, version, first entry, how many."""
    return _keyed(data)


def list_from(data: bytes) -> list[Any]:
    """A row that a script reads nothing of."""
    return _list(data)


def score_bound(number: int) -> bytes:
    """A place in a log, for a range of `seq`."""
    return b"+inf" if fitting(number) >= ENDLESS else b"%d" % number


def fitting(number: int) -> int:
    """The number, if it has no more than 64 bits. Raises `OverflowError`."""
    if not -_LONGEST - 1 <= number <= _LONGEST:
        raise OverflowError(number)
    return number
