"""Settings of the lifecycle: how long sessions live, and how many of them."""

from __future__ import annotations

from typing import Any, Final, Self

import msgspec

from holdfast.durations import parse_milliseconds
from holdfast.errors import InvalidRequest
from holdfast.limits import HISTORY_TURNS
from holdfast.numbers import check_whole

DAY: Final = 86_400_000
PRESETS: Final = {"mistralrs": {"session_ttl": 1_800_000, "max_sessions": 128}}
"""Settings by name. mistral.rs keeps 128 sessions for half an hour, in memory."""


class LifeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Lifetime and number of sessions; the same for all processes of a database."""

    session_ttl: int = DAY
    """Milliseconds without use after which a session without a ttl of its own ends; 0: never."""
    max_sessions: int = 10_000
    """Maximum number of active sessions of a tenant; 0: no limit."""
    max_history_turns: int = 0
    """Maximum number of messages that a strategy may see, newest first; 0: all."""
    retention: int = 0
    """Milliseconds from the end of a closed session to its deletion; 0: never."""
    still: bool = False
    """True: never show a session as expired. An expired session that is replaced still ends with the reason `ttl`."""
    sweep: bool = True
    """Whether this process ends idle sessions by itself, in the background."""
    all_tenants: bool = False
    """Whether this process does so for all tenants of the database. Use it only if hooks and settings apply to all of them."""

    @classmethod
    def of(cls, preset: str | None = None, **given: Any) -> Self:
        """Parse settings. Durations are like `24h` or in seconds. Missing settings come from the preset, else from the defaults.

        Raises:
            InvalidRequest: a preset or setting is unknown, or a duration or number is invalid.
        """
        if preset is not None and preset not in tuple(PRESETS):
            raise InvalidRequest(f"preset must be one of {', '.join(PRESETS)}, not {preset!r}"[:300], param="preset")
        found: dict[str, Any] = dict(PRESETS[preset]) if preset else {}
        for name, value in given.items():
            if name in ("session_ttl", "retention"):
                found[name] = parse_milliseconds(value, name)
            elif name in _COUNTS:
                found[name] = _parse_count(value, name, _COUNTS[name])
            else:
                raise InvalidRequest(f"unknown setting {name!r}; known: {', '.join(SETTINGS)}"[:300], param=name)
        return cls(**found)


_COUNTS: Final = {"max_sessions": 1_000_000_000, "max_history_turns": HISTORY_TURNS}
SETTINGS: Final = ("session_ttl", "retention", *_COUNTS)
"""The settings that `LifeSettings.of` accepts."""


def _parse_count(value: Any, name: str, most: int) -> int:
    if value is None:
        return 0
    check_whole(value, name, 0, most)
    return int(value)
