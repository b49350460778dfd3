"""Ends of sessions by time and by number: what is seen of them, and what opens sessions again.

No ttl is shorter than some minutes, because a server sweeps by its own clock after a quarter of it.
"""

from __future__ import annotations

from typing import Any

from tests.behaviour.kit import gateway, user
from tests.behaviour.kit.exchanges import Exchange, exchange

ON_DISK = ("file", "postgres", "mysql")
HOUR = 3_600_000


async def add(x: Exchange, name: str, owner: str = "default", **fields: Any) -> None:
    """Make a session with a message, without writing that down."""
    x.served.clock.now += 1000
    await x.served.rest.given(name, user("Hi."), user=owner, **fields)


async def say(x: Exchange, name: str, owner: str = "default", text: str = "Hi.", **fields: Any) -> Any:
    return await x.post(f"/v1/sessions/{name}/messages?user_id={owner}", messages=[user(text)], **fields)


async def show(x: Exchange, *more: str, at: int | None = None, **query: Any) -> None:
    """List sessions, at a time in milliseconds."""
    if at is not None:
        x.served.clock.now = at - 1000
    await x.rows("/v1/sessions", "id", "user_id", "status", "end_reason", "ended_at", "version", *more, **query)


async def preview(x: Exchange) -> None:
    x.note("what a sweep would do", (await x.served.http.get("/v1/status")).json()["retention"])


async def end_by_time(x: Exchange) -> None:
    for name, owner, fields in (
        ("own", "ada", {"ttl": 600_000}), ("own", "bob", {"ttl": 300_000}), ("never", "ada", {"ttl": 0}),
        ("late", "ada", {"ttl": 7_200_000}), ("usual", "ada", {})
    ):  # fmt: skip
        await add(x, name, owner, **fields)
    start = x.served.clock.now
    await show(x, "ttl", at=start + 300_000)
    for moment in (start + HOUR - 1, start + HOUR):
        await show(x, at=moment)
        await show(x, user_id="ada", status="active")
        await show(x, user_id="ada", status="closed")
    await x.get("/v1/sessions/usual/info", user_id="ada")
    await x.get("/v1/sessions/own/info")
    await x.later(hours=10)
    await show(x)
    await say(x, "usual", "ada")
    await say(x, "own", "bob")
    await show(x)


@exchange((), "sessions: {ttl: 1h}", stores=ON_DISK)
async def test_sessions_on_disk_close_at_the_millisecond(x: Exchange) -> None:
    await end_by_time(x)


@exchange((), "sessions: {ttl: 1h}")
async def test_sessions_in_memory_go_at_the_millisecond(x: Exchange) -> None:
    await end_by_time(x)
    for number in range(150):
        await x.served.native.create(f"many{number}", user_id="many")
    x.served.clock.now += HOUR
    await show(x, user_id="many", limit=2)


async def use_what_has_ended(x: Exchange) -> None:
    """Each request meets an expired session that nobody has closed yet."""
    base = "/v1/sessions/s"
    one = {"messages": [user("Two.")]}
    for method, path, body, *headers in (
        ("GET", "/info", None), ("GET", "/messages", None), ("GET", "", None), ("GET", "/state", None), ("GET", "/calls", None),
        ("GET", "/artifacts", None), ("POST", "/context", {}), ("POST", "/context", {"touch": False}),
        ("PATCH", "", {"metadata": {"a": 1}}), ("PATCH", "/state", {"k": 1}), ("PATCH", "/messages/0", {"pinned": True}),
        ("POST", "/messages", one), ("POST", "/messages", one, {"if-match": '"2"'}), ("POST", "/messages", one, {"if-match": '"1"'}),
        ("POST", "/messages", one, {"idempotency-key": "a"}), ("PATCH", "", {"metadata": {"a": 1}}, {"if-match": '"1"'}),
        ("PATCH", "", {"metadata": {"a": 1}}, {"if-match": '"2"'}), ("PATCH", "", {"ttl": 9 * HOUR}),
        ("PUT", "", {"messages": [user("Other.")]}), ("PUT", "?replace=true", {"messages": [user("Other.")]}),
        ("POST", "/fork", {"id": "f"}), ("POST", "/move", {"id": "m"}), ("POST", "/close", None), ("POST", "", {"id": "s"}),
        ("DELETE", "", None)
    ):  # fmt: skip
        await add(x, "s")
        x.served.clock.now += HOUR
        await x.send(
            method,
            "/v1/sessions" if body == {"id": "s"} else base + path,
            body,
            headers=headers[0] if headers else None,
        )
        await show(x)
        for name in ("s", "f", "m"):
            await x.served.http.delete(f"/v1/sessions/{name}")


@exchange((), "sessions: {ttl: 1h}", stores=("file", "postgres"))
async def test_what_requests_do_to_an_expired_session_on_disk(x: Exchange) -> None:
    await use_what_has_ended(x)


@exchange((), "sessions: {ttl: 1h}")
async def test_what_requests_do_to_an_expired_session_in_memory(x: Exchange) -> None:
    await use_what_has_ended(x)


@exchange(["Yes."] * 9, "sessions: {ttl: 1h}", stores=["file"])
async def test_turns_and_previews_prolong_and_reading_does_not(x: Exchange) -> None:
    """The use is noted at most each hundredth of the ttl: 36 s."""
    for name in ("turn", "preview", "twice", "past", "untouched", "explain", "read", "state"):
        await add(x, name)
    await say(x, "turn", text="Go.")
    start = x.served.clock.now

    async def use_all(at: int) -> None:
        x.served.clock.now = at
        await x.post("/v1/chat/completions", session_id="turn", messages=[user("Go on.")])
        x.served.clock.now = at
        for name, body in (("preview", {}), ("twice", {}), ("past", {"at_turn": 0}), ("untouched", {"touch": False})):
            await x.served.http.post(f"/v1/sessions/{name}/context", json=body)
        for path in ("explain/explain", "read", "read/messages", "read/info", "read/state", "read/history"):
            await x.served.http.get(f"/v1/sessions/{path}")
        await x.served.http.patch("/v1/sessions/state/state", json={"a": at})

    await use_all(start + HOUR - 90_000)
    for passed in (35_999, 36_000):
        x.served.clock.now = start + HOUR - 90_000 + passed
        await x.served.http.post("/v1/sessions/twice/context", json={})
        await show(x, "accessed_at", "updated_at", at=x.served.clock.now + 1000)
    await show(x, at=start + HOUR)
    await show(x, at=start + 2 * HOUR - 90_000)
    await show(x, at=start + 2 * HOUR - 90_000 + 36_000)


@exchange((), "sessions: {ttl: 1h}", stores=ON_DISK)
async def test_a_ttl_that_changes_and_a_session_that_opens_again(x: Exchange) -> None:
    await add(x, "s", "ada")
    await add(x, "s", "bob")
    await x.patch("/v1/sessions/s?user_id=ada", ttl=600_000)
    x.served.clock.now += 600_000
    await show(x)
    await x.patch("/v1/sessions/s?user_id=ada", ttl=3 * HOUR)
    await show(x)
    await say(x, "s", "ada", "Again.")
    x.served.clock.now += 2 * HOUR
    await show(x)
    await x.later(hours=2)
    await show(x)
    await x.patch("/v1/sessions/s?user_id=bob", ttl=0)
    await say(x, "s", "bob", "For ever.")
    await x.later(days=300)
    await x.get("/v1/sessions/s/info", user_id="bob")
    await x.patch("/v1/sessions/s?user_id=bob", ttl=None)
    await show(x)
    await x.post("/v1/sessions/s/close?user_id=bob")
    await x.post("/v1/sessions/s/close?user_id=bob")
    await x.post("/v1/sessions/s/close")
    await show(x)


async def fill_beyond_the_cap(x: Exchange) -> None:
    made: tuple[tuple[str, Any], ...] = (("short", {"ttl": 300_000}), ("idle", {}), ("used", {}), ("last", {}))
    for name, fields in made:
        await add(x, name, **fields)
        x.served.clock.now += 100_000
    await show(x)
    await say(x, "idle", text="Still here.")
    await add(x, "fifth")
    await show(x)
    await add(x, "idle", "ada")
    await show(x)
    await say(x, "last", text="No one ends when I speak.")
    await x.post("/v1/sessions/last/fork", id="fork")
    await show(x)
    await say(x, "used", text="I am back.")
    await show(x)
    await x.post("/v1/sessions/fork/close")
    await add(x, "seventh")
    await show(x)
    await x.put("/v1/sessions/brought?user_id=bob", messages=[user("From elsewhere.")])
    await show(x)
    await preview(x)


@exchange((), "sessions: {max_sessions: 3, ttl: 10h}", stores=ON_DISK)
async def test_the_cap_closes_the_expired_then_the_longest_idle(x: Exchange) -> None:
    await fill_beyond_the_cap(x)


@exchange((), "sessions: {max_sessions: 3, ttl: 10h}")
async def test_the_cap_in_memory_removes_the_longest_idle(x: Exchange) -> None:
    await fill_beyond_the_cap(x)


@exchange((), "sessions: {max_sessions: 2, ttl: 1h}", stores=ON_DISK)
async def test_two_servers_of_one_database_share_the_cap(x: Exchange) -> None:
    await add(x, "a")
    async with gateway((), "sessions: {max_sessions: 2, ttl: 1h}", store=x.served.store, clock=x.served.clock) as other:
        for name in ("b", "c"):
            x.served.clock.now += 1000
            await other.rest.given(name, user("Hi."))
        await show(x)
        await add(x, "d")
        await show(x)
        x.served.clock.now += 59_000
        await add(x, "e")
        await show(x)
        await other.rest.given("f", user("Hi."))
        await show(x)
        await x.later(seconds=1)
        await show(x)
        x.served.clock.now += HOUR
        await other.rest.session("e").append(user("I open again elsewhere."))
        await show(x)
        await other.native.sweep()
        await show(x)
