"""What the configuration is made of: types of values, and the mapping that all sections are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from holdfast.config.values import MASK, is_secret_name
from holdfast.durations import LONGEST

Duration = Annotated[float, Meta(ge=0, le=LONGEST, extra={"form": "duration"})]
"""Seconds; written `24h`, `1h30m`, `90s`, `250ms` or as a number of seconds."""

Timeout = Annotated[float, Meta(ge=0.001, le=86_400, extra={"form": "duration"})]
"""Seconds, at least a millisecond and at most a day."""

Size = Annotated[int, Meta(ge=1 << 10, le=1 << 32, extra={"form": "size"})]
"""Bytes; written `32MiB`, `1GB` or as a number of bytes."""

Secret = Annotated[str, Meta(min_length=1, extra={"form": "secret"})]
"""Never shown."""

Hushed = Annotated[str, Meta(extra={"form": "secret"})]
"""The same, and it may be empty."""

Url = Annotated[str, Meta(min_length=1, extra={"form": "url"})]
"""Shown without its password and query."""

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Tokens = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Most = Annotated[int, Meta(ge=1, le=1_000_000)]
Port = Annotated[int, Meta(ge=0, le=65_535)]

Hidden = Annotated[dict[str, Any], Meta(extra={"form": "hidden"})]
"""Free for now; no text in it is shown, since any may be a secret."""

Names = Annotated[tuple[Text, ...], Meta(extra={"form": "names"})]
"""Several names; one may stand without a list around it."""

Free = dict[str, Any]
"""Handed on as it is; what stands under a name that sounds like a secret is not shown."""

Mistake = tuple[str, str]
"""A key, and what is wrong with it."""


_FREE: Final = frozenset(
    {
        *("args", "auth", "base_url", "env", "headers", "hooks"),
        *("options", "params", "regex", "state", "telemetry", "url"),
    }
)
"""Fields in which anything may stand, a secret too."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A mapping with these keys and no others."""

    ALIASES: ClassVar[dict[str, str]] = {}
    """Other spellings of keys."""
    IGNORED: ClassVar[dict[str, str]] = {}
    """Keys of other systems that mean nothing here, and why: they are told, and do nothing."""

    def mistakes(self) -> list[Mistake]:
        """What is wrong with values that are right one by one."""
        return []

    def __repr__(self) -> str:
        # Settings end up in logs and tracebacks; secrets must not.
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={MASK if value and _hidden(name) else repr(value)}" for name, value in values)
        return f"{type(self).__name__}({', '.join(shown)})"


def _hidden(name: str) -> bool:
    return name in _FREE or is_secret_name(name)


# -- mistakes --------------------------------------------------------------------

_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def url_mistakes(key: str, url: str | None) -> list[Mistake]:
    """What is wrong with the address of an HTTP service; None is fine."""
    if url is None or re.fullmatch(r"https?://[^/\s?#]+[^\s]*", url):
        return []
    return [(key, "expected a URL that begins with http:// or https://")]


def key_mistakes(key: str, value: str | None) -> list[Mistake]:
    """What is wrong with a key, or another value of a header; None is fine."""
    if value is None or _PRINTABLE.fullmatch(value):
        return []
    return [(key, "must be printable ASCII without line breaks")]


def header_name_mistakes(key: str, names: Iterable[str]) -> list[Mistake]:
    """Return what is wrong with names of HTTP headers."""
    return [
        (key, f"{name[:80]!r} is not the name of an HTTP header") for name in names if not _HEADER_NAME.fullmatch(name)
    ]


def header_mistakes(headers: Mapping[str, str]) -> list[Mistake]:
    """What is wrong with headers to be sent, under the key `headers`."""
    found = []
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            found.append((f"headers.{name}", "not the name of an HTTP header"))
        found += key_mistakes(f"headers.{name}", value)
    return found
