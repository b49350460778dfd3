"""Values that a JSON schema forbids: the tables of refusals are made of them, from the schemas that the product publishes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import jsonschema

Schema = Mapping[str, Any]
OF_ANY_KIND: Final[tuple[Any, ...]] = (None, True, -7, 7.5, "no such value", [], [7], {}, {"no": 1})


class WrongValues:
    """Finds values that schemas of a document forbid.

    Args:
        document: the document in which references are found.
    """

    def __init__(self, document: Schema) -> None:
        self._validator = jsonschema.Draft202012Validator(document)

    def list(self, schema: Schema) -> list[Any]:
        """Return values of other types and values beyond the limits, as far as the schema forbids them."""
        validator = self._validator.evolve(schema=schema)
        return [value for value in (*OF_ANY_KIND, *_list_limits(schema)) if not validator.is_valid(value)]


def _list_limits(schema: Schema) -> Iterator[Any]:
    """Yield the nearest values outside of the schema's limits."""
    if "minimum" in schema:
        yield schema["minimum"] - 1
    if "exclusiveMinimum" in schema:
        yield schema["exclusiveMinimum"]
    if "maximum" in schema:
        yield schema["maximum"] + 1
    if "exclusiveMaximum" in schema:
        yield schema["exclusiveMaximum"]
    if schema.get("minLength"):
        yield ""
    if "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1)
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _list_limits(part)


def list_wrong_texts(schema: Schema) -> list[str]:
    """Return texts that are no value of a query parameter or of a header with this schema."""
    kinds = schema.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    if "enum" in schema:
        return ["no such value", "", str(schema["enum"][0]) + "\0"]
    if kinds & {"integer", "number"}:
        wrong = (
            ["ten", "", "1e3", "0x10", "²", "9" * 400, "NaN"]
            if "integer" in kinds
            else ["ten", "", "²", "NaN", "Infinity"]
        )
        if "minimum" in schema:
            wrong.append(str(schema["minimum"] - 1))
        if "maximum" in schema:
            wrong.append(str(schema["maximum"] + 1))
        return wrong
    if "boolean" in kinds:
        return ["maybe", "", "2"]
    return []
