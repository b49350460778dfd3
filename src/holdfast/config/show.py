"""Describe a loaded configuration without secrets: as one mapping, or as a list of values, each with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import yaml
from msgspec import inspect

from holdfast.config.convert import join_path
from holdfast.config.loader import ServerSettings, load_settings
from holdfast.config.model import Config, Document
from holdfast.config.resolve import resolve_llm
from holdfast.context.settings import ContextSettings
from holdfast.durations import format_duration
from holdfast.sections import MASK, Settings, format_size, get_fields, is_secret_name, mask_url, unwrap_type

DEFAULT: Final = "default"


def describe(config: Config) -> dict[str, Any]:
    """Return the configuration as plain data, with values written as in a file. Defaults are included, and secrets are masked."""
    return _describe_section(config, Document)


def _describe_section(settings: Settings, cls: type[Settings]) -> dict[str, Any]:
    fields = get_fields(cls)
    given = {name: value for name in fields if (value := getattr(settings, name)) is not None}
    shown = {name: _describe(value, fields[name].type, name) for name, value in given.items()}
    return {name: value for name, value in shown.items() if value not in ({}, [])}


def _describe(value: Any, info: inspect.Type, name: str) -> Any:
    info, form = unwrap_type(info)
    match value:
        case Settings():
            return _describe_section(value, type(value))
        case ContextSettings():
            return {"strategy": value.strategy, **_mask(value.options, name="")}
        case dict() if isinstance(info, inspect.DictType) and form is None:
            return {key: _describe(item, info.value_type, key) for key, item in value.items()}
        case tuple() if isinstance(info, inspect.VarTupleType):
            return [_describe(item, info.item_type, name) for item in value]
        case _:
            return _describe_leaf(value, form, name)


def _describe_leaf(value: Any, form: str | None, name: str) -> Any:
    match form:
        case "secret":
            return MASK
        case "url":
            return mask_url(value)
        case "duration":
            return format_duration(value)
        case "size":
            return format_size(value)
        case _:
            return _mask(value, name=name)


def _mask(value: Any, *, name: str) -> Any:
    """Return data of any structure in which every value whose name suggests a secret is masked, at any depth."""
    if isinstance(value, dict):
        return {key: _mask(item, name=name if is_secret_name(name) else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(item, name=name) for item in value]
    hidden = is_secret_name(name) and isinstance(value, str | int | float) and not isinstance(value, bool)
    return MASK if hidden else value


# -- value by value ------------------------------------------------------------------


class ShownValue(NamedTuple):
    """A value of the configuration with its source."""

    key: str
    """Path of the key, for example `gateway.port` or `hooks.webhooks[0].url`."""
    value: Any
    """The value as a file would contain it. A secret is `***`."""
    source: str
    """Where the value is set, for example `holdfast.yaml:3`, the name of a variable, `.env:2: NAME`, `--port` or `default`."""


def show_config(file: str | None, env: Mapping[str, str]) -> tuple[str, list[dict[str, Any]]]:
    """Run `holdfast config show [FILE]`.

    Returns:
        A text with one line for each value and its source, and the same values as data.

    Raises:
        ConfigError: with every mistake of file and environment.
    """
    settings = load_settings({"config": file}, env)
    found = [value for value in list_values(settings) if value.value not in ({}, [])]
    width = min(max(len(_format_line(value)) for value in found), 60)
    text = "\n".join(f"{_format_line(value).ljust(width)}  # {value.source}" for value in found)
    return text, [value._asdict() for value in found]


def _format_line(value: ShownValue) -> str:
    written = yaml.safe_dump(value.value, default_flow_style=True, width=10**6, allow_unicode=True)
    return f"{value.key}: {written.strip().removesuffix('...').strip()}"


def list_values(settings: ServerSettings) -> Iterator[ShownValue]:
    """Yield every value with its source: first the language model that answers and the URL of the store, then all keys in their order."""
    config = settings.config
    model = resolve_llm(config)
    yield ShownValue("model", model.model, f"--model {config.model}" if config.model else model.origin)
    yield ShownValue("store", mask_url(settings.store), config.origins.get("store") or _find_store_source(config))
    replaced = {"gateway.host": settings.host, "gateway.port": settings.port}
    for value in _list_section(config, Document, "", config):
        yield value._replace(value=replaced.get(value.key, value.value))


def _find_store_source(config: Config) -> str:
    given = [path for path in config.lines if path.startswith(("databases.", "storage.sessions."))]
    memory = config.storage.sessions.backend == "inmemory"
    return "databases, storage.sessions" if given and not memory else _find_source(config, "storage.sessions.backend")


def _list_section(settings: Settings, cls: type[Settings], path: str, config: Config) -> Iterator[ShownValue]:
    for name, field in get_fields(cls).items():
        value = getattr(settings, name)
        if value is not None:
            yield from _list_inside(value, field.type, join_path(path, name), config)


def _list_inside(value: Any, info: inspect.Type, path: str, config: Config) -> Iterator[ShownValue]:
    kind, form = unwrap_type(info)
    match value:
        case Settings():
            yield from _list_section(value, type(value), path, config)
        case ContextSettings():
            yield ShownValue(f"{path}.strategy", value.strategy, _find_source(config, f"{path}.strategy"))
            for key, option in value.options.items():
                yield ShownValue(f"{path}.{key}", option, _find_source(config, f"{path}.{key}"))
        case dict() if isinstance(kind, inspect.DictType) and form is None and value:
            for key, item in value.items():
                yield from _list_inside(item, kind.value_type, f"{path}.{key}", config)
        case tuple() if any(isinstance(item, Settings) for item in value):
            for index, item in enumerate(value):
                yield from _list_section(item, type(item), f"{path}[{index}]", config)
        case _:
            yield ShownValue(path, _describe(value, info, path.rpartition(".")[2]), _find_source(config, path))


def _find_source(config: Config, path: str) -> str:
    """Return where the value at a path is set; the result is `default` if it is set nowhere.

    An inner value of a free mapping, such as `params`, has the source of the mapping.
    """
    if path in config.origins:
        return config.origins[path]
    if line := config.lines.get(path):
        used = config.variables.get(path) or config.variables.get(config.spelt.get(path, path))
        return f"{config.source}:{line}" + (f", {used}" if used else "")
    above, _, last = path.rpartition(".")
    parts = above.split(".")
    if parts[-1] == "context" and len(parts) > 1:  # an agent's keys are added to those of the top level
        return _find_source(config, f"context.{last}")
    free = parts[-1] in {"params", "options", "headers", "state", "env"}
    return _find_source(config, above) if free and above else DEFAULT
