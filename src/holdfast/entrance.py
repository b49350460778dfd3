"""`holdfast.open`: from settings as people write them to a `Holdfast`."""

from __future__ import annotations

from typing import Any, Final

from holdfast.errors import InvalidRequest
from holdfast.holdfast import DEFAULT_URL, Holdfast
from holdfast.life.ending import SETTINGS as LIFE_SETTINGS
from holdfast.life.ending import LifeSettings
from holdfast.wire.sendable import text

MEMORY_URL: Final = "sqlite://:memory:"


def open_holdfast(url: str | None = None, *, preset: str | None = None, **settings: Any) -> Holdfast:
    """Open a store: `async with holdfast.open("sqlite:///chat.db") as hf`. See `Holdfast` for the settings.

    `holdfast.open(store=…)` takes one that is open.

    Args:
        url: the store; None: `sqlite:///holdfast.db`, of a preset in memory.
        preset: `mistralrs`: 128 sessions, half an hour, in memory; what is given beside it wins.
        settings: those of `Holdfast`, and how long sessions live: `session_ttl` (24h) and `retention` (0, for ever) as `24h`,
            `90s` or seconds, `max_sessions` (10000) and `max_history_turns` (0, all); see `holdfast.life.ending.LifeSettings`.

    Raises:
        InvalidRequest: a setting that cannot be.
    """
    given = {name: settings.pop(name) for name in LIFE_SETTINGS if name in settings}
    if preset is not None or given:
        if settings.get("life") is not None:
            raise InvalidRequest(f"life says it already: leave out {', '.join(given) or 'preset'}", param="life")
        settings["life"] = LifeSettings.of(preset, **given)
    if url is None:
        url = DEFAULT_URL if preset is None else MEMORY_URL
    text(url, "url")
    return Holdfast(url, **settings)
