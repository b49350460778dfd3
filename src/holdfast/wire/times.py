"""Times as people and clients write them, read as milliseconds since the epoch."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from holdfast.errors import InvalidRequest

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
