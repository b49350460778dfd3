"""What the model says of its keys, in words: for the schema, for `docs/configuration.md` and whoever else asks."""

from __future__ import annotations

import ast
import inspect as source_of
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from msgspec import NODEFAULT, inspect

from holdfast.config.convert import fields_of, form_of
from holdfast.config.kinds import Settings
from holdfast.config.model import Document
from holdfast.config.values import format_duration, format_size
from holdfast.context.settings import DEFAULT_STRATEGY, ContextSettings


@cache
def text_of(cls: type[Settings]) -> dict[str, str]:
    """The texts under the fields of a class, by field; of one with none, that of the class it is made of."""
    [body] = (node for node in ast.parse(source_of.getsource(cls)).body if isinstance(node, ast.ClassDef))
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
            found[field.target.id] = " ".join(text.value.value.split())
    return found


class Row(NamedTuple):
    """One key, as a table tells it."""

    key: str
    """Its path; `NAME` stands for the name of an entry, `[]` for each of a list."""
    type: str
    default: str
    about: str


def rows(cls: type[Settings] = Document, path: str = "") -> Iterator[Row]:
    """Every key of the model that holds a value, in its order."""
    about = text_of(cls)
    for name, field in fields_of(cls).items():
        key = f"{path}.{name}".lstrip(".")
        info, form = form_of(field.type)
        below = _below(info)
        if isinstance(info, inspect.StructType) and info.cls is ContextSettings and not path:
            yield from _strategies(key)
        elif below is not None:
            inner, suffix = below
            yield from rows(inner, key + suffix)
        else:
            yield Row(key, type_words(info, form), _default(field, form), about.get(name, ""))


def _strategies(path: str) -> Iterator[Row]:
    """The name, and for all keys of all strategies one row: the page that tells of them has a table of its own."""
    where = "[Policies](policies.md#keys-and-defaults)"
    yield Row(
        f"{path}.strategy",
        "name of a strategy",
        f"`{DEFAULT_STRATEGY}`",
        f"What decides what of a log is sent: {where}.",
    )
    yield Row(f"{path}.KEY", "as the strategy has it", "", f"A key of the strategy: {where}.")


def _below(info: inspect.Type) -> tuple[type[Settings], str] | None:
    """The keys below a key, where it is a mapping of known ones, or holds some."""
    match info:
        case inspect.StructType(cls=cls) if issubclass(cls, Settings):
            return cls, ""
        case inspect.DictType(value_type=inspect.StructType(cls=cls)) if issubclass(cls, Settings):
            return cls, ".NAME"
        case inspect.VarTupleType(item_type=inspect.StructType(cls=cls)) if issubclass(cls, Settings):
            return cls, "[]"
    return None


def type_words(info: inspect.Type, form: str | None = None) -> str:  # noqa: PLR0911 - one return a type
    """A type as a reader knows it."""
    match info:
        case inspect.StructType(cls=cls) if cls is ContextSettings:
            return "as `context`"
        case inspect.LiteralType(values=values):
            return ", ".join(f"`{value}`" for value in values)
        case inspect.BoolType():
            return "true, false"
        case inspect.FloatType() if form == "duration":
            return f"duration, {_least(info.ge, format_duration)} to {format_duration(info.le or 0)}"
        case inspect.IntType() if form == "size":
            return f"size, {format_size(info.ge or 0)} to {format_size(info.le or 0)}"
        case inspect.IntType() | inspect.FloatType():
            return f"{info.ge:,} to {info.le:,}"
        case inspect.StrType():
            return "URL" if form == "url" else "string"
        case inspect.VarTupleType():
            items = type_words(*form_of(info.item_type))
            several = "strings" if items == "string" else items
            return f"one of {several}, or a list" if form == "names" else f"list of {several}"
        case inspect.DictType():
            inner, of = form_of(info.value_type)
            return "mapping" if isinstance(inner, inspect.AnyType) else f"mapping of {type_words(inner, of)}s"
    return "anything"


def _least(value: float | None, written: Any) -> str:
    return written(value) if value else "0"


def _default(field: inspect.Field, form: str | None) -> str:
    """What holds where nothing is said; empty where the text says it."""
    if field.required:
        return "needed"
    value = field.default if field.default is not NODEFAULT else field.default_factory()
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    if isinstance(value, int | float):
        return _number(value, form)
    written = value.strategy if isinstance(value, ContextSettings) else value
    return f"`{written}`" if written else ""


def _number(value: float, form: str | None) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if form == "duration":
        return f"`{format_duration(value)}`"
    return f"`{format_size(int(value))}`" if form == "size" else f"{value:,}"


def table() -> str:
    """Every key, as a table in Markdown."""
    lines = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for row in rows():
        about = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", row.about)
        cells = (f"`{row.key}`", row.type, row.default, about)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
