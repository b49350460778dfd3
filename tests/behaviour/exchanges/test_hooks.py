"""Hooks of sessions that end: reasons, order, calls that fail, calls that nobody takes, transcripts."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from holdfast.errors import HookFailed
from tests.behaviour.kit import assistant, calls, gateway, result, system, user
from tests.behaviour.kit.exchanges import Exchange, exchange

HOUR = 3_600_000
METRICS = ("holdfast_sessions_ended_total", "holdfast_hook_deliveries_total", "holdfast_endings_pending")


async def add(x: Exchange, name: str, owner: str = "default", *said: Any, **fields: Any) -> None:
    """Make a session without writing that down."""
    x.served.clock.now += 1000
    await x.served.rest.given(name, *(said or (user("Hi."),)), user=owner, **fields)
    await x.settle()


async def count(x: Exchange) -> None:
    lines = (await x.served.http.get("/metrics")).text.splitlines()
    x.note("metrics", sorted(re.sub(r"webhook\.\w+", "webhook", line) for line in lines if line.startswith(METRICS)))


def listen(x: Exchange, name: str, *errors: BaseException | None, **how: Any) -> Callable[[Any, str], Any]:
    """Register a hook. Its calls are written down like those of a webhook; the first ones fail with the errors.

    `reads=False` leaves out what differs if a write may open the session again before the hook reads it.
    """
    left = [*errors]

    async def hear(session: Any, reason: str) -> None:
        error = left.pop(0) if left else None
        told = {"hook": name, "session_id": session.id, "user_id": session.user_id, "tenant": session.tenant}
        reads = how.get("reads", True)
        told |= {"reason": reason, "status": session.session.status if reads else None, "ended_at": session.ended_at}
        told |= {"error": error, "attempt": session.attempt, "delivery_id": session.delivery_id}
        if reads:
            told["entries"] = [[one.seq, one.message.text] async for one in session.entries(**how.get("entries", {}))]
        x.hook.bodies.append(json.dumps({"payload": told}, default=repr).encode())
        if error:
            raise error

    x.served.native.on_expire(hear, name=name, **({"reasons": how["reasons"]} if "reasons" in how else {}))
    return hear


@asynccontextmanager
async def another(x: Exchange, *config: str, **settings: Any) -> AsyncIterator[Exchange]:
    """Another server of the same database, which writes into the same text."""
    settings = {"store": x.served.store, "clock": x.served.clock, **settings}
    async with gateway((), *config, **settings) as served:
        yield Exchange(served, x.hook, x.lines, x.seen)
        x.lines.append("~ the other server stops")
    x.lines.append("~ it has stopped")


async def end_in_each_way(x: Exchange) -> None:
    listen(x, "all")
    listen(x, "some", reasons=["delete", "cap"])
    listen(x, "retired", reasons=["close"], entries={"retired": True, "start": 1})
    said = [
        system("Be kind."),
        user("Wo? 北京", name="Ada"),
        calls(("c", "find", {})),
        result("c", "There."),
        assistant("Da."),
    ]
    await add(x, "by-ttl", "ada", *said, metadata={"channel": 7, "labels": [1]})
    await add(x, "by-close", "ada", *said, user("More?"), metadata={"channel": "room", "labels": {"a": "b"}, "x": 1})
    await x.served.rest.session("by-close", "ada").replace(4, assistant("Doch."))
    await add(x, "by-close", "bob")
    await x.later(minutes=60)
    for name in ("idle", "by-delete", "usual", "edited", "last"):
        await add(
            x, name, "default", user("Hi."), assistant("Ho."), agent="helper", ttl=0 if name == "by-delete" else None
        )
    await x.served.rest.session("edited").replace(1, assistant("Ha."))
    await x.delete("/v1/sessions/by-delete")
    await x.delete("/v1/sessions/by-delete")
    await x.post("/v1/sessions/edited/close")
    await x.post("/v1/sessions/edited/close")
    await x.later(hours=2)
    await x.later(hours=2)
    await x.rows("/v1/sessions", "id", "user_id", "status", "end_reason")
    await count(x)


WEBHOOKS = "hooks: {webhooks: [{url: $HOOK, secret: s}, {url: $HOOK/two, secret: t, events: [cap, shutdown]}]}"
RULES = "sessions: {ttl: 1h, max_sessions: 4}\nagents: {helper: {}}"


@exchange((), WEBHOOKS, RULES, stores=["file"])
async def test_ends_on_disk(x: Exchange) -> None:
    await end_in_each_way(x)


@exchange((), WEBHOOKS, RULES)
async def test_ends_in_memory(x: Exchange) -> None:
    await end_in_each_way(x)


@exchange((), "sessions: {ttl: 1h}", stores=["file", "mysql"])
async def test_calls_that_fail_come_again_after_growing_pauses(x: Exchange) -> None:
    """A pause is up to a fifth longer than it should be, so that servers do not call at the same moment."""
    fails = [
        ValueError("no\n  way"),
        HookFailed("busy", retry_after=100),
        HookFailed("busy", retry_after=9_999),
        OSError(),
    ]
    listen(x, "first", *fails)
    listen(x, "second", reasons=["close"])
    listen(x, "third", None, RuntimeError("other"))
    await add(x, "s")
    await x.post("/v1/sessions/s/close")
    for pause in (999, 202, 100_000, HOUR - 2, 2, 119_999, 24_002, 599_999):
        await x.later(ms=pause)
    await add(x, "t")
    await x.later(hours=1)
    await x.later(ms=1_201)
    await count(x)


@exchange((), stores=["file"])
async def test_a_hook_that_never_succeeds_is_given_up_after_a_week(x: Exchange) -> None:
    heard: list[int] = []

    async def fail(session: Any, reason: str) -> None:
        heard.append(session.attempt)
        raise ValueError(reason)

    x.served.native.on_expire(fail, name="fail")
    listen(x, "never", *[ValueError("no")] * 2, reasons=["close"])
    for name in ("s", "t"):
        await add(x, name)
    await x.post("/v1/sessions/s/close")
    await x.delete("/v1/sessions/t")
    for number in range(1, 180):
        x.served.clock.now += HOUR * 6 // 5
        await x.served.native.sweep()
        if number in (172, 173, 174, 179):
            x.note("calls", [len(heard), max(heard)])
            await count(x)


@exchange((), stores=["file"])
async def test_calls_of_a_hook_that_is_not_configured_wait_a_day(x: Exchange) -> None:
    """The day begins with the end, or with the start of the server if that was later."""
    async with another(x) as y:
        listen(y, "kept", ValueError("no"))
        listen(y, "gone", ValueError("no"))
        for name in ("closed", "deleted"):
            await add(y, name)
        await y.post("/v1/sessions/closed/close")
        await y.delete("/v1/sessions/deleted")
    await x.later(hours=5)
    listen(x, "kept")
    for hours in (18.9, 0.2, 24, 0.2):
        await x.later(hours=hours)
        await count(x)
    async with another(x) as y:
        listen(y, "kept")
        listen(y, "gone")
        await y.later(days=1)
        await count(y)


@exchange((), stores=["file"])
async def test_the_server_that_knows_a_hook_calls_it_after_a_restart(x: Exchange) -> None:
    async with another(x) as y:
        listen(y, "archive", ValueError("no"))
        await add(y, "s", "ada")
        await add(y, "t", "ada")
        await y.post("/v1/sessions/s/close")
    listen(x, "archive")
    await x.post("/v1/sessions/t/close")
    await x.rows("/v1/sessions", "id", "status", "version")
    await x.later(seconds=90)
    await x.later(hours=1)


@exchange((), "sessions: {ttl: 1h}", stores=["file"])
async def test_what_comes_between_an_end_and_its_calls(x: Exchange) -> None:
    """Deleted, replaced, opened, moved; and a new session with the name of one that hooks have not got yet."""
    listen(x, "first", *[HookFailed("later", retry_after=60)] * 6)
    for name in ("deleted", "replaced", "opened", "moved", "again"):
        await add(x, name, "ada", user(f"I am {name}."))
    for name in ("deleted", "replaced", "opened", "moved"):
        await x.served.http.post(f"/v1/sessions/{name}/close", params={"user_id": "ada"})
        await x.settle()
    await x.delete("/v1/sessions/deleted", user_id="ada")
    await x.delete("/v1/sessions/again", user_id="ada")
    await x.send("GET", "/v1/sessions/again", None, {"user_id": "ada"})
    await add(x, "again", "ada", user("I am new."))
    await x.send("PUT", "/v1/sessions/replaced", {"messages": [user("Other.")], "user_id": "ada"}, {"user_id": "ada"})
    await x.served.rest.session("opened", "ada").append(user("More."))
    await x.send("POST", "/v1/sessions/moved/move", {"user_id": "bob", "id": "elsewhere"}, {"user_id": "ada"})
    await x.rows("/v1/sessions", "id", "user_id", "status", "message_count")
    await x.later(minutes=2)
    await count(x)
    await x.rows("/v1/sessions", "id", "user_id", "status", "message_count")
    await x.rows("/v1/search", "session_id", "content", q="I am", user_id="ada")


@exchange((), "sessions: {ttl: 1h}", stores=["file"])
async def test_an_expired_session_is_reported_by_the_request_that_meets_it(x: Exchange) -> None:
    listen(x, "first", reads=False)
    for name in ("write", "field", "state", "close", "delete", "replaced", "same", "pin", "read", "fork"):
        await add(x, name, "ada")
    x.served.clock.now += HOUR
    same = (await x.served.http.get("/v1/sessions/same?user_id=ada")).json()
    for method, path, body in (
        ("POST", "write/messages", {"messages": [user("Two.")]}),
        ("PATCH", "field", {"metadata": {"a": 1}}),
        ("PATCH", "state/state", {"a": 1}),
        ("POST", "close/close", None),
        ("DELETE", "delete", None),
        ("PUT", "replaced?replace=false", {"messages": [user("No.")]}),
        ("PUT", "replaced", {"messages": [user("Other.")]}),
        ("PUT", "same", same),
        ("PATCH", "pin/messages/0", {"pinned": True}),
        ("GET", "read", None),
        ("POST", "fork/fork", {"id": "forked"}),
    ):
        url = f"/v1/sessions/{path}{'&' if '?' in path else '?'}user_id=ada"
        answer = await x.served.http.request(method, url, json=body)
        x.lines.append(f"> {method} {path} {answer.status_code}")
        await x.settle()
    await x.rows("/v1/sessions", "id", "status", "end_reason", "version", "message_count")
    await x.later(ms=1)
    await count(x)


@exchange((), "sessions: {ttl: 1h}", stores=["file"])
async def test_a_server_that_stops_reports_what_it_wrote(x: Exchange) -> None:
    for name in ("before", "read", "expired"):
        await add(x, name)
    async with another(x, "sessions: {ttl: 1h}") as y:
        listen(y, "stop", reasons=["shutdown"])
        listen(y, "usual")
        for name in ("written", "closed", "deleted", "old", "opened"):
            await add(y, name, ttl=HOUR if name != "old" else 300_000)
        await add(y, "empty", metadata={})
        await y.served.http.get("/v1/sessions/read")
        await y.post("/v1/sessions/closed/close")
        await y.delete("/v1/sessions/deleted")
        await y.post("/v1/sessions/opened/close")
        await y.served.rest.session("written").append(user("Again."))
        await y.served.rest.session("opened").append(user("Again."))
        y.served.clock.now += 300_000
    await x.rows("/v1/sessions", "id", "status", "end_reason")
    await x.later(hours=2)


# -- transcripts -----------------------------------------------------------------------


def show(x: Exchange, folder: str) -> None:
    """Write down all files of transcripts: names, the header, and each message in short."""
    for path in sorted(Path(folder).iterdir()):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        short = [
            [one.get("seq"), one.get("content"), one.get("retired_by"), one.get("session_id")] for one in lines[1:]
        ]
        x.note(path.name, [lines[0], short])


@exchange((), stores=["file"])
async def test_transcripts_follow_sessions(x: Exchange) -> None:
    with TemporaryDirectory() as folder:
        rules = (f"hooks: {{transcripts_dir: {json.dumps(folder)}}}", "sessions: {ttl: 1h, max_sessions: 6}")
        async with another(x, *rules) as y:
            await add(y, "a", "default", user("One."), assistant("Two."), user("Three."), metadata={"k": 1}, ttl=0)
            await y.served.rest.session("a").replace(2, user("Drei."))
            await y.served.http.post("/v1/sessions/a/rewind", json={"turn": 0})
            await y.post("/v1/sessions/a/fork", id="b", at_turn=0)
            for name, owner in (
                ("../Etc", "ada"),
                ("S", "default"),
                ("s", "default"),
                ("s", "ada"),
                ("x" * 121, "default"),
            ):
                await add(y, name, owner, ttl=7 * HOUR)
            await y.served.http.patch("/v1/sessions/s/state?user_id=ada", json={"late": 1})
            await y.settle()
        show(x, folder)
        async with another(x, *rules) as y:
            await y.served.http.post("/v1/sessions/s/close?user_id=ada")
            await y.served.rest.session("s", "ada").append(user("After the end."))
            await y.served.rest.session("a").erase(0)
            await y.send("PUT", "/v1/sessions/b", {"messages": [user("Other.")]})
            await y.delete("/v1/sessions/S")
            await y.post("/v1/sessions/s/move?user_id=default", id="z", user_id="bob")
            await y.later(minutes=1)
        show(x, folder)
        async with another(x, *rules) as y:
            await y.delete("/v1/users/ada")
            await y.later(hours=10)
        show(x, folder)


@exchange((), "sessions: {ttl: 1h}")
async def test_a_transcript_of_an_earlier_session_of_the_name_stays(x: Exchange) -> None:
    with TemporaryDirectory() as folder:
        rules = (f"hooks: {{transcripts_dir: {json.dumps(folder)}}}", "sessions: {ttl: 1h}")
        async with another(x, *rules, store="memory") as y:
            for text in ("Old.", "Newer.", "Newest."):
                await add(y, "s", "default", user(text))
                await add(y, "s", "ada", user(text))
                await y.later(hours=1)
            show(x, folder)
            await add(y, "s", "default", user("Now."))
            await y.delete("/v1/sessions/s")
            show(x, folder)
