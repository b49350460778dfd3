"""Hector's coordinator, researcher and writer at the gateway: one session, separate windows, both APIs, every store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.domain.session import TRANSFER
from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.behaviour.kit.examples import TEAM
from tests.edges.apis import serve_apis
from tests.edges.server import TOOL_SERVER, Process, Served, config_text


def find_agent(body: dict[str, Any]) -> str:
    """Return the agent of a call: the one of the three that the transfer tool does not offer."""
    (tool,) = [one for one in body["tools"] if one["function"]["name"] == TRANSFER]
    (agent,) = {"coordinator", "researcher", "writer"} - {
        *tool["function"]["parameters"]["properties"]["agent_name"]["enum"]
    }
    return agent


class Three:
    """The model of all three agents, which transfers what is not for it, and otherwise says its name.

    Attributes:
        sent: for each call, its agent and the number of messages of the log in it.
        held: gates that replies wait for, by agent.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.held: dict[str, Gate] = {}

    def __call__(self, body: dict[str, Any]) -> Any:
        agent = find_agent(body)
        told = sum(str(one["content"]).count("handed the conversation over") for one in body["messages"])
        self.sent.append((agent, len(body["messages"]) + told))  # a call and its result are two messages, shown as one
        last = [
            one["content"]
            for one in body["messages"]
            if one["role"] == "user" and not str(one["content"]).startswith("[agent")
        ][-1]
        wanted = next(
            (name for name in ("coordinator", "researcher", "writer") if f"for the {name}" in str(last)), agent
        )
        if wanted != agent:
            return Reply(text=f"To the {wanted}.", tool_calls=[(TRANSFER, {"agent_name": wanted})])
        return Reply(text=f"{agent} here, I say.", hold=self.held.get(agent))


async def chat(served: Served, text: str, agent: str = "coordinator", **fields: Any) -> Any:
    reply = await served.chat(text, model=agent, **fields)
    assert reply["status"] == 200, reply
    return reply


# -- on the wire -------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_messages_api_supports_transfers(stream: bool) -> None:
    model = Three()
    async with serve_apis(model, (), TEAM) as two:
        reply = await two.ask("this is for the researcher", model="coordinator", stream=stream, session_id="s")
        assert "".join(block.text for block in reply.content) == "To the researcher.\n\nresearcher here, I say."
        assert stream or reply.session["agent"] == "researcher"
        reply = await two.ask("go on", model="coordinator", stream=stream, session_id="s")
        assert [agent for agent, _ in model.sent] == ["coordinator", "researcher", "researcher"]
        assert [entry.agent for entry in await two.entries("s")][-1] == "researcher"


async def test_agent_with_another_providers_model_takes_over() -> None:
    """Calls made for one provider are shown to the other as text; its own stay calls."""
    agents = {
        "a": {"sub_agents": ["b"], "instruction": "You are a."},
        "b": {"llm": "claude", "instruction": "You are b."},
    }
    script = [Reply(text="Over.", tool_calls=[(TRANSFER, {"agent_name": "b"})]), "a again."]
    back = [Reply(text="From b."), Reply(text="Back.", tool_calls=[(TRANSFER, {"agent_name": "a"})])]
    async with serve_apis(script, back, f"agents: {json.dumps(agents)}") as two:
        first = await two.chat("x", session_id="s", model="a")
        assert first.content == "Over.\n\nFrom b."
        sent = two.claude.requests[-1].body
        assert "handed the conversation over to b" in json.dumps(sent["messages"])
        assert sent["messages"][-1]["role"] == "user"
        again = await two.chat("y", session_id="s", model="a")
        assert again.content == "Back.\n\na again."


# -- killed servers ----------------------------------------------------------------------


async def test_transfer_survives_a_killed_server(tmp_path: Path) -> None:
    """The next server, asked again, lets the next agent answer; nothing is said twice."""
    model = Three()
    model.held["researcher"] = gate = Gate()
    async with ScriptedUpstream(model) as upstream:
        config = tmp_path / "holdfast.yaml"
        config.write_text(config_text(upstream.url, TEAM))
        store = f"sqlite:///{tmp_path}/holdfast.db"
        body = {
            "model": "coordinator",
            "messages": [{"role": "user", "content": "for the researcher"}],
            "session_id": "s",
        }
        with Process(store, config=config, program=TOOL_SERVER) as server:
            async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client:
                asked = asyncio.create_task(client.post("/v1/chat/completions", json=body))
                await upstream.until(lambda: len(model.sent) == 2)
                server.kill()
                with pytest.raises(httpx2.TransportError):
                    await asked
        gate.open()
        model.held.clear()
        with (
            Process(store, config=config, program=TOOL_SERVER) as server,
            httpx2.Client(base_url=server.url, trust_env=False, timeout=60) as sync,
        ):
            told = (await asyncio.to_thread(sync.post, "/v1/chat/completions", json=body)).json()
            assert told["choices"][0]["message"]["content"] == "researcher here, I say."
            assert [agent for agent, _ in model.sent] == ["coordinator", "researcher", "researcher"]
            entries = (await asyncio.to_thread(sync.get, "/v1/sessions/s/messages")).json()["data"]
            assert [entry["role"] for entry in entries] == ["user", "assistant", "tool", "assistant"]
