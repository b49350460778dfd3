"""Forks, rewinds and moves of sessions: what is copied or goes along, what stays, and what others see."""

from __future__ import annotations

from typing import Any

from tests.behaviour.kit import assistant, calls, result, user
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange

AGENTS = "agents: {kim: {}, lee: {}}"
NOTE: dict[str, Any] = {"role": "note", "origin": {"mark": 1}}
LOOK = calls(("c1", "look", {}), ("c2", "look", {}), text="Let me look.")
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACw="
IMAGE = [{"type": "text", "text": "This?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
ALL = ("seq", "turn_id", "role", "content", "pinned", "importance", "metadata", "timestamp", "retired_by", "erased")
USAGE = {"prompt_tokens": 9, "completion_tokens": 2}


async def fill(x: Exchange) -> None:
    """Make Ada's session `s`: three turns, and something of each kind."""
    fields = {"system_messages": ["Be kind."], "metadata": {"m": 1}, "ttl": 9 * 10**9, "state": {"a": 0, "old": 0}}
    await x.post("/v1/sessions", id="s", user_id="ada", agent="kim", **fields)
    log = "/v1/sessions/s/messages?user_id=ada"
    await x.post(log, messages=[user("one", pinned=True), NOTE, assistant("first", importance=0.5)], usage=USAGE)
    await x.post(
        log, messages=[], changes=[{"op": "set", "key": "b", "value": 1}, {"op": "set", "key": "user:u", "value": 1}]
    )
    await x.post(log, messages=[user("two"), LOOK, result("c2", "-"), NOTE, result("c1", "+")])
    await x.post(
        log, messages=[], changes=[{"op": "set", "key": "a", "value": 2}, {"op": "set", "key": "c", "value": 2}]
    )
    await x.post(log, messages=[user(IMAGE), assistant("third", metadata={"k": 1})])
    record = {"op": "put", "namespace": ["n"], "key": "k", "value": 1}
    await x.post(log, messages=[], records=[record])
    for text in (b"one", b"two"):
        await x.send("PUT", "/v1/sessions/s/artifacts/f.txt?user_id=ada", text, headers={"content-type": "text/plain"})


async def show(x: Exchange, session_id: str, owner: str = "ada") -> None:
    await x.get(f"/v1/sessions/{session_id}/info", user_id=owner)
    await x.rows(f"/v1/sessions/{session_id}/messages", *ALL, retired=True, user_id=owner)
    await x.rows(f"/v1/sessions/{session_id}/artifacts", "name", "version", "size", user_id=owner)
    await x.rows(f"/v1/sessions/{session_id}/calls", "id", "prompt_tokens", user_id=owner)
    await x.rows("/v1/records", "key", "value", session_id=session_id, user_id=owner, namespace="n")
    await x.get(f"/v1/sessions/{session_id}/state", user_id=owner)


@exchange((), AGENTS, stores=DATABASES)
async def test_forks(x: Exchange) -> None:
    """Whole turns with the state of that turn; an erasure reaches the copies of all, and nothing else does."""
    await fill(x)
    fork = "/v1/sessions/s/fork?user_id=ada"
    for turn in (0, 1, None):
        await x.post(fork, id=f"f{turn}", at_turn=turn)
        await show(x, f"f{turn}")
    for wrong in ({"at_turn": 3}, {"at_turn": -1}, {"id": "f0"}, {"id": "s"}, {"at_turn": "1"}):
        await x.post(fork, **wrong)
    await x.post("/v1/sessions/f1/fork?user_id=ada", id="g", at_turn=1)
    await x.post("/v1/sessions/f1/messages?user_id=ada", messages=[user("of the fork")], retire_from=3)
    await x.post("/v1/sessions/f1/fork?user_id=ada", id="h")
    await show(x, "h")
    await x.delete("/v1/sessions/s/messages/2", user_id="ada")
    await x.delete("/v1/sessions/f1/messages/8", user_id="ada")
    for name in ("s", "f0", "f1", "fNone", "g", "h"):
        await x.rows(f"/v1/sessions/{name}/messages", "seq", "content", "pinned", user_id="ada", retired=True)
    await x.post("/v1/sessions/s/messages?user_id=ada", messages=[NOTE])
    await x.post(fork, id="noted")
    await x.rows("/v1/sessions/noted/messages", "seq", "role", user_id="ada")
    await x.post("/v1/sessions", id="empty", user_id="ada")
    await x.post("/v1/sessions/empty/fork?user_id=ada", id="e")
    await x.post("/v1/sessions/empty/fork?user_id=ada", at_turn=0)
    await x.rows("/v1/sessions", "id", "version", "message_count", "updated_at", order="asc")


@exchange((), AGENTS, stores=DATABASES)
async def test_rewinds(x: Exchange) -> None:
    await fill(x)
    rewind = "/v1/sessions/s/rewind?user_id=ada"
    for turn in (2, 3, -1, None):
        await x.post(rewind, at_turn=turn)
    await x.post(rewind, {"If-Match": "1"}, at_turn=1)
    await x.post(rewind, {"If-Match": '"7"'}, at_turn=1)
    await show(x, "s")
    await x.post(
        "/v1/sessions/s/messages?user_id=ada", messages=[result("c1", "late"), user("three again"), assistant("!")]
    )
    await x.post(rewind, {"If-Match": "7"}, at_turn=2)
    await x.post(rewind, at_turn=0)
    await x.post(rewind, at_turn=0)
    await x.post(rewind, at_turn=1)
    await show(x, "s")
    await x.post("/v1/sessions", id="empty")
    await x.post("/v1/sessions/empty/rewind", at_turn=0)


MOVED: list[tuple[str, dict[str, Any]]] = [
    ("s?user_id=ada", {}),
    ("s?user_id=ada", {"user_id": "bob"}),
    ("s?user_id=ada", {"id": "taken"}),
    ("s?user_id=ada", {"agent": "nobody"}),
    ("s?user_id=ada", {"id": ""}),
    ("s?user_id=ada", {"id": "t", "agent": "lee"}),
    ("t?user_id=ada", {"agent": None}),
    ("t?user_id=ada", {"id": "t"}),
    ("t?user_id=ada", {"user_id": "eve"}),
    ("t?user_id=ada", {"user_id": "eve"}),
]


@exchange((), AGENTS, stores=DATABASES)
async def test_moves(x: Exchange) -> None:
    """To a taken name, another id, another agent, another user; retired and erased messages go along."""
    await fill(x)
    await x.post("/v1/sessions", id="s", user_id="bob", metadata={"of": "Bob"})
    await x.post("/v1/sessions", id="taken", user_id="ada")
    await x.post("/v1/sessions/s/messages?user_id=ada", {"Idempotency-Key": "k"}, messages=[user("bye")])
    await x.post("/v1/sessions/s/fork?user_id=ada", id="copy")
    await x.post("/v1/sessions/s/rewind?user_id=ada", at_turn=2)
    await x.delete("/v1/sessions/s/messages/3", user_id="ada")
    await x.delete("/v1/sessions/s/artifacts/f.txt", user_id="ada", version=0)
    for place, body in MOVED:
        name, _, query = place.partition("?")
        await x.post(f"/v1/sessions/{name}/move?{query}", **body)
    await show(x, "t", "eve")
    await show(x, "s", "bob")
    await x.get("/v1/sessions/t", user_id="eve", retired=True, calls=True)
    await x.post("/v1/sessions/t/messages?user_id=eve", {"Idempotency-Key": "k"}, messages=[user("bye")])
    await x.delete("/v1/sessions/t/messages/0", user_id="eve")
    await x.rows("/v1/sessions/copy/messages", "seq", "content", user_id="ada")
    await x.post("/v1/sessions", id="t", user_id="ada")
    await show(x, "t", "ada")
    await x.rows("/v1/sessions", "user_id", "id", "agent", "version", "created_at", "updated_at")
