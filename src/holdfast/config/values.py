"""Sizes as people write them, and back; secrets kept out of what people read. Durations are `holdfast.durations`'."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from holdfast.durations import format_duration, parse_duration

__all__ = ["MASK", "format_duration", "format_size", "is_secret_name", "mask_url", "parse_duration", "parse_size"]

MASK: Final = "***"

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

_SECRET_NAME: Final = re.compile(
    r"(?<!output_)(?<!session_)key|token(?!s|_window)|(?<!on_)secret(?!_guard)|passw|credential|authorization|cookie",
    re.IGNORECASE,
)


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
    ('32MiB', '1500B')
    """
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"


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
    if parts.netloc and not at and "@" in url:  # a sign in the password ends the host's place: `ada:s3/cret@db`
        return f"{parts.scheme}://{MASK}"
    name, colon, _ = user.partition(":")
    shown = f"{name}{colon}{MASK if colon else ''}{at}{host}"
    return urlunsplit((parts.scheme, shown, parts.path, MASK if parts.query else "", "")) if at or parts.query else url


def is_secret_name(name: str) -> bool:
    """Whether a value under that name is hidden, as under `api_key` or `sasl_password`."""
    return _SECRET_NAME.search(name) is not None
