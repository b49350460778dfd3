"""What `holdfast config check` tells: mistakes, warnings, and the configuration as it is understood, secrets hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from holdfast.config.model import Config
from holdfast.config.resolve import ServerSettings, Settled, settled, store_mistake
from holdfast.config.shown import describe
from holdfast.config.upstreams import upstream_of
from holdfast.config.values import mask_url
from holdfast.config.warnings import doubtful, ignored, lines_of, refused
from holdfast.errors import ConfigError, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


class Report(NamedTuple):
    """What a command prints and ends with."""

    exit_code: int
    """0: it can be served, warnings or not; 1: it cannot; 2: there is no such file."""
    text: str
    data: dict[str, Any]
    """The same for `--json`."""


def config_check(
    file: str | None, env: Mapping[str, str], *, prepare: Callable[[ServerSettings], object] = lambda _: None
) -> Report:
    """The work of `holdfast config check [FILE]`.

    Args:
        file: the file; None: the one that `serve` would read.
        env: the environment.
        prepare: builds what `serve` would run, without opening it; its errors are mistakes of the configuration.
    """
    found = settled({"config": file}, env)
    settings = found.settings
    name = settings.file or "defaults"
    if found.missing:
        data = {"file": settings.file, "ok": False, "problems": found.problems, "warnings": []}
        return Report(2, "\n".join(found.problems), data)
    further = [line for line in _further(settings.config, found.wrong) if line not in found.problems]
    warnings = [line for line in _warnings(settings.config, found.wrong) if line not in {*found.problems, *further}]
    if _ill_formed(found, settings.config):
        return _refusal(name, settings.file, [*found.problems, *further], warnings)
    problems = [*found.problems, *further]
    if not problems:
        problems = _refused_by(prepare, settings)
        warnings = [line for line in warnings if line not in problems]
    return _accepted(settings, problems, warnings, name)


def _refused_by(prepare: Callable[[ServerSettings], object], settings: ServerSettings) -> list[str]:
    """Return why the server cannot be built; nothing where it can."""
    try:
        prepare(settings)
    except ConfigError as exc:
        return list(exc.problems)
    except HoldfastError as exc:
        return [str(exc)]
    return []


def _ill_formed(found: Settled, config: Config) -> bool:
    """Whether it does not even load; a store that is not there does."""
    mistake = store_mistake(config)
    return any(mistake is None or not line.endswith(mistake[1]) for line in found.problems)


def _further(config: Config, wrong: Collection[str]) -> list[str]:
    """What `serve` refuses, without what only follows from mistakes that are told."""
    return lines_of(config, [(path, message) for path, message in refused(config) if not _follows(path, wrong)])


def _warnings(config: Config, wrong: Collection[str]) -> list[str]:
    """The warnings; where a whole section is wrong, what refers to it would be told for nothing."""
    if any("." not in path and "[" not in path for path in wrong):
        return ignored(config)
    found = [(path, message) for path, message in doubtful(config) if not _follows(path, wrong)]
    return [*ignored(config), *lines_of(config, found)]


def _follows(path: str, wrong: Collection[str]) -> bool:
    """Whether what is said of a key may only be said because something else is wrong."""
    behind = {"gateway.host": "auth", "storage.sessions.database": "databases", "storage.sessions.backend": "databases"}
    return any(_touches(path, other) or (path in behind and _touches(behind[path], other)) for other in wrong)


def _touches(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.")


def _refusal(name: str, file: str | None, problems: list[str], warnings: list[str]) -> Report:
    count = f"{len(problems)} mistake{'s' * (len(problems) > 1)}"
    lines = [*problems, *(f"warning: {warning}" for warning in warnings), f"{name}: {count}"]
    return Report(1, "\n".join(lines), {"file": file, "ok": False, "problems": problems, "warnings": warnings})


def _accepted(settings: ServerSettings, problems: list[str], warnings: list[str], name: str) -> Report:
    config = settings.config
    model = upstream_of(config)
    store = "none" if store_mistake(config) and "store" not in config.origins else mask_url(settings.store)
    answers = f"{model.model} at {mask_url(model.base_url)} ({model.origin})" if model.base_url else "offline, built in"
    shown = describe(config)
    text = "\n".join(
        [
            *problems,
            *(f"warning: {warning}" for warning in warnings),
            _verdict(name, problems, warnings),
            f"model: {answers}",
            f"store: {store}",
            "",
            yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=100).rstrip(),
        ]
    )
    data = {
        "file": settings.file,
        "ok": not problems,
        "problems": problems,
        "warnings": warnings,
        "model": {
            "name": model.model,
            "provider": model.provider,
            "base_url": mask_url(model.base_url),
            "origin": model.origin,
        },
        "store": store,
        "config": shown,
    }
    return Report(1 if problems else 0, text, data)


def _verdict(name: str, problems: list[str], warnings: list[str]) -> str:
    told = [f"{len(found)} {what}{'s' * (len(found) > 1)}" for found, what in ((warnings, "warning"),) if found]
    if problems:
        return ", ".join([f"{name}: loads, and this version cannot serve it", *told])
    return ", ".join([f"{name}: ok", *told])
