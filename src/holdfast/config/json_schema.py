"""Generate a JSON Schema of the configuration for editors.

The schema cannot express every rule, for example that two keys exclude each other, or that a name must exist. `holdfast config check`
checks these rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import inspect

from holdfast.config.loader import SPELLINGS
from holdfast.config.model import Document
from holdfast.context.settings import CLEARING, DEFAULT_STRATEGY, STRATEGIES, ContextSettings, Key
from holdfast.docstrings import list_field_docs
from holdfast.sections import Settings, get_fields, unwrap_type

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
    fields, about = get_fields(cls), list_field_docs(cls)
    properties: dict[str, _Schema] = {}
    for name, field in fields.items():
        made = _build_type(field.type, definitions)
        properties[name] = {**made, **({"description": " ".join(about[name].split())} if name in about else {})}
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
            every.setdefault(
                key, {**build_option_schema(what, _allow_variable), "description": f"{name}: {what.about}"}
            )
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


def _make_either(*schemas: _Schema) -> _Schema:
    return {"anyOf": [*schemas]} if len(schemas) > 1 else schemas[0]


def build_option_schema(key: Key, allow: Callable[..., _Schema] = _make_either) -> _Schema:
    """Build the schema of a strategy's option.

    Args:
        key: the option.
        allow: joins the schemas of a value that is not only a text, and adds what else may be in its place.
    """
    match key.kind:
        case "integer":
            return allow({"type": ["integer", "null"], "minimum": key.low})
        case "share":
            return allow({"type": ["number", "null"], "exclusiveMinimum": 0, "exclusiveMaximum": 1})
        case "text":
            return {"type": ["string", "null"], "minLength": 1}
        case "texts":
            return {"type": ["array", "null"], "items": {"type": "string"}}
        case "flag" | "switch":
            switch: _Schema = {"enum": ["auto", "on", "off", True, False, None]}
            return allow(switch if key.kind == "switch" else {"type": ["boolean", "null"]})
        case "clearing":
            keys = {name: one for name, one in STRATEGIES[CLEARING].keys.items() if name != "budget"}
            inner = {name: {**build_option_schema(one, allow), "description": one.about} for name, one in keys.items()}
            mapping = {"type": "object", "properties": inner, "additionalProperties": False}
            return allow({"type": ["boolean", "null"]}, mapping)
