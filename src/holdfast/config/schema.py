"""JSON Schema of the configuration, made from the model: what editors check a file against as it is written.

What a type cannot say (two keys that exclude each other, names that nothing has) is `holdfast config check`'s alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import inspect

from holdfast.config.agents import Agent
from holdfast.config.convert import fields_of, form_of
from holdfast.config.fields import text_of
from holdfast.config.gateway import Timeouts
from holdfast.config.kinds import Settings
from holdfast.config.model import Document
from holdfast.config.spelling import DATABASE_IGNORED, DATABASE_KEYS, MEMORY_KEYS, SERVER, SERVER_IGNORED
from holdfast.config.storage import Database
from holdfast.context.settings import CLEARING, DEFAULT_STRATEGY, STRATEGIES, ContextSettings, Key

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_NUMBER: Final = r"[0-9]{1,12}(\.[0-9]{1,3})?"
DURATION: Final = rf"^(?=[0-9])({_NUMBER}d)?({_NUMBER}h)?({_NUMBER}m)?({_NUMBER}s)?({_NUMBER}ms)?$|^{_NUMBER}$"
SIZE: Final = r"^[0-9]{1,18} ?([bB]|[kKmMgG][iI]?[bB])?$"
_VARIABLE: Final = r"\$\{[A-Za-z_][A-Za-z0-9_]*(:[-?][^}]*)?\}"
WHOLE_VARIABLE: Final = rf"^{_VARIABLE}$"

_Schema = dict[str, Any]


def json_schema() -> _Schema:
    """The schema, draft 2020-12."""
    definitions: dict[str, _Schema] = {
        "variable": {"type": "string", "pattern": WHOLE_VARIABLE, "description": "Filled in from the environment."},
    }
    top = _mapping(Document, definitions)
    top["properties"]["server"] = _server(definitions)
    top["properties"]["llm"] = {"$ref": "#/$defs/LLM", "description": "The same as `llms.default`."}
    top["properties"]["server"]["description"] = "Other systems' place for the keys of `gateway`, `storage` and `auth`."
    return {"$schema": DIALECT, "title": "Holdfast configuration", **top, "$defs": definitions}


def _mapping(cls: type[Settings], definitions: dict[str, _Schema]) -> _Schema:
    """The schema of a mapping with these keys and no others."""
    fields, about = fields_of(cls), text_of(cls)
    properties: dict[str, _Schema] = {}
    for name, field in fields.items():
        made = _typed(field.type, definitions)
        properties[name] = {**made, **({"description": about[name]} if name in about else {})}
    for alias, name in cls.ALIASES.items():
        properties[alias] = {**properties[name], "description": f"The same as `{name}`."}
    for key, why in cls.IGNORED.items():
        properties[key] = {"deprecated": True, "description": f"Does nothing here: {why}."}
    if cls is Database:
        properties |= _of_databases(properties)
    if cls is Agent:
        properties["working_memory"] = _working_memory()
    schema: _Schema = {"type": ["object", "null"], "properties": properties, "additionalProperties": False}
    needed = [name for name, field in fields.items() if field.required]
    return {**schema, "required": needed} if needed else schema


def _typed(info: inspect.Type, definitions: dict[str, _Schema]) -> _Schema:
    """The schema of a value; what may be left out may be empty."""
    info, form = form_of(info)
    match info:
        case inspect.StructType(cls=cls) if cls is ContextSettings:
            definitions.setdefault("context", _context())
            return {"$ref": "#/$defs/context"}
        case inspect.StructType(cls=cls) if issubclass(cls, Settings):
            if cls.__name__ not in definitions:
                definitions[cls.__name__] = {}  # one that holds itself ends here
                definitions[cls.__name__] = _mapping(cls, definitions)
            named: _Schema = {"$ref": f"#/$defs/{cls.__name__}"}
            return {"anyOf": [named, _typed(fields_of(Timeouts)["total"].type, {})]} if cls is Timeouts else named
        case inspect.DictType():
            return {"type": ["object", "null"], "additionalProperties": _typed(info.value_type, definitions)}
        case inspect.VarTupleType():
            item = _typed(info.item_type, definitions)
            listed: _Schema = {"type": ["array", "null"], "items": item}
            return {"anyOf": [listed, item]} if form == "names" else listed
        case inspect.AnyType():
            return {}
        case _:
            return _scalar(info, form)


def _scalar(info: inspect.Type, form: str | None) -> _Schema:
    match info:
        case inspect.StrType():
            return {"type": ["string", "null"], "minLength": info.min_length or 0}
        case inspect.LiteralType(values=values):
            # YAML 1.1, which editors read, takes `on` and `off` for booleans.
            words = [*values, *({"on": True, "off": False}[value] for value in values if value in {"on", "off"}), None]
            return _or_variable({"enum": words})
        case inspect.BoolType():
            return _or_variable({"type": ["boolean", "null"]})
        case inspect.IntType() | inspect.FloatType() if form in {"duration", "size"}:
            number = _ranged({"type": ["integer" if form == "size" else "number", "null"]}, info)
            return _or_variable(number, {"type": "string", "pattern": DURATION if form == "duration" else SIZE})
        case inspect.IntType() | inspect.FloatType():
            kind = "integer" if isinstance(info, inspect.IntType) else "number"
            return _or_variable(_ranged({"type": [kind, "null"]}, info))
    raise TypeError(f"the model has a type without a schema: {info}")


def _or_variable(*schemas: _Schema) -> _Schema:
    return {"anyOf": [*schemas, {"$ref": "#/$defs/variable"}]}


def _ranged(schema: _Schema, info: inspect.IntType | inspect.FloatType) -> _Schema:
    found = {"minimum": info.ge, "maximum": info.le, "exclusiveMinimum": info.gt, "exclusiveMaximum": info.lt}
    return schema | {key: value for key, value in found.items() if value is not None}


# -- the strategies --------------------------------------------------------------------


def _context() -> _Schema:
    """`context`: the keys of the strategy that is named; without one those of all, since it may be the top level's."""
    every: dict[str, _Schema] = {}
    for name, strategy in STRATEGIES.items():
        for key, what in strategy.keys.items():
            # Defaults differ between strategies, so they stand in the text only.
            every.setdefault(key, {**_option(what), "description": f"{name}: {what.about}"})
    about = "; ".join(f"`{name}`: {strategy.about}" for name, strategy in STRATEGIES.items())
    chosen = {**_or_variable({"enum": [*STRATEGIES, None]}), "default": DEFAULT_STRATEGY, "description": about}
    return {
        "type": ["object", "null"],
        "properties": {"strategy": chosen, **every},
        "additionalProperties": False,
        "allOf": [_only(name) for name in STRATEGIES],
    }


def _working_memory() -> _Schema:
    """The same by another system's keys, which the check itself puts in their places."""
    own = _context()["properties"]
    words = _or_variable({"enum": ["all", *STRATEGIES, None]})
    renamed = {key: {**own[name], "description": f"The same as `{name}`."} for key, name in MEMORY_KEYS.items()}
    properties = {**own, **renamed, "type": {**words, "description": "The same as `strategy`; `all` is `none`."}}
    about = "The same as `context`, with other names of its keys."
    return {"type": ["object", "null"], "properties": properties, "additionalProperties": False, "description": about}


def _only(name: str) -> _Schema:
    """Which keys there are beside a strategy."""
    named = {"properties": {"strategy": {"const": name}}, "required": ["strategy"]}
    return {"if": named, "then": {"propertyNames": {"enum": ["strategy", *STRATEGIES[name].keys]}}}


def _option(key: Key) -> _Schema:
    match key.kind:
        case "integer":
            return _or_variable({"type": ["integer", "null"], "minimum": key.low})
        case "share":
            return _or_variable({"type": ["number", "null"], "exclusiveMinimum": 0, "exclusiveMaximum": 1})
        case "text":
            return {"type": ["string", "null"], "minLength": 1}
        case "texts":
            return {"type": ["array", "null"], "items": {"type": "string"}}
        case "flag" | "switch":
            switch: _Schema = {"enum": ["auto", "on", "off", True, False, None]}
            return _or_variable(switch if key.kind == "switch" else {"type": ["boolean", "null"]})
        case "clearing":
            keys = {name: _option(inner) for name, inner in STRATEGIES[CLEARING].keys.items() if name != "budget"}
            inner = {"type": "object", "properties": keys, "additionalProperties": False}
            return _or_variable({"type": ["boolean", "null"]}, inner)


# -- other systems' spelling -------------------------------------------------------------


def _server(definitions: dict[str, _Schema]) -> _Schema:
    properties: dict[str, _Schema] = {}
    for key, path in SERVER.items():
        info: inspect.Type = inspect.type_info(Document)
        for name in path:
            kind, _ = form_of(info)
            assert isinstance(kind, inspect.StructType)
            info = fields_of(kind.cls)[name].type
        properties[key] = {**_typed(info, definitions), "description": f"The same as `{'.'.join(path)}`."}
    # Its keys differ from those of `auth`: the check itself says what each means.
    properties["auth"] = {
        "type": ["object", "null"],
        "description": "The same as `auth`, and `enabled`, `require_auth`.",
    }
    for key, why in SERVER_IGNORED.items():
        properties[key] = {"deprecated": True, "description": f"Does nothing here: {why}."}
    return {"type": ["object", "null"], "properties": properties, "additionalProperties": False}


def _of_databases(properties: Mapping[str, _Schema]) -> dict[str, _Schema]:
    """What `respelt` takes of a database."""
    drivers = properties["driver"]["anyOf"][0]["enum"]
    number = _or_variable({"type": ["integer", "null"], "minimum": 1})
    return {
        "driver": {**properties["driver"], **_or_variable({"enum": [*drivers, "sqlite3"]})},
        **{key: {**number, "description": f"The same as `options.{option}`."} for key, option in DATABASE_KEYS.items()},
        "ssl_mode": {"type": ["string", "null"], "description": "The same as `options.sslmode`."},
        **{
            key: {"deprecated": True, "description": f"Does nothing here: {why}."}
            for key, why in DATABASE_IGNORED.items()
        },
    }
