"""Requests like those of Codex, and Codex itself, against `/v1/responses`.

Codex sends the whole conversation with each request (`store: false`) and its conversation's id as `prompt_cache_key`. If a conversation
grows too long, it asks for a summary, and then sends only the user's messages and the summary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Reply
from tests.edges.javascript import MODULES, needs_codex, run
from tests.edges.server import Served, gateway

SINGLE_USER = "gateway: {single_user: true}"


def user(text: str) -> dict[str, Any]:
    """Return an input item with a message of the user."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def assistant(text: str) -> dict[str, Any]:
    """Return an input item with a message of the assistant."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


async def send(served: Served, items: list[Any], key: str) -> Any:
    """Send a request as Codex does."""
    return await served.client.responses.create(
        model="gpt-4o", input=items, store=False, prompt_cache_key=key, extra_body={"client_metadata": {"turn": "1"}}
    )


async def test_metadata_of_the_client_is_not_sent_to_the_model() -> None:
    async with gateway(["Hello."]) as (served, upstream):
        await send(served, [user("Hi")], "a")
        assert "client_metadata" not in upstream.requests[0].body


async def test_conversations_with_equal_beginnings_stay_apart() -> None:
    """The key of the conversation decides between sessions with equal messages."""
    async with gateway(lambda _: "Hello.", SINGLE_USER) as (served, _):
        first = [(await send(served, [user("Hi")], key)).session_id for key in "abc"]
        assert len(set(first)) == 3
        second = [(await send(served, [user("Hi"), assistant("Hello."), user(key)], key)).session_id for key in "bca"]
        assert second == [first[1], first[2], first[0]]


async def test_summary_of_the_client_continues_its_session() -> None:
    """The replaced messages stay in the log, and the model receives what the client sent."""
    async with gateway(["Hello Ada.", "Ada said hi.", "Yes.", "Still yes."], SINGLE_USER) as (served, upstream):
        opening = [user("I am Ada."), assistant("Hello Ada.")]
        sessions = [
            await send(served, opening[:1], "a"),
            await send(served, [*opening, user("Write a summary.")], "a"),
        ]
        summarized = [user("I am Ada."), user("Here is a summary: Ada said hi."), user("Go on?")]
        sessions.append(await send(served, summarized, "a"))
        sessions.append(await send(served, [*summarized, assistant("Yes."), user("And now?")], "a"))
        assert len({one.session_id for one in sessions}) == 1
        sent = [[one["content"] for one in received.body["messages"]] for received in upstream.requests]
        assert sent[2] == ["I am Ada.", "Here is a summary: Ada said hi.", "Go on?"]
        assert sent[3] == [*sent[2], "Yes.", "And now?"]
        entries = (await served.http.get(f"/v1/sessions/{sessions[0].session_id}/messages?retired=true")).json()["data"]
        assert "Write a summary." in [one["content"] for one in entries]


@pytest.mark.parametrize(
    ("key", "messages", "config"),
    [
        ("b", ["I am Ada.", "Here is a summary: Hello Ada.", "Go on?"], SINGLE_USER),  # another conversation's key
        ("a", ["I am Ada.", "Go on?", "Please."], SINGLE_USER),  # no summary
        ("a", ["I am Bob.", "Here is a summary: Hello Ada.", "Go on?"], SINGLE_USER),  # another beginning
        (
            "a",
            ["I am Ada.", "Here is a summary: Hello Ada.", "Go on?"],
            "gateway: {single_user: false}",
        ),  # anyone may have sent it
    ],
)
async def test_other_requests_without_a_reply_begin_a_session(key: str, messages: list[str], config: str) -> None:
    async with gateway(lambda _: "Hello Ada.", config) as (served, _):
        first = await send(served, [user("I am Ada.")], "a")
        second = await send(served, [user(text) for text in messages], key)
        assert second.session_id != first.session_id
        assert [text for _, text in await served.log(first.session_id)] == ["I am Ada.", "Hello Ada."]


SUMMARIZE_ABOVE = 20_000
"""Tokens of the prompt after which Codex asks for a summary."""


async def run_codex(served: Served, folder: Path, prompt: str, *more: str) -> list[Any]:
    """Let Codex answer a prompt in `folder`; return the items that it reports."""
    provider = {"name": "Holdfast", "base_url": f"{served.url}/v1", "env_key": "KEY", "wire_api": "responses"}
    retries = {"request_max_retries": 0, "stream_max_retries": 0}
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in {**provider, **retries}.items())
    settings = [
        'model_provider = "holdfast"',
        f"model_providers.holdfast = {{ {table} }}",
        f"model_auto_compact_token_limit = {SUMMARIZE_ABOVE}",
        "model_context_window = 60000",
    ]
    home = folder.parent / "codex"
    home.mkdir(exist_ok=True)
    codex = MODULES / ".bin" / "codex"
    output = await run(
        codex,
        *("exec", *more, "--json", "--skip-git-repo-check", "--model", "gpt-4o"),
        "--dangerously-bypass-approvals-and-sandbox",  # tests may run where no sandbox can be made
        *(argument for setting in settings for argument in ("-c", setting)),
        prompt,
        cwd=folder,
        env={"CODEX_HOME": str(home), "KEY": "sk-client"},
    )
    return [event["item"] for event in map(json.loads, output.splitlines()) if event["type"] == "item.completed"]


@needs_codex
async def test_codex_works_on_a_task(tmp_path: Path) -> None:
    """Codex runs commands, is resumed, and summarizes: all of it is in one session."""
    large = {"prompt_tokens": 2 * SUMMARIZE_ABOVE, "completion_tokens": 5, "total_tokens": 2 * SUMMARIZE_ABOVE + 5}

    def answer(body: dict[str, Any]) -> Reply:
        texts = [json.dumps(message["content"]) for message in body["messages"]]
        if body["messages"][-1]["role"] == "tool":
            return Reply(text=f"It printed {'seven' if 'seven' in texts[-1] else 'nothing'}.", usage=large)
        if "CONTEXT CHECKPOINT COMPACTION" in texts[-1]:
            return Reply(text="The command printed seven, which is the answer.")
        if "Which number" in texts[-1]:
            return Reply(text="It was seven." if any("which is the answer" in text for text in texts) else "No idea.")
        return Reply(tool_calls=[("exec_command", {"cmd": "echo seven | tee made.txt"})])

    folder = tmp_path / "work"
    folder.mkdir()
    async with gateway(answer, SINGLE_USER) as (served, upstream):
        first = await run_codex(served, folder, "Run the command.")
        second = await run_codex(served, folder, "Which number was it?", "resume", "--last")
        sessions = (await served.http.get("/v1/sessions")).json()["data"]
    assert (folder / "made.txt").read_text() == "seven\n"
    assert first[-1]["text"] == "It printed seven."
    assert second[-1]["text"] == "It was seven."
    assert len(sessions) == 1
    assert len(upstream.requests) == 4
