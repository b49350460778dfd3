"""Parse durations as people write them (`1h30m`), and format durations and times."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.errors import InvalidRequest

LONGEST: Final = 100 * 365 * 86_400
"""The longest accepted duration, in seconds: a hundred years."""
LATEST_TIME: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, in milliseconds since the epoch. No later time can be written as a date."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION: Final = re.compile(r"(?:\d{1,12}(?:\.\d{1,3})?(?:ms|[dhms]))+", re.ASCII)
_DURATION_PART: Final = re.compile(r"([\d.]+)(ms|[dhms])")
_SECONDS: Final = re.compile(r"\d{1,12}(?:\.\d{1,3})?", re.ASCII)


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration such as `90`, `1.5`, `90s`, `24h`, `1h30m`, `250ms` or `7d`, or None for any other text.

    Units go from large to small, each at most once. The result is precise to the millisecond.

        >>> parse_duration("1h30m"), parse_duration("90"), parse_duration("30m1h")
        (5400.0, 90.0, None)
    """
    if _SECONDS.fullmatch(text):
        return float(text)
    if not _DURATION.fullmatch(text):
        return None
    parts = [(float(number), _UNITS_MS[unit]) for number, unit in _DURATION_PART.findall(text)]
    units = [unit for _, unit in parts]
    if units != sorted(set(units), reverse=True):
        return None
    return round(sum(number * unit for number, unit in parts)) / 1000


def format_duration(seconds: float) -> str:
    """Return the shortest text that `parse_duration` reads as the same duration.

    >>> format_duration(5400), format_duration(86400), format_duration(0)
    ('1h30m', '1d', '0s')
    """
    rest = round(seconds * 1000)
    text = ""
    for unit, size in _UNITS_MS.items():
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def parse_milliseconds(given: object, name: str) -> int:
    """Return a duration in milliseconds. It can be given as text like `24h`, as a number of seconds, or as None for 0.

        >>> parse_milliseconds("1h30m", "session_ttl"), parse_milliseconds(1.5, "session_ttl"), parse_milliseconds(None, "session_ttl")
        (5400000, 1500, 0)

    Args:
        given: the duration.
        name: name of the parameter, for the error message.

    Raises:
        InvalidRequest: `given` is not a duration, or is longer than a hundred years.
    """
    number = isinstance(given, int | float) and not isinstance(given, bool)
    seconds = given if number else parse_duration(given) if isinstance(given, str) else None
    if given is None:
        return 0
    if isinstance(seconds, int | float) and 0 <= seconds <= LONGEST:
        return round(seconds * 1000)
    message = f"{name} must be a duration like 24h, 1h30m, 90s or 250ms, or seconds, from 0 to 36500d, not {given!r}"
    raise InvalidRequest(message[:300], param=name)


def to_utc(milliseconds: int) -> datetime:
    """Convert milliseconds since the epoch to a date and time in UTC. A time outside the range of dates becomes the closest valid one."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if milliseconds > 0 else datetime.min.replace(tzinfo=UTC)


def format_utc(milliseconds: int) -> str:
    """Format milliseconds since the epoch as RFC 3339 in UTC. A time outside the range of dates becomes the closest valid one.

    >>> format_utc(1760000000123), format_utc(2**53)
    ('2025-10-09T08:53:20Z', '9999-12-31T23:59:59Z')
    """
    return to_utc(milliseconds).isoformat(timespec="seconds").removesuffix("+00:00") + "Z"
