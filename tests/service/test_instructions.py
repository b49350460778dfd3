"""Instruction templates: they are filled in from state and artifacts each time the model is called."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast.agents import Agent
from holdfast.domain.session import SessionRef
from holdfast.errors import (
    HoldfastError,
    InvalidRequest,
    MissingState,
    ModelUnavailable,
    SessionNotFound,
    TooLarge,
)
from holdfast.limits import INSTRUCTED_ARTIFACT_BYTES
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


async def test_empty_instruction_is_left_out() -> None:
    async with bench(["ok"], agents=make_agents("{x?}")) as made:
        await made.ask("Hi", agent="a")
        assert get_system_messages(made) == []


async def test_system_messages_of_requests_and_sessions_are_not_templates() -> None:
    async with bench(["ok"] * 2, agents=make_agents("{{x}}")) as made:
        session = await made.hf.session("t", system="session {x}", agent="a")
        await session.send("Hi")
        assert get_system_messages(made) == ["{x}", "session {x}"]
        await session.send([{"role": "system", "content": "request {x}"}, {"role": "user", "content": "Hi"}])
        assert get_system_messages(made) == ["{x}", "request {x}"]


async def test_braces_in_values_are_not_placeholders() -> None:
    hostile = "{user:secret} {artifact.plan} {{x}} }} {"
    async with bench(["ok"], agents=make_agents("{a}{b}|{{a}}")) as made:
        await write_state(made, {"a": "{b", "b": hostile, "user:secret": "hidden"})
        await made.ask("Hi", agent="a")
        assert get_system_messages(made) == [f"{{b{hostile}|{{a}}"]


async def test_state_written_by_a_tool_is_in_the_next_call() -> None:
    def note(context: ToolContext) -> str:
        """Note things."""
        context.state["topic"] = "trams"
        context.state["user:language"] = "pt"
        context.state["temp:step"] = {"n": 2}
        return "noted"

    texts = "{topic?}|{user:language?}|{temp:step?}"
    async with bench(
        [make_reply(None, ("c", "note", {})), make_reply("done")] * 2, note, agents=make_agents(texts)
    ) as made:
        await made.ask("Hi", agent="a")
        assert [get_system_messages(made, at) for at in (0, 1)] == [["||"], ['trams|pt|{"n":2}']]
        await made.ask("Again", agent="a")
        assert get_system_messages(made, 2) == ["trams|pt|"], "temporary state ends with its turn"


async def test_instruction_of_a_library_turn_is_filled_in() -> None:
    async with bench([], agents=make_agents("{topic?}|{temp:x?}")) as made:
        session = await made.hf.session("t", agent="a")
        async with session.turn("Hi") as turn:
            assert turn.messages[0]["content"] == "|"
            turn.state["topic"], turn.state["temp:x"] = "trams", "soon"
            turn.add({"role": "assistant", "tool_calls": [_call()]})
            turn.add({"role": "tool", "tool_call_id": "c", "content": "1"})
            assert (await turn.next())[0]["content"] == "trams|soon"
            turn.add("ok")


def _call() -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


# -- artifacts -------------------------------------------------------------------------


async def test_artifact_placeholder_has_the_newest_version() -> None:
    async with bench(
        ["ok"] * 2, agents=make_agents("{artifact.plan.md}|{artifact.user:style.txt?}|{artifact.none?}")
    ) as made:
        await made.session.artifacts.save("plan.md", "# {topic}\n")
        await made.ask("Hi", agent="a")
        assert get_system_messages(made) == ["# {topic}\n||"]
        await made.session.artifacts.save("plan.md", "# Two")
        await made.session.artifacts.save("user:style.txt", "brief")
        await made.ask("Hi again", agent="a")
        assert get_system_messages(made) == ["# Two|brief|"]


@pytest.mark.parametrize(
    ("data", "kind", "told"),
    [
        (b"x" * (INSTRUCTED_ARTIFACT_BYTES + 1), "text/plain", "65,537 bytes"),
        (b"\x89PNG\r\n\x1a\n", None, "image/png"),
        (b"\0\1\2", None, "application/octet-stream"),
    ],
)
async def test_unsuitable_artifact_is_rejected(data: bytes, kind: str | None, told: str) -> None:
    async with bench([], agents=make_agents("{artifact.plan?}")) as made:
        await made.session.artifacts.save("plan", data, mime_type=kind)
        with pytest.raises(InvalidRequest, match=told) as error:
            await made.ask("Hi", agent="a")
        assert type(error.value) is InvalidRequest, "the request itself is not too large"


async def test_artifact_of_the_maximum_size_without_a_known_type_is_accepted() -> None:
    async with bench(["ok"], agents=make_agents("{artifact.plan}")) as made:
        await made.session.artifacts.save("plan", "x" * INSTRUCTED_ARTIFACT_BYTES)
        await made.ask("Hi", agent="a")
        assert get_system_messages(made) == ["x" * INSTRUCTED_ARTIFACT_BYTES]


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


async def test_state_deleted_by_a_tool_is_missing_in_the_next_call() -> None:
    def drop(context: ToolContext) -> str:
        """Drop it."""
        del context.state["topic"]
        return "gone"

    async with bench([make_reply(None, ("c", "drop", {}))], drop, agents=make_agents("{topic}")) as made:
        await write_state(made, {"topic": "trams"})
        with pytest.raises(MissingState, match="topic"):
            await made.ask("Hi", agent="a")
        assert await made.describe_log() == ["user: Hi", "assistant drop(c): ", "tool c: gone"]


# -- previews -----------------------------------------------------------------------------


async def test_preview_uses_the_current_state() -> None:
    async with bench(["ok"], agents=make_agents("{topic} {temp:x}{user:language?}")) as made:
        session = await made.hf.session("t", agent="a")
        with pytest.raises(MissingState, match="topic"):
            await session.context()
        await session.update(state={"topic": "trams", "user:language": "pt"})
        looked = await session.context()
        assert looked.messages[0]["content"] == "trams pt", "outside a turn, temporary state is not required"


async def test_preview_of_a_past_turn_detects_changed_state() -> None:
    async with bench(["ok"], agents=make_agents("{topic}")) as made:
        session = await made.hf.session("t", agent="a")
        await session.update(state={"topic": "trams"})
        await session.send("Hi")
        then = await session.context(at_turn=0)
        assert then.hash == then.sent_hash
        await session.update(state={"topic": "ferries"})
        now = await session.context(at_turn=0)
        assert now.messages[0]["content"] == "ferries"
        assert now.hash != now.sent_hash == then.sent_hash


# -- messages of the agent ------------------------------------------------------------------


async def test_greeting_and_silence_message_are_filled_in_with_available_values() -> None:
    told = {"greeting": "Hello {user:name}{suffix}!", "silence_message": "Still there, {user:name}?"}
    async with bench([], agents=make_agents(**told)) as made:
        first = await made.hf.session("t", agent="a")
        assert [one["content"] for one in await first.messages()] == ["Hello !"]
        await first.update(state={"user:name": "Ada"})
        new = await made.hf.create("u", agent="a", state={"suffix": " L."})
        session = made.hf.handle(new)
        await session.speak(source="silence")
        assert [one["content"] for one in await session.messages()] == ["Hello Ada L.!", "Still there, Ada?"]


async def test_greeting_sees_shared_state_of_the_new_session() -> None:
    async with bench([], agents=make_agents(greeting="Hello {user:name}")) as made:
        new = await made.hf.create("u", agent="a", state={"user:name": "Ada"})
        assert [one["content"] for one in await made.hf.handle(new).messages()] == ["Hello Ada"]
        assert (await made.hf.store.state("default")).values == {"name": "Ada"}
        with pytest.raises(TooLarge):
            await made.hf.create("v", agent="a", state={f"user:{at}": "x" * 200_000 for at in range(6)})
        with pytest.raises(SessionNotFound):
            await made.hf.store.get(SessionRef("default", "v"))


async def test_empty_greeting_and_silence_message_are_left_out() -> None:
    async with bench([], agents=make_agents(greeting="{user:name}", silence_message="{user:name}")) as made:
        session = await made.hf.session("t", agent="a")
        assert await session.messages() == []
        with pytest.raises(InvalidRequest, match="the text is empty after filling"):
            await session.speak(source="silence")


async def test_failure_message_uses_the_turns_state() -> None:
    def note(context: ToolContext) -> str:
        """Note it."""
        context.state["temp:order"] = 7
        return "noted"

    down = ModelUnavailable("down", status=503)
    sorry = make_agents(failure_message="Sorry {user:name}, order {temp:order} {missing}waits.")
    async with bench([make_reply(None, ("c", "note", {})), [down]], note, agents=sorry) as made:
        await write_state(made, {"user:name": "Ada"})
        assert content(await made.ask("Hi", agent="a")) == "Sorry Ada, order 7 waits."
    async with bench([[down]], agents=make_agents(failure_message="{user:words}")) as made:
        with pytest.raises(ModelUnavailable):
            await made.ask("Hi", agent="a")


# -- cost and secrets ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('Answer in JSON: {"a": {"b": [1]}}', []),
        ("{topic?} {temp:x?}", []),
        ("{user:a?} {user:b?} {topic?} {user:a?}", [("default", ["a", "b"])]),
        ("{app:v?}", [(None, ["v"])]),
    ],
)
async def test_only_the_named_keys_of_shared_scopes_are_read(
    text: str, read: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(["ok"], agents=make_agents(text)) as made:
        state, noted = made.hf.store.state, []

        async def record_read(user_id: str | None, **more: Any) -> Any:
            noted.append((user_id, more.get("names")))
            return await state(user_id, **more)

        monkeypatch.setattr(made.hf.store, "state", record_read, raising=False)
        await made.ask("Hi", agent="a")
        assert noted == read


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


async def test_missing_state_error_quotes_no_values() -> None:
    async with bench([], agents=make_agents("{topic} {missing}")) as made:
        await write_state(made, {"topic": "confidential"})
        with pytest.raises(HoldfastError) as error:
            await made.ask("Hi", agent="a")
        assert "confidential" not in str(error.value)
