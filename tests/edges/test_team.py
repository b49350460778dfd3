"""Hector's coordinator, researcher and writer at the gateway: one session, separate windows, both APIs, every store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.config import list_warnings, load
from holdfast.domain.session import TRANSFER
from holdfast.errors import ConfigError
from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.edges.apis import serve_apis
from tests.edges.server import TOOL_SERVER, Process, Served, config_text, gateway
from tests.service.turns_kit import SHARED
from tests.stores.servers import place
from tests.unit.blocks import TEAM


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


@asynccontextmanager
async def three(**options: Any) -> AsyncIterator[tuple[Served, ScriptedUpstream, Three]]:
    model = Three()
    async with gateway(model, TEAM, **options) as (served, upstream):
        yield served, upstream, model


async def chat(served: Served, text: str, agent: str = "coordinator", **fields: Any) -> Any:
    reply = await served.chat(text, model=agent, **fields)
    assert reply["status"] == 200, reply
    return reply


# -- Hector's example --------------------------------------------------------------------


def test_hectors_block_loads_without_a_warning() -> None:
    assert list_warnings(load(TEAM, env={})) == []


@SHARED
async def test_agents_share_the_session_with_separate_windows(kind: str, tmp_path: Path) -> None:
    with place(kind, tmp_path) as url:
        async with three(store=url) as (served, _, model):
            reply = await chat(served, "hello")
            assert reply["choices"][0]["message"]["content"] == "coordinator here, I say."
            past = [{"role": "user" if at % 2 else "assistant", "content": f"message {at}"} for at in range(1, 42)]
            posted = await served.http.post("/v1/sessions/s/messages", json={"messages": past})
            assert posted.status_code == 200, posted.text
            model.sent.clear()
            reply = await chat(served, "this is for the researcher")
            assert reply["choices"][0]["message"]["content"] == "To the researcher.\n\nresearcher here, I say."
            assert (reply["session"]["agent"], reply["headers"]["x-session-agent"]) == ("researcher", "researcher")
            assert model.sent == [("coordinator", 30), ("researcher", 20)]
            model.sent.clear()
            reply = await chat(served, "now a poem, this is for the writer")
            assert (reply["session"]["agent"], model.sent) == ("writer", [("researcher", 20), ("writer", 20)])
            reply = await chat(served, "another verse")
            assert reply["session"]["agent"] == "writer"
            assert model.sent[-1] == ("writer", 20)
        async with three(store=url) as (served, _, model):  # another server
            reply = await chat(served, "and one more")
            assert (reply["session"]["agent"], [agent for agent, _ in model.sent]) == ("writer", ["writer"])


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


async def test_exports_and_history_name_the_speaker() -> None:
    async with three() as (served, _, _model):
        await chat(served, "this is for the researcher")
        export = (await served.http.get("/v1/sessions/s")).json()
        assert [entry.get("agent") for entry in export["messages"]] == [
            None,
            "coordinator",
            "coordinator",
            "researcher",
        ]
        history = (await served.http.get("/v1/sessions/s/history")).json()["contents"]
        assert [(one.get("agent"), one["content"]) for one in history] == [
            (None, "this is for the researcher"),
            (None, "To the researcher."),
            ("researcher", "researcher here, I say."),
        ]
        put = await served.http.put("/v1/sessions/copy", json={**export, "id": "copy"})
        assert put.status_code in (200, 201), put.text
        assert (await chat(served, "go on", session_id="copy"))["session"]["agent"] == "researcher"


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


# -- configuration -----------------------------------------------------------------------


def test_impossible_agent_relations_are_reported_with_their_line() -> None:
    text = """
agents:
  a:
    sub_agents: [b, c]
  b:
    agent_tools: [a]
  c:
    sequence: [c]
  d:
    temperature: 1
"""
    with pytest.raises(ConfigError) as raised:
        load(text, env={})
    told = raised.value.problems
    assert len(told) == 3
    assert told[0].startswith("holdfast.yaml:6: agents.b.agent_tools: 'a' refers back to itself: a -> b -> a")
    assert told[1].startswith("holdfast.yaml:8: agents.c.sequence: 'c' refers back to itself: c -> c")
    assert "agents.d.temperature" in told[2]
    with pytest.raises(ConfigError, match=r"holdfast.yaml:1: agents.c.sub_agents: 'd' is already below 'a', under 'b'"):
        load("agents: {a: {sub_agents: [b, c]}, b: {sub_agents: [d]}, c: {sub_agents: [d]}, d: {}}", env={})


async def test_unknown_agent_is_a_warning_and_its_turns_are_refused() -> None:
    text = "agents: {a: {sub_agents: [resercher, researcher2], agent_tools: [x]}, researcher: {}}"
    warned = list_warnings(load(text, env={}))
    assert ["did you mean 'researcher'" in one for one in warned] == [True, True, False]
    assert all("turns of 'a' are rejected" in one for one in warned)
    async with gateway(["hi"], text) as (served, _):
        refused = await served.chat("x", model="a")
        assert (refused["status"], refused["error"]["param"]) == (400, "agent")
        assert "refers to agents that do not exist: resercher, researcher2, x" in refused["error"]["message"]
        assert (await served.chat("x", model="researcher"))["status"] == 200
