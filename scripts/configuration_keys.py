"""Generate the table of all configuration keys in `docs/configuration-keys.md`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from msgspec import NODEFAULT, inspect

from holdfast.config.agents import AgentMemory, Search
from holdfast.config.model import Document
from holdfast.config.yaml_tree import join_path
from holdfast.context.settings import DEFAULT_STRATEGY, ContextSettings
from holdfast.docstrings import list_field_docs
from holdfast.durations import format_duration
from holdfast.sections import Settings, format_size, get_fields, unwrap_type

_SHARED: Final[Mapping[type, str]] = {
    ContextSettings: "context",
    Search: "search",
    AgentMemory: "memory",
}
"""Sections of several paths, each with the path whose rows describe its keys. At the other paths, it has one row."""


class Row(NamedTuple):
    """A row of the table: one key."""

    key: str
    """Path of the key. `NAME` represents the name of an entry, and `[]` any item of a list."""
    type: str
    default: str
    about: str


def list_rows(cls: type[Settings] = Document, path: str = "") -> Iterator[Row]:
    """Yield a row for every key of a class and of its sections, in the order of the model. Sections themselves have no row."""
    about = list_field_docs(cls)
    for name, field in get_fields(cls).items():
        key = join_path(path, name)
        info, form = unwrap_type(field.type)
        below = _find_inner(info)
        if key == "context":
            yield from _list_strategy_rows(key)
        elif below is not None and _SHARED.get(below[0], key) == key:
            inner, suffix = below
            yield from list_rows(inner, key + suffix)
        else:
            yield Row(
                key, describe_type(info, form), _format_default(field, form), " ".join(about.get(name, "").split())
            )


def _list_strategy_rows(path: str) -> Iterator[Row]:
    """Yield a row for the name of the strategy, and one row for all keys of strategies. Another page has the table of these keys."""
    where = "[Strategy keys](strategy-keys.md)"
    yield Row(
        f"{path}.strategy",
        "name of a strategy",
        f"`{DEFAULT_STRATEGY}`",
        f"Which messages are sent: see {where}.",
    )
    yield Row(f"{path}.KEY", "depends on the strategy", "", f"A key of the strategy: see {where}.")


def _find_inner(info: inspect.Type) -> tuple[type[Settings], str] | None:
    """Return the class of a section that a type contains, and the suffix of its path (empty, `.NAME` or `[]`), or None."""
    match info:
        case inspect.StructType(cls=cls) if issubclass(cls, Settings):
            return cls, ""
        case inspect.DictType(value_type=inspect.StructType(cls=cls)) if issubclass(cls, Settings):
            return cls, ".NAME"
        case inspect.VarTupleType(item_type=inspect.StructType(cls=cls)) if issubclass(cls, Settings):
            return cls, "[]"
    return None


def describe_type(info: inspect.Type, form: str | None = None) -> str:  # noqa: PLR0911 - one return a type
    """Describe a type in the words of the table, for example `1 to 100` or `list of strings`."""
    match info:
        case inspect.StructType(cls=cls) if cls in _SHARED:
            return f"as `{_SHARED[cls]}`"
        case inspect.LiteralType(values=values):
            return ", ".join(f"`{value}`" for value in values)
        case inspect.BoolType():
            return "boolean"
        case inspect.FloatType() if form == "duration":
            return f"duration, {_format_least(info.ge, format_duration)} to {format_duration(info.le or 0)}"
        case inspect.IntType() if form == "size":
            return f"size, {format_size(info.ge or 0)} to {format_size(info.le or 0)}"
        case inspect.IntType() | inspect.FloatType():
            return f"{info.ge:,} to {info.le:,}"
        case inspect.StrType():
            return "URL" if form == "url" else "string"
        case inspect.VarTupleType():
            items = describe_type(*unwrap_type(info.item_type))
            several = "strings" if items == "string" and form != "names" else items
            return f"{several} or list" if form == "names" else f"list of {several}"
        case inspect.DictType():
            inner, of = unwrap_type(info.value_type)
            return "mapping" if isinstance(inner, inspect.AnyType) else f"mapping of {describe_type(inner, of)}s"
    return "anything"


def _format_least(value: float | None, written: Any) -> str:
    return written(value) if value else "0"


def _format_default(field: inspect.Field, form: str | None) -> str:
    """Format the default value. The result is empty if there is none, or `needed` if the key is required."""
    if field.required:
        return "needed"
    value = field.default if field.default is not NODEFAULT else field.default_factory()
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    if isinstance(value, int | float):
        return _format_number(value, form)
    written = value.strategy if isinstance(value, ContextSettings) else value
    return f"`{written}`" if written else ""


def _format_number(value: float, form: str | None) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if form == "duration":
        return f"`{format_duration(value)}`"
    return f"`{format_size(int(value))}`" if form == "size" else f"{value:,}"


def format_table() -> str:
    """Return the Markdown tables of all keys, one per section, each with a heading."""
    lines: list[str] = []
    section = ""
    for row in list_rows():
        if (named := name_section(row.key)) != section:
            section = named
            lines += ["", f"## {section}", "", "| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        about = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", row.about)
        cells = (f"`{row.key}`", row.type, row.default, about)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines[1:]) + "\n"


def name_section(key: str) -> str:
    """Return the section of a key: its first name, or its first two below `storage`."""
    names = key.partition("[")[0].split(".")
    return ".".join(names[:2]) if names[0] == "storage" else names[0]
