"""Durations and sizes as people write them, and back; secrets kept out of what people read."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit, urlunsplit

MASK: Final = "***"

_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION: Final = re.compile(r"(?:\d{1,12}(?:\.\d{1,3})?(?:ms|[dhms]))+", re.ASCII)
_DURATION_PART: Final = re.compile(r"([\d.]+)(ms|[dhms])")
_SECONDS: Final = re.compile(r"\d{1,12}(?:\.\d{1,3})?", re.ASCII)

_SIZES: Final = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_SIZE: Final = re.compile(r"(\d{1,18}) ?([a-zA-Z]*)", re.ASCII)

_SECRET_NAME: Final = re.compile(r"key|token(?!s)|secret|passw|credential|authorization|cookie", re.IGNORECASE)


def parse_duration(text: str) -> float | None:
    """Seconds, to the millisecond: `90`, `1.5`, `90s`, `24h`, `1h30m`, `250ms`, `7d`; None if it is none of these.

    Units go from large to small, each at most once.

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
    """The shortest text that `parse_duration` reads as the same duration.

    >>> format_duration(5400), format_duration(86400), format_duration(0)
    ('1h30m', '1d', '0s')
    """
    rest = round(seconds * 1000)
    text = ""
    for unit, size in _UNITS_MS.items():
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def parse_size(text: str) -> int | None:
    """Bytes: `512`, `512B`, `64KiB`, `32 MiB`, `1GB` (KiB is 1,024 and kB is 1,000); None if it is none of these.

    >>> parse_size("32MiB"), parse_size("1 kB"), parse_size("5M")
    (33554432, 1000, None)
    """
    found = _SIZE.fullmatch(text)
    if not found or found[2].lower() not in _SIZES:
        return None
    return int(found[1]) * _SIZES[found[2].lower()]


def format_size(size: int) -> str:
    """The shortest exact text: `32MiB`.

    >>> format_size(32 << 20), format_size(1500)
    ('32MiB', '1500')
    """
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def mask_url(url: str) -> str:
    """The URL with its password and whatever stands in its query hidden.

    >>> mask_url("postgresql://ada:s3cret@db:5432/chat?sslkey=x")
    'postgresql://ada:***@db:5432/chat?***'
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # what cannot be read cannot be masked in part
        return MASK
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    shown = f"{name}{colon}{MASK if colon else ''}{at}{host}"
    return urlunsplit((parts.scheme, shown, parts.path, MASK if parts.query else "", "")) if at or parts.query else url


def is_secret_name(name: str) -> bool:
    """Whether a value under that name is hidden, as under `api_key` or `sasl_password`."""
    return _SECRET_NAME.search(name) is not None
