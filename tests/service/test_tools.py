"""Tools from functions: their description for the model, argument parsing, and what is rejected."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.artifacts import SessionArtifacts
from holdfast.config.build import build_tool_limits
from holdfast.config.gateway import Gateway
from holdfast.domain.messages import ToolCall
from holdfast.domain.state import Extend, Increment, add_prefix, apply_delta, join_deltas
from holdfast.errors import InvalidRequest, TooLarge
from holdfast.limits import STATE_VALUE_BYTES
from holdfast.tools.context import State, ToolContext, TurnState
from holdfast.tools.functions import tool_from
from holdfast.tools.tool import CallOutcome, Tool, ToolLimits, Toolset, cut, run

ARTIFACTS: SessionArtifacts = SessionArtifacts(None, None)  # type: ignore[arg-type]  # nobody looks at them


class Kind(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Place:
    street: str
    number: int = 1


class Node(msgspec.Struct):
    name: str
    below: list[Node] = []


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


async def test_every_kind_of_callable_can_be_a_tool() -> None:
    """Methods, objects, plain functions that return an awaitable, recursive types."""

    class Desk:
        async def __call__(self, n: int) -> int:
            """Call it."""
            return n + 1

        def method(self, n: int) -> int:
            """Its method."""
            return n + 2

    async def later(n: int) -> int:
        return n + 3

    def plain(n: int) -> Any:
        return later(n)

    def deep(node: Node) -> str:
        return node.below[0].name

    assert (await call_outcome(Desk().method, {"n": 1})).content == "3"
    assert (await call_outcome(plain, {"n": 1})).content == "4"
    assert (await call_outcome(deep, {"node": {"name": "a", "below": [{"name": "b"}]}})).content == "b"
    tool = tool_from(Desk(), name="desk")
    assert await tool.call(make_context(), {"n": 1}) == 2
    assert tool_from(functools.partial(order, most=1), name="few").name == "few"


async def test_methods_are_called_on_their_own_instance() -> None:
    """A method's description is read once for all instances; a subclass inherits it."""

    class Desk:
        def __init__(self, number: int) -> None:
            self.number = number

        def find(self) -> int:
            """Find it."""
            return self.number

        def any(*given: Any) -> None: ...

    class Other(Desk):
        def find(self) -> int:
            return -self.number

    made = [tool_from(desk.find) for desk in (Desk(1), Desk(2), Other(3))]
    assert [await tool.call(make_context(), {}) for tool in made] == [1, 2, -3]
    assert {tool.description for tool in made} == {"Find it."}
    with pytest.raises(InvalidRequest, match="not supported"):
        tool_from(Desk(1).any)


async def test_tool_that_exits_does_not_end_the_process() -> None:
    """Command line parsers exit on wrong arguments, and here the model chooses them."""

    def parser() -> str:
        sys.exit(2)

    async def later() -> str:
        raise SystemExit("no")

    for function in (parser, later):
        content = (await call_outcome(function, {})).content
        assert "tried to end the process" in content


class Model:
    def model_dump(self, mode: str) -> dict[str, str]:
        return {"mode": mode}


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ("as it is", "as it is"),
        ("half \ud800", "half ?"),
        (None, "null"),
        ({"a": (1, 2)}, '{"a":[1,2]}'),
        (Place("x"), '{"street":"x","number":1}'),
        (Model(), '{"mode":"json"}'),
        (7, "7"),
    ],
)
async def test_results_are_converted_to_text(result: Any, content: str) -> None:
    """A string is unchanged; anything else becomes JSON."""

    def give() -> Any:
        return result

    assert (await call_outcome(give, {})).content == content


@pytest.mark.parametrize("result", [object(), {"a": {1j}}, {"\ud800": 1}])
async def test_results_without_a_text_form_are_errors(result: Any) -> None:
    def give() -> Any:
        return result

    assert (await call_outcome(give, {})).failed


def positional(a: int, /) -> None: ...
def several(*a: int) -> None: ...
def named_only(**a: int) -> None: ...
def bare(a) -> None: ...  # type: ignore[no-untyped-def]  # that is what is refused
def unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the same
def foreign(a: ToolContext | int) -> None: ...
def wrong_name(a: int) -> None: ...


@pytest.mark.parametrize("function", [positional, several, named_only, bare, unknown, foreign, lambda a: a, print, 5])
def test_unsupported_functions_are_rejected(function: Any) -> None:
    """The error names the function and the parameter."""
    with pytest.raises(InvalidRequest) as caught:
        tool_from(function)
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    "fields", [{"name": "a b"}, {"name": ""}, {"name": "x" * 65}, {"timeout": 0}, {"max_result": 5}, {"timeout": True}]
)
def test_invalid_tool_fields_are_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        tool_from(wrong_name, **fields)


@pytest.mark.parametrize("limits", [{"rounds": -1}, {"result": 10}, {"timeout": 0}, {"timeout": "x"}, {"rounds": 1.5}])
def test_invalid_limits_are_rejected(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        ToolLimits(**limits)


def test_default_limits_equal_those_of_the_configuration() -> None:
    assert build_tool_limits(Gateway()) == ToolLimits()


async def test_tool_without_a_function_gets_its_arguments_unchanged() -> None:
    """It may have any schema."""

    async def call(context: ToolContext, arguments: dict[str, Any]) -> str:
        return f"{context.user_id} {arguments}"

    tools = Toolset.create([Tool(name="raw", call=call)])
    said = await run(tools, ToolCall("c", "raw", '{"a": [1]}'), make_context())
    assert said.content == "u {'a': [1]}"


# -- state -----------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", "user:a", "app:a", "temp:c"])
VALUES = st.one_of(st.none(), st.integers(-5, 5), st.lists(st.integers(), max_size=2))
WRITES = st.one_of(
    VALUES, st.builds(Increment, st.integers(-3, 3)), st.builds(Extend, st.tuples(st.integers(), st.integers()))
)


def make_turn_state(own: dict[str, Any], user: dict[str, Any], app: dict[str, Any], temp: dict[str, Any]) -> TurnState:
    """Build the state of a turn, by scope."""
    made = TurnState(own, temp)
    made.set_shared({"user": user, "app": app})
    return made


def write(state: State, key: str, change: Any) -> None:
    """Write to the state as a tool would."""
    if isinstance(change, Increment):
        state.increment(key, change.by)
    elif isinstance(change, Extend):
        state.append(key, *change.values)
    else:
        state[key] = change


STORED = st.dictionaries(st.sampled_from("ab"), st.one_of(st.integers(), st.lists(st.integers(), max_size=2)))


@given(STORED, STORED, STORED, st.lists(st.tuples(KEYS, WRITES)))
def test_state_behaves_like_a_mapping(own: Any, user: Any, app: Any, writes: list[tuple[str, Any]]) -> None:
    """It is like a dict over all scopes in which None deletes; committing makes the stored state equal to what was
    seen. Invalid writes are rejected and change nothing.
    """
    temp: dict[str, Any] = {}
    stored = {**own, **add_prefix(user, "user"), **add_prefix(app, "app")}
    state, model = State(make_turn_state(own, user, app, temp)), dict(stored)
    for key, change in writes:
        try:
            model = apply_delta(model, {key: change})
        except InvalidRequest:
            with pytest.raises(InvalidRequest):
                write(state, key, change)
        else:
            write(state, key, change)
        assert dict(state) == model
        assert len(state) == len(model)
        assert (key in state) is (key in model)
    committed = apply_delta(stored, state.seal())
    assert committed == {key: value for key, value in model.items() if key != "temp:c"}
    assert temp == {key: value for key, value in model.items() if key == "temp:c"}


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


def test_invalid_state_keys_are_rejected() -> None:
    """Values that are read are copies."""
    state = State(make_turn_state({"list": [1]}, {"old": 1}, {}, {}))
    state["list"].append(2)
    assert state["list"] == [1]
    assert list(state) == ["list", "user:old"]
    keys: tuple[Any, ...] = ("user:", "", 5, "a\0", "x" * 257)
    for key in keys:
        with pytest.raises(InvalidRequest):
            state[key] = 1
        with pytest.raises(InvalidRequest):
            state.get(key)
    with pytest.raises(KeyError):
        del state["none"]
    with pytest.raises(KeyError):
        state["temp:none"]
    with pytest.raises(TooLarge):
        state["app:large"] = "x" * STATE_VALUE_BYTES
    for key in ("list", "temp:list"):
        state[key] = [1]
        with pytest.raises(InvalidRequest):
            state.increment(key)
    assert state["list"] == state["temp:list"] == [1]


def test_unread_shared_state_is_an_error_and_not_empty() -> None:
    """Shared keys that were not loaded cannot be read, but can be written."""
    state = State(TurnState({"own": 1}, {}, "await turn.load_state() first"))
    for look in (lambda: state["user:a"], lambda: list(state), lambda: "app:a" in state):
        with pytest.raises(InvalidRequest, match="load_state"):
            look()
    state.increment("app:a")
    state["user:a"] = 1
    assert (state["user:a"], state["own"]) == (1, 1)
    assert state.take() == {"app:a": Increment(1), "user:a": 1}
    assert state.seal() == {}


def test_changes_whose_commit_is_tried_again_are_shown_and_not_taken_twice() -> None:
    turn_state = TurnState({"number": 1, "list": ["a"]}, {})
    turn_state.set_shared({})
    state = State(turn_state)
    state.increment("number")
    state["new"] = "x"
    state.held = state.take()
    assert (state["number"], state["new"], sorted(state)) == (2, "x", ["list", "new", "number"])
    state.increment("number", 10)
    state.append("list", "b")
    assert (state["number"], state["list"]) == (12, ["a", "b"])
    assert state.take() == {"number": Increment(10), "list": Extend(("b",))}
    del state["new"]
    assert "new" not in state


@given(st.text(max_size=3000), st.integers(1024, 3000))
def test_cut_result_fits_its_limit(text: str, most: int) -> None:
    """The limit is in bytes; the beginning and the end are kept, and a result that fits is unchanged."""
    told = cut(text, most)
    assert len(told.encode()) <= most
    if len(text.encode()) <= most:
        assert told == text
    else:
        assert told[:100] == text[:100]
        assert told[-50:] == text[-50:]
