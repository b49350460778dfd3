"""From a configuration to a `Holdfast`: `holdfast.from_config`, and what `holdfast serve` and the commands open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.config.parts import PARTS
from holdfast.config.resolve import ServerSettings, settings_from
from holdfast.errors import StoreUnavailable
from holdfast.holdfast import Holdfast
from holdfast.stores.sql.address import MEMORY, path_of


def from_config(
    file: str | os.PathLike[str] | None = None, *, env: Mapping[str, str] | None = None, **settings: Any
) -> Holdfast:
    """Open what a configuration says: `async with holdfast.from_config("holdfast.yaml") as hf`.

    Agents, models, store, life of sessions, tools, hooks and redaction are as `holdfast serve` has them. What concerns HTTP is
    left out: `gateway.host` and its like, `auth`.

    Args:
        file: the configuration; None: the one that `serve` would read, or none.
        env: the environment; None: the process's own.
        settings: those of `Holdfast`, over the configuration's: `tools`, for example, or `store`.

    Raises:
        ConfigError: with every mistake in it.
        StoreUnavailable: the folder of an SQLite file cannot be made.
        InvalidRequest: a setting that cannot be.
    """
    named = None if file is None else os.fspath(file)
    found = settings_from({"config": named}, os.environ if env is None else env)
    if not {"store", "url"} & settings.keys():
        make_room(found.store)
    return opened(found, **settings)


def opened(settings: ServerSettings, **more: Any) -> Holdfast:
    """A `Holdfast` that is as configured, and not open yet.

    Args:
        settings: see `settings_from`.
        more: settings of `Holdfast` in place of the configuration's, which are not looked at then.
    """
    parts = {name: made_of(settings.config) for name, made_of in PARTS.items() if name not in more}
    return Holdfast(**{"url": settings.store, **parts, **more})


def make_room(url: str) -> None:
    """Make the folder of an SQLite file, as people name one that nobody makes. Raises `StoreUnavailable`."""
    if not url.startswith("sqlite:") or (path := path_of(url)) == MEMORY:
        return
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise StoreUnavailable(f"the folder of {path} cannot be made: {exc.strerror or exc}") from exc
