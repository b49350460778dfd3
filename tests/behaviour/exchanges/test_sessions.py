"""Sessions: made, listed, changed, closed, opened again and deleted."""

from __future__ import annotations

from typing import Any

from tests.behaviour.kit import assistant, user
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange

AGENTS = """agents:
  kim: {state: {step: 1, "user:plan": free}, greeting: "Hello {step}, {user:plan}."}
  Kim: {greeting: "{gone?}"}
  lee: {silence_message: "Still {gone?} there?"}"""
TYPES = ["application/json; charset=us-ascii", 'Application/JSON;Charset="UTF8"', "application/x.y+json", "application/json; charset=latin-1", "text/plain", "application/x-www-form-urlencoded", ""]  # fmt: skip
DURABLE = ("file", "postgres", "mysql")
LISTED = [
    ("a", "ada", "kim", 10, "active"),
    ("b", "ada", None, 20, "closed"),
    ("a", "bob", "Kim", 20, "active"),
    ("A", "ada", "kim", 20, "active"),
    ("é", "Ada", "kim", 20, "active"),
    ("ab", "ada", "kim", 30, "closed"),
    ("c", "default", None, 40, "active"),
]
SELECTED: list[dict[str, Any]] = [
    {},
    {"order": "asc"},
    {"limit": 7},
    {"limit": 6, "order": "asc"},
    {"user_id": "ada"},
    {"user_id": "ada", "order": "asc", "limit": 3},
    {"user_id": "Ada"},
    {"agent": "kim"},
    {"agent": "Kim"},
    {"agent": "nobody"},
    {"status": "closed"},
    {"status": "active", "user_id": "ada", "agent": "kim"},
    {"since": "1970-01-01T00:00:00.020Z"},
    {"until": "1970-01-01T00:00:00.020Z"},
    {"since": "1970-01-01T00:00:00.020Z", "until": "1970-01-01T00:00:00.030Z", "order": "asc", "user_id": "ada"},
    {"since": "1970-01-01T00:00:00.021Z", "until": "1970-01-01T00:00:00.040Z"},
    {"after": "c", "limit": 2},
    {"after": "a", "after_user": "bob"},
    {"after": "a", "after_user": "bob", "order": "asc"},
    {"after": "a", "user_id": "ada"},
    {"after": "b", "user_id": "ada", "status": "active"},
    {"after": "b", "since": "1970-01-01T00:00:00.030Z"},
    {"after": "ab", "until": "1970-01-01T00:00:00.030Z"},
    {"after": "ab", "until": "1970-01-01T00:00:00.031Z", "agent": "kim"},
]
WRONG: list[dict[str, Any]] = [
    *({"after": "a"}, {"after": "x"}, {"after": "c", "user_id": "ada"}, {"limit": 0}, {"limit": 1001}),
    *({"status": "gone"}, {"order": "up"}, {"since": "now"}, {"user_id": ""}, {"agnet": "kim"}),
]


@exchange((), AGENTS, stores=DATABASES)
async def test_lists(x: Exchange) -> None:
    """Equal times, users of one id, upper and lower case."""
    for name, owner, agent, time, status in LISTED:
        past: Any = {
            "created_at": 1,
            "updated_at": time,
            "status": status,
            "ended_at": 5 if status == "closed" else None,
        }
        await x.put(f"/v1/sessions/{name}?user_id={owner}", schema=1, agent=agent, messages=[], **past)
    for query in SELECTED:
        await x.rows("/v1/sessions", "user_id", "id", **query)
    for order in ("asc", "desc"):
        at: dict[str, Any] = {}
        while rows := await x.rows("/v1/sessions", "user_id", "id", limit=2, order=order, **at):
            at = {"after": rows[-1]["id"], "after_user": rows[-1]["user_id"]}
    await x.get("/v1/sessions", limit=1)
    await x.get("/sessions", user_id="ada", limit=2)
    for wrong in WRONG:
        await x.get("/v1/sessions", **wrong)
    await x.get("/sessions", order="asc", after="ab", after_user="ada")


@exchange((), AGENTS, stores=DATABASES)
async def test_fields(x: Exchange) -> None:
    """Fields of a new session; what each change leaves alone, and which version it makes."""
    for at, kind in enumerate(TYPES):
        await x.post("/v1/sessions", {"content-type": kind}, id=f"typed{at}", ttl=0)
    await x.post(
        "/v1/sessions", id="s", user_id="ada", agent="kim", state={"a": 1, "user:b": 2, "app:c": 3, "temp:d": 4}
    )
    await x.get("/v1/sessions/s/messages", user_id="ada")
    await x.post("/v1/sessions", id="s", user_id="ada", metadata={"other": True})
    await x.post("/v1/sessions", id="s", system_messages="Be kind.", metadata={"m": [1]}, ttl=0)
    await x.get("/v1/sessions/s/info")
    await x.get("/v1/sessions/s/info", user_id="ada")
    await x.get("/v1/sessions/s/info", user_id="bob")
    one = "/v1/sessions/s?user_id=ada"
    for change in (
        {"metadata": {"k": 1}},
        {"metadata": {"l": 2}, "ttl": 5000},
        {"state": {"a": None, "e": [1], "user:b": None, "temp:f": 1}},
        {"agent": "lee", "system_messages": [{"role": "system", "content": "x"}, "y"]},
        {"agent": None, "ttl": None, "system_messages": None, "metadata": None, "state": None},
        {},
        {"agent": "nobody"},
        {"ttl": -1},
        {"metadata": [1]},
        {"system_messages": [user("no")]},
        {"title": "no"},
    ):
        await x.patch(one, **change)
    await x.patch(one, {"If-Match": '"5"'}, metadata={"n": 1})
    for match in ("1", '"6"', "*", "six"):
        await x.patch(one, {"If-Match": match}, metadata={"match": match})
    await x.get("/v1/sessions/s/state?user_id=ada")
    await x.get("/sessions/s?user_id=ada")
    for wrong in ({"id": ""}, {"id": "x" * 600}, {"id": "t", "agent": "nobody"}, {"id": "t", "ttl": 1.5}, {"id": 5}):
        await x.post("/v1/sessions", **wrong)


@exchange(["One.", "Two."], AGENTS, stores=DURABLE)
async def test_ends(x: Exchange) -> None:
    """Close, open again, expire, delete; what a second one of the same name has."""
    messages = "/v1/sessions/s/messages"
    await x.post("/v1/sessions", id="s", ttl=10_000, state={"user:u": 1, "own": 1})
    await x.post("/v1/chat/completions", session_id="s", messages=[user("Hi.")])
    await x.post("/v1/sessions/s/close")
    await x.post("/v1/sessions/s/close")
    await x.rows("/v1/sessions", "id", "status", "end_reason", "ended_at", "updated_at", "version")
    await x.patch("/v1/sessions/s", metadata={"still": "closed"})
    await x.post(messages, changes=[{"op": "set", "key": "still", "value": "closed"}], return_session=True)
    await x.put(f"{messages}/1", message=assistant("One!"))
    await x.post(messages, messages=[user("More.")], return_session=True)
    for passed in (8999, 1):
        await x.later(ms=passed)
        await x.rows("/v1/sessions", "id", "status", "end_reason", "ended_at", "updated_at", "version")
    await x.post("/v1/chat/completions", session_id="s", messages=[user("Again.")])
    await x.delete("/v1/sessions/s")
    await x.delete("/v1/sessions/s")
    await x.post("/v1/sessions", id="s")
    await x.get("/v1/sessions/s/state")
    await x.post(messages, messages=[user("New.")])
    await x.post("/v1/sessions", id="s", user_id="ada", state={"user:u": 2, "app:a": 1})
    await x.delete("/sessions/s", user_id="ada")
    await x.post("/v1/sessions", id="t", user_id="ada")
    await x.delete("/v1/users/ada")
    await x.delete("/v1/users/ada")
    await x.rows("/v1/sessions", "id", "user_id", "version")
    await x.get("/v1/deletions", limit=2)
