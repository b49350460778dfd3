"""Base classes for objects of the REST API: msgspec structs, whose docstrings describe each field.

The server's routes, exports, and `--json` of the command line share them; OpenAPI is generated from them. A class
`SessionObject` is called `Session` there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar

import msgspec

REF: Final = "#/components/schemas/{name}"


def json_schema(**keywords: Any) -> msgspec.Meta:
    """Describe a field with JSON Schema keywords. They validate nothing: limits are checked where they are defined."""
    return msgspec.Meta(extra_json_schema=keywords)


def same_as(kind: type) -> msgspec.Meta:
    """Give a field that is handled as a dict the JSON schema of `kind`."""
    return json_schema(**{"$ref": REF.format(name=kind.__name__)})


DEPRECATED: Final = json_schema(deprecated=True)
"""Marks a field that has a new name and will be removed."""


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """An object in a response. All fields are present, except those whose default is UNSET."""

    @classmethod
    def from_fields(cls, source: msgspec.Struct, **more: Any) -> Self:
        """Create one from the fields and properties of `source` with the same names; `more` has all others."""
        names = [name for name in cls.__struct_fields__ if name not in more and hasattr(source, name)]
        return cls(**{name: getattr(source, name) for name in names}, **more)


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """An object in a request. Unknown fields are rejected; fields with a default may be left out."""


class OpenObject(msgspec.Struct):
    """An object with possible additional fields, which are kept. The class only describes it; it is handled as a dict."""


Id = Annotated[str, json_schema(description="1 to 512 bytes of any Unicode", minLength=1)]
NonEmpty = Annotated[str, json_schema(minLength=1)]
Count = Annotated[int, json_schema(minimum=0)]
"""A whole number from 0."""
Share = Annotated[float, json_schema(minimum=0, maximum=1)]
Time = Annotated[int, json_schema(description="milliseconds since the epoch", minimum=0)]
JsonObject = dict[str, Any]

Item = TypeVar("Item")
Cursor = TypeVar("Cursor")


class Page(Answer, Generic[Item, Cursor], kw_only=True):
    """A page of a list."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool
    """True if there are items after the last one."""
    first_id: Cursor | None
    last_id: Cursor | None
    """Pass it as `after` to get the next page."""

    @classmethod
    def of(cls, items: Sequence[Item], *, has_more: bool, by: str = "id", **more: Any) -> Self:
        """Create a page.

        Args:
            items: Structs or dicts.
            has_more: True if there are items after the last one.
            by: Field that identifies an item, and is passed as `after`.
            more: Fields of the subclass.
        """
        ends: list[Any] = [
            one[by] if isinstance(one, Mapping) else getattr(one, by) for one in (*items[:1], *items[-1:])
        ]
        first_id, last_id = ends or (None, None)
        return cls(data=list(items), has_more=has_more, first_id=first_id, last_id=last_id, **more)
