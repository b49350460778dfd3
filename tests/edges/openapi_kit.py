"""Shared helpers for tests of `/openapi.json`: requests checked against the description, and the paths they use."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.edges.schema import Schemas
from tests.edges.server import Served

HI = {"role": "user", "content": "hi", "x_mine": {"a": [1]}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}", "x_f": 1}, "x_call": 1}
LOG: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {
        **HI,
        "timestamp": 5,
        "turn_id": 0,
        "agent": "a",
        "metadata": {"source": "asr"},
        "pinned": True,
        "importance": 0.5,
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL, {"id": "d", "type": "custom", "custom": {"name": "g", "input": "x"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "seen"}], "name": "f"},
    {"role": "tool", "tool_call_id": "d", "content": "seen too"},
    {"role": "assistant", "content": [{"type": "text", "text": "done"}, {"type": "refusal", "refusal": "no"}]},
    {"role": "user", "content": [{"type": "image_url", "x_url": "u"}, {"type": "text", "text": "look"}]},
    {"role": "assistant", "content": "nice", "name": "bot"},
]
CHAT = ("POST", "/v1/chat/completions")
ANTHROPIC = ("POST", "/v1/messages")
ONE = "/v1/sessions/{session_id}"
MESSAGES = f"{ONE}/messages"
RESPONSES = "/v1/responses"
CONVERSATIONS = "/v1/conversations"
COMPACTIONS = f"{ONE}/compactions"
ARTIFACT = f"{ONE}/artifacts/{{name}}"
STATE = "/v1/state"
RECORDS = "/v1/records"
OWNERS = ("session_id=s", "user_id=s", "scope=tenant")
"""Parameters of the query that name the owner of state and records."""
WORKSPACE = "/v1/workspaces/{agent}"
MEMORIES = "/v1/memories"
MEMORY = f"{MEMORIES}/{{memory_id}}"
FILES = "/v1/users/{user_id}/memory_files"


class Walk:
    """Send requests to a live app and check each answer against the description."""

    def __init__(self, served: Served, document: dict[str, Any]) -> None:
        self.hf = served.hf
        self._http = served.http
        self._document = document
        self.schemas = Schemas(document)
        self.seen: set[tuple[str, str, int]] = set()
        self.good = True
        """Whether answers have to be good ones."""

    async def __call__(self, method: str, path: str, query: str = "", body: Any = None, **headers: str) -> Any:
        """Send a request; return its answer after checking both."""
        operation = self._document["paths"][path][method.lower()]
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        names = {"session_id": "id", "seq": "seq", "compaction_id": "compaction", "user_id": "id", "name": "name"}
        names |= {
            "call_id": "call",
            "agent": "id",
            "memory_id": "memory",
            "fact_id": "fact",
            "response_id": "response",
        }
        names |= {"conversation_id": "conversation", "item_id": "item", "change_id": "change", "key_id": "key"}
        ids = {f"{{{name}}}": sent.get(short, "s" if short == "id" else "1") for name, short in names.items()}
        sent = {name: value for name, value in sent.items() if name not in names.values()}
        url = re.sub(r"{\w+}", lambda found: ids[found[0]], path)
        self._check_request(operation, query, sent)
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        response = await self._http.request(method, url + query, content=content, headers=sent)
        assert response.is_success or response.status_code == 304 or not self.good, (method, path, response.text)
        self._check_response(operation, response)
        self.seen.add((method, path, response.status_code))
        return response

    def _check_request(self, operation: dict[str, Any], query: str, headers: dict[str, str]) -> None:
        parameters = {(one["in"], one["name"].lower()) for one in operation["parameters"]}
        for name in re.findall(r"[?&](\w+)=", query):
            assert ("query", name) in parameters, (operation["operationId"], name)
        for name in headers:
            known = ("host", "origin", "accept", "content-type", "content-encoding")
            assert name.lower() in known or ("header", name.lower()) in parameters, (operation["operationId"], name)

    def _check_response(self, operation: dict[str, Any], response: Any) -> None:
        status = response.status_code
        told = operation["responses"].get(str(status)) or operation["responses"].get(f"{status // 100}XX")
        assert told, (operation["operationId"], status, response.text[:300])
        if "content" not in told:
            assert not response.content
            return
        kind = response.headers["content-type"].partition(";")[0]
        kind = kind if kind in told["content"] else "*/*"
        assert kind in told["content"], (operation["operationId"], response.headers["content-type"])
        for name, header in told.get("headers", {}).items():
            assert response.headers.get(name) or header.get("required") is False, (operation["operationId"], name)
        schema = told["content"][kind]["schema"]
        if kind == "application/json":
            assert self.schemas.problems(schema, response.json()) == []
        if kind == "text/event-stream":
            lines = [line for line in response.text.splitlines() if line and not line.startswith("event: ")]
            if operation["operationId"] == "post_v1_chat_completions":
                assert lines.pop() == "data: [DONE]"
            for line in lines:
                assert self.schemas.problems(schema, json.loads(line.removeprefix("data: "))) == []
