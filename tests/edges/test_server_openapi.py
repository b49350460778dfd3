"""Every answer of the live app matches `/openapi.json`, and every described answer occurs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.testing import Reply
from tests.edges.openapi_good import commit_workspaces, manage_keys, send_good_requests, use_memories, use_responses
from tests.edges.openapi_kit import (
    ANTHROPIC,
    CHAT,
    Walk,
)
from tests.edges.server import gateway


def answers(body: dict[str, Any]) -> Any:
    """A model that answers, or fails on request."""
    text = str(body["messages"][-1]["content"])
    return Reply(status=int(text[5:]), error="no") if text.startswith("fail ") else "an answer"


async def test_answers_match_the_description(tmp_path: Path) -> None:
    """Calls all routes; each answer matches, and each route has a good answer."""
    agents = "agents: {support: {instruction: Be kind.}, short: {context: {strategy: digest, budget: 200}}}"
    guard = "redaction: {patterns: [{label: canary, regex: 'canary-[0-9]+'}]}\nsecret_guard: {on_secret: block}"
    hooks = f"hooks: {json.dumps({'workspace_git': {'path': str(tmp_path)}})}"
    async with gateway(answers, agents, guard, hooks) as (served, _):
        document = (await served.http.get("/openapi.json")).json()
        walk = Walk(served, document)
        await send_good_requests(walk)
        await use_memories(walk)
        await use_responses(walk)
        await commit_workspaces(walk)
        walk.good = False
        for status in (400, 401, 404, 418, 429, 500, 503, 504):
            said = {"role": "user", "content": f"fail {status}"}
            for api in (CHAT, ANTHROPIC):
                await walk(*api, body={"messages": [said]})
                await walk(*api, body={"messages": [said], "stream": True})
        await manage_keys(walk, served.http)  # last, because every request needs a key from then on
    good = {(method, path) for method, path, status in walk.seen if status < 300}
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert described - good == set()
