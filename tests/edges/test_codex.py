"""Requests like those of Codex, and Codex itself, against `/v1/responses`.

Codex sends the whole conversation with each request (`store: false`) and its conversation's id as `prompt_cache_key`. If a conversation
grows too long, it asks for a summary, and then sends only the user's messages and the summary, which begin a new session.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.testing import Reply
from tests.edges.javascript import MODULES, needs_codex, run
from tests.edges.server import Served, gateway


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


async def test_conversations_with_equal_beginnings_continue_separate_sessions() -> None:
    async with gateway(lambda _: "Hello.") as (served, _):
        first = [(await send(served, [user("Hi")], key)).session_id for key in "abc"]
        assert len(set(first)) == 3
        second = [(await send(served, [user("Hi"), assistant("Hello."), user(key)], key)).session_id for key in "bca"]
        assert sorted(second) == sorted(first)


async def test_key_of_an_application_joins_no_conversations() -> None:
    """An application may send one `prompt_cache_key` with all requests, and a reply may be a part of another conversation's words."""
    async with gateway(lambda _: "Yes", "gateway: {single_user: true}") as (served, _):
        first = await send(served, [user("Is it late?")], "app")
        other = [user("Is it late?"), user("Yesterday it was not."), user("Is it now?")]
        second = await send(served, other, "app")
        assert second.session_id != first.session_id
        assert [text for _, text in await served.log(first.session_id)] == ["Is it late?", "Yes"]


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
    """Codex runs commands and is resumed in one session, and goes on in another one after its summary."""
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
    async with gateway(answer) as (served, upstream):
        first = await run_codex(served, folder, "Run the command.")
        second = await run_codex(served, folder, "Which number was it?", "resume", "--last")
        sessions = (await served.http.get("/v1/sessions")).json()["data"]
    assert (folder / "made.txt").read_text() == "seven\n"
    assert first[-1]["text"] == "It printed seven."
    assert second[-1]["text"] == "It was seven."
    assert len(sessions) == 2
    assert len(upstream.requests) == 4
