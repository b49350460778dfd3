"""Settings of the lifecycle: lifetime, maximum number and retention of sessions."""

from __future__ import annotations

from typing import Any, Final, Self

import msgspec

from holdfast.durations import parse_milliseconds
from holdfast.errors import InvalidRequest
from holdfast.limits import HISTORY_TURNS
from holdfast.numbers import check_whole

DAY: Final = 86_400_000


class LifeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Lifetime and number of sessions. All processes that use one database must have the same settings."""

    session_ttl: int = DAY
    """Idle time in milliseconds after which a session without its own ttl ends; 0: such sessions never expire."""
    unplaced_ttl: int = DAY
    """The same for unplaced sessions, which are deleted then."""
    max_sessions: int = 10_000
    """Maximum number of active sessions per tenant; 0: no limit."""
    max_history_turns: int = 0
    """Number of newest messages from which a prompt may be built; 0: all messages."""
    retention: int = 0
    """Milliseconds for which a closed session is kept before it is deleted; 0: it is never deleted."""
    still: bool = False
    """True: never show a session as expired. If an expired session is replaced, it still ends with the reason `ttl`."""
    sweep: bool = True
    """True: this process ends idle sessions regularly in the background."""
    all_tenants: bool = False
    """True: this process ends idle sessions of all tenants of the database.

    Use this only if its hooks and settings apply to all of them.
    """

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Create settings from values by name.

        Args:
            given: values by name. Durations are texts like `24h`, or seconds.

        Raises:
            InvalidRequest: a setting is unknown, or a duration or number is invalid.
        """
        found: dict[str, Any] = {}
        for name, value in given.items():
            if name in ("session_ttl", "unplaced_ttl", "retention"):
                found[name] = parse_milliseconds(value, name)
            elif name in _COUNTS:
                found[name] = _parse_count(value, name, _COUNTS[name])
            else:
                raise InvalidRequest(f"unknown setting {name!r}; known: {', '.join(SETTINGS)}"[:300], param=name)
        return cls(**found)


_COUNTS: Final = {"max_sessions": 1_000_000_000, "max_history_turns": HISTORY_TURNS}
SETTINGS: Final = ("session_ttl", "unplaced_ttl", "retention", *_COUNTS)
"""The settings that `LifeSettings.of` accepts."""


def _parse_count(value: Any, name: str, most: int) -> int:
    if value is None:
        return 0
    check_whole(value, name, 0, most)
    return int(value)
