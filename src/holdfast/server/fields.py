"""What routes read of a request: fields of its body, a number in its path, the version that something must be at."""

from __future__ import annotations

import re
from typing import Any, Final

from holdfast.errors import InvalidRequest
from holdfast.server.http import Call, refuse_unknown

PAGE: Final = 20
"""Items of a page unless the request says otherwise."""


def check_fields(body: dict[str, Any], *names: str) -> None:
    """Refuse fields that nobody reads: a misspelt one would be lost silently. Raises `InvalidRequest`."""
    refuse_unknown(body, names, "field")


def optional(body: dict[str, Any], name: str, kind: type, words: str) -> Any:
    """A field of that type, or None. Raises `InvalidRequest` for one of another."""
    value = body.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidRequest(f"{name} must be {words}", param=name)
    return value


def number_in_path(call: Call, param: str, named: str) -> int:
    """What a path names by a whole number. Raises `InvalidRequest` for none.

    Args:
        call: the request.
        param: of the path.
        named: what it says, for the error: `a message is named by its seq`.
    """
    given = call.path[param]
    if not re.fullmatch(r"[0-9]{1,18}", given):
        raise InvalidRequest(f"{named}, a whole number, not {given[:40]!r}", param=param)
    return int(given)


def if_match(call: Call) -> int | None:
    """The version that the session, the state or the memory must be at, from `If-Match`. Raises `InvalidRequest`."""
    value = (call.header("if-match") or "").strip().strip('"')
    if not value or value == "*":
        return None
    if not value.isascii() or not value.isdigit() or len(value) > 18:
        raise InvalidRequest("If-Match must be a version, a whole number", param="If-Match")
    return int(value)
