"""Strict parsing of JSON, and of times in the formats that people and clients use.

JSON is rejected if two parsers could read it differently, or if it can be read but not written again. Its number of
values is limited before it is decoded, because a few bytes of JSON may take hundreds of bytes in memory. Times become
milliseconds since the epoch.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

import msgspec

from holdfast.errors import InvalidRequest, TooLarge
from holdfast.limits import DEPTH, VALUES

_decode = msgspec.json.Decoder().decode
# A string, closed or not, is skipped in one match, so no input makes the search slow. The rest are the marks before values.
_STRING_OR_MARK: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|([,\[{]++)', re.DOTALL)


def decode_json(body: bytes, *, what: str = "the body", values: int = VALUES) -> Any:
    """Decode a JSON body.

    Args:
        body: The encoded JSON.
        what: Name of the body, for errors.
        values: Maximum number of values in the body.

    Raises:
        InvalidRequest: The body is not valid JSON or UTF-8, is nested deeper than `DEPTH`, has a number out of range,
            or a duplicate key in an object.
        TooLarge: There are more than `values` values.
    """
    if not body.strip():
        raise InvalidRequest(f"{what} is empty: it must be JSON")
    # Each value but the outermost follows one of these marks; texts may contain further ones.
    if body.count(b",") + body.count(b"[") + body.count(b"{") >= values:
        _check_count(body, what, values)
    try:
        data = _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"{what} is not JSON: {exc}") from exc
    colons = _count_colons(data, DEPTH)
    # Every key is followed by one colon. More colons than keys and colons in texts mean that a key was given twice.
    if body.count(b":") != colons or b"\\u003" in body:
        _reject_duplicate_key(body)
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


def _reject_duplicate_key(body: bytes) -> None:
    """Find the duplicate key in a body by decoding it again, and reject the body."""
    json.loads(body, object_pairs_hook=_check_unique)


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
