"""`/openapi.json` is true: every answer of the live app is as described, and every answer described is given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from holdfast import errors
from holdfast.artifacts import ArtifactSettings
from holdfast.context.dialects import DIALECTS
from holdfast.context.settings import STRATEGIES
from holdfast.holdfast import Holdfast
from holdfast.limits import Limits
from holdfast.server.app import make_app
from holdfast.server.operations import OPERATIONS, Operation
from holdfast.server.schemas import COMPONENTS
from holdfast.testing import Reply
from tests.edges.schema import Schemas
from tests.edges.server import Served, gateway

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
COMPACTIONS = f"{ONE}/compactions"
ARTIFACT = f"{ONE}/artifacts/{{name}}"
USER_STATE = "/v1/users/{user_id}/state"
APP_STATE = "/v1/state"
WORKSPACE = "/v1/workspaces/{agent}"
SEARCH = "/v1/search"
MEMORIES = "/v1/memories"
MEMORY = f"{MEMORIES}/{{memory_id}}"


class Walk:
    """Requests to a live app, each answer held against the description."""

    def __init__(self, served: Served, document: dict[str, Any]) -> None:
        self._served = served
        self._document = document
        self.schemas = Schemas(document)
        self.seen: set[tuple[str, str, int]] = set()
        self.good = True
        """Whether answers have to be good ones."""

    async def __call__(self, method: str, path: str, query: str = "", body: Any = None, **headers: str) -> Any:
        """The answer to a request, after it was checked."""
        operation = self._document["paths"][path][method.lower()]
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        names = {"session_id": "id", "seq": "seq", "compaction_id": "compaction", "user_id": "id", "name": "name"}
        names |= {"agent": "id", "memory_id": "memory"}
        ids = {f"{{{name}}}": sent.get(short, "s" if short == "id" else "1") for name, short in names.items()}
        sent = {name: value for name, value in sent.items() if name not in names.values()}
        url = re.sub(r"{\w+}", lambda found: ids[found[0]], path)
        self._check_request(operation, query, sent)
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        response = await self._served.http.request(method, url + query, content=content, headers=sent)
        assert response.is_success or response.status_code == 304 or not self.good, (method, path, response.text)
        self._check_response(operation, response)
        self.seen.add((method, path, response.status_code))
        return response

    def _check_request(self, operation: dict[str, Any], query: str, headers: dict[str, str]) -> None:
        parameters = {(one["in"], one["name"].lower()) for one in operation["parameters"]}
        for name in re.findall(r"[?&](\w+)=", query):
            assert ("query", name) in parameters, (operation["operationId"], name)
        for name in headers:
            known = ("host", "accept", "content-type", "content-encoding")
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


async def goods(walk: Walk) -> None:
    """Every route with good input, in its variants."""
    walk.good = True
    await walk("POST", "/v1/sessions", body={"state": {"a": 1}, "agent": "support"})
    await walk(
        "PUT", ONE, "?user_id=ada", {"messages": LOG, "state": {"k": [1]}, "metadata": {"m": None}, "ttl": 10**9}
    )
    for query in ("", "?user_id=ada"):
        await walk("GET", ONE, query)
        await walk("GET", f"{ONE}/history", query)
        await walk("GET", "/sessions/{session_id}", query)
    await walk("GET", "/v1/search", "?q=kelp&user_id=ada&limit=2&neighbours=1&tz=UTC&level=session")
    await walk("GET", "/v1/index")
    await walk("GET", f"{ONE}/history", "?view=plain")
    await walk("PATCH", ONE, body={"ttl": 10**9, "system_messages": ["x", {"role": "developer", "content": "y"}]})
    for query in ("", "?limit=2", "?limit=2&after=1&order=desc", "?retired=true"):
        await walk("GET", MESSAGES, query)
    for path in ("/v1/sessions", "/sessions"):
        await walk("GET", path)
        await walk("GET", path, "?limit=1&order=asc&user_id=ada&status=active&agent=none")
        await walk("GET", path, "?after=s&after_user=ada")
    await walk("POST", MESSAGES, body={"messages": [HI]}, Idempotency_Key="k")
    await walk("PATCH", f"{MESSAGES}/{{seq}}", body={"pinned": False, "importance": None})
    for strategy in STRATEGIES:
        await walk("POST", f"{ONE}/context", body={"strategy": strategy, "explain": True, "tools": [{"x": 1}]})
    composed = {"clear_tool_results": {"trigger": 10, "keep": 0, "clear_at_least": 1, "exclude_tools": ["a"]}}
    await walk("POST", f"{ONE}/context", body=composed)
    small = {"strategy": "token_window", "budget": 60, "preserve_recent": 1, "target": 0.5, "explain": True}
    assert (await walk("POST", f"{ONE}/context", body=small)).json()["decisions"]
    for dialect in DIALECTS:
        await walk("POST", f"{ONE}/context", body={"at_turn": 0, "dialect": dialect, "model": "gpt-4o"})
    chat = {"session_id": "chat", "messages": [HI], "temperature": 0.5}
    await walk(*CHAT, body=chat, Idempotency_Key="k")
    await walk(*CHAT, body=chat, Idempotency_Key="k")
    for options in ({}, {"stream_options": {"include_usage": True}}):
        await walk(*CHAT, body={"messages": [HI], "stream": True, **options}, X_Session_Id="chat")
    edited = [HI, {"role": "assistant", "content": "other"}, {"role": "user", "content": "go on"}]
    await walk(*CHAT, body={"session_id": "chat", "messages": edited, "session_mode": "transcript"})
    said = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "session_id": "anthropic"}
    for body in (
        said,
        {**said, "system": "Be kind.", "stream": True},
        {**said, "system": [{"type": "text", "text": "x"}]},
    ):
        await walk(*ANTHROPIC, body=body, Idempotency_Key=str(body)[:200].encode().hex())
    await walk(
        "POST", "/v1/messages/count_tokens", "?beta=true", {**said, "tools": [{"name": "f", "input_schema": {}}]}
    )
    await walk("GET", "/v1/models", "?limit=1&after_id=default", Anthropic_Version="2023-06-01")
    await walk("GET", MESSAGES, "?retired=true", id="chat")
    await walk("DELETE", f"{MESSAGES}/{{seq}}", seq="2")
    await compacted(walk)
    await moved(walk)
    await voiced(walk)
    await stored(walk)
    await kept(walk)
    await walk("DELETE", "/sessions/{session_id}", id="chat")
    await walk("DELETE", ONE)
    for path in ("/v1/models", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/"):
        await walk("GET", path)
    await walk("GET", "/", Accept="text/html,application/xhtml+xml,*/*;q=0.8")


async def moved(walk: Walk) -> None:
    """The routes of sessions that move or go."""
    for query in ("", "?retired=true", "?retired=true&calls=true"):
        exported = (await walk("GET", ONE, query, id="chat")).json()
        for imported in (False, True):
            answer = await walk("PUT", ONE, "", {**exported, "ttl": 10**9 + imported}, id="chat")
            assert answer.json()["imported"] is True
        assert (await walk("PUT", ONE, "", {**exported, "ttl": 10**9 + 1}, id="chat")).json()["imported"] is False
    await walk("POST", f"{ONE}/fork", body={"at_turn": 0, "id": "forked"}, id="chat")
    await walk("POST", f"{ONE}/fork", body={"id": "handed"}, id="chat")
    await walk("POST", f"{ONE}/move", body={"id": "moved", "user_id": "ada", "agent": None}, id="handed")
    await walk("POST", f"{ONE}/close", id="forked")
    await walk("POST", f"{ONE}/fork", body={}, id="chat")
    await walk("POST", f"{ONE}/rewind", body={"at_turn": 0}, id="chat")
    await walk("DELETE", "/v1/users/{user_id}", id="nobody")


async def voiced(walk: Walk) -> None:
    """What voice agents need."""
    await walk("PUT", ONE, "", {"messages": [HI, {"role": "assistant", "content": "one two three"}]}, id="voiced")
    for heard in ({}, {"content": "one two ", "timestamp": 5, "turn_id": 0}, {"chars": 4}, {"ms": 1, "total_ms": 9}):
        await walk("POST", f"{ONE}/interrupt", body=heard, id="voiced")
    await walk("POST", f"{ONE}/speak", body={"text": "hm"}, id="voiced")
    said = {"text": "hm", "priority": "IGNORE", "source": "silence", "interruptable": False}
    await walk("POST", f"{ONE}/speak", body=said, id="voiced")
    await walk("POST", f"{ONE}/interrupt", body={"chars": 1}, id="voiced")
    await walk("GET", f"{ONE}/history", id="voiced")


async def stored(walk: Walk) -> None:
    """The routes of artifacts, with each kind of answer."""
    named = {"name": "user:a.txt"}
    put = await walk(
        "PUT", ARTIFACT, "?author=ada&metadata=%7B%22a%22%3A1%7D", b"hello", Content_Type="text/plain", **named
    )
    await walk("PUT", ARTIFACT, "", b"again", If_Match=put.headers["etag"], **named)
    await walk("PUT", ARTIFACT, "", b"new", If_None_Match="*")
    for query in ("", "?limit=1", "?after=1"):
        await walk("GET", f"{ONE}/artifacts", query)
        await walk("GET", f"{ARTIFACT}/versions", query if "after" not in query else "?after=0", **named)
    for headers in ({}, {"Range": "bytes=1-2"}, {"Range": "bytes=1-2", "If_Range": put.headers["etag"]}):
        await walk("GET", ARTIFACT, "?version=0", **named, **headers)
    await walk("GET", ARTIFACT, "?version=0", If_None_Match=put.headers["etag"], **named)
    await walk("DELETE", ARTIFACT, "?version=0", **named)
    await walk("DELETE", ARTIFACT, **named)


async def kept(walk: Walk) -> None:
    """The routes of state, with each operation."""
    for path, key in ((f"{ONE}/state", "a"), (USER_STATE, "user:a"), (APP_STATE, "app:a")):
        await walk("PATCH", path, body={key: [1], f"{key}b": None, f"{key}c": {"d": "x"}})
        now = await walk("GET", path)
        changes = [
            {"op": "expect", "key": key, "value": [1]},
            {"op": "append", "key": key, "values": [None]},
            {"op": "set", "key": f"{key}d", "value": False},
            {"op": "increment", "key": f"{key}e"},
            {"op": "increment", "key": f"{key}e", "by": -0.5},
            {"op": "delete", "key": f"{key}c"},
        ]
        await walk("POST", path, body={"changes": changes}, If_Match=now.headers["etag"])
    for path in (USER_STATE, APP_STATE):
        now = await walk("GET", path)
        await walk("DELETE", path, If_Match=now.headers["etag"])


async def ill_kept(walk: Walk) -> None:
    """What can be wrong with state alone."""
    for path, key in ((f"{ONE}/state", "a"), (USER_STATE, "user:a"), (APP_STATE, "app:a")):
        for value, headers in ((1, {"If_Match": "77"}), ("canary-77", {})):
            await walk("PATCH", path, body={key: value}, **headers)
            await walk("POST", path, body={"changes": [{"op": "set", "key": key, "value": value}]}, **headers)
        if path != f"{ONE}/state":
            await walk("DELETE", path, If_Match="77")


async def misused(walk: Walk) -> None:
    """What can be wrong with artifacts alone."""
    await walk("PUT", ARTIFACT, "", b"x")
    await walk("GET", ARTIFACT, Range="bytes=5-")
    await walk("PUT", ARTIFACT, "", b"x", If_Match="77")
    await walk("PUT", ARTIFACT, "?metadata=x", b"x")
    await walk("PUT", ARTIFACT, "", b"x" * 5000)


async def remembered(walk: Walk) -> None:
    """The routes of memories: new, merged, superseded, held and reviewed, recalled and forgotten."""
    walk.good = True
    new = {
        "content": "Ann likes tea",
        "user_id": "ann",
        "tags": ["drink"],
        "sources": [{"session_id": "s", "seqs": [1]}],
    }
    one = (await walk("POST", MEMORIES, body=new)).json()
    await walk("POST", MEMORIES, body=new)
    await walk("POST", MEMORIES, body={**new, "content": "Ann likes green tea"})
    held = (await walk("POST", MEMORIES, body={**new, "content": "Ann pays to 7", "origin": "tool"})).json()
    await walk("POST", f"{MEMORY}/review", body={"decision": "accept"}, memory=held["id"])
    for query in ("?user_id=ann", "?user_id=ann&limit=1&order=desc", "?user_id=ann&q=tea", "?user_id=nobody"):
        await walk("GET", MEMORIES, query)
    await walk("GET", MEMORY, memory=one["id"])
    await walk("PATCH", MEMORY, body={"content": "Ann likes gin", "valid_until": 10**13}, memory=one["id"])
    await walk("DELETE", MEMORY, memory=held["id"])
    await dreamt(walk)
    await walk("DELETE", MEMORIES, "?user_id=ann&source_session=s")


async def dreamt(walk: Walk) -> None:
    """A dry run, a sweep, and the diary of it."""
    walk.good = True
    for question in ("gin", "gin+now", "any+other+gin"):
        await walk("GET", MEMORIES, f"?user_id=ann&q={question}")
    for body in ({"user_id": "ann", "dry_run": True}, {"user_id": "ann"}, {"scope": "app"}, {"agent": "desk"}):
        await walk("POST", f"{MEMORIES}/dream", body=body)
    for query in ("?user_id=ann&limit=1", "?scope=app", "?agent=desk"):
        await walk("GET", f"{MEMORIES}/diary", query)


async def unembedded(walk: Walk) -> None:
    """A search by vector whose query gets none."""

    class Away:
        name, dimension = "test/away", 2

        async def embed(self, texts: Any) -> Any:
            raise errors.EmbeddingFailed("away", again=True)

        async def close(self) -> None:
            """Nothing to let go of."""

    index: Any = walk._served.hf.engine.index
    index.embedder = Away()
    await walk("GET", SEARCH, "?q=kelp&mode=vector")
    index.embedder = None


async def ill_remembered(walk: Walk) -> None:
    """What can be wrong with memories alone: none of that id, another version, a secret."""
    walk.good = True
    one = (await walk("POST", MEMORIES, body={"content": "Ann likes ale"})).json()["id"]
    walk.good = False
    secret = {"content": "canary-77"}
    await walk("POST", MEMORIES, body=secret)
    await walk("POST", MEMORIES, body={"content": "x", "supersedes": ["mem_1"]})
    await walk("PATCH", MEMORY, body=secret, memory=one)
    await walk("PATCH", MEMORY, body={"importance": 1}, memory=one, If_Match="77")
    for method, path, body in (
        ("GET", MEMORY, None),
        ("PATCH", MEMORY, {"importance": 1}),
        ("DELETE", MEMORY, None),
        ("POST", f"{MEMORY}/review", {"decision": "accept"}),
    ):
        await walk(method, path, body=body, memory="mem_1")
        await walk(method, path, body=body, memory="%FF")


async def committed(walk: Walk) -> None:
    """The routes of workspaces: nothing yet, one commit, nothing new, two."""
    workspace = walk._served.hf.workspaces
    assert workspace is not None
    folder = workspace.workspace("default", "support").folder
    await walk("GET", f"{WORKSPACE}/history", "?diff=true", id="support")
    for note in ({"note": "first"}, {}):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "large").write_bytes(bytes(2**20 + 1))
        (folder / "note.md").write_text("first")
        await walk("POST", f"{WORKSPACE}/checkpoint", body=note, id="support")
    for query in ("", "?diff=true", "?limit=1&diff=true"):
        await walk("GET", f"{WORKSPACE}/history", query, id="support")


async def ill_committed(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be wrong with workspaces alone: no such agent, a secret, no git."""
    walk.good = False
    await walk("GET", f"{WORKSPACE}/history", id="gone")
    await walk("POST", f"{WORKSPACE}/checkpoint", body={}, id="gone")
    await walk("POST", f"{WORKSPACE}/checkpoint", body={"note": "canary-77"}, id="support")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        await walk("GET", f"{WORKSPACE}/history", id="support")
        await walk("POST", f"{WORKSPACE}/checkpoint", body={}, id="support")


async def compacted(walk: Walk) -> None:
    """The routes of compactions, with each kind of answer."""
    for _ in range(5):
        await walk("POST", MESSAGES, body={"messages": [{"role": "user", "content": "an answer to that " * 20}]})
    assert (await walk("POST", COMPACTIONS, body={"preview": True, "target": 0.3})).json()["status"] == "preview"
    assert (await walk("POST", COMPACTIONS, body={"target": 0.3})).json()["status"] == "live"
    for query in ("", "?limit=1&order=desc", "?after=1"):
        await walk("GET", COMPACTIONS, query)
    for method in ("GET", "DELETE"):
        await walk(method, f"{COMPACTIONS}/{{compaction_id}}")
    assert (await walk("POST", COMPACTIONS, body={"wait": False})).json()["status"] == "pending"
    await walk._served.hf.engine.compactor.idle()


BODIES = {
    **dict.fromkeys(("NewSession", "SessionChanges", "Annotation", "ContextRequest", "CompactionRequest"), b"{}"),
    "ForkRequest": b"{}",
    "MoveRequest": b'{"id":"x"}',
    "RewindRequest": b'{"at_turn":0}',
    "InterruptRequest": b"{}",
    "SpeakRequest": b'{"text":"hm"}',
    **dict.fromkeys(("NewMessages", "SessionImport"), b'{"messages":[{"role":"user","content":"hi"}]}'),
    **dict.fromkeys(
        ("ChatRequest", "MessagesRequest"), b'{"messages":[{"role":"user","content":"hi"}],"session_id":"s"}'
    ),
    "CountRequest": b'{"messages":[{"role":"user","content":"canary-77"}]}',
    "State": b"{}",
    "CheckpointRequest": b"{}",
    "NewMemory": b'{"content":"x"}',
    "MemoryChanges": b'{"importance":1}',
    "MemoryReview": b'{"decision":"accept"}',
    "StateOperations": b'{"changes":[{"op":"increment","key":"user:n"}]}',
}
"""For each kind of body one that is taken."""


def sample(operation: Operation, path: str = "") -> bytes | None:
    """A body that an operation takes."""
    if isinstance(operation.body, str):
        body = BODIES.get(operation.body)
        return body.replace(b"user:", b"app:") if body and path == APP_STATE else body
    return b"content" if operation.body else None


async def bads(walk: Walk) -> None:
    """Everything that can be wrong with a request, on each route where it can."""
    walk.good = False
    await walk("PUT", ONE, body={"messages": LOG})
    for user in ("ada", "bob"):
        await walk("POST", "/v1/sessions", body={"id": "twice", "user_id": user})
    for (method, path), operation in OPERATIONS.items():
        request: Callable[..., Any] = lambda *more, m=method, p=path, **headers: walk(m, p, *more, **headers)  # noqa: E731
        await request(Host="elsewhere.example")
        if operation.body is not None:
            await request("", b"{")
            await request("", b" " * 3000)
            await request("", b"{}", Content_Encoding="gzip")
        elif 400 in operation.failures:
            named = next((one["name"] for one in operation.parameters if one["in"] == "query"), "")
            await request(f"?{named}=1&{named}=2") if "{" not in path else await request(id="%FF")
        if 404 in operation.failures and "{session_id}" in path and (method, path) != ("PUT", ONE):
            for name in ("gone", "twice"):
                await request("", sample(operation), id=name)
    for path in ("/v1/sessions", "/sessions"):
        await walk("GET", path, "?after=gone")
        await walk("GET", path, "?after=twice")
    await walk("POST", "/v1/sessions", body={"id": "s"})
    await misused(walk)
    await ill_kept(walk)
    secret = {"metadata": {"key": "canary-77"}}
    for method, path in (("POST", "/v1/sessions"), ("PATCH", ONE)):
        assert (await walk(method, path, body=secret)).status_code == 422
    await walk("PUT", ONE, body={"messages": LOG, **secret})
    await walk("POST", f"{ONE}/interrupt", body={"content": "never said"})
    await walk("POST", f"{ONE}/speak", body={"text": "hm", "source": "asr"})
    await walk("PATCH", ONE, body={}, If_Match="77")
    await walk("POST", f"{ONE}/rewind", body={"at_turn": 0}, If_Match="77")
    await walk("POST", f"{ONE}/fork", body={"id": "s"})
    await walk("POST", f"{ONE}/move", body={})
    await walk("POST", MESSAGES, body={"messages": [HI]}, If_Match="77")
    for door in (CHAT, ANTHROPIC):
        await walk(*door, body={"messages": [{"role": "user", "content": "hi"}], "session_id": "twice"})
    await walk("POST", "/v1/messages/count_tokens", "", BODIES["CountRequest"])
    await walk("GET", "/v1/models", "?after_id=gone", Anthropic_Version="2023-06-01")
    for path in (CHAT[1], ANTHROPIC[1], MESSAGES):
        for text in ("a", "b"):
            body = {
                "messages": [{"role": "user", "content": text}],
                **({"session_id": "s"} if path != MESSAGES else {}),
            }
            await walk("POST", path, body=body, Idempotency_Key="same")


async def broken(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that cannot, and a server that fails."""
    failures = ((errors.StoreUnavailable("full"), 503), (ZeroDivisionError(), 500), (errors.StoreCorrupt("it"), 500))
    for error, status in failures:

        async def fails(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        with monkeypatch.context() as patch:
            for name in ("read", "write"):
                patch.setattr(walk._served.hf.store._database, name, fails)  # type: ignore[attr-defined]
            for (method, path), operation in OPERATIONS.items():
                if 503 in operation.failures and not path.startswith(WORKSPACE):
                    query = "?q=kelp" if path == SEARCH else ""
                    response = await walk(method, path, query, sample(operation, path))
                    assert response.status_code == status, (method, path, response.text)


def answers(body: dict[str, Any]) -> Any:
    """A model that answers, and fails when it is told to."""
    text = str(body["messages"][-1]["content"])
    return Reply(status=int(text[5:]), error="no") if text.startswith("fail ") else "an answer"


async def test_the_description_is_true(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Walks all routes; each answer fits, each field is described, and each status that is described was seen."""
    agents = "agents: {support: {instruction: Be kind.}}"
    guard = "secret_guard: {on_secret: block, patterns: [{label: canary, regex: 'canary-[0-9]+'}]}"
    limits = Limits(body=2800, body_timeout=30)
    hooks = f"hooks: {json.dumps({'workspace_git': {'path': str(tmp_path)}})}"
    async with gateway(answers, agents, guard, hooks, limits=limits) as (served, _):
        document = (await served.http.get("/openapi.json")).json()
        walk = Walk(served, document)
        served.hf.artifacts.settings = ArtifactSettings(max_bytes=4000)
        await goods(walk)
        await remembered(walk)
        await committed(walk)
        await bads(walk)
        await unembedded(walk)
        await ill_remembered(walk)
        await ill_committed(walk, monkeypatch)
        await broken(walk, monkeypatch)
        for status in (400, 401, 404, 418, 429, 500, 503, 504):
            said = {"role": "user", "content": f"fail {status}"}
            for door in (CHAT, ANTHROPIC):
                await walk(*door, body={"messages": [said]})
                await walk(*door, body={"messages": [said], "stream": True})
    described = {
        (method.upper(), path, int(status))
        for path, item in document["paths"].items()
        for method, operation in item.items()
        for status in operation["responses"]
        if status.isdigit()
    }
    # Told by other tests: bodies that come too slowly, an append that others beat four times, and what no route provokes.
    elsewhere = {(method, path, status) for method, path, status in described if status in (408, 500)}
    elsewhere |= {(*CHAT, 412), (*ANTHROPIC, 412)}
    # Who may what is test_access_matrix.py's.
    elsewhere |= {(method, path, status) for method, path, status in described if status in (401, 429)}
    elsewhere |= {("POST", "/v1/sessions", 404), ("PUT", ONE, 404), ("DELETE", "/v1/users/{user_id}", 404)}
    elsewhere |= {(method, USER_STATE, 404) for method in ("GET", "PATCH", "POST", "DELETE")}
    elsewhere |= {("GET", SEARCH, 404)}
    elsewhere |= {(method, MEMORIES, 404) for method in ("GET", "DELETE")}
    elsewhere |= {("POST", f"{MEMORIES}/dream", status) for status in (404, 412)} | {("GET", f"{MEMORIES}/diary", 404)}
    assert described - walk.seen - elsewhere == set()


async def test_bodies_that_are_described_are_taken() -> None:
    """Each body of the description names fields that its route knows: none is refused as unknown."""
    async with gateway([]) as (served, _):
        await served.http.put("/v1/sessions/s", json={"messages": [HI]})
        for (method, path), operation in OPERATIONS.items():
            if not isinstance(operation.body, str) or (method, path) in (CHAT, ANTHROPIC):
                continue
            url = path.replace("{session_id}", "s").replace("{seq}", "0")
            for name in COMPONENTS[operation.body]["properties"]:
                response = await served.http.request(method, url, json={name: None})
                message = response.json().get("error", {}).get("message", "")
                assert "unknown" not in message, (method, path, name, message)


def test_every_operation_has_a_route_and_every_route_an_operation() -> None:
    """And every component is used."""
    app = make_app(Holdfast("sqlite://:memory:"), close=False)
    assert {path for _, path in OPERATIONS} == {route.path for route in app.routes} - {"/{path:path}"}  # type: ignore[attr-defined]
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(COMPONENTS)))
    used |= {
        name
        for operation in OPERATIONS.values()
        for name in (operation.answer, operation.body)
        if isinstance(name, str)
    }
    used |= set(re.findall(r"#/components/schemas/(\w+)", json.dumps([str(one.answer) for one in OPERATIONS.values()])))
    assert set(COMPONENTS) - used - {name for operation in OPERATIONS.values() for name in operation.errors} == set()


# -- the page ----------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would do with a page: its tags, links and ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for name, value in attrs:
            assert name in ("href", "id", "class", "name", "content", "charset", "lang"), name
            if name == "href":
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


async def test_the_page_shows_all_and_asks_nobody() -> None:
    """Every route, parameter, status, object and field is on it; no script, no form, and nothing from another host."""
    async with gateway([]) as (served, _):
        document = (await served.http.get("/openapi.json")).json()
        response = await served.http.get("/docs")
        page = Page(response.text)
        assert page.open == []
        assert set(page.tags) & {"script", "iframe", "img", "link", "form", "object", "base"} == set()
        assert all(link.startswith(("#", "/")) for link in page.links)
        assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
        assert len(page.ids) == len(set(page.ids))
        for path, item in document["paths"].items():
            assert path in page.words
            for operation in item.values():
                for parameter in operation["parameters"]:
                    assert parameter["name"] in page.words
        for name, schema in document["components"]["schemas"].items():
            assert name in page.ids
            for field in schema.get("properties", {}):
                assert field in page.words
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert (await served.http.head("/docs")).status_code == 200


def test_what_stands_in_a_description_is_text() -> None:
    """Markup in any name or sentence of it is shown, not obeyed."""
    from holdfast.server import page

    evil = '<script>alert("x")</script>\'"&`<b>`'
    schema = {"type": "object", "description": evil, "properties": {evil: {"enum": [evil], "description": evil}}}
    operation = {
        "tags": [evil],
        "summary": evil,
        "description": evil,
        "operationId": evil,
        "parameters": [{"name": evil, "in": evil, "schema": {"type": evil}, "description": evil}],
        "responses": {
            evil: {
                "description": evil,
                "content": {evil: {"schema": {"const": evil}}},
                "headers": {evil: {"description": evil}},
            }
        },
    }
    document = {
        "info": {"title": evil, "version": evil, "summary": evil, "description": evil},
        "tags": [{"name": evil, "description": evil}],
        "paths": {evil: {"get": operation}},
        "components": {"schemas": {evil: schema}},
    }
    shown = Page(page.docs(document).body.decode())
    assert set(shown.tags) & {"script", "b"} == set()
    assert shown.words.count('alert("x")') > 10


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("text/html", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("application/json, text/html", False),
        ("nonsense", False),
    ],
)
async def test_the_front_page_is_for_who_asks(accept: str, html: bool) -> None:
    """A page in a browser, JSON for programs; caches are told."""
    async with gateway([]) as (served, _):
        response = await served.http.get("/", headers={"Accept": accept})
        assert response.headers["content-type"].startswith("text/html" if html else "application/json")
        assert response.headers["vary"] == "Accept"
        if html:
            assert "/docs" in Page(response.text).links
            for link in Page(response.text).links:
                assert (await served.http.get(link)).status_code == 200
        else:
            assert response.json()["docs"] == "GET /docs"
