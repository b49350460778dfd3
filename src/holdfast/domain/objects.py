"""Base classes for objects of the REST API: msgspec structs, whose docstrings describe each field.

The server's routes, exports, and the command line's `--json` share these classes. OpenAPI is generated from them;
there, the class `SessionObject` is called `Session`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar

import msgspec

Item = TypeVar("Item")
S = TypeVar("S", bound=msgspec.Struct)
REF: Final = "#/components/schemas/{name}"


def json_schema(*structs: type, **keywords: Any) -> msgspec.Meta:
    """Return an annotation that describes a field with JSON Schema keywords, which can refer to the schemas of `structs`.

    The keywords do not validate anything. Limits are checked where they are defined.
    """
    return msgspec.Meta(extra_json_schema=keywords, extra={"structs": structs})


def same_as(kind: type) -> msgspec.Meta:
    """Return an annotation that gives a field the JSON schema of `kind`, although its value is a dict."""
    return json_schema(kind, **{"$ref": REF.format(name=kind.__name__)})


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """An object in a response. Fields with the default UNSET may be missing; all others are present."""


def make_object(kind: type[S], source: msgspec.Struct, **more: Any) -> S:
    """Create an object of a response from the fields and properties of `source` with the same names.

    Args:
        kind: Class of the object.
        source: Struct with values for fields of the class.
        more: The other fields. They take precedence.
    """
    names = [name for name in kind.__struct_fields__ if name not in more and hasattr(source, name)]
    return kind(**{name: getattr(source, name) for name in names}, **more)


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """An object in a request. Unknown fields are rejected; fields with a default may be left out."""


class OpenObject(msgspec.Struct):
    """An object that may have additional fields, which are kept. The class only describes the object; code handles the object as a dict."""


Id = Annotated[str, json_schema(description="1 to 512 bytes of any Unicode", minLength=1)]
NonEmpty = Annotated[str, json_schema(minLength=1)]
Count = Annotated[int, json_schema(minimum=0)]
"""A whole number from 0."""
Share = Annotated[float, json_schema(minimum=0, maximum=1)]
Time = Annotated[int, json_schema(description="milliseconds since the epoch", minimum=0)]
JsonObject = dict[str, Any]

Cursor = TypeVar("Cursor")


class Page(Answer, Generic[Item, Cursor], kw_only=True):
    """One page of a list."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool
    """True if there are items after the last one on this page."""
    first_id: Cursor | None
    last_id: Cursor | None
    """Value for the parameter `after` of the request for the next page."""

    @classmethod
    def of(cls, items: Sequence[Item], *, has_more: bool, by: str = "id", **more: Any) -> Self:
        """Create a page.

        Args:
            items: The items, as structs or dicts.
            has_more: True if there are items after the last one.
            by: Name of the field that identifies an item. Its value is passed as `after`.
            more: Additional fields of a subclass.
        """
        ends: list[Any] = [
            one[by] if isinstance(one, Mapping) else getattr(one, by) for one in (*items[:1], *items[-1:])
        ]
        first_id, last_id = ends or (None, None)
        return cls(data=list(items), has_more=has_more, first_id=first_id, last_id=last_id, **more)
