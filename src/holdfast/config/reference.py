"""Generate the table of all configuration keys in `docs/configuration-keys.md`, and a JSON Schema for editors.

The schema cannot express every rule, for example that two keys exclude each other, or that a name must exist. `holdfast config check`
checks these rules.
"""

from __future__ import annotations

import ast
import inspect as source_inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from msgspec import NODEFAULT, inspect

from holdfast.config.agents import AgentMemory, Search
from holdfast.config.convert import join_path
from holdfast.config.model import Document
from holdfast.config.spellings import SPELLINGS
from holdfast.context.settings import CLEARING, DEFAULT_STRATEGY, STRATEGIES, ContextSettings, Key
from holdfast.durations import format_duration
from holdfast.sections import Settings, format_size, get_fields, unwrap_type


@cache
def read_field_docs(cls: type[Settings]) -> dict[str, str]:
    """Return the docstring of each field of a class, by the name of the field. Inherited fields are included."""
    base = cls.__bases__[0]
    found = dict(read_field_docs(base)) if base is not Settings else {}
    [body] = (node for node in ast.parse(source_inspect.getsource(cls)).body if isinstance(node, ast.ClassDef))
    for field, text in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
            found[field.target.id] = " ".join(text.value.value.split())
    return found


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
    about = read_field_docs(cls)
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
            yield Row(key, describe_type(info, form), _format_default(field, form), about.get(name, ""))


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
            return "true, false"
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
            several = "strings" if items == "string" else items
            return f"one of {several}, or a list" if form == "names" else f"list of {several}"
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


# -- JSON Schema ---------------------------------------------------------------------

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_NUMBER: Final = r"[0-9]{1,12}(\.[0-9]{1,3})?"
DURATION: Final = rf"^(?=[0-9])({_NUMBER}d)?({_NUMBER}h)?({_NUMBER}m)?({_NUMBER}s)?({_NUMBER}ms)?$|^{_NUMBER}$"
SIZE: Final = r"^[0-9]{1,18} ?([bB]|[kKmMgG][iI]?[bB])?$"
_VARIABLE: Final = r"\$\{[A-Za-z_][A-Za-z0-9_]*(:[-?][^}]*)?\}"
WHOLE_VARIABLE: Final = rf"^{_VARIABLE}$"

_Schema = dict[str, Any]


def build_json_schema() -> _Schema:
    """Return the JSON Schema (draft 2020-12) of the configuration."""
    definitions: dict[str, _Schema] = {
        "variable": {"type": "string", "pattern": WHOLE_VARIABLE, "description": "Filled in from the environment."},
    }
    top = _build_section(Document, definitions)
    top["properties"]["llm"] = {"$ref": "#/$defs/LLM", "description": "The same as `llms.default`."}
    return {"$schema": DIALECT, "title": "Holdfast configuration", **top, "$defs": definitions}


def _build_section(cls: type[Settings], definitions: dict[str, _Schema]) -> _Schema:
    """Build the schema of a section: a mapping that may have only the keys of `cls`, also in their second spellings."""
    fields, about = get_fields(cls), read_field_docs(cls)
    properties: dict[str, _Schema] = {}
    for name, field in fields.items():
        made = _build_type(field.type, definitions)
        properties[name] = {**made, **({"description": about[name]} if name in about else {})}
    for spelling, name in SPELLINGS.get(cls, {}).items():
        properties[spelling] = {**properties[name], "description": f"The same as `{name}`."}
    schema: _Schema = {"type": ["object", "null"], "properties": properties, "additionalProperties": False}
    needed = [name for name, field in fields.items() if field.required]
    return {**schema, "required": needed} if needed else schema


def _build_type(info: inspect.Type, definitions: dict[str, _Schema]) -> _Schema:
    """Build the schema of a type. The schemas of sections are added to `definitions`. Null is allowed, because it means an unset key."""
    info, form = unwrap_type(info)
    match info:
        case inspect.StructType(cls=cls) if cls is ContextSettings:
            definitions.setdefault("context", _build_context())
            return {"$ref": "#/$defs/context"}
        case inspect.StructType(cls=cls) if issubclass(cls, Settings):
            if cls.__name__ not in definitions:
                definitions[cls.__name__] = {}  # stops the recursion for a class that contains itself
                definitions[cls.__name__] = _build_section(cls, definitions)
            named: _Schema = {"$ref": f"#/$defs/{cls.__name__}"}
            return {"anyOf": [named, _build_type(get_fields(cls)[cls.SHORT].type, {})]} if cls.SHORT else named
        case inspect.DictType():
            return {"type": ["object", "null"], "additionalProperties": _build_type(info.value_type, definitions)}
        case inspect.VarTupleType():
            item = _build_type(info.item_type, definitions)
            listed: _Schema = {"type": ["array", "null"], "items": item}
            return {"anyOf": [listed, item]} if form == "names" else listed
        case inspect.AnyType():
            return {}
        case _:
            return _build_scalar(info, form)


def _build_scalar(info: inspect.Type, form: str | None) -> _Schema:
    match info:
        case inspect.StrType():
            return {"type": ["string", "null"], "minLength": info.min_length or 0}
        case inspect.LiteralType(values=values):
            # Editors use YAML 1.1, in which `on` and `off` are booleans.
            words = [*values, *({"on": True, "off": False}[value] for value in values if value in {"on", "off"}), None]
            return _allow_variable({"enum": words})
        case inspect.BoolType():
            return _allow_variable({"type": ["boolean", "null"]})
        case inspect.IntType() | inspect.FloatType() if form in {"duration", "size"}:
            number = _add_range({"type": ["integer" if form == "size" else "number", "null"]}, info)
            return _allow_variable(number, {"type": "string", "pattern": DURATION if form == "duration" else SIZE})
        case inspect.IntType() | inspect.FloatType():
            kind = "integer" if isinstance(info, inspect.IntType) else "number"
            return _allow_variable(_add_range({"type": [kind, "null"]}, info))
    raise TypeError(f"the model has a type without a schema: {info}")


def _allow_variable(*schemas: _Schema) -> _Schema:
    return {"anyOf": [*schemas, {"$ref": "#/$defs/variable"}]}


def _add_range(schema: _Schema, info: inspect.IntType | inspect.FloatType) -> _Schema:
    found = {"minimum": info.ge, "maximum": info.le, "exclusiveMinimum": info.gt, "exclusiveMaximum": info.lt}
    return schema | {key: value for key, value in found.items() if value is not None}


# -- the strategies --------------------------------------------------------------------


def _build_context() -> _Schema:
    """Build the schema of `context`.

    If the section names a strategy, it may have only the keys of this strategy. Otherwise it may have the keys of all strategies, because
    the top-level `context` may name the strategy.
    """
    every: dict[str, _Schema] = {}
    for name, strategy in STRATEGIES.items():
        for key, what in strategy.keys.items():
            # Defaults differ between strategies, so only the text has them.
            every.setdefault(key, {**_build_option(what), "description": f"{name}: {what.about}"})
    about = "; ".join(f"`{name}`: {strategy.about}" for name, strategy in STRATEGIES.items())
    chosen = {**_allow_variable({"enum": [*STRATEGIES, None]}), "default": DEFAULT_STRATEGY, "description": about}
    return {
        "type": ["object", "null"],
        "properties": {"strategy": chosen, **every},
        "additionalProperties": False,
        "allOf": [_restrict_to(name) for name in STRATEGIES],
    }


def _restrict_to(name: str) -> _Schema:
    """Build the schema that allows only the keys of a strategy if `strategy` names it."""
    named = {"properties": {"strategy": {"const": name}}, "required": ["strategy"]}
    return {"if": named, "then": {"propertyNames": {"enum": ["strategy", *STRATEGIES[name].keys]}}}


def _build_option(key: Key) -> _Schema:
    match key.kind:
        case "integer":
            return _allow_variable({"type": ["integer", "null"], "minimum": key.low})
        case "share":
            return _allow_variable({"type": ["number", "null"], "exclusiveMinimum": 0, "exclusiveMaximum": 1})
        case "text":
            return {"type": ["string", "null"], "minLength": 1}
        case "texts":
            return {"type": ["array", "null"], "items": {"type": "string"}}
        case "flag" | "switch":
            switch: _Schema = {"enum": ["auto", "on", "off", True, False, None]}
            return _allow_variable(switch if key.kind == "switch" else {"type": ["boolean", "null"]})
        case "clearing":
            keys = {name: _build_option(inner) for name, inner in STRATEGIES[CLEARING].keys.items() if name != "budget"}
            inner = {"type": "object", "properties": keys, "additionalProperties": False}
            return _allow_variable({"type": ["boolean", "null"]}, inner)
