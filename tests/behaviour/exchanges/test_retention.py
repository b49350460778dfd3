"""Retention of closed sessions, pruning, and copies of the database."""

from __future__ import annotations

from tests.behaviour.kit import user
from tests.behaviour.kit.exchanges import Exchange, exchange

HOUR = 3_600_000


async def show(x: Exchange) -> None:
    await x.rows("/v1/sessions", "id", "user_id", "status", "end_reason", limit=100)
    rules = (await x.served.http.get("/v1/status")).json()["retention"]
    x.note("a sweep would", {name: rules[name] for name in ("active", "expired", "surplus", "retired")})


async def fill(x: Exchange) -> None:
    for name in ("closed", "changed", "opened", "active", "expired", "pinned"):
        x.served.clock.now += 1000
        await x.served.rest.given(name, user("Hi."), user="ada", ttl=HOUR if name == "expired" else 0)
    for name in ("closed", "changed", "opened", "pinned"):
        await x.served.http.post(f"/v1/sessions/{name}/close")


@exchange(
    (), "storage: {sessions: {retention: 2h}}", "sessions: {max_sessions: 5}", stores=("file", "postgres", "mysql")
)
async def test_closed_sessions_go_after_the_retention(x: Exchange) -> None:
    await fill(x)
    closed = x.served.clock.now
    x.served.clock.now += HOUR
    await x.served.http.patch("/v1/sessions/changed", json={"metadata": {"a": 1}})
    await x.served.http.patch("/v1/sessions/pinned/messages/0", json={"pinned": True})
    await x.served.rest.session("opened", "ada").append(user("Again."))
    past = {
        "created_at": 1,
        "messages": [user("Old.", timestamp=5)],
        "status": "closed",
        "ended_at": 9,
        "end_reason": "close",
    }
    await x.send("PUT", "/v1/sessions/imported", {**past, "user_id": "bob"})
    for moment in (2 * HOUR - 1, 2 * HOUR, 3 * HOUR - 1, 3 * HOUR + 10_000):
        x.served.clock.now = closed + moment - 1000
        await show(x)
        x.served.clock.now -= 1000
        await x.later(seconds=1)
        await show(x)
    rows = (await x.served.http.get("/v1/deletions")).json()["data"]
    x.note("journal", [[row["kind"], row["receipt"]["sessions"], row["receipt"]["messages"]] for row in rows])


@exchange((), stores=["file"])
async def test_old_sessions_are_pruned(x: Exchange) -> None:
    await fill(x)
    await x.served.rest.given("closed", user("Hi."), user="bob", ttl=0)
    await x.served.http.post("/v1/sessions/closed/close?user_id=bob")
    for arguments in (
        ["--older-than", "0s", "--dry-run"], ["--older-than", "40000d"], ["--older-than", "1s", "--user", "bob", "--dry-run", "--json"],
        ["--older-than", "1s", "--status", "any", "--dry-run"], ["--older-than", "soon"], ["--older-than", "-1d"], [],
        ["--older-than", "1s", "--user", "bob"], ["--older-than", "1s", "--status", "active", "--user", "ada", "--json"], ["--older-than", "1s"],
    ):  # fmt: skip
        await x.run("sessions", "prune", *arguments)
        await x.rows("/v1/sessions", "id", "user_id", "status")


@exchange((), stores=["file"])
async def test_the_command_line_closes_and_deletes(x: Exchange) -> None:
    await fill(x)
    await x.served.rest.given("closed", user("Hi."), user="bob", ttl=0)
    for arguments in (
        ["close", "active", "none"], ["close", "active", "active", "closed", "--user", "ada"], ["close", "closed"], ["close", "closed", "--user", "bob", "--json"],
        ["delete", "active", "none", "--yes"], ["delete"], ["delete", "active"], ["delete", "active", "--yes", "--json"], ["delete", "closed", "--yes"],
        ["delete", "closed", "--user", "bob", "--yes"], ["delete", "--user", "nobody", "--yes"], ["delete", "--user", "ada", "--yes", "--json"],
    ):  # fmt: skip
        await x.run("sessions", *arguments, given="n\n")
        await x.rows("/v1/sessions", "id", "user_id", "status")


@exchange((), stores=["file"])
async def test_a_database_is_copied_and_restored(x: Exchange) -> None:
    await fill(x)
    copy = str(x.folder / "copy.db")
    for arguments in (
        ["backup", copy, "--json"],
        ["backup", copy],
        ["backup", copy, "--force"],
        ["restore", str(x.folder / "none.db")],
    ):
        await x.run(*arguments)
    await x.run("restore", copy)
    await x.run("sessions", "verify", "--json")
    await x.run("sessions", "verify", "closed")
    await x.run("sessions", "verify", "none")
