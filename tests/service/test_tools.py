"""Tools from functions: their description for the model, argument parsing, and what is rejected."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from holdfast.artifacts import SessionArtifacts
from holdfast.domain.messages import ToolCall
from holdfast.domain.state import Extend, Increment, join_deltas
from holdfast.tools.context import State, ToolContext, TurnState
from holdfast.tools.functions import tool_from
from holdfast.tools.tool import CallOutcome, ToolLimits, Toolset, run

ARTIFACTS: SessionArtifacts = SessionArtifacts(None, None)  # type: ignore[arg-type]  # nobody looks at them


class Kind(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Place:
    street: str
    number: int = 1


def order(
    number: int,
    context: ToolContext,
    kind: Kind = Kind.SMALL,
    *,
    to: Place | None = None,
    how: Annotated[Literal["post", "van"], "how it comes"] = "post",
    most: Annotated[int, msgspec.Meta(ge=1, le=9)] = 5,
    by: date | None = None,
) -> str:
    """Order something, and have it
    brought.

    More words, which the model is not told.

    Args:
        number: how many,
            at least one
        kind (Kind): the size: small or large
        most: boxes
    Returns:
        number: this is no parameter
    """
    return f"{number} {kind.value} {to} {how} {most} {by} {context.session_id}"


def make_context(stored: dict[str, Any] | None = None) -> ToolContext:
    state = State(TurnState(stored or {}, {}))
    return ToolContext(session_id="s", user_id="u", agent=None, state=state, artifacts=ARTIFACTS)


async def call_outcome(function: Any, arguments: Any, **limits: Any) -> CallOutcome:
    """Call the function as a tool and return the outcome."""
    tools = Toolset.create([tool_from(function)], ToolLimits(**limits))
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return await run(tools, ToolCall("c", next(iter(tools.tools)), text), make_context())


def test_function_is_described_by_docstring_and_signature() -> None:
    """Uses the docstring's first paragraph, the signature and the section Args."""
    function = tool_from(order).definition["function"]
    assert function["name"] == "order"
    assert function["description"] == "Order something, and have it brought."
    schema = function["parameters"]
    assert schema["type"] == "object"
    assert schema["required"] == ["number"]
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == ["number", "kind", "to", "how", "most", "by"]
    assert schema["properties"]["number"] == {"type": "integer", "description": "how many, at least one"}
    assert schema["properties"]["kind"]["description"] == "the size: small or large"
    assert schema["properties"]["kind"]["default"] == "small"
    assert schema["properties"]["how"]["enum"] == ["post", "van"]
    assert schema["properties"]["how"]["description"] == "how it comes"
    assert schema["properties"]["most"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "description": "boxes",
        "default": 5,
    }
    assert schema["properties"]["by"]["anyOf"][0] == {"type": "string", "format": "date"}
    assert set(schema["$defs"]) == {"Kind", "Place"}
    msgspec.json.encode(schema)


async def test_arguments_are_converted_to_their_annotations() -> None:
    """Arguments that the model omits take the function's default."""
    said = await call_outcome(order, {"number": 2, "kind": "large", "to": {"street": "x"}, "by": "2026-01-02"})
    assert said.content == "2 large Place(street='x', number=1) post 5 2026-01-02 s"
    assert (await call_outcome(order, {"number": 2})).content == "2 small None post 5 None s"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "missing required field `number`"),
        ({"number": "2"}, "Expected `int`, got `str` - at `$.number`"),
        ({"number": 1, "kind": "huge"}, "Invalid enum value 'huge' - at `$.kind`"),
        ({"number": 1, "most": 10}, "Expected `int` <= 9 - at `$.most`"),
        ({"number": 1, "to": {"street": 5}}, "at `$.to.street`"),
        ({"number": 1, "context": {}}, "unknown field `context`"),
        ("", "missing required field `number`"),
        ("null", "missing required field `number`"),
        ("[" * 5000, "not valid JSON"),
        ('{"number": 1e999}', "wrong arguments"),
    ],
)
async def test_wrong_arguments_are_reported_with_their_path(arguments: Any, words: str) -> None:
    """The model can then correct them."""
    said = await call_outcome(order, arguments)
    assert said.failed
    assert isinstance(said.content, str)
    assert words in msgspec.json.decode(said.content)["error"]


def several(*a: int) -> None: ...
def unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the same


# -- state -----------------------------------------------------------------------


def make_turn_state(own: dict[str, Any], user: dict[str, Any], app: dict[str, Any], temp: dict[str, Any]) -> TurnState:
    """Build the state of a turn, by scope."""
    made = TurnState(own, temp)
    made.set_shared({"user": user, "app": app})
    return made


def test_increments_and_appends_are_committed_as_deltas() -> None:
    """Deltas of several calls add up and do not overwrite those of others; an assignment stays an assignment."""
    stands = make_turn_state({}, {"n": 5, "l": [1]}, {}, {})
    calls = [State(stands), State(stands)]
    for call in calls:
        call.increment("user:n", 2)
        call.append("user:l", "x")
        call.append("user:l", "y", "z")
    calls[1]["other"] = 1
    calls[1].increment("other")
    assert calls[0]["user:n"] == 7
    assert calls[0]["user:l"] == [1, "x", "y", "z"]
    delta = join_deltas(call.seal() for call in calls)
    assert delta == {"user:n": Increment(4), "user:l": Extend(("x", "y", "z") * 2), "other": 2}
