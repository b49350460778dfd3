"""Every answer of the live app matches `/openapi.json`, and every described answer occurs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.artifacts import ArtifactSettings
from holdfast.config.inspector import Inspector
from holdfast.holdfast import Holdfast
from holdfast.server.app import ROUTES, make_app
from holdfast.server.body_limits import BodyLimits
from holdfast.server.openapi import describe_api
from holdfast.testing import Reply
from tests.edges.openapi_bad import (
    search_without_embedder,
    send_bad_memory_file_requests,
    send_bad_memory_requests,
    send_bad_requests,
    send_bad_workspace_requests,
    send_requests_to_broken_store,
)
from tests.edges.openapi_good import commit_workspaces, manage_keys, send_good_requests, use_memories, use_responses
from tests.edges.openapi_kit import (
    ANTHROPIC,
    CHAT,
    CONVERSATIONS,
    FILES,
    HI,
    MEMORIES,
    ONE,
    RESPONSES,
    SEARCH,
    STATE,
    Walk,
)
from tests.edges.server import gateway


def answers(body: dict[str, Any]) -> Any:
    """A model that answers, or fails on request."""
    text = str(body["messages"][-1]["content"])
    return Reply(status=int(text[5:]), error="no") if text.startswith("fail ") else "an answer"


async def test_answers_match_the_description(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Calls all routes; each answer matches, each field is described, and each described status occurs."""
    agents = "agents: {support: {instruction: Be kind.}, short: {context: {strategy: digest, budget: 200}}}"
    guard = "redaction: {patterns: [{label: canary, regex: 'canary-[0-9]+'}]}\nsecret_guard: {on_secret: block}"
    limits = BodyLimits(body=2800)
    hooks = f"hooks: {json.dumps({'workspace_git': {'path': str(tmp_path)}})}"
    async with gateway(answers, agents, guard, hooks, limits=limits) as (served, _):
        document = (await served.http.get("/openapi.json")).json()
        walk = Walk(served, document)
        served.hf.artifacts.settings = ArtifactSettings(max_bytes=4000)
        await send_good_requests(walk)
        await use_memories(walk)
        await use_responses(walk)
        await commit_workspaces(walk)
        await send_bad_requests(walk)
        await search_without_embedder(walk)
        await send_bad_memory_requests(walk)
        await send_bad_memory_file_requests(walk)
        await send_bad_workspace_requests(walk, monkeypatch)
        await send_requests_to_broken_store(walk, monkeypatch)
        for status in (400, 401, 404, 418, 429, 500, 503, 504):
            said = {"role": "user", "content": f"fail {status}"}
            for api in (CHAT, ANTHROPIC):
                await walk(*api, body={"messages": [said]})
                await walk(*api, body={"messages": [said], "stream": True})
        await manage_keys(walk, served.http)  # last, because every request needs a key from then on
    described = {
        (method.upper(), path, int(status))
        for path, item in document["paths"].items()
        for method, operation in item.items()
        for status in operation["responses"]
        if status.isdigit()
    }
    # Covered by other tests: slow bodies, an append that loses four races, and statuses that no route provokes here.
    elsewhere = {(method, path, status) for method, path, status in described if status in (408, 500)}
    elsewhere |= {(*CHAT, 412), (*ANTHROPIC, 412)}
    elsewhere |= {one for one in described if one[1].startswith((RESPONSES, CONVERSATIONS)) and one[2] >= 400}
    # Authorization is covered by test_access_matrix.py.
    elsewhere |= {(method, path, status) for method, path, status in described if status in (401, 429)}
    elsewhere |= {("POST", "/v1/sessions", 404), ("PUT", ONE, 404), ("DELETE", "/v1/users/{user_id}", 404)}
    elsewhere |= {("DELETE", STATE, 404)}
    elsewhere |= {one for one in described if one[1].startswith(FILES) and one[2] == 404}
    elsewhere |= {("GET", SEARCH, 404)}
    elsewhere |= {(method, MEMORIES, 404) for method in ("GET", "DELETE")}
    elsewhere |= {("POST", f"{MEMORIES}/consolidate", status) for status in (404, 412)}
    elsewhere |= {("GET", f"{MEMORIES}/diary", 404)}
    elsewhere |= {("POST", "/mcp", status) for status in (404, 501)}  # test_mcp_server.py
    assert described - walk.seen - elsewhere == set()


async def test_described_bodies_are_accepted() -> None:
    """Each body's described fields are known to its route, and unknown fields are refused."""
    document = describe_api(ROUTES)
    async with gateway([], "auth: {required: false}") as (served, _):
        await served.http.put("/v1/sessions/s", json={"messages": [HI]})
        for route in ROUTES:
            method, path = route.method, route.path
            if not isinstance(route.body, type) or (method, path) in (CHAT, ANTHROPIC):
                continue
            url = path.replace("{session_id}", "s").replace("{seq}", "0")
            url += "?namespace=a&key=k" if path.endswith("/record") else ""

            async def send_refused(fields: dict[str, Any], method: str = method, url: str = url) -> str:
                response = await served.http.request(method, url, json=fields)
                return str(response.json().get("error", {}).get("message", ""))

            content = document["paths"][path][method.lower()]["requestBody"]["content"]["application/json"]
            described = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
            for name in described["properties"]:
                assert "unknown" not in await send_refused({name: None}), (method, path, name)
            if described["additionalProperties"] is False:
                assert "unknown" in await send_refused({"no_such_field": 1}), (method, path)


def test_every_component_is_used() -> None:
    """Every described path is one of the app."""
    app = make_app(Holdfast("sqlite://:memory:"), inspector=Inspector(enabled=False), close=False)
    document = describe_api(ROUTES)
    assert set(document["paths"]) == {route.path for route in app.routes} - {"/{path:path}"}  # type: ignore[attr-defined]
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert set(document["components"]["schemas"]) == used
