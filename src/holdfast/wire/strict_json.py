"""Read JSON strictly, and times as people and clients write them.

JSON that two readers could understand differently, or that could be read and not be written again, is refused. It is bounded before it is
decoded, because a few bytes of JSON become hundreds in memory. Times become milliseconds since the epoch.
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
# A string, closed or not, is passed over in one match: so no text makes the search slow. What is left are values' marks.
_STRING_OR_MARK: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|([,\[{]++)', re.DOTALL)


def decoded(body: bytes, *, what: str = "the body", values: int = VALUES) -> Any:
    """The JSON in a body.

    Args:
        body: the text.
        what: how it is called, for the error.
        values: most values that it may have.

    Raises:
        InvalidRequest: no JSON, no UTF-8, nested deeper than `DEPTH`, a number that is none, a key twice in an object.
        TooLarge: more than `values` values.
    """
    if not body.strip():
        raise InvalidRequest(f"{what} is empty: it must be JSON")
    # Each value stands behind one of these marks, or is the whole; some of them may stand in texts.
    if body.count(b",") + body.count(b"[") + body.count(b"{") >= values:
        _count(body, what, values)
    try:
        data = _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"{what} is not JSON: {exc}") from exc
    colons = _colons(data, DEPTH)
    # Every key has one colon behind it. One more than there are keys and colons in texts: a key was given twice.
    if body.count(b":") != colons or b"\\u003" in body:
        _refuse_doubled(body)
    return data


def _count(body: bytes, what: str, most: int) -> None:
    values = 1
    for found in _STRING_OR_MARK.finditer(body):
        values += len(found[1] or b"")
        if values > most:
            raise TooLarge(f"{what} has more than {most} values")


def _colons(data: Any, left: int) -> int:
    """How many keys `data` has, and colons in its texts. Refuses what could be read, and not be passed on or written."""
    if isinstance(data, str):
        return data.count(":")
    if isinstance(data, int) and not -(2**63) <= data < 2**64:
        raise InvalidRequest("the body holds a whole number of more than 64 bits")
    if not isinstance(data, dict | list):
        return 0
    if left == 0:
        raise InvalidRequest(f"the body is nested more than {DEPTH} deep")
    # All texts of one object or list are counted at once: a loop in Python costs more than what it looks for.
    found, items = (len(data), data.values()) if isinstance(data, dict) else (0, data)
    texts = [item for item in items if type(item) is str]
    found += "".join(texts).count(":") + ("".join(data).count(":") if isinstance(data, dict) else 0)
    if len(texts) < len(data):
        for item in items:
            if type(item) is not str:
                found += _colons(item, left - 1)
    return found


def _refuse_doubled(body: bytes) -> None:
    """Read the body once more, for the key that stands twice in one object."""
    json.loads(body, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise InvalidRequest(f"the key {key[:100]!r} stands twice in one object; send it once", param=key[:100])
        seen.add(key)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER: Final = re.compile(r"-?[0-9]{1,16}")
_LONGEST: Final = 64


def moment_of(given: str | int, name: str, zone: tzinfo = UTC) -> int:
    """A time in milliseconds since the epoch.

        >>> moment_of("2026-11-20", "since")
        1795132800000

    Args:
        given: milliseconds, as a number or in digits; a date, which begins at midnight; or date and time as RFC 3339 has them,
            the offset left out where `zone` is meant.
        name: of the parameter, for the error.
        zone: see above.

    Raises:
        InvalidRequest: it is none of these.
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
    message = (
        f"{name} must be milliseconds since the epoch, a date like 2026-11-20, or date and time as RFC 3339 has them"
    )
    raise InvalidRequest(f"{message}, not {given!r:.80}", param=name)
