"""The text editor over the artifacts of a session, for every model."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing import Reply, ScriptedUpstream
from tests.behaviour.kit import Served, World, gateway, through
from tests.behaviour.kit.anthropic import AnthropicUpstream

Json = dict[str, Any]
WRITER = "agents: {writer: {tools: [text_editor]}}"
NATIVE: Any = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
CREATE: Json = {"command": "create", "path": "/report.md", "file_text": "# Lisbon\nThree days.\n"}
REPLACE: Json = {"command": "str_replace", "path": "/report.md", "old_str": "Three", "new_str": "Four"}
EDITED = "has been edited. Here is the snippet showing the change (with line numbers):"
NUMBERED = "with line numbers:"
UNDO: Json = {"command": "undo_edit", "path": "/report.md"}


def edit(*commands: Json, name: str = "text_editor") -> Reply:
    """Return a reply that calls the editor."""
    return Reply(tool_calls=[(name, command) for command in commands])


async def ask(served: Served, **more: Any) -> Any:
    messages = more.pop("messages", "Write the report.")
    answer = await served.chat(messages, model="writer", user="ada", **more)
    assert answer["status"] == 200, answer
    return answer


def results(upstream: ScriptedUpstream) -> list[str]:
    return [one["content"] for one in upstream.requests[-1].body["messages"] if one["role"] == "tool"]


def claude_gateway(script: Any, *config: str) -> Any:
    llm = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    return gateway((), *config, upstream=AnthropicUpstream(script), llm=llm)


async def ask_anthropic(served: Served, streamed: bool, **more: Any) -> Any:
    """Return a message of Anthropic's client, streamed and collected, or whole."""
    asked = {"model": "default", "max_tokens": 500, "messages": [{"role": "user", "content": "Write it."}], **more}
    if not streamed:
        return await served.anthropic.beta.messages.create(**asked)
    async with served.anthropic.beta.messages.stream(**asked) as events:
        return await events.get_final_message()


async def load(served: Served, name: str = "report.md") -> list[str]:
    """Return the content of each version of an artifact."""
    artifacts = (await served.native.session("s", user_id="ada")).artifacts
    versions = await artifacts.versions(name)
    return [(await artifacts.load(name, one.version)).data.decode() for one in versions]


async def test_the_commands_make_versions_of_an_artifact() -> None:
    """Create, edit, insert, view, and undo twice, in the order of the calls."""
    insert = {"command": "insert", "path": "report.md", "insert_line": 2, "insert_text": "Take the tram."}
    view = {"command": "view", "path": "./report.md"}
    async with gateway([edit(CREATE, REPLACE, insert, view, UNDO, UNDO, UNDO), "Done."], WRITER) as served:
        reply = await ask(served)
        assert reply["choices"][0]["message"] == {"role": "assistant", "content": "Done."}
        assert reply["session"]["artifacts"] == [{"name": "report.md", "version": 4}]
        assert results(served.upstream) == [
            "File created successfully at: /report.md",
            f"The file /report.md {EDITED}\n     1\t# Lisbon\n     2\tFour days.\n     3\t",
            "The file report.md has been edited.",
            f"Here's the content of ./report.md {NUMBERED}\n     1\t# Lisbon\n     2\tFour days.\n     3\tTake the tram.\n     4\t",
            "Last edit to /report.md undone successfully.",
            "Last edit to /report.md undone successfully.",
            "No edit history found for /report.md.",
        ]
        first, second = "# Lisbon\nThree days.\n", "# Lisbon\nFour days.\n"
        assert await load(served) == [first, second, f"{second}Take the tram.\n", second, first]


@through("library", "rest")
async def test_a_created_file_that_exists_gets_a_new_version(world: World) -> None:
    again = {**CREATE, "file_text": "New."}
    async with world.gateway([edit(CREATE, again, UNDO), "Done."], WRITER) as served:
        await ask(served)
        assert await load(served) == ["# Lisbon\nThree days.\n", "New.", "# Lisbon\nThree days.\n"]


@through("library", "rest")
async def test_the_directory_lists_the_artifacts(world: World) -> None:
    async with world.gateway([edit(CREATE, {"command": "view", "path": "/"}), "Done."], WRITER) as served:
        await ask(served)
        head = "Here're the files and directories up to 2 levels deep in ., excluding hidden items:"
        assert results(served.upstream)[1] == f"{head}\n4K\t.\n21B\t./report.md"


@through("library", "rest")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({"command": "view", "path": "/none.md"}, "The path /none.md does not exist. Please provide a valid path."),
        ({"command": "view", "path": "/etc/passwd"}, "There are no folders here"),
        ({"command": "view", "path": "../../x"}, "There are no folders here"),
        ({"command": "create", "path": "..", "file_text": ""}, "name"),
        ({"command": "create", "path": "a\\b", "file_text": ""}, "There are no folders here"),
        ({"command": "create", "path": "/result-12", "file_text": "x"}, "the name of a tool result"),
        ({"command": "delete", "path": "/report.md"}, "Unknown command: 'delete'"),
        ({"command": "str_replace", "path": "/report.md", "old_str": "days"}, None),
        ({"command": "str_replace", "path": "/report.md", "old_str": "none", "new_str": ""}, "did not appear verbatim"),
        ({"command": "insert", "path": "/report.md", "insert_line": 9, "insert_text": ""}, "within the range [0, 2]"),
        ({"command": "view", "path": "/map.bin"}, "is not text"),
        ({"command": "create", "path": "/a", "file_text": "x" * ((1 << 20) + 1)}, "split it"),
    ],
)
async def test_what_is_refused_is_said(world: World, command: Json, words: str | None) -> None:
    async with world.gateway([edit(CREATE), "Done.", edit(command), "Done."], WRITER) as served:
        await ask(served)
        await (await served.native.session("s", user_id="ada")).artifacts.save("map.bin", bytes(9))
        await ask(served, messages=[{"role": "user", "content": "And now?"}])
        assert (words or "has been edited") in results(served.upstream)[-1]
        assert len(await load(served)) == (1 if words else 2)


@through("library", "rest")
async def test_a_concurrent_save_is_not_overwritten(world: World) -> None:
    """An edit between two saves of another program keeps both."""
    async with world.gateway([edit(CREATE), "Done.", edit(REPLACE), "Done."], WRITER) as served:
        await ask(served)
        artifacts = (await served.native.session("s", user_id="ada")).artifacts
        await artifacts.save("report.md", "# Porto\nThree days.\n")
        await ask(served, messages=[{"role": "user", "content": "Four."}])
        assert (await load(served))[-1] == "# Porto\nFour days.\n"


# -- declarations ------------------------------------------------------------------


async def test_other_models_get_one_function() -> None:
    """If the request declares the tool by its type, the gateway runs it all the same."""
    async with gateway([edit(CREATE), "Done.", "Hi."], WRITER) as served:
        message = await ask_anthropic(served, False, model="writer", tools=[NATIVE])
        assert message.content[0].text == "Done."
        (tool,) = served.upstream.requests[0].body["tools"]
        assert tool["function"]["name"] == "text_editor"
        assert "undo_edit" in tool["function"]["parameters"]["properties"]["command"]["enum"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_anthropics_model_gets_the_tool_that_it_knows(streamed: bool) -> None:
    """By type, with the client's own fields if it declares it. Refusals have `is_error`."""
    script = [edit(CREATE, UNDO, name=NATIVE["name"]), "Done."]
    async with claude_gateway(script, WRITER) as served:
        declared = {**NATIVE, "max_characters": 10_000}
        message = await ask_anthropic(served, streamed, model="writer", tools=[declared])
        assert message.content[0].text == "Done."
        assert [tool["name"] for tool in served.upstream.requests[0].body["tools"]] == [NATIVE["name"]]
        assert served.upstream.requests[0].body["tools"][0]["max_characters"] == 10_000
        answers = served.upstream.requests[1].body["messages"][-1]["content"]
        assert [one.get("is_error", False) for one in answers] == [False, True]


@pytest.mark.parametrize("kind", ["text_editor_20250124", "text_editor_20250728"])
async def test_the_declaration_of_the_request_applies(kind: str) -> None:
    """Views have at most `max_characters`, and only the first type of the tool has `undo_edit`."""
    name = "str_replace_editor" if kind == "text_editor_20250124" else NATIVE["name"]
    view = {"command": "view", "path": "/report.md"}
    script = [edit(CREATE, REPLACE, view, UNDO, name=name), "Done."]
    async with claude_gateway(script, WRITER) as served:
        declared = {"type": kind, "name": name, "max_characters": 50}
        await ask_anthropic(served, False, model="writer", tools=[declared])
        shown, undone = served.upstream.requests[1].body["messages"][-1]["content"][-2:]
        text = shown["content"][0]["text"]
        assert (len(text.partition("\n[…")[0]), text.endswith("use view_range to see the rest]")) == (50, True)
        assert undone.get("is_error", False) is (kind != "text_editor_20250124")


@pytest.mark.parametrize(
    ("kind", "name", "undoes"),
    [
        ("text_editor_20250124", "str_replace_editor", True),
        ("text_editor_20250429", "str_replace_based_edit_tool", False),
        ("text_editor_20250728", "str_replace_based_edit_tool", False),
    ],
)
async def test_a_client_that_runs_the_editor_gets_its_calls(kind: str, name: str, undoes: bool) -> None:
    """Without an agent that has the tool. Only the first type has `undo_edit`."""
    async with gateway([edit(CREATE, name=name)]) as served:
        message = await ask_anthropic(served, False, tools=[{"type": kind, "name": name}])
        assert (message.content[0].name, message.content[0].input) == (name, CREATE)
        (tool,) = served.upstream.requests[0].body["tools"]
        commands = tool["function"]["parameters"]["properties"]["command"]["enum"]
        assert (tool["function"]["name"], "undo_edit" in commands) == (name, undoes)


async def test_a_function_with_the_name_of_the_editor_is_refused() -> None:
    """Under each of its names, because a model could not tell them apart."""
    async with gateway(["Hi."], WRITER) as served:
        for name in ("text_editor", "str_replace_editor", "str_replace_based_edit_tool"):
            body = {"model": "writer", "messages": [{"role": "user", "content": "Hi"}]}
            tool = {"type": "function", "function": {"name": name}}
            answer = await served.http.post("/v1/chat/completions", json={**body, "tools": [tool]})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[0]")
        assert not served.upstream.requests
