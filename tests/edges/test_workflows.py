"""Workflows and agents as tools over both APIs, from a configuration with models of two providers, as official
clients see them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.domain.session import HAND_OVER
from holdfast.testing import Gate, Reply
from tests.edges.apis import serve_apis

AGENTS = """
agents:
  story:
    sequence: [idea, panel, author]
  idea:
    instruction: I am idea
    output_key: idea
  panel:
    parallel: [friend, critic]
  friend:
    instruction: I am friend
  critic:
    llm: claude
    instruction: I am critic
  author:
    llm: claude
    instruction: "I am author of {idea}"
  chief:
    instruction: I am chief
    agent_tools: [panel]
"""


def find_agent(body: dict[str, Any]) -> str:
    """Return the agent of a call, by its instruction, in either dialect."""
    system = body.get("system") or body["messages"][0]["content"]
    text = system if isinstance(system, str) else system[0]["text"]
    return str(text).split()[2]


def says(body: dict[str, Any]) -> Reply:
    return Reply(text=f"{find_agent(body)} speaks.")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "messages"])
async def test_client_sees_one_reply_and_continues_without_a_session_id(api: str, stream: bool) -> None:
    """Its resent transcript is matched; other agents' words are only in the models' prompts."""
    async with serve_apis(says, says, AGENTS) as at:
        messages: list[Any] = [{"role": "user", "content": "A story!"}]
        for turn in (1, 2):
            if api == "messages":
                reply = await at.ask(messages, model="story", stream=stream)
                text = reply.content[0].text
            elif stream:
                text = ""
                asked = await at.served.client.chat.completions.create(model="story", messages=messages, stream=True)
                async for chunk in asked:
                    text += "".join(choice.delta.content or "" for choice in chunk.choices)
            else:
                text = (await at.chat(messages, model="story")).content
            assert text == "author speaks."
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"Another, {turn}!"}]
        page = await at.served.hf.sessions()
        (session,) = page.sessions
        assert session.agent == "story"
        entries = await at.served.hf.store.entries(session.ref)
        calls = [call.name for entry in entries for call in entry.message.tool_calls]
        assert calls == [HAND_OVER] * 6
        assert [entry.agent for entry in entries if entry.kind == "assistant"] == ["author", "author"]
        assert session.state == {"idea": "idea speaks."}


async def test_progress_is_sent_on_request() -> None:
    """As events next to the reply's chunks, without other agents' words; the last chunk names the answering agent."""
    async with serve_apis(says, says, AGENTS) as at:
        body = {
            "model": "story",
            "messages": [{"role": "user", "content": "A story!"}],
            "stream": True,
            "stream_options": {"include_progress": True},
        }
        async with httpx2.AsyncClient() as plain:
            text = (await plain.post(f"{at.served.url}/v1/chat/completions", json=body, headers=_key(at))).text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        told = [event["holdfast"] for event in events if "holdfast" in event]
        assert told[:2] == [{"agent": "idea", "status": "running"}, {"agent": "idea", "status": "done"}]
        beside = {(one["agent"], one["status"], one["branch"]) for one in told[2:]}
        assert beside == {
            (name, status, f"panel.{name}") for name in ("friend", "critic") for status in ("running", "done")
        }
        assert "friend speaks" not in text
        assert events[-1]["session"]["agent"] == "author"


async def test_workflow_called_as_a_tool_has_a_session_over_rest(tmp_path: Path) -> None:
    """Under the id in the log; it is deleted with the calling session."""

    def chief(body: dict[str, Any]) -> Reply:
        if find_agent(body) != "chief":
            return says(body)
        asked = any(message["role"] == "tool" for message in body["messages"])
        return Reply(text="Done.") if asked else Reply(tool_calls=[("panel", {"request": "What of kelp?"})])

    async with serve_apis(chief, says, AGENTS, store=f"sqlite:///{tmp_path}/holdfast.db") as at:
        assert (await at.chat("Ask them.", "s", model="chief")).content == "Done."
        messages = (await _get(at, "/v1/sessions/s/messages"))["data"]
        (result,) = [message for message in messages if message["role"] == "tool"]
        assert result["content"] == "**friend**\n\nfriend speaks.\n\n**critic**\n\ncritic speaks."
        name = result["metadata"]["child"]
        child = await _get(at, f"/v1/sessions/{name}")
        assert child["metadata"]["parent"]["session_id"] == "s"
        assert child["messages"][0]["content"] == "What of kelp?"
        async with httpx2.AsyncClient() as plain:
            await plain.delete(f"{at.served.url}/v1/sessions/s", headers=_key(at))
        assert (await at.served.hf.sessions()).sessions == ()


async def test_disconnected_client_stops_all_agents() -> None:
    """The running calls end, and the next turn begins at once."""
    gate = Gate()

    def reply_when_released(body: dict[str, Any]) -> Reply:
        return Reply(text="friend speaks.", hold=gate) if find_agent(body) == "friend" else says(body)

    async with serve_apis(reply_when_released, says, AGENTS) as at:
        body = {"model": "panel", "session_id": "s", "messages": [{"role": "user", "content": "go"}], "stream": True}
        async with httpx2.AsyncClient() as plain:
            url = f"{at.served.url}/v1/chat/completions"
            async with plain.stream("POST", url, json=body, headers=_key(at)) as response:
                async for line in response.aiter_lines():
                    if "critic done" in line:
                        break
        again = await at.chat("and now?", "s", model="critic")
        assert again.content == "critic speaks."
        assert not at.served.hf.engine.is_busy((await at.served.hf.sessions()).sessions[0].ref)


def _key(at: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {at.served.client.api_key}"}


async def _get(at: Any, path: str) -> Any:
    async with httpx2.AsyncClient() as plain:
        return (await plain.get(at.served.url + path, headers=_key(at))).json()
