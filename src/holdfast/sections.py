"""The base class of configuration sections, the types of their values, and functions that parse, check and display values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Meta, inspect

from holdfast.durations import LONGEST
from holdfast.errors import InvalidRequest
from holdfast.numbers import MOST, check_number, check_whole

MASK: Final = "***"

# -- types -----------------------------------------------------------------------

Duration = Annotated[float, Meta(ge=0, le=LONGEST, extra={"form": "duration"})]
"""Seconds. In configuration: `24h`, `1h30m`, `90s`, `250ms`, or a number of seconds."""
Timeout = Annotated[float, Meta(ge=0.001, le=86_400, extra={"form": "duration"})]
"""Seconds, from a millisecond to a day; written like `Duration`."""
Size = Annotated[int, Meta(ge=1 << 10, le=1 << 32, extra={"form": "size"})]
"""Bytes. In configuration: `32MiB`, `1GB`, or a number of bytes."""
Secret = Annotated[str, Meta(min_length=1, extra={"form": "secret"})]
"""A value that is never displayed."""
OptionalSecret = Annotated[str, Meta(extra={"form": "secret"})]
"""A secret that may be empty."""
Url = Annotated[str, Meta(min_length=1, extra={"form": "url"})]
"""A URL that is displayed without its password and query."""
Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Most = Annotated[int, Meta(ge=1, le=1_000_000)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Share = Annotated[float, Meta(ge=0, le=1)]
Names = Annotated[tuple[Text, ...], Meta(extra={"form": "names"})]
"""Several names; a single one may be written without a list."""
Free = dict[str, Any]
"""Arbitrary data that is passed on unchanged. Values are not displayed if their names sound like secrets."""
Mistake = tuple[str, str]
"""A configuration key, and what is wrong with its value."""

_FREE: Final = frozenset(
    {"args", "auth", "base_url", "env", "headers", "hooks", "options", "params", "regex", "state", "url"}
)
"""Fields that may contain anything, including secrets, so their values are hidden."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A section of the configuration: a mapping that may have only the keys of this class."""

    SHORT: ClassVar[str] = ""
    """Key that a plain value in place of the mapping sets: `workspace_git: true` means `workspace_git: {enabled: true}`. Empty: none."""

    def find_mistakes(self) -> list[Mistake]:
        """Return mistakes that checks of single values cannot find, for example values that contradict each other."""
        return []

    def __repr__(self) -> str:
        # Settings end up in logs and tracebacks; secrets must not.
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={MASK if value and _is_hidden(name) else repr(value)}" for name, value in values)
        return f"{type(self).__name__}({', '.join(shown)})"


def _is_hidden(name: str) -> bool:
    return name in _FREE or is_secret_name(name)


# -- fields ----------------------------------------------------------------------


@cache
def get_fields(cls: type[Settings]) -> dict[str, inspect.Field]:
    """Return the fields of a section by key. The fields that the class itself defines come before inherited ones."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    own = cls.__annotations__
    return {field.encode_name: field for field in sorted(info.fields, key=lambda field: field.name not in own)}


def unwrap_type(info: inspect.Type) -> tuple[inspect.Type, str | None]:
    """Return the type without `| None`, and the notation of its values (for example `duration`), or None without special notation."""
    if isinstance(info, inspect.UnionType):
        return unwrap_type(next(member for member in info.types if not isinstance(member, inspect.NoneType)))
    if isinstance(info, inspect.Metadata):
        return info.type, (info.extra or {}).get("form")
    return info, None


def check_fields(settings: Settings, prefix: str) -> None:
    """Check the types and ranges of settings that a program has created. The configuration loader makes these checks itself.

    Args:
        settings: the settings to check.
        prefix: text before each field's name in error messages, for example `python` for `python.timeout`.

    Raises:
        InvalidRequest: a value is wrong; the message names the field.
    """
    for name, field in get_fields(type(settings)).items():
        value, where = getattr(settings, name), f"{prefix}.{name}"
        info, form = unwrap_type(field.type)
        if value is None and field.default is None:
            continue
        if isinstance(info, inspect.IntType):
            check_whole(value, where, info.ge or 0, info.le or MOST)
        elif isinstance(info, inspect.FloatType):
            kind = "number of seconds" if form == "duration" else "number"
            check_number(value, where, info.ge or 0, info.le or math.inf, kind=kind)
        elif isinstance(info, inspect.BoolType) and not isinstance(value, bool):
            raise InvalidRequest(f"{where} must be true or false, not {value!r:.80}", param=where)
        elif isinstance(info, inspect.LiteralType) and value not in info.values:
            known = ", ".join(map(str, info.values))
            raise InvalidRequest(f"{where} must be one of {known}, not {value!r:.80}", param=where)
        elif isinstance(info, inspect.StrType) and not _is_text(value, info.min_length or 0):
            shown = type(value).__name__ if form in {"secret", "url"} else f"{value!r:.80}"
            raise InvalidRequest(f"{where} must be a string that is not empty, not {shown}", param=where)


def _is_text(value: object, least: int) -> bool:
    return isinstance(value, str) and len(value) >= least and "\0" not in value


# -- sizes -----------------------------------------------------------------------

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


def parse_size(text: str) -> int | None:
    """Return the bytes of a size such as `512`, `512B`, `64KiB`, `32 MiB` or `1GB`, or None for any other text.

    KiB is 1,024 bytes, kB is 1,000.

    >>> parse_size("32MiB"), parse_size("1 kB"), parse_size("5M")
    (33554432, 1000, None)
    """
    found = _SIZE.fullmatch(text)
    if not found or found[2].lower() not in _SIZES:
        return None
    return int(found[1]) * _SIZES[found[2].lower()]


def format_size(size: int) -> str:
    """Return the shortest exact notation of a size in bytes.

    >>> format_size(32 << 20), format_size(1500)
    ('32MiB', '1500B')
    """
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"


# -- secrets ---------------------------------------------------------------------

_SECRET_NAME: Final = re.compile(
    r"(?<!output_)(?<!session_)key|token(?!s|_window)|(?<!on_)secret(?!_guard)|passw|credential|authorization|cookie",
    re.IGNORECASE,
)


def mask_url(url: str) -> str:
    """Return the URL with its password and query hidden.

    >>> mask_url("postgresql://ada:s3cret@db:5432/chat?sslkey=x")
    'postgresql://ada:***@db:5432/chat?***'
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # a URL that cannot be parsed cannot be masked in part
        return MASK
    user, at, host = parts.netloc.rpartition("@")
    if parts.netloc and not at and "@" in url:  # a slash in the password ends the netloc: `ada:s3/cret@db`
        return f"{parts.scheme}://{MASK}"
    name, colon, _ = user.partition(":")
    shown = f"{name}{colon}{MASK if colon else ''}{at}{host}"
    return urlunsplit((parts.scheme, shown, parts.path, MASK if parts.query else "", "")) if at or parts.query else url


def is_secret_name(name: str) -> bool:
    """Return True if values under this name must be hidden, for example for `api_key` or `sasl_password`."""
    return _SECRET_NAME.search(name) is not None


# -- mistakes --------------------------------------------------------------------

_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def catch_mistake(key: str, check: Callable[..., object], *args: Any, **more: Any) -> list[Mistake]:
    """Call a check, and return the `InvalidRequest` that it raises as a mistake of `key`. No error is no mistake."""
    try:
        check(*args, **more)
    except InvalidRequest as error:
        return [(key, str(error))]
    return []


def check_url(key: str, url: str | None) -> list[Mistake]:
    """Return the mistakes in the URL of an HTTP service. None as a URL is valid."""
    if url is None or re.fullmatch(r"https?://[^/\s?#]+[^\s]*", url):
        return []
    return [(key, "expected a URL that begins with http:// or https://")]


def check_header_value(key: str, value: str | None) -> list[Mistake]:
    """Return the mistakes in an API key or another header value. None as a value is valid."""
    if value is None or _PRINTABLE.fullmatch(value):
        return []
    return [(key, "must be printable ASCII without line breaks")]


def check_header_names(key: str, names: Iterable[str]) -> list[Mistake]:
    """Return the mistakes in names of HTTP headers, all reported for `key`."""
    return [
        (key, f"{name[:80]!r} is not the name of an HTTP header") for name in names if not _HEADER_NAME.fullmatch(name)
    ]


def check_headers(headers: Mapping[str, str]) -> list[Mistake]:
    """Return the mistakes in HTTP headers. Each is reported for a key such as `headers.Accept`."""
    found = []
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            found.append((f"headers.{name}", "not the name of an HTTP header"))
        found += check_header_value(f"headers.{name}", value)
    return found
