"""Records: values under a namespace and a key, owned by a session, a user or the tenant. No I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import msgspec

from holdfast.domain.artifact import UserRef
from holdfast.domain.messages import UNWRITABLE
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest, StoreCorrupt, TooLarge
from holdfast.limits import (
    MESSAGE_BYTES,
    NAMESPACE_BYTES,
    NAMESPACE_LABELS,
    RECORD_INLINE_BYTES,
    RECORD_KEY_BYTES,
    RECORD_TEXT_BYTES,
)

MISSING: Final = 0
"""Expected version that means: no record may exist under the name. Versions of records begin at 1."""
_LABEL_END: Final = b"\x1f"
_NAMESPACE_END: Final = b"\0"
_ITEM_COST: Final = 32
"""Bytes of text that take as long to encode as one item of a list or an object."""
_PLAIN: Final = (str, int, bytes, bytearray, memoryview, msgspec.Raw, type(None))
"""Types of values that contain no number with a fraction."""
_INFINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""An infinite number, or one that is not a number, in MessagePack. It may also be part of a text."""
_PATH_CHARS: Final = 200
"""Longest path of a number in an error message."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

Namespace = tuple[str, ...]
"""A path of labels, such as `("agents", "planner")`. The empty path contains every namespace."""


class TenantRef(msgspec.Struct, frozen=True, gc=False):
    """The owner of records that all users of a tenant share. The store handle determines the tenant."""


RecordOwner = SessionRef | UserRef | TenantRef
"""The owner of records. When an owner is deleted, its records are deleted too."""


class RecordName(msgspec.Struct, frozen=True, gc=False, order=True):
    """The name of a record: it is unique for the owner."""

    namespace: Namespace
    key: str


class PutRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Create a record, or replace its value."""

    name: RecordName
    value: Any
    """Bytes, or any value that can be written as JSON; None is stored as null."""
    text: str | None = None
    """The text by which a search finds the record; None: no search finds it."""
    expect: int | None = None
    """The version that the record must have; `MISSING`: there must be no record; None: any."""
    expires_at: int | None = None
    """Milliseconds since the epoch at which the record ceases to exist; None: it does not expire."""
    times: tuple[int, int] | None = None
    """For copies: when the original was created and last written, in milliseconds since the epoch. None: the time of the call."""


class DeleteRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Delete a record. A missing record is no error, unless a version is expected."""

    name: RecordName
    expect: int | None = None
    """The version that the record must have; None: any."""


RecordChange = PutRecord | DeleteRecord


class RecordInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stored record without its value."""

    name: RecordName
    version: int
    """Version of the record. It grows with each write of the record, but not always by one. An owner's versions are never reused."""
    created_at: int
    """Milliseconds since the epoch, like all times here."""
    updated_at: int
    expires_at: int | None = None
    size: int
    """Bytes of the value and of the searchable text, as stored."""

    @property
    def namespace(self) -> Namespace:
        """The namespace of the record."""
        return self.name.namespace

    @property
    def key(self) -> str:
        """The key of the record in its namespace."""
        return self.name.key


class Record(RecordInfo, frozen=True, kw_only=True, dict=True):
    """A stored record with its value."""

    is_json: bool
    """True if `data` is a value as JSON, False if it is the value itself."""
    data: bytes
    """The value as stored."""
    text: str | None = None
    """The text by which a search finds the record; None: no search finds it."""

    @cached_property
    def value(self) -> Any:
        """Bytes, or a JSON value. JSON is decoded at the first access. Raises `StoreCorrupt` if it is damaged."""
        if not self.is_json:
            return self.data
        try:
            return _decode(self.data)
        except (msgspec.MsgspecError, ValueError) as exc:
            raise StoreCorrupt(f"the record {self.key!r:.80} is damaged and cannot be decoded ({exc})") from exc

    def copy(self) -> PutRecord:
        """Return the change that puts a copy of the record, with its times."""
        times = (self.created_at, self.updated_at)
        value = msgspec.Raw(self.data) if self.is_json else self.data
        return PutRecord(name=self.name, value=value, text=self.text, expires_at=self.expires_at, times=times)


class SearchableRecord(RecordInfo, frozen=True, kw_only=True):
    """A record that a search can find, without its value."""

    number: int
    """Number of the record among the searchable records of its owner. A record keeps its number as long as it is searchable. Numbers
    are reused only after all records of the owner were deleted."""
    text: str
    """The text by which a search finds the record."""


class SearchablePage(msgspec.Struct, frozen=True):
    """Some of an owner's searchable records."""

    records: tuple[SearchableRecord, ...]
    has_more: bool
    version: int
    """The owner's version: it grows with each write that changes a record of the owner. 0: the owner never had records."""
    identity: str = ""
    """Identity of the session that owns the records; empty for a user and the tenant."""


class RecordPage(msgspec.Struct, frozen=True):
    """A page of records."""

    records: tuple[RecordInfo, ...]
    """The records in order of namespace and key. Each is a `Record` if values were requested, otherwise a `RecordInfo`."""
    has_more: bool
    version: int = 0
    """The owner's version: it grows with each write that changes a record of the owner."""


class ChangedRecords(msgspec.Struct, frozen=True):
    """The result of a write of records."""

    version: int
    """The owner's version after the write, which is the version of every record that was put."""
    existed: tuple[bool, ...]
    """For each change: True if a record existed under the name before."""
    unsearchable: tuple[int, ...] = ()
    """Numbers of the records that were searchable before the write, and are not any more."""


# -- names -------------------------------------------------------------------


def check_namespace(namespace: Namespace, *, empty: bool = False) -> None:
    """Raise `InvalidRequest` if a namespace cannot be stored.

    Args:
        namespace: the namespace.
        empty: True allows the empty path, which is a prefix of every namespace.
    """
    labels: object = namespace
    if not isinstance(labels, tuple) or not all(isinstance(label, str) for label in labels):
        raise InvalidRequest(
            f"a namespace must be a tuple of strings, such as ('agents', 'planner'), not {namespace!r:.80}",
            param="namespace",
        )
    if len(namespace) > NAMESPACE_LABELS or not (namespace or empty):
        least = 0 if empty else 1
        raise InvalidRequest(
            f"a namespace must have {least} to {NAMESPACE_LABELS} labels, not {len(namespace)}", param="namespace"
        )
    for label in namespace:
        if not label or any(char < " " for char in label):
            raise InvalidRequest(
                f"the label {label!r:.80} must be a text without control characters", param="namespace"
            )
    size = len(_to_utf8("".join(namespace), "namespace"))
    if size > NAMESPACE_BYTES:
        raise InvalidRequest(
            f"the labels of a namespace must have at most {NAMESPACE_BYTES} bytes in total, not {size}",
            param="namespace",
        )


def check_record_key(key: str, *, empty: bool = False) -> None:
    """Raise `InvalidRequest` if a key cannot be stored; `empty` allows the empty text, which is a prefix of every key."""
    if not isinstance(key, str):
        raise InvalidRequest(f"a key must be a string, not {type(key).__name__}", param="key")
    size = len(_to_utf8(key, "key"))
    if size > RECORD_KEY_BYTES or not (size or empty):
        raise InvalidRequest(f"a key must have {int(not empty)} to {RECORD_KEY_BYTES} bytes, not {size}", param="key")


def _to_utf8(text: str, param: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidRequest(f"{param} contains a lone surrogate, which is not valid Unicode", param=param) from exc


def encode_namespace(namespace: Namespace) -> bytes:
    """Return the common prefix of the places of all records in a namespace and in the namespaces below it."""
    return b"".join(label.encode() + _LABEL_END for label in namespace)


def encode_place(name: RecordName) -> bytes:
    """Return the place of a record: bytes by which the owner's records are sorted, first by namespace and then by key.

    Records of a namespace come before records of the namespaces below it.
    """
    return encode_namespace(name.namespace) + _NAMESPACE_END + name.key.encode()


def decode_place(place: bytes) -> RecordName:
    """Return the name of the record at a place."""
    path, _, key = bytes(place).partition(_NAMESPACE_END)
    return RecordName(tuple(label.decode() for label in path.split(_LABEL_END)[:-1]), key.decode())


def end_of_namespace(namespace: Namespace, *, nested: bool) -> bytes:
    """Return the lowest place after all records of a namespace.

    Args:
        namespace: the namespace.
        nested: True: the returned place is also after all records of the namespaces below it.
    """
    return end_of_prefix(encode_namespace(namespace)) if nested else encode_namespace(namespace) + b"\1"


def end_of_prefix(prefix: bytes) -> bytes:
    """Return the lowest bytes that are greater than all bytes that begin with `prefix`."""
    return prefix[:-1] + bytes((prefix[-1] + 1,)) if prefix else b"\xff"


def find_range(namespace: Namespace, prefix: str, *, nested: bool) -> tuple[bytes, bytes]:
    """Return the range of places that a list contains: the first place of the list, and the first place after the list.

    Args:
        namespace: the namespace.
        prefix: the beginning of the keys; ignored if `nested`.
        nested: True: also records of namespaces below it.
    """
    if nested:
        return encode_namespace(namespace), end_of_namespace(namespace, nested=True)
    begin = encode_place(RecordName(namespace, prefix))
    return begin, end_of_prefix(begin)


# -- values ------------------------------------------------------------------


def encode_record_value(value: Any) -> tuple[bool, bytes]:
    """Return True if a value is stored as bytes and False if as JSON, and the stored bytes.

    Args:
        value: bytes, or any value that can be written as JSON. A `msgspec.Raw` is JSON already; its content is not checked.

    Raises:
        InvalidRequest: the value has no JSON form.
        TooLarge: the value has too many bytes.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        raw, data = True, bytes(value)
    else:
        try:
            raw, data = False, _encode(value)
        except UNWRITABLE as exc:
            half = ": a text in it contains half of a surrogate pair, which is not a valid character"
            raise InvalidRequest(
                f"a record's value must be bytes or JSON; {type(value).__name__} cannot be written as JSON"
                + (half if isinstance(exc, UnicodeError) else ""),
                param="value",
            ) from exc
        if b"null" in data and not isinstance(value, msgspec.Raw) and (found := _find_infinite(value)):
            path, number = found
            raise InvalidRequest(
                f"{path} is {number}, which has no JSON form: store None or a text in its place", param="value"
            )
    if len(data) > MESSAGE_BYTES:
        raise TooLarge(f"the value has {len(data)} bytes; at most {MESSAGE_BYTES} are allowed", param="value")
    return raw, data


def _find_infinite(value: Any) -> tuple[str, float] | None:
    """Return the place of an infinite number, or of one that is not a number, in a value; None if there is none.

    JSON has no such numbers, and encoders write null in their place.

    >>> _find_infinite({"scores": [1.0, float("inf")]})
    ('value.scores[1]', inf)
    """
    try:
        # Much faster than the search for the place, and it finds at least all values with such a number.
        if not _INFINITE.search(msgspec.msgpack.encode(value)):
            return None
    except UNWRITABLE:
        pass  # such as a number over 64 bits
    stack: list[tuple[str, Any]] = [("value", value)]
    while stack:
        path, one = stack.pop()
        if isinstance(one, float):
            if not math.isfinite(one):
                return path, one
        elif isinstance(one, Mapping):
            stack += [(f"{path}.{key}"[:_PATH_CHARS], inner) for key, inner in one.items()]
        elif isinstance(one, list | tuple | set | frozenset):
            stack += [(f"{path}[{at}]"[:_PATH_CHARS], inner) for at, inner in enumerate(one)]
        elif not isinstance(one, _PLAIN):
            with suppress(*UNWRITABLE):  # an object with fields, such as a dataclass, which may contain JSON already
                stack.append((path, msgspec.to_builtins(one, str_keys=True)))
    return None


def encode_record_text(text: str | None) -> bytes | None:
    """Return the searchable text of a record as stored, in UTF-8. None: the record is not searchable.

    Raises:
        InvalidRequest: the text is not a string, is empty or white space, or is not valid Unicode.
        TooLarge: the text is too long.
    """
    if text is None:
        return None
    given: object = text
    if not isinstance(given, str) or not given.strip():
        kind = "an empty text" if isinstance(given, str) else type(given).__name__
        raise InvalidRequest(
            f"text must be the words by which a search finds the record, or None, not {kind}", param="text"
        )
    data = _to_utf8(text, "text")
    if len(data) > RECORD_TEXT_BYTES:
        raise TooLarge(
            f"the searchable text has {len(data)} bytes; at most {RECORD_TEXT_BYTES} are allowed: search for a part of it",
            param="text",
        )
    return data


def is_large_value(value: Any) -> bool:
    """Return True if encoding a value takes so long that it should not be done on the event loop.

    The cost of this check is bounded: it stops as soon as enough text or enough items were found.
    """
    left, stack = RECORD_INLINE_BYTES, [value]
    while stack and left >= 0:
        one = stack.pop()
        if isinstance(one, str | bytes | bytearray | memoryview | msgspec.Raw):
            left -= len(one if isinstance(one, str) else memoryview(one))
        elif isinstance(one, Mapping):
            left -= _ITEM_COST * len(one)
            stack += one.values() if left >= 0 else ()
        elif isinstance(one, list | tuple):
            left -= _ITEM_COST * len(one)
            stack += one if left >= 0 else ()
        else:
            left -= _ITEM_COST
    return left < 0
