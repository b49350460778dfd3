"""How parameters and bodies of REST requests become structs: what is refused, and which field the error names."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from msgspec import UNSET, UnsetType

from holdfast.errors import InvalidRequest
from holdfast.server.routes import read_body, read_query
from holdfast.server.schema import make_components
from holdfast.wire.objects import Answer, Count, Request, Share


class Query(Request, kw_only=True):
    """Parameters."""

    q: str
    """What is asked."""
    limit: Count = 20
    share: Share | None = None
    order: Literal["asc", "desc"] | None = None
    whole: bool = False


class Item(Request):
    """An item."""

    name: str


class Body(Request, kw_only=True):
    """A body."""

    items: list[Item]
    kind: Literal["a", "b"] = "a"
    note: str | None = None
    count: int | UnsetType = UNSET


class Made(Answer, kw_only=True):
    """An answer."""

    object: Literal["made"] = "made"
    note: str | None
    """What is said."""
    more: int | UnsetType = UNSET


def test_parameters_become_values_of_their_types() -> None:
    given = {"q": "x", "limit": "5", "share": "0.5", "order": "desc", "whole": "true"}
    assert read_query(given, Query) == Query(q="x", limit=5, share=0.5, order="desc", whole=True)
    assert read_query({"q": "x"}, Query) == Query(q="x")


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({}, "q", "missing"),
        ({"q": ""}, "q", "empty"),
        ({"q": "x", "limit": "1.5"}, "limit", "whole number"),
        ({"q": "x", "limit": "-1"}, "limit", "from 0"),
        ({"q": "x", "share": "2"}, "share", "from 0 to 1"),
        ({"q": "x", "share": "much"}, "share", "from 0 to 1"),
        ({"q": "x", "order": "up"}, "order", "one of asc, desc"),
        ({"q": "x", "whole": "1"}, "whole", "one of false, true"),
        ({"q": "x", "limt": "1"}, "limt", "did you mean limit"),
    ],
)
def test_wrong_parameters_are_named(given: dict[str, str], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        read_query(given, Query)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({}, "items", "missing"),
        ({"items": {}}, "items", "a list, not an object"),
        ({"items": [{}]}, "items[0].name", "missing"),
        ({"items": [{"name": 1}]}, "items[0].name", "a string, not a whole number"),
        ({"items": [{"name": "x", "b": 1}]}, "b", "unknown field 'b' of items"),
        ({"items": [], "kind": "c"}, "kind", "one of a, b"),
        ({"items": [], "note": False}, "note", "a string or null, not true or false"),
        ({"items": [], "count": None}, "count", "a whole number, not null"),
        ({"items": [], "nte": "x"}, "nte", "did you mean note"),
    ],
)
def test_wrong_fields_are_named(given: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        read_body(given, Body)
    assert caught.value.param == param


def test_structs_are_described_by_their_docstrings() -> None:
    """An answer has all fields but those that may be UNSET; what is sent may leave out whatever has a default."""
    described = make_components([Made, Body])
    assert set(described) == {"Made", "Body", "Item"}
    assert described["Made"] == {
        "description": "An answer.",
        "type": "object",
        "properties": {
            "object": {"const": "made"},
            "note": {"type": ["string", "null"], "description": "What is said."},
            "more": {"type": "integer"},
        },
        "required": ["object", "note"],
        "additionalProperties": False,
    }
    assert described["Body"]["required"] == ["items"]
    assert described["Body"]["properties"]["items"] == {"type": "array", "items": {"$ref": "#/components/schemas/Item"}}
