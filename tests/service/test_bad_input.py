"""System messages in each form, and settings of contexts that are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast.agents import Agent, Roster
from holdfast.context.settings import ContextSettings
from holdfast.domain.messages import Message
from holdfast.errors import InvalidRequest


def _any(value: Any) -> Any:
    """Return the value as type Any, as callers without a type checker pass it."""
    return value


@pytest.fixture
async def hf() -> AsyncIterator[holdfast.Holdfast]:
    async with holdfast.open("sqlite://:memory:") as hf:
        yield hf


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
