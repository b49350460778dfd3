"""Strict parsing of JSON, and of times in the formats that people and clients use.

JSON is rejected if two parsers could read it differently, or if it can be read but not written again. Its number of
values is limited before it is decoded, because a few bytes of JSON may take hundreds of bytes in memory. Times become
milliseconds since the epoch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

import msgspec

from holdfast.errors import InvalidRequest, TooLarge
from holdfast.limits import DEPTH, VALUES

_decode = msgspec.json.Decoder().decode
# A string, closed or not, is skipped in one match, so no input makes the search slow. The rest are the marks before values.
_STRING_OR_MARK: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|([,\[{]++)', re.DOTALL)
_SURROGATE: Final = re.compile(rb"\\u[dD](?:([89abAB])|[c-fC-F])[0-9a-fA-F]{2}")
_SURROGATES: Final = 100_000
"""Maximum number of escaped surrogates in a body with half of a pair. With more of them, it is rejected."""
_TEXT_FIELDS: Final = frozenset(
    {
        *("messages", "contents", "message", "content", "input", "items", "system", "system_messages", "instructions"),
        *("tools", "functions", "interrupt"),
    }
)
"""Fields of bodies with texts of people and models. JavaScript cuts an emoji in half there, as in `text.slice(0, 80)`."""


def decode_repaired(data: bytes) -> Any:
    """Decode JSON, with U+FFFD in place of each half of a surrogate pair.

    Raises:
        msgspec.MsgspecError, ValueError, RecursionError: It is not JSON.
    """
    try:
        return _decode(data)
    except msgspec.DecodeError:
        return _decode(_replace_halves(data, rb"\ufffd"))


def _replace_halves(data: bytes, by: bytes) -> bytes:
    """Return JSON with `by` in place of each escaped half of a surrogate pair."""
    if data.count(rb"\ud") + data.count(rb"\uD") > _SURROGATES:
        return data
    halves: list[int] = []
    high = -1
    for found in _SURROGATE.finditer(data):
        at = start = found.start()
        while at and data[at - 1] == ord("\\"):
            at -= 1
        if (start - at) % 2:  # the backslash is escaped itself
            continue
        if found[1] is None and high == start - 6:
            halves.pop()
        else:
            halves.append(start)
        high = start if found[1] else -1
    ends = [0, *(start + 6 for start in halves)]
    return by.join(data[end:start] for end, start in zip(ends, [*halves, len(data)], strict=True))


def _list_repaired(body: bytes, data: Any, what: str) -> Iterator[str]:
    """Yield the fields and messages of a body that have half of a surrogate pair, and reject it elsewhere, as in ids."""
    other = _decode(_replace_halves(body, b""))
    for name in data if isinstance(data, dict) else (what,):
        value, without = (data[name], other.get(name)) if isinstance(data, dict) else (data, other)
        if value == without:
            continue
        if name not in _TEXT_FIELDS:
            param = name[:80]
            raise InvalidRequest(f"{param} contains half of a surrogate pair, which is not a character", param=param)
        pairs = zip(value, without, strict=False) if isinstance(value, list) and isinstance(without, list) else ()
        yield from [f"{name}[{at}]" for at, (one, cut) in enumerate(pairs) if one != cut] or [name]


def decode_json(body: bytes, *, what: str = "the body", values: int = VALUES, repaired: list[str] | None = None) -> Any:
    """Decode a JSON body.

    In messages and other fields with texts, each half of a surrogate pair becomes U+FFFD.

    Args:
        body: The encoded JSON.
        what: Name of the body, for errors.
        values: Maximum number of values in the body.
        repaired: Receives the fields and messages in which something was replaced.

    Raises:
        InvalidRequest: The body is not valid JSON or UTF-8, has half of a surrogate pair in another field, is nested
            deeper than `DEPTH`, has a number out of range, or a duplicate key in an object.
        TooLarge: There are more than `values` values.
    """
    if not body.strip():
        raise InvalidRequest(f"{what} is empty: it must be JSON")
    # Each value but the outermost follows one of these marks; texts may contain further ones.
    if body.count(b",") + body.count(b"[") + body.count(b"{") >= values:
        _check_count(body, what, values)
    try:
        try:
            data = _decode(body)
        except msgspec.DecodeError:
            data = decode_repaired(body)
            found = [*_list_repaired(body, data, what)]
            body = _replace_halves(body, rb"\ufffd")
            if repaired is not None:
                repaired += found
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"{what} is not JSON: {exc}") from exc
    colons = _count_colons(data, DEPTH)
    # Every key is followed by one colon. More colons than keys and colons in texts mean that a key was given twice.
    if body.count(b":") != colons or b"\\u003" in body:
        json.loads(body, object_pairs_hook=_check_unique)
    return data


def _check_count(body: bytes, what: str, most: int) -> None:
    values = 1
    for found in _STRING_OR_MARK.finditer(body):
        values += len(found[1] or b"")
        if values > most:
            raise TooLarge(f"{what} has more than {most} values")


def _count_colons(data: Any, left: int) -> int:
    """Return the number of keys in `data`, plus the number of colons in its texts.

    Raises:
        InvalidRequest: A value can be read but not written again, or the data are nested too deeply.
    """
    if isinstance(data, str):
        return data.count(":")
    if isinstance(data, int) and not -(2**63) <= data < 2**64:
        raise InvalidRequest("the body contains a whole number of more than 64 bits")
    if not isinstance(data, dict | list):
        return 0
    if left == 0:
        raise InvalidRequest(f"the body is nested more than {DEPTH} deep")
    # All texts of one object or list are counted at once, because a loop in Python would be slower.
    found, items = (len(data), data.values()) if isinstance(data, dict) else (0, data)
    texts = [item for item in items if type(item) is str]
    found += "".join(texts).count(":") + ("".join(data).count(":") if isinstance(data, dict) else 0)
    if len(texts) < len(data):
        for item in items:
            if type(item) is not str:
                found += _count_colons(item, left - 1)
    return found


def _check_unique(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise InvalidRequest(f"the key {key[:100]!r} appears twice in one object; send it once", param=key[:100])
        seen.add(key)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER: Final = re.compile(r"-?[0-9]{1,16}")
_LONGEST: Final = 64


def parse_time(given: str | int, name: str, zone: tzinfo = UTC) -> int:
    """Convert a time to milliseconds since the epoch.

        >>> parse_time("2026-11-20", "since")
        1795132800000

    Args:
        given: The time in one of three forms: milliseconds since the epoch, as a number or in digits; a date, which
            means midnight; or a date and time according to RFC 3339, with or without an offset.
        name: Name of the parameter, for errors.
        zone: Time zone of dates, and of times without an offset.

    Raises:
        InvalidRequest: The value has none of these forms.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if isinstance(given, str) and len(given) <= _LONGEST:
        if _NUMBER.fullmatch(given):
            return int(given)
        try:
            found = datetime.fromisoformat(given.strip())
        except ValueError:
            found = None
        if found is not None:
            local = found if found.tzinfo else found.replace(tzinfo=zone)
            return (local - _EPOCH) // timedelta(milliseconds=1)
    message = f"{name} must be milliseconds since the epoch, a date like 2026-11-20, or an RFC 3339 date and time"
    raise InvalidRequest(f"{message}, not {given!r:.80}", param=name)
