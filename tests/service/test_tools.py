"""Tools from functions: their description for the model, argument parsing, and what is rejected."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec

from holdfast.artifacts.service import SessionArtifacts
from holdfast.domain.messages import ToolCall
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


async def test_arguments_are_converted_to_their_annotations() -> None:
    """Arguments that the model omits take the function's default."""
    said = await call_outcome(order, {"number": 2, "kind": "large", "to": {"street": "x"}, "by": "2026-01-02"})
    assert said.content == "2 large Place(street='x', number=1) post 5 2026-01-02 s"
    assert (await call_outcome(order, {"number": 2})).content == "2 small None post 5 None s"
