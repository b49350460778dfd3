"""Check values against the part of JSON Schema that the API description uses; report mismatches and undescribed
fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

KNOWN = frozenset(
    {"$ref", "additionalProperties", "anyOf", "const", "description", "enum", "exclusiveMaximum", "exclusiveMinimum"}
    | {"format", "items", "maximum", "minItems", "minLength", "minimum", "properties", "required", "type"}
)
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


class Schemas:
    """The component schemas of an API description."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._named = document["components"]["schemas"]

    def problems(self, schema: dict[str, Any], value: Any, where: str = "$") -> list[str]:
        """Return the problems of `value`; an empty list if it fits and is fully described."""
        return list(self._problems(schema, value, where))

    def _problems(self, schema: dict[str, Any], value: Any, where: str) -> Iterator[str]:
        assert set(schema) <= KNOWN, f"{where}: this checker does not know {set(schema) - KNOWN}"
        if "$ref" in schema:
            yield from self._problems(self._named[schema["$ref"].rpartition("/")[2]], value, where)
            return
        if "anyOf" in schema:
            tries = [self.problems(one, value, where) for one in schema["anyOf"]]
            if all(tries):
                yield from min(tries, key=len)
            return
        if "const" in schema and value != schema["const"]:
            yield f"{where} is {value!r}, not {schema['const']!r}"
        if "enum" in schema and value not in schema["enum"]:
            yield f"{where} is {value!r}, none of {schema['enum']}"
        if "type" in schema and not _is(value, schema["type"]):
            yield f"{where} is {value!r:.60}, not {schema['type']}"
            return
        yield from _ranges(schema, value, where)
        if isinstance(value, list) and "items" in schema:
            for at, item in enumerate(value):
                yield from self._problems(schema["items"], item, f"{where}[{at}]")
        if isinstance(value, dict):
            yield from self._fields(schema, value, where)

    def _fields(self, schema: dict[str, Any], value: dict[str, Any], where: str) -> Iterator[str]:
        fields, more = schema.get("properties", {}), schema.get("additionalProperties", False)
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{where}.{name} is missing"
        for name, item in value.items():
            if name in fields:
                yield from self._problems(fields[name], item, f"{where}.{name}")
            elif isinstance(more, dict):
                yield from self._problems(more, item, f"{where}.{name}")
            # An object with known fields is described by them; a free-form object has none.
            elif not more or (fields and not name.startswith("x_")):
                yield f"{where}.{name} is not described"


def _is(value: Any, kinds: str | list[str]) -> bool:
    names = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, TYPES[name]) for name in names)


def _ranges(schema: dict[str, Any], value: Any, where: str) -> Iterator[str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        above, below = schema.get("exclusiveMinimum", value - 1), schema.get("exclusiveMaximum", value + 1)
        if not (low <= value <= high and above < value < below):
            yield f"{where} is {value}, out of its range"
    if isinstance(value, list) and len(value) < schema.get("minItems", 0):
        yield f"{where} has too few items"
    if isinstance(value, str) and len(value) < schema.get("minLength", 0):
        yield f"{where} is too short"
