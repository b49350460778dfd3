"""Create JSON Schemas from the structs of the API (`holdfast.domain.objects`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import UNSET

from holdfast.docstrings import list_field_docs
from holdfast.domain.objects import REF, OpenObject, Request

Schema = dict[str, Any]


def make_ref(kind: type) -> Schema:
    """Return a JSON Schema reference to the schema of a struct."""
    return {"$ref": REF.format(name=_format_name(kind.__name__))}


def make_components(kinds: Iterable[type]) -> dict[str, Schema]:
    """Return the schemas, by name, of the structs in `kinds` and of all structs that these refer to."""
    structs: dict[str, type[msgspec.Struct]] = {}
    for kind in kinds:
        _collect(kind, structs)
    _, found = msgspec.json.schema_components(structs.values(), ref_template=REF)
    return {_format_name(name): _describe(structs[name], schema) for name, schema in sorted(found.items())}


def _collect(kind: Any, found: dict[str, type[msgspec.Struct]]) -> None:
    """Add the structs that a type contains to `found`, by name."""
    if isinstance(kind, msgspec.Meta):
        inner: Iterable[Any] = (kind.extra or {}).get("structs", ())
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__name__ not in found:
        found[kind.__name__] = kind
        inner = (*get_type_hints(kind, include_extras=True).values(), *getattr(kind, "__orig_bases__", ()))
    else:
        inner = get_args(kind)
    for one in inner:
        _collect(one, found)


@cache
def make_parameters_schema(kind: type[msgspec.Struct]) -> Mapping[str, Schema]:
    """Return the schema of each field of a struct whose fields are parameters. The schemas have no texts from docstrings."""
    _, found = msgspec.json.schema_components([kind], ref_template=REF)
    fields: dict[str, Schema] = _simplify(found[kind.__name__])["properties"]
    return {name: _drop_null(schema) for name, schema in fields.items()}


def _format_name(kind: str) -> str:
    """Return the name of a struct in the API description: the class name without the suffix `Object`."""
    return kind.removesuffix("Object")


def _describe(kind: type[msgspec.Struct], schema: Schema) -> Schema:
    """Return the schema of a struct, with the docstrings of its fields. Fields that are always present are marked as required."""
    schema = _simplify(schema)
    texts, fields = list_field_docs(kind), msgspec.structs.fields(kind)
    for one in fields:
        if one.name in texts:
            schema["properties"][one.encode_name]["description"] = texts[one.name]
    if not issubclass(kind, Request | OpenObject):
        schema["required"] = [one.encode_name for one in fields if one.default is not UNSET]
    return {**schema, "additionalProperties": issubclass(kind, OpenObject)}


# -- simplification --------------------------------------------------------------


def _simplify(schema: Any) -> Any:
    """Return a simpler schema: without titles and defaults, and with null as a second type in place of `anyOf`."""
    if isinstance(schema, list):
        return [_simplify(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {name: _simplify(one) for name, one in schema.items() if name not in ("title", "default", "properties")}
    if "properties" in schema:
        tidy["properties"] = {name: _simplify(one) for name, one in schema["properties"].items()}
    if isinstance(place := tidy.get("$ref"), str):
        return {"$ref": _format_name(place), **({"description": tidy["description"]} if "description" in tidy else {})}
    if not tidy.get("required", True):
        del tidy["required"]
    if len(tidy.get("enum", ())) == 1:
        tidy["const"] = tidy.pop("enum")[0]
    if tidy.get("type") == "object" and "properties" not in tidy:
        tidy.setdefault("additionalProperties", True)
    either = tidy.get("anyOf", ())
    return _add_null(tidy, either[0]) if len(either) == 2 and either[1] == {"type": "null"} else tidy


def _add_null(outer: Schema, inner: Schema) -> Schema:
    """Return a schema without `anyOf` that allows `inner` or null. If `inner` has neither a type nor values, return `outer` unchanged.

    Args:
        outer: the schema with `anyOf`.
        inner: the first schema in `anyOf`; the second one is null.
    """
    rest = {name: one for name, one in outer.items() if name != "anyOf"}
    if isinstance(inner.get("type"), str):
        return {**inner, **rest, "type": [inner["type"], "null"]}
    return {**inner, **rest, "enum": [*inner["enum"], None]} if "enum" in inner else outer


def _drop_null(schema: Schema) -> Schema:
    kinds, values = schema.get("type"), schema.get("enum")
    alone = {"type": kinds[0]} if isinstance(kinds, list) else {}
    return {**schema, **alone, **({"enum": [one for one in values if one is not None]} if values else {})}
