"""Templates and artifact tools over HTTP: missing state is a 400 in either API, and a response lists its artifacts."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing import Reply
from tests.edges.schema import Schemas
from tests.edges.server import Served, gateway

AGENTS = """agents:
  guide:
    greeting: "Hello {user:name}!"
    instruction: |
      App {app:version?}. Speak {user:language}. Answer like {"a": {"b": 1}}.
  writer: {tools: [save_artifact, load_artifact]}
  plain: {instruction: Be kind.}"""
HI: list[Any] = [{"role": "user", "content": "Hi"}]


async def chat(served: Served, model: str, **fields: Any) -> Any:
    body = {"model": model, "session_id": "s", "messages": HI, **fields}
    return await served.http.post("/v1/chat/completions", json=body)


@pytest.mark.parametrize("streamed", [False, True])
async def test_missing_template_state_is_a_400_that_names_it(streamed: bool) -> None:
    async with gateway(["Olá"], AGENTS) as (served, upstream):
        answer = await chat(served, "guide", stream=streamed)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "missing_state", "state")
        for told in ("'guide'", "'user:language'", "{user:language?}"):
            assert told in error["message"]
        body = {"model": "guide", "max_tokens": 9, "messages": HI, "session_id": "s"}
        answer = await served.http.post("/v1/messages", json=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert "user:language" in answer.json()["error"]["message"]
        assert not upstream.requests
        changed = await served.http.patch("/v1/sessions/s/state", json={"user:language": "pt"})
        assert changed.status_code == 200, changed.text
        assert (await chat(served, "guide", stream=streamed)).status_code == 200
        told = upstream.requests[-1].body["messages"]
        assert told == [
            {"role": "system", "content": 'App . Speak pt. Answer like {"a": {"b": 1}}.\n'},
            {"role": "user", "content": "Hi"},
        ]


async def test_greeting_and_context_over_http() -> None:
    async with gateway([], AGENTS) as (served, _):
        new = {"id": "s", "agent": "guide", "state": {"user:name": "Ada"}}
        assert (await served.http.post("/v1/sessions", json=new)).status_code == 201
        history = (await served.http.get("/v1/sessions/s/history?view=plain")).json()["messages"]
        assert history == [{"role": "assistant", "content": "Hello Ada!"}]
        answer = await served.http.post("/v1/sessions/s/context", json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "missing_state")
        await served.http.patch("/v1/sessions/s/state", json={"user:language": "pt", "app:version": "2"})
        answer = await served.http.post("/v1/sessions/s/context", json={})
        assert answer.json()["messages"][0]["content"].startswith("App 2. Speak pt.")


@pytest.mark.parametrize("streamed", [False, True])
async def test_response_lists_the_artifacts_of_its_turn(streamed: bool) -> None:
    script = [Reply(tool_calls=[("save_artifact", {"name": "a.md", "content": "# One"})]), "See artifact:a.md"]
    async with gateway(script, AGENTS) as (served, _):
        answer = await chat(served, "writer", stream=streamed)
        saved = [{"name": "a.md", "version": 0}]
        if streamed:
            assert '"artifacts":[{"name":"a.md","version":0}]' in answer.text
        else:
            told = answer.json()["session"]
            assert told["artifacts"] == saved
            schemas = Schemas((await served.http.get("/openapi.json")).json())
            assert schemas.problems({"$ref": "#/components/schemas/TurnSummary"}, told) == []
        entries = (await served.http.get("/v1/sessions/s/messages")).json()["data"]
        assert entries[-1]["metadata"]["artifacts"] == saved
        assert (await served.http.get("/v1/sessions/s/artifacts/a.md")).text == "# One"


@pytest.mark.parametrize(("more", "there"), [("", False), ("artifacts: {tools: true}", True)])
async def test_plain_clients_get_no_artifact_tools_unless_enabled(more: str, there: bool) -> None:
    async with gateway(["ok", "ok"], AGENTS, more) as (served, upstream):
        for model in ("gpt-4o", "plain"):
            assert (await chat(served, model)).status_code == 200
            tools = [tool["function"]["name"] for tool in upstream.requests[-1].body.get("tools", ())]
            assert tools == (["save_artifact", "load_artifact", "list_artifacts"] if there else [])
