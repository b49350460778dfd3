"""Instruction templates: they are filled in from state and artifacts each time the model is called."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast.agents import Agent
from holdfast.errors import (
    MissingState,
)
from holdfast.secrets import Guard, make_redactor
from holdfast.stores.log import Append
from holdfast.tools.context import ToolContext
from tests.fake_secrets import KEY
from tests.service.scripted_model import REF
from tests.service.tools_kit import Bench, bench, content, make_reply

LANGUAGE = "User's preferred language: {user:language}\nCurrent topic: {current_topic?}\nApp version: {app:version}\n"
"""An example instruction with state of three scopes."""


def make_agents(instruction: str | None = None, **fields: Any) -> dict[str, Agent]:
    return {"a": Agent(name="a", instruction=instruction, **fields)}


def get_system_messages(made: Bench, at: int = -1) -> list[str]:
    return [one["content"] for one in made.model.prompts[at] if one["role"] == "system"]


async def write_state(made: Bench, delta: dict[str, Any]) -> None:
    await made.hf.store.append(REF, Append(state_delta=delta, timestamp=made.hf.clock()))


# -- placeholders ------------------------------------------------------------------------


async def test_placeholders_read_all_state_scopes() -> None:
    async with bench(["ok"] * 2, agents=make_agents(LANGUAGE)) as made:
        await write_state(made, {"user:language": "Portuguese", "app:version": "2.0.0", "current_topic": "trams"})
        await made.ask("Hi", agent="a")
        assert get_system_messages(made) == [
            "User's preferred language: Portuguese\nCurrent topic: trams\nApp version: 2.0.0\n"
        ]
        await write_state(made, {"current_topic": None, "app:version": 2.5})
        await made.ask("And now?", agent="a")
        assert get_system_messages(made) == [
            "User's preferred language: Portuguese\nCurrent topic: \nApp version: 2.5\n"
        ]


async def test_braces_in_values_are_not_placeholders() -> None:
    hostile = "{user:secret} {artifact.plan} {{x}} }} {"
    async with bench(["ok"], agents=make_agents("{a}{b}|{{a}}")) as made:
        await write_state(made, {"a": "{b", "b": hostile, "user:secret": "hidden"})
        await made.ask("Hi", agent="a")
        assert get_system_messages(made) == [f"{{b{hostile}|{{a}}"]


# -- artifacts -------------------------------------------------------------------------


# -- missing values -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["topic", "user:language", "app:version", "temp:x", "artifact.plan.md"])
async def test_missing_value_ends_the_turn_before_the_model_is_called(name: str) -> None:
    """The user's message is stored. Sent again when the value exists, it is answered and not duplicated."""
    async with bench(["ok"], agents=make_agents(f"{{{name}}}", failure_message="Sorry.")) as made:
        with pytest.raises(MissingState) as error:
            await made.ask("Hi", agent="a")
        assert (error.value.name, error.value.agent) == (name, "a")
        assert (made.model.prompts, await made.describe_log()) == ([], ["user: Hi"])
        if name == "temp:x":
            return
        if name.startswith("artifact."):
            await made.session.artifacts.save("plan.md", "now")
        else:
            await write_state(made, {name: "now"})
        assert content(await made.ask("Hi", agent="a")) == "ok"
        assert (get_system_messages(made), await made.describe_log()) == (["now"], ["user: Hi", "assistant: ok"])


# -- previews -----------------------------------------------------------------------------


# -- messages of the agent ------------------------------------------------------------------


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
