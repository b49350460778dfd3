"""Invalid requests for each route, and a failing server: for `test_server_openapi.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import errors
from holdfast.server.app import ROUTES
from holdfast.server.routes import Route
from tests.edges.openapi_kit import (
    ANTHROPIC,
    ARTIFACT,
    CHAT,
    FILES,
    HI,
    LOG,
    MEMORIES,
    MEMORY,
    MESSAGES,
    ONE,
    OWNERS,
    RECORDS,
    SEARCH,
    STATE,
    WORKSPACE,
    Walk,
)

BODIES = {
    **dict.fromkeys(("NewSessionObject", "SessionChanges", "Annotation", "ContextRequest", "CompactionRequest"), b"{}"),
    "ForkRequest": b"{}",
    "MoveRequest": b'{"id":"x"}',
    "RewindRequest": b'{"at_turn":0}',
    "InterruptRequest": b"{}",
    "SpeakRequest": b'{"text":"hm"}',
    **dict.fromkeys(("NewMessages", "NewTurn", "SessionImport"), b'{"messages":[{"role":"user","content":"hi"}]}'),
    **dict.fromkeys(
        ("ChatRequest", "MessagesRequest"), b'{"messages":[{"role":"user","content":"hi"}],"session_id":"s"}'
    ),
    "Replacement": b'{"message":{"role":"user","content":"hi"}}',
    "CountRequest": b'{"messages":[{"role":"user","content":"canary-77"}]}',
    "State": b"{}",
    "CheckpointRequest": b"{}",
    "FactChange": b'{"pinned":true}',
    "NewMemory": b'{"content":"x"}',
    "MemoryChanges": b'{"importance":1}',
    "MemoryReview": b'{"decision":"accept"}',
    "NewApiKey": b"{}",
    "BulkRequest": b'{"action":"close","filter":{}}',
    "NewRecord": b'{"value":1}',
    "RecordChanges": b'{"changes":[{"op":"delete","namespace":["a"],"key":"k"}]}',
    "StateOperations": b'{"changes":[{"op":"increment","key":"user:n"}]}',
}
"""For each kind of body one that is taken."""


def sample(route: Route, path: str = "") -> bytes | None:
    """Return a valid body for an operation."""
    if isinstance(route.body, type):
        body = BODIES.get(route.body.__name__)
        return body.replace(b"user:", b"app:") if body and path == STATE else body
    return b"content" if route.body else None


async def send_bad_requests(walk: Walk) -> None:
    """Send every kind of invalid request to each route that can reject it."""
    walk.good = False
    await walk("PUT", ONE, body={"messages": LOG})
    for user in ("ada", "bob"):
        await walk("POST", "/v1/sessions", body={"id": "twice", "user_id": user})
    for route in ROUTES:
        method, path = route.method, route.path
        request: Callable[..., Any] = lambda *more, m=method, p=path, **headers: walk(m, p, *more, **headers)  # noqa: E731
        await request(Host="elsewhere.example", Origin="https://elsewhere.example")
        needed = "?namespace=a&key=k" if path.endswith("/record") else ""
        if route.body is not None:
            await request(needed, b"{")
            await request(needed, b" " * 3000)
            await request(needed, b"{}", Content_Encoding="gzip")
        elif 400 in route.error_statuses:
            named = next(iter(route.query.__struct_fields__), "") if route.query else ""
            await request(f"?{named}=1&{named}=2") if "{" not in path else await request(id="%FF")
        if 404 in route.error_statuses and "{session_id}" in path and (method, path) != ("PUT", ONE):
            for name in ("gone", "twice"):
                await request(needed, sample(route), id=name)
    for path in ("/v1/sessions", "/sessions"):
        await walk("GET", path, "?after=gone")
        await walk("GET", path, "?after=twice")
    await walk("POST", "/v1/sessions", body={"id": "s"})
    await send_bad_artifact_requests(walk)
    await send_bad_state_requests(walk)
    await send_bad_record_requests(walk)
    for key in ("gone", "%FF"):
        await walk("DELETE", "/v1/keys/{key_id}", key=key)
    secret = {"metadata": {"key": "canary-77"}}
    for method, path in (("POST", "/v1/sessions"), ("PATCH", ONE)):
        assert (await walk(method, path, body=secret)).status_code == 422
    await walk("PUT", ONE, body={"messages": LOG, **secret})
    await walk("PUT", ONE, "?replace=false", {"messages": [HI]})
    masked = {"message": {"role": "user", "content": "canary-77"}}
    assert (await walk("PUT", f"{MESSAGES}/{{seq}}", body=masked, seq="0")).status_code == 422
    await walk("POST", f"{ONE}/interrupt", body={"content": "never said"})
    await walk("POST", f"{ONE}/speak", body={"text": "hm", "source": "asr"})
    await walk("PATCH", ONE, body={}, If_Match="77")
    await walk("POST", f"{ONE}/rewind", body={"at_turn": 0}, If_Match="77")
    await walk("POST", f"{ONE}/fork", body={"id": "s"})
    await walk("POST", f"{ONE}/move", body={})
    await walk("POST", MESSAGES, body={"messages": [HI]}, If_Match="77")
    await walk("POST", MESSAGES, body={"messages": [HI], "expect_log": "gone.1.0"})
    await walk("POST", f"{ONE}/turns", body={"messages": [HI], "request": {"foo": 1}})
    for api in (CHAT, ANTHROPIC):
        await walk(*api, body={"messages": [{"role": "user", "content": "hi"}], "session_id": "twice"})
    await walk("POST", "/v1/messages/count_tokens", "", BODIES["CountRequest"])
    await walk("GET", "/v1/models", "?after_id=gone", Anthropic_Version="2023-06-01")
    turns = f"{ONE}/turns"
    for path in (CHAT[1], ANTHROPIC[1], MESSAGES, turns):
        for text in ("a", "b"):
            body = {
                "messages": [{"role": "user", "content": text}],
                **({"session_id": "s"} if path not in (MESSAGES, turns) else {}),
            }
            await walk("POST", path, body=body, Idempotency_Key="same")


async def send_bad_state_requests(walk: Walk) -> None:
    """Send invalid state requests."""
    for value, headers in ((1, {"If_Match": "77"}), ("canary-77", {})):
        await walk("PATCH", f"{ONE}/state", body={"a": value}, **headers)
        for owner, key in zip(OWNERS, ("a", "user:a", "app:a"), strict=True):
            query = f"?{owner}" if owner else ""
            await walk("PATCH", STATE, query, body={key: value}, **headers)
            changes = [{"op": "set", "key": key, "value": value}]
            await walk("POST", STATE, query, body={"changes": changes}, **headers)
    for query in ("?user_id=s", "?scope=tenant"):
        await walk("DELETE", STATE, query, If_Match="77")
    for method, body in (("GET", None), ("PATCH", {"a": 1}), ("POST", {"changes": [{"op": "delete", "key": "a"}]})):
        for name in ("gone", "twice"):
            await walk(method, STATE, f"?session_id={name}", body)


async def send_bad_record_requests(walk: Walk) -> None:
    """Send invalid requests for records: missing, stale, with a secret, with wrong parameters."""
    for owner in (*OWNERS, "session_id=gone", "session_id=twice"):
        base, name, of = RECORDS, f"?{owner}&namespace=a&key=k", f"?{owner}" if owner else ""
        await walk("GET", f"{base}/record", name)
        await walk("DELETE", f"{base}/record", name)
        for headers in ({"If_Match": "77"}, {"If_Match": "x"}, {"If_None_Match": "x"}):
            await walk("PUT", f"{base}/record", name, {"value": 1}, **headers)
        await walk("PUT", f"{base}/record", name, {"value": "canary-77"})
        await walk("DELETE", f"{base}/record", name, If_Match="77")
        for value, expect in ((1, 77), ("canary-77", None)):
            put = {"op": "put", "namespace": ["a"], "key": "k", "value": value, "expect": expect}
            await walk("POST", base, of, body={"changes": [put]})
        await walk("POST", base, of, body={"changes": []})
        await walk("GET", base, f"?{owner}&limit=0")
        await walk("GET", base, f"?{owner}&q=x")
        await walk("GET", base, f"?{owner}&nested=true&q=x&mode=vector")
        await walk("GET", f"{base}/namespaces", f"?{owner}&depth=0")
        if owner.endswith(("gone", "twice")):
            await walk("DELETE", base, of)
            await walk("GET", f"{base}/namespaces", of)


async def send_bad_artifact_requests(walk: Walk) -> None:
    """Send invalid artifact requests."""
    await walk("PUT", ARTIFACT, "", b"x")
    await walk("GET", ARTIFACT, Range="bytes=5-")
    await walk("PUT", ARTIFACT, "", b"x", If_Match="77")
    await walk("PUT", ARTIFACT, "?metadata=x", b"x")
    await walk("PUT", ARTIFACT, "", b"x" * 5000)


async def search_without_embedder(walk: Walk) -> None:
    """Search by vector while the embedder is unavailable."""

    class Away:
        name, dimension = "test/away", 2

        async def embed(self, texts: Any) -> Any:
            raise errors.EmbeddingFailed("away", again=True)

        async def close(self) -> None:
            """Do nothing: there are no resources to release."""

    index: Any = walk.hf.engine.index
    index.embedder = Away()
    await walk("GET", SEARCH, "?q=kelp&mode=vector")
    await walk("GET", RECORDS, "?user_id=s&nested=true&q=kelp&mode=vector")
    index.embedder = None


async def send_bad_memory_requests(walk: Walk) -> None:
    """Send invalid memory requests: unknown id, stale version, a secret."""
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


async def send_bad_memory_file_requests(walk: Walk) -> None:
    """Send invalid requests for memory files: missing, not a number, outside of the directory."""
    walk.good = False
    for change in ("1", "0", "x"):
        await walk("POST", f"{FILES}/{{change_id}}/review", body={"decision": "accept"}, change=change)
    await walk("POST", f"{FILES}/{{change_id}}/review", body={"decision": "maybe"})
    for query in ("?path=/etc/passwd", "?path=/memories/none.md"):
        await walk("GET", FILES, query)
    await walk("GET", FILES, "?limit=0")


async def send_bad_workspace_requests(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send invalid workspace requests: unknown agent, a secret, git missing."""
    walk.good = False
    await walk("GET", f"{WORKSPACE}/history", id="gone")
    await walk("POST", f"{WORKSPACE}/checkpoint", body={}, id="gone")
    await walk("POST", f"{WORKSPACE}/checkpoint", body={"note": "canary-77"}, id="support")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        await walk("GET", f"{WORKSPACE}/history", id="support")
        await walk("POST", f"{WORKSPACE}/checkpoint", body={}, id="support")


async def send_requests_to_broken_store(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send requests while the store fails, and while the server does."""
    failures = ((errors.StoreUnavailable("full"), 503), (ZeroDivisionError(), 500), (errors.StoreCorrupt("it"), 500))
    for error, status in failures:

        async def fails(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        with monkeypatch.context() as patch:
            for name in ("read", "write"):
                patch.setattr(walk.hf.store.database, name, fails)  # type: ignore[attr-defined]
            for route in ROUTES:
                method, path = route.method, route.path
                if 503 in route.error_statuses and not path.startswith(WORKSPACE):
                    query = "?q=kelp" if path == SEARCH else ""
                    response = await walk(method, path, query, sample(route, path))
                    assert response.status_code == status, (method, path, response.text)
