"""Records as JSON: in the REST API and in exports. A value that is bytes is written in base64."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.objects import Answer, Count, Time, json_schema, make_object
from holdfast.domain.record import PutRecord, Record, RecordInfo, RecordName
from holdfast.errors import InvalidRequest, StoreCorrupt
from holdfast.limits import NAMESPACE_BYTES, NAMESPACE_LABELS, RECORD_KEY_BYTES
from holdfast.numbers import is_whole

_raw = msgspec.json.Decoder(msgspec.Raw).decode
Encoding = Annotated[
    Literal["json", "base64"],
    json_schema(description="`json`: the value is JSON; `base64`: it is bytes, written in base64"),
]
Namespace = Annotated[
    list[str],
    json_schema(
        description=f"the labels of the namespace, at most {NAMESPACE_LABELS} with {NAMESPACE_BYTES} bytes together",
        minItems=1,
    ),
]
RecordKey = Annotated[str, json_schema(description=f"1 to {RECORD_KEY_BYTES} bytes of any Unicode", minLength=1)]
RecordVersion = Annotated[int, json_schema(description="grows with each write, but not always by one", minimum=1)]


RecordPath = Annotated[
    str,
    json_schema(
        description="namespace and key, separated by `/`; in each part `~1` stands for `/`, and `~0` for `~`",
        minLength=1,
    ),
]


class NamedRecord(Answer, kw_only=True):
    """The name of a record."""

    object: Literal["record"] = "record"
    id: RecordPath
    namespace: Namespace
    key: RecordKey


class RecordObject(NamedRecord, kw_only=True):
    """A record: a value under a namespace and a key."""

    id: RecordPath
    """Namespace and key of the record as a path. It identifies the record among all records of the owner."""
    version: RecordVersion
    created_at: Time
    updated_at: Time
    expires_at: Time | None
    """Time at which the record expires; null: never."""
    size: Count
    """Bytes of the value and of the searchable text, as stored."""
    encoding: Encoding | UnsetType = UNSET
    value: Any = UNSET
    """The value. Lists and searches leave it out with `values=false`."""
    text: str | None | UnsetType = UNSET
    """The text by which a search finds the record; null: no search finds it. Left out together with the value."""

    @classmethod
    def from_record(cls, record: RecordInfo, **fields: Any) -> Self:
        """Convert a record. Its JSON is checked but not decoded, because that would take much more time and memory.

        Args:
            record: the record.
            fields: fields of a subclass.

        Raises:
            StoreCorrupt: the JSON of the value is damaged.
        """
        more: dict[str, Any] = fields
        if isinstance(record, Record):
            own = {"encoding": "json", "value": _check_json(record)} if record.is_json else {"encoding": "base64"}
            more = {**fields, **own}
            more.setdefault("value", record.data)  # msgspec writes bytes in base64
            more["text"] = record.text
        return make_object(cls, record, id=format_name(record.name), namespace=list(record.namespace), **more)


def _check_json(record: Record) -> msgspec.Raw:
    try:
        return _raw(record.data)
    except msgspec.MsgspecError as exc:
        raise StoreCorrupt(f"the record {record.key!r:.80} is damaged and cannot be decoded ({exc})") from exc


def format_path(parts: Sequence[str]) -> str:
    """Join labels, and possibly a key, into one path. `parse_path` splits the path again.

    >>> format_path(("agents", "a/b", "~"))
    'agents/a~1b/~0'
    """
    return "/".join(part.replace("~", "~0").replace("/", "~1") for part in parts)


def parse_path(path: str) -> tuple[str, ...]:
    """Split a path into its parts. An empty path has no parts.

    >>> parse_path("agents/a~1b/~0"), parse_path("")
    (('agents', 'a/b', '~'), ())
    """
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in path.split("/")) if path else ()


def format_name(name: RecordName) -> str:
    """Return the namespace and the key of a record as one path."""
    return format_path((*name.namespace, name.key))


def decode_value(encoding: str, value: Any, where: str = "value") -> Any:
    """Decode a value from JSON. Raises `InvalidRequest` if it is not valid base64.

    Args:
        encoding: `json` or `base64`.
        value: the encoded value.
        where: place of the value, for errors.
    """
    if encoding == "json":
        return value
    try:
        if not isinstance(value, str):
            raise InvalidRequest(f"{where} must be a base64 string, because encoding is base64", param=where)
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error) as exc:
        raise InvalidRequest(f"{where} is not valid base64: {exc}", param=where) from exc


def export_record(record: Record, *, raw: bool = False) -> dict[str, Any]:
    """Convert a record to the JSON object that exports contain.

    Args:
        record: the record.
        raw: True: leave a JSON value encoded, as `msgspec.Raw`.
    """
    exported: dict[str, Any] = msgspec.to_builtins(
        msgspec.structs.replace(RecordObject.from_record(record), value=UNSET)
    )
    if record.text is None:
        del exported["text"]
    if not record.is_json:
        return {**exported, "value": base64.b64encode(record.data).decode()}
    return {**exported, "value": _check_json(record) if raw else record.value}


def parse_exported_record(data: Any, where: str) -> PutRecord:
    """Parse a record in an export. The record's name is checked when the record is stored.

    Args:
        data: the decoded JSON.
        where: place of the record, for errors.

    Raises:
        InvalidRequest: a field is missing or invalid.
    """
    if not isinstance(data, Mapping):
        raise InvalidRequest(f"{where} must be an object", param=where)
    namespace, key, encoding = data.get("namespace"), data.get("key"), data.get("encoding", "json")
    if not isinstance(namespace, list) or not isinstance(key, str) or "value" not in data:
        raise InvalidRequest(f"{where} must have a namespace (a list), a key (a text) and a value", param=where)
    if encoding not in {"json", "base64"}:
        raise InvalidRequest(f"{where}.encoding must be json or base64", param=f"{where}.encoding")
    text = data.get("text")
    if text is not None and not isinstance(text, str):
        raise InvalidRequest(f"{where}.text must be a string or null", param=f"{where}.text")
    times = [data.get(name) for name in ("created_at", "updated_at", "expires_at")]
    if not all(time is None or is_whole(time) for time in times):
        raise InvalidRequest(f"{where}: times must be milliseconds since the epoch", param=where)
    created_at, updated_at, expires_at = times
    return PutRecord(
        name=RecordName(tuple(namespace), key),
        value=decode_value(encoding, data["value"], f"{where}.value"),
        text=text,
        expires_at=expires_at,
        times=None if created_at is None or updated_at is None else (created_at, updated_at),
    )
