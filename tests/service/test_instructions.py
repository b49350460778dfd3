"""Instruction templates: they are filled in from state and artifacts each time the model is called."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast.agents import Agent
from holdfast.secrets.guard import Guard
from holdfast.secrets.redactor import make_redactor
from holdfast.stores.log import Append
from holdfast.tools.context import ToolContext
from tests.fake_secrets import KEY
from tests.service.scripted_model import REF
from tests.service.tools_kit import Bench, bench, make_reply


def make_agents(instruction: str | None = None, **fields: Any) -> dict[str, Agent]:
    return {"a": Agent(name="a", instruction=instruction, **fields)}


def get_system_messages(made: Bench, at: int = -1) -> list[str]:
    return [one["content"] for one in made.model.prompts[at] if one["role"] == "system"]


async def write_state(made: Bench, delta: dict[str, Any]) -> None:
    await made.hf.store.append(REF, Append(state_delta=delta, timestamp=made.hf.clock()))


# -- placeholders ------------------------------------------------------------------------


async def test_braces_in_values_are_not_placeholders() -> None:
    hostile = "{user:secret} {artifact.plan} {{x}} }} {"
    async with bench(["ok"], agents=make_agents("{a}{b}|{{a}}")) as made:
        await write_state(made, {"a": "{b", "b": hostile, "user:secret": "hidden"})
        await made.ask("Hi", agent="a")
        assert get_system_messages(made) == [f"{{b{hostile}|{{a}}"]


# -- cost and secrets ----------------------------------------------------------------------


async def test_secrets_in_artifacts_and_temporary_state_are_redacted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def note(context: ToolContext) -> str:
        """Note it."""
        context.state["temp:key"] = {"is": KEY}
        return "noted"

    caplog.set_level(logging.DEBUG)
    guard = Guard(make_redactor(), None)
    texts = "{artifact.notes.txt} {temp:key?}"
    async with bench(
        [make_reply(None, ("c", "note", {})), make_reply("ok")], note, agents=make_agents(texts), guard=guard
    ) as made:
        await made.session.artifacts.save("notes.txt", f"the key is {KEY}")
        await made.ask("Hi", agent="a")
        assert all(KEY not in str(prompt) for prompt in made.model.prompts)
        assert '{"is":"' in get_system_messages(made)[0], "only the secret is replaced"
    assert KEY not in caplog.text
