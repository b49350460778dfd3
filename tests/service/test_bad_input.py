"""The library rejects values of the wrong type as REST does, and writes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast.agents import Agent, Roster
from holdfast.context.settings import ContextSettings
from holdfast.domain.messages import Message
from holdfast.errors import InvalidRequest

WRONG: dict[str, Any] = {
    "metadata": 5,
    "state": [1],
    "ttl": -5,
    "agent": 5,
    "system_messages": [{"role": "user", "content": "x"}],
}
"""An invalid value for each field."""


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
