"""The configuration as it is understood, secrets hidden: whole, and value by value with where each comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml
from msgspec import inspect

from holdfast.config.convert import fields_of, form_of
from holdfast.config.gateway import PRESETS as GATEWAY_PRESETS
from holdfast.config.kinds import Settings
from holdfast.config.model import Config, Document
from holdfast.config.resolve import ServerSettings, settings_from
from holdfast.config.upstreams import upstream_of
from holdfast.config.values import MASK, format_duration, format_size, is_secret_name, mask_url
from holdfast.context.settings import ContextSettings
from holdfast.life.settings import PRESETS

DEFAULT: Final = "default"


def describe(config: Config) -> dict[str, Any]:
    """The configuration as plain data, in the spelling of the file, defaults included, with no secret in it."""
    return _shown_settings(config, Document)


def _shown_settings(settings: Settings, cls: type[Settings]) -> dict[str, Any]:
    fields = fields_of(cls)
    given = {name: value for name in fields if (value := getattr(settings, name)) is not None}
    shown = {name: _shown(value, fields[name].type, name) for name, value in given.items()}
    return {name: value for name, value in shown.items() if value not in ({}, [])}


def _shown(value: Any, info: inspect.Type, name: str) -> Any:
    info, form = form_of(info)
    match value:
        case Settings():
            return _shown_settings(value, type(value))
        case ContextSettings():
            return {"strategy": value.strategy, **_masked(value.options, name="")}
        case dict() if isinstance(info, inspect.DictType) and form is None:
            return {key: _shown(item, info.value_type, key) for key, item in value.items()}
        case tuple() if isinstance(info, inspect.VarTupleType):
            return [_shown(item, info.item_type, name) for item in value]
        case _:
            return _shown_leaf(value, form, name)


def _shown_leaf(value: Any, form: str | None, name: str) -> Any:
    match form:
        case "secret":
            return MASK
        case "hidden":
            return dict.fromkeys(value, MASK)
        case "url":
            return mask_url(value)
        case "duration":
            return format_duration(value)
        case "size":
            return format_size(value)
        case _:
            return _masked(value, name=name)


def _masked(value: Any, *, name: str) -> Any:
    """Free data; what stands under a name that sounds like a secret, at any depth, is hidden."""
    if isinstance(value, dict):
        return {key: _masked(item, name=name if is_secret_name(name) else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, name=name) for item in value]
    hidden = is_secret_name(name) and isinstance(value, str | int | float) and not isinstance(value, bool)
    return MASK if hidden else value


# -- value by value ------------------------------------------------------------------


class Value(NamedTuple):
    """One value that holds."""

    key: str
    """Its path: `gateway.port`, `hooks.webhooks[0].url`."""
    value: Any
    """As the file would have it; a secret is `***`."""
    source: str
    """`holdfast.yaml:3`, a variable's name, `.env:2: NAME`, `--port`, `preset NAME` or `default`."""


def config_show(file: str | None, env: Mapping[str, str]) -> tuple[str, list[dict[str, Any]]]:
    """The work of `holdfast config show [FILE]`: a line for each value with its source; and the same as data.

    Raises:
        ConfigError: with every mistake of file and environment.
    """
    settings = settings_from({"config": file}, env)
    found = [value for value in values(settings) if value.value not in ({}, [])]
    width = min(max(len(_line(value)) for value in found), 60)
    text = "\n".join(f"{_line(value).ljust(width)}  # {value.source}" for value in found)
    return text, [value._asdict() for value in found]


def _line(value: Value) -> str:
    written = yaml.safe_dump(value.value, default_flow_style=True, width=10**6, allow_unicode=True)
    return f"{value.key}: {written.strip().removesuffix('...').strip()}"


def values(settings: ServerSettings) -> Iterator[Value]:
    """Every value that holds, in the model's order; which model answers and where sessions live come first."""
    config = settings.config
    model = upstream_of(config)
    yield Value("model", model.model, f"--model {config.model}" if config.model else model.origin)
    yield Value("store", mask_url(settings.store), config.origins.get("store") or _store_source(config))
    held = {"gateway.host": settings.host, "gateway.port": settings.port}
    for value in _settings(config, Document, "", config):
        yield value._replace(value=held.get(value.key, value.value))


def _store_source(config: Config) -> str:
    given = [path for path in config.lines if path.startswith(("databases.", "storage.sessions."))]
    memory = config.storage.sessions.backend == "inmemory"
    return "databases, storage.sessions" if given and not memory else _source(config, "storage.sessions.backend")


def _settings(settings: Settings, cls: type[Settings], path: str, config: Config) -> Iterator[Value]:
    for name, field in fields_of(cls).items():
        value = getattr(settings, name)
        if value is not None:
            yield from _inside(value, field.type, f"{path}.{name}".lstrip("."), config)


def _inside(value: Any, info: inspect.Type, path: str, config: Config) -> Iterator[Value]:
    kind, form = form_of(info)
    match value:
        case Settings():
            yield from _settings(value, type(value), path, config)
        case ContextSettings():
            yield Value(f"{path}.strategy", value.strategy, _source(config, f"{path}.strategy"))
            for key, option in value.options.items():
                yield Value(f"{path}.{key}", option, _source(config, f"{path}.{key}"))
        case dict() if isinstance(kind, inspect.DictType) and form is None and value:
            for key, item in value.items():
                yield from _inside(item, kind.value_type, f"{path}.{key}", config)
        case tuple() if any(isinstance(item, Settings) for item in value):
            for index, item in enumerate(value):
                yield from _settings(item, type(item), f"{path}[{index}]", config)
        case _:
            yield Value(path, _shown(value, info, path.rpartition(".")[2]), _source(config, path))


def _source(config: Config, path: str) -> str:
    """Where a value comes from; of what has no place of its own, where what holds it does."""
    if path in config.origins:
        return config.origins[path]
    if line := config.lines.get(path):
        used = config.variables.get(path) or config.variables.get(config.spelt.get(path, path))
        return f"{config.source}:{line}" + (f", {used}" if used else "")
    if path in _of_preset(config):
        return f"preset {config.preset}"
    above, _, last = path.rpartition(".")
    parts = above.split(".")
    if parts[-1] == "context" and len(parts) > 1:  # an agent's keys are added to those of the top level
        return _source(config, f"context.{last}")
    free = parts[-1] in {"params", "options", "headers", "state", "env"} and len(parts) > 0
    return _source(config, above) if free and above else DEFAULT


def _of_preset(config: Config) -> set[str]:
    """Paths that the preset may have set."""
    if config.preset is None:
        return set()
    gateway = (f"gateway.{name}" for name in GATEWAY_PRESETS[config.preset])
    return {"storage.sessions.backend", *(f"short_term.{name}" for name in PRESETS[config.preset]), *gateway}
