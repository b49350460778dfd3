"""Exports and imports of sessions: what is in them, what replaces what, and which versions come of it."""

from __future__ import annotations

from typing import Any

from tests.behaviour.kit import assistant, calls, result, system, user
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange

AGENTS = "agents: {kim: {}}"
S = "/v1/sessions/s"
LOOK = calls(("c1", "look", {}))
ENTRIES = [user("a", pinned=True), assistant("b", importance=0.5), user("c", turn_id=4, timestamp=9)]
RETIRED = [user("a"), user("b", retired_by=2), user("c"), assistant("d", retired_by=5), user("e", retired_by=5)]
CALL = {"model": "m", "timestamp": 3, "prompt_tokens": 9, "turn_id": 1}
PAST = {"created_at": 5, "updated_at": 6, "ended_at": 7, "end_reason": "ttl", "status": "closed", "usage": {"calls": 1}}
IMPORTED: list[dict[str, Any]] = [
    {"messages": [system("Be kind."), user("Hi."), assistant("Yes.")]},
    {"contents": [user("Hi.", metadata={"source": "asr"}), assistant("Yes.", turn_id=0, timestamp=3)]},
    {"schema": 1, "messages": ENTRIES, "agent": "kim", "ttl": 9, "state": {"k": 1}, "metadata": {"m": 1}, **PAST},
    {"schema": 1, "messages": ENTRIES, **PAST, "status": "active", "updated_at": 4},
    {"schema": 1, "messages": RETIRED, "calls": [CALL, {**CALL, "view": "v", "hash": "0a" * 16, "build": "AAA="}]},
    {"schema": 1, "messages": [user("[erased]", erased=True, tokens=7), user("x")], "system_messages": ["Sys."]},
    {"schema": 1, "messages": [LOOK, {"role": "note", "origin": [1]}, result("c1", "r"), result("c9", "-")]},
    {"schema": 1, "messages": [system("inside"), user("a")], "system_messages": ["Beside."], "agent": "gone"},
]
REFUSED: list[dict[str, Any]] = [
    {},
    {"messages": [user("x")], "contents": []},
    {"schema": 2, "messages": []},
    {"messages": [user("x", turn_id=2), user("y", turn_id=1)]},
    {"schema": 1, "messages": [user("x", retired_by=0)]},
    {"schema": 1, "messages": [user("x", retired_by=2)]},
    {"schema": 1, "messages": [user("x", retired_by=2), user("y")]},
    {"schema": 1, "messages": [user("x", seq=1)]},
    {"schema": 1, "messages": [], "updated_at": -1},
    {"schema": 1, "messages": [], "status": "gone", "created_at": 1},
    {"schema": 1, "messages": [], "calls": [{"model": ""}]},
    {"schema": 1, "messages": [], "usage": {"calls": -1}},
    {"schema": 1, "messages": [user("x", erased=True, digest="00")]},
    {"messages": [], "state": {"user:k": 1}},
    {"messages": [], "ttl": -1},
]


@exchange((), AGENTS, stores=DATABASES)
async def test_imports(x: Exchange) -> None:
    """Each replaces the one before, or is the same; a refused one changes nothing. A session of an agent that is gone stays usable."""
    for body in IMPORTED:
        await x.put(S, **body)
        await x.put(f"{S}?replace=false", **body)
        await x.get(S, retired=True, calls=True)
    for path in (f"{S}/messages", f"{S}/history", "/sessions/s"):
        await x.get(path)
    await x.post("/v1/chat/completions", session_id="s", messages=[user("c")])
    await x.patch(S, agent=None)
    await x.put(f"{S}?replace=false", messages=[user("other")])
    for body in REFUSED:
        await x.put(S, **body)
    await x.rows("/v1/sessions", "id", "version", "status", "created_at", "updated_at", "turns", "tokens")
    await x.post(f"{S}/messages", messages=[user("next")])
    await x.put("/v1/sessions/t?user_id=ada", messages=[user("Ada's")], user_id="bob", id="other")
    await x.put("/v1/sessions/t", messages=[user("Bob's")], user_id="bob")
    await x.put("/v1/sessions/t", messages=[user("nobody's")])
    await x.rows("/v1/sessions", "user_id", "id", "message_count")


EXPORTS: list[dict[str, Any]] = [
    *({}, {"retired": True}, {"retired": True, "calls": True, "digests": True}, {"records": False}, {"calls": True}),
]
CHANGES: list[dict[str, Any]] = [
    *({}, {"metadata": {"m": 2}}, {"records": []}, {"state": {}}, {"usage": None}, {"agent": None}),
]


@exchange((), AGENTS, stores=DATABASES)
async def test_exports(x: Exchange) -> None:
    """An export that is imported elsewhere and exported again is the same; an import with a change is another session."""
    await x.post("/v1/sessions", id="s", agent="kim", system_messages="Be kind.", metadata={"m": 1}, state={"k": 1})
    record: dict[str, Any] = {
        "op": "put",
        "namespace": ["n"],
        "key": "k",
        "value": {"v": 1},
        "text": "find me",
        "ttl": 60_000,
    }
    await x.post(
        f"{S}/messages", messages=[*ENTRIES, LOOK, result("c1", "r")], records=[record], usage={"prompt_tokens": 3}
    )
    await x.post(f"{S}/messages", messages=[assistant("again")], retire_from=3)
    await x.delete(f"{S}/messages/0")
    await x.send("PUT", f"{S}/artifacts/f.txt", b"one", headers={"content-type": "text/plain"})
    for query in EXPORTS:
        await x.get(S, **query)
    whole = await x.get(S, retired=True, calls=True, digests=True)
    await x.put("/v1/sessions/copy", **whole)
    await x.get("/v1/sessions/copy", retired=True, calls=True, digests=True)
    for more in CHANGES:
        await x.put("/v1/sessions/copy", **{**whole, **more})
    await x.rows("/v1/sessions/copy/artifacts", "name")
    await x.send("PUT", "/v1/sessions/copy/artifacts/g.txt", b"two", headers={"content-type": "text/plain"})
    await x.post("/v1/sessions/copy/messages", {"Idempotency-Key": "k"}, messages=[user("kept?")])
    await x.put("/v1/sessions/copy", **whole)
    await x.rows("/v1/sessions/copy/artifacts", "name")
    await x.post("/v1/sessions/copy/messages", {"Idempotency-Key": "k"}, messages=[user("kept?")])
    await x.later(minutes=2)
    await x.rows("/v1/records", "key", session_id="copy", namespace="n")
    await x.put(S, **whole)
    await x.post(f"{S}/fork", id="fork")
    forked = await x.get("/v1/sessions/fork", retired=True, digests=True)
    await x.put("/v1/sessions/g", **forked)
    await x.delete(f"{S}/messages/2")
    await x.rows("/v1/sessions/g/messages", "seq", "content", "erased", limit=100)
    for wrong in ([[0, "x"]], [[1, "x", 0]], "x", [["x", "x", 0]], [[at, "x", at] for at in range(40)]):
        await x.put("/v1/sessions/h", **{**forked, "origins": wrong})
    for more in (
        {"retired_by": 9},
        {"pinned": False},
        {"importance": 0.1},
        {"agent": "kim"},
        {"metadata": {"m": 1}},
        {"timestamp": 7},
        {"content": "z"},
    ):
        await x.put(
            "/v1/sessions/g?replace=false",
            **{**forked, "messages": [{**forked["messages"][0], **more}, *forked["messages"][1:]]},
        )
