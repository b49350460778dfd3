"""The library rejects values of the wrong type as REST does, and writes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.agents import Agent, Roster
from holdfast.context.settings import ContextSettings
from holdfast.domain.messages import Message
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.sessions.handle import SessionHandle

WRONG: dict[str, Any] = {
    "metadata": 5,
    "state": [1],
    "ttl": -5,
    "agent": 5,
    "system_messages": [{"role": "user", "content": "x"}],
}
"""An invalid value for each field."""
Call = Callable[[holdfast.Holdfast, SessionHandle], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "create: id": lambda hf, _: hf.create(_any(5)),
    "create: user_id": lambda hf, _: hf.create("b", user_id=_any(5)),
    "create: unknown agent": lambda hf, _: hf.create("b", agent="nobody"),
    "create: carry_over": lambda hf, _: hf.create("b", carry_over=_any(5)),
    "create: content": lambda hf, _: hf.create("b", system_messages=[Message(role="system", content=_any(5))]),
    "session: system": lambda hf, _: hf.session("b", system=_any(5)),
    "update: unknown agent": lambda _, session: session.update(agent="nobody"),
    "update: ttl": lambda _, session: session.update(ttl=_any("5s")),
    "append: content": lambda _, session: session.append(Message(role="user", content=_any(5))),
    "append: metadata": lambda _, session: session.append({"role": "user", "content": "x", "metadata": 5}),
    "append: expect": lambda _, session: session.append("x", expect=_any("1")),
    "append: fingerprint": lambda _, session: session.append("x", idempotency_key="k", fingerprint=_any("f")),
    "write: entry": lambda _, session: session.write([_any("x")]),
    "write: entries": lambda _, session: session.write(_any(5)),
    "annotate: seq": lambda _, session: session.annotate(_any("0"), pinned=True),
    "turn: mode": lambda _, session: session.turn("x", mode=_any("foo")).__aenter__(),
    "state": lambda _, session: session.state.set("k", object()),
    "artifact: metadata": lambda _, session: session.artifacts.save("a.txt", b"x", metadata=_any(5)),
    "import: metadata": lambda hf, _: hf.import_({"messages": [], "metadata": 5}),
    "import: ttl": lambda hf, _: hf.import_({"messages": [], "ttl": -1}),
    "prune": lambda hf, _: anext(hf.prune(_any("1d"))),
    "sessions: status": lambda hf, _: hf.sessions(status=_any("open")),
    "sessions: user_id": lambda hf, _: hf.sessions(user_id=_any(5)),
    "search: after": lambda hf, _: hf.search("x", after=_any(5)),
    "remember": lambda hf, _: hf.memories.remember(_any(5), user_id="ada"),
}


def _any(value: Any) -> Any:
    """Return the value as type Any, as callers without a type checker pass it."""
    return value


@pytest.fixture
async def hf() -> AsyncIterator[holdfast.Holdfast]:
    async with holdfast.open("sqlite://:memory:") as hf:
        yield hf


@pytest.mark.parametrize("field", WRONG)
async def test_session_is_not_created_with_an_invalid_field(hf: holdfast.Holdfast, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await hf.create("a", **{field: WRONG[field]})
    assert (refused.value.param or "").startswith(field)
    assert (await hf.sessions()).sessions == ()


@pytest.mark.parametrize("field", WRONG)
async def test_update_with_an_invalid_field_changes_nothing(hf: holdfast.Holdfast, field: str) -> None:
    made = await hf.create("a", metadata={"kept": 1}, ttl=10**9)
    with pytest.raises(InvalidRequest) as refused:
        await hf.handle(made).update(**{field: WRONG[field]})
    assert (refused.value.param or "").startswith(field)
    assert (await hf.sessions()).sessions == (made,)


@pytest.mark.parametrize("name", CALLS)
async def test_wrong_arguments_raise_holdfast_errors(hf: holdfast.Holdfast, name: str) -> None:
    session = await hf.session("a")
    await session.append("hello")
    before = await session.info()
    with pytest.raises(HoldfastError):
        await CALLS[name](hf, session)
    assert (await hf.sessions()).sessions == (before,)


async def test_unknown_fields_raise_a_type_error(hf: holdfast.Holdfast) -> None:
    session = await hf.session("a")
    with pytest.raises(TypeError, match="metdata"):
        await session.update(metdata={})  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="metdata"):
        await hf.create("b", metdata={})  # type: ignore[call-arg]


async def test_system_messages_may_be_texts_dicts_or_messages(hf: holdfast.Holdfast) -> None:
    session = await hf.session("a")
    expected = (Message(role="system", content="Be kind."),)
    forms: list[Any] = ["Be kind.", ["Be kind."], [{"role": "system", "content": "Be kind."}], expected]
    for given in forms:
        await session.update(system_messages=None)
        assert (await session.update(system_messages=given)).system_messages == expected


@pytest.mark.parametrize(
    "settings",
    [
        ContextSettings("summary_buffer", {"threshold": 1.2}),
        ContextSettings("digest", {"budgt": 100}),
        ContextSettings("digset"),
        ContextSettings(_any(5)),
    ],
)
def test_context_settings_are_checked_when_the_roster_is_created(settings: ContextSettings) -> None:
    """Both those of an agent and the defaults."""
    with pytest.raises(InvalidRequest) as refused:
        Roster(context=settings)
    assert (refused.value.param or "").startswith("context")
    with pytest.raises(InvalidRequest) as refused:
        Roster(agents={"a": Agent(name="a", context=settings)})
    assert (refused.value.param or "").startswith("agents.a.context")


def test_context_options_must_be_an_object() -> None:
    with pytest.raises(InvalidRequest):
        ContextSettings("digest", _any(5))
