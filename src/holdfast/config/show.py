"""Describe a loaded configuration without secrets: as one mapping, or as a list of values, each with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import yaml
from msgspec import inspect

from holdfast.config.loader import load_settings
from holdfast.config.model import Config, Document
from holdfast.config.resolve import resolve_llm
from holdfast.config.yaml_tree import join_path
from holdfast.context.settings import ContextSettings
from holdfast.durations import format_duration
from holdfast.sections import MASK, Settings, format_size, get_fields, is_secret_name, mask_url, unwrap_type

DEFAULT: Final = "default"
_FREE: Final = frozenset({"params", "options", "headers", "state", "env"})
"""Keys with arbitrary data. An inner value has the source of the whole mapping."""


_FORMATS: Final[Mapping[str | None, Callable[[Any], Any]]] = {
    "secret": lambda _: MASK,
    "url": mask_url,
    "duration": format_duration,
    "size": format_size,
}
_Path = tuple[str | int, ...]


def describe(config: Config) -> dict[str, Any]:
    """Return the configuration as plain data, with values written as in a file. Defaults are included, and secrets are masked."""
    shown: dict[str, Any] = _nest(list(_walk(config, inspect.type_info(Document), ())))
    return shown


def _nest(found: Sequence[tuple[_Path, Any]]) -> Any:
    """Return values with their paths as one structure of mappings and lists."""
    if not found[0][0]:
        return found[0][1]
    groups: dict[str | int, list[tuple[_Path, Any]]] = {}
    for path, value in found:
        groups.setdefault(path[0], []).append((path[1:], value))
    made = {key: _nest(inner) for key, inner in groups.items()}
    return list(made.values()) if 0 in made else made


def _walk(value: Any, info: inspect.Type, path: _Path) -> Iterator[tuple[_Path, Any]]:
    """Yield every value inside a value of the model: its path, and the value as a file would contain it, without secrets.

    Values that are not set and empty mappings and lists are left out, except entries whose names are chosen by the user.
    """
    kind, form = unwrap_type(info)
    if value in (None, (), {}):
        return
    match value:
        case Settings():
            cls = Document if isinstance(value, Document) else type(value)
            for name, field in get_fields(cls).items():
                yield from _walk(getattr(value, name), field.type, (*path, name))
        case ContextSettings():
            for name, option in {"strategy": value.strategy, **value.options}.items():
                yield (*path, name), _mask(option, name=name)
        case dict() if isinstance(kind, inspect.DictType) and form is None:
            for name, item in value.items():
                below = (*path, name)
                yield from list(_walk(item, kind.value_type, below)) or [(below, {})]
        case tuple() if any(isinstance(item, Settings) for item in value):
            for index, item in enumerate(value):
                yield from _walk(item, inspect.AnyType(), (*path, index))
        case _:
            yield path, _describe(value, info, path)


def _describe(value: Any, info: inspect.Type, path: _Path) -> Any:
    info, form = unwrap_type(info)
    if isinstance(value, tuple) and isinstance(info, inspect.VarTupleType):
        return [_describe(item, info.item_type, path) for item in value]
    return _FORMATS[form](value) if form in _FORMATS else _mask(value, name=str(path[-1]))


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
    found = list(list_values(load_settings({"config": file}, env)))
    width = min(max(len(_format_line(value)) for value in found), 60)
    text = "\n".join(f"{_format_line(value).ljust(width)}  # {value.source}" for value in found)
    return text, [value._asdict() for value in found]


def _format_line(value: ShownValue) -> str:
    written = yaml.safe_dump(value.value, default_flow_style=True, width=10**6, allow_unicode=True)
    return f"{value.key}: {written.strip().removesuffix('...').strip()}"


def list_values(config: Config) -> Iterator[ShownValue]:
    """Yield every value with its source: first the language model that answers and the URL of the store, then all keys in their order."""
    model = resolve_llm(config)
    yield ShownValue("model", model.model, f"--model {config.model}" if config.model else model.origin)
    given = "store" in config.places and config.places["store"].origin
    yield ShownValue("store", mask_url(config.store), given or _find_store_source(config))
    found = _walk(config, inspect.type_info(Document), ())
    for parts, value in (one for one in found if one[1] != {}):
        path = ""
        for part in parts:
            path = join_path(path, f"[{part}]" if isinstance(part, int) else part)
        yield ShownValue(path, value, _find_source(config, path))


def _find_store_source(config: Config) -> str:
    given = [path for path in config.places if path.startswith(("databases.", "storage.sessions."))]
    memory = config.storage.sessions.backend == "inmemory"
    return "databases, storage.sessions" if given and not memory else _find_source(config, "storage.sessions.backend")


def _find_source(config: Config, path: str) -> str:
    """Return where the value at a path is set; the result is `default` if it is set nowhere."""
    if place := config.places.get(path):
        where = place.origin or f"{config.source}:{place.line}"
        return f"{where}, {place.variables}" if place.variables else where
    above, _, last = path.rpartition(".")
    parts = above.split(".")
    if parts[-1] == "context" and len(parts) > 1:  # an agent's keys are added to those of the top level
        return _find_source(config, f"context.{last}")
    return _find_source(config, above) if parts[-1] in _FREE else DEFAULT
