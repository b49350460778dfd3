"""Deletion: everything of a session or a user goes, nothing of others does, a receipt counts it, and the journal remembers it."""

from __future__ import annotations

from typing import Any

from tests.behaviour.kit import assistant, user
from tests.behaviour.kit.data import Files, Records, State
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange

OWNERS = ("ada", "adam", "Ada")


async def fill(x: Exchange, name: str, owner: str) -> None:
    """Make a session that has something of everything, without writing that down."""
    x.served.clock.now += 1000
    hf = x.served.rest
    said = [user(f"My parcel {name} of {owner} is orange."), assistant("Noted."), user("Thanks.")]
    session = await hf.given(name, *said, user=owner, metadata={"a": 1})
    await session.replace(2, user("Thank you."))
    await State(hf, name, owner).set(**{"a": 1, "b": 2, "user:theme": "dark", f"user:{name}": 1, f"app:{owner}": 1})
    await Files(session).save("a.txt", "12345678")
    await Files(session).save("a.txt", "123456789")
    await Files(session).save(f"user:{name}.txt", "1234")
    await Records(hf, "r", user=owner, session=name).put("k", 1)
    await Records(hf, "r", user=owner).put(name, 1)
    await hf.remember(f"Fact {name} of {owner}", user=owner)
    await x.settle()


async def show(x: Exchange) -> None:
    """Write down what is left of everybody."""
    await x.rows("/v1/sessions", "id", "user_id", "message_count", "version", limit=100)
    for owner in OWNERS:
        found: dict[str, Any] = {}
        for name, path, key in (
            ("memories", "/v1/memories", "content"),
            ("search", "/v1/search?q=orange", "session_id"),
        ):
            answer = await x.served.http.get(f"{path}{'&' if '?' in path else '?'}user_id={owner}")
            found[name] = sorted(row[key] for row in answer.json().get("data", []))
        found["state"] = (await x.served.http.get(f"/v1/state?user_id={owner}")).json()
        x.note(owner, found)
    x.note("app", (await x.served.http.get("/v1/state?scope=tenant")).json())


async def show_journal(x: Exchange, **query: Any) -> None:
    answer = (await x.served.http.get("/v1/deletions", params=query)).json()
    rows = [[row["kind"], row["deleted_at"], row["receipt"]["sessions"], row.get("key_id")] for row in answer["data"]]
    x.note(f"journal {query}", [*rows, answer["has_more"]])


async def delete_all(x: Exchange) -> None:
    for owner in OWNERS:
        await fill(x, "s", owner)
    for name in ("t", "s2", "kept"):
        await fill(x, name, "ada")
    await show(x)
    await x.served.http.post("/v1/sessions/t/fork?user_id=ada", json={"id": "fork", "at_turn": 1})
    for path in ("s?user_id=ada", "s?user_id=ada", "s?user_id=eve", "t", "fork?user_id=ada"):
        await x.delete(f"/v1/sessions/{path}")
        await show(x)
    await fill(x, "s", "ada")
    await x.delete("/v1/users/ada")
    await show(x)
    await x.delete("/v1/users/ada")
    await x.delete("/v1/users/nobody")
    await fill(x, "again", "ada")
    await show(x)
    for query in (
        {}, {"limit": 2}, {"user_id": "ada"}, {"user_id": "adam"}, {"user_id": "ada", "session_id": "s"}, {"user_id": "ada", "session_id": "S"},
        {"user_id": "nobody"}, {"user_id": "Ada", "session_id": "s"}, {"user_id": "ada", "limit": 1},
    ):  # fmt: skip
        await show_journal(x, **query)
    await x.get("/v1/deletions", session_id="s")


@exchange((), stores=DATABASES)
async def test_sessions_and_users_are_deleted(x: Exchange) -> None:
    await delete_all(x)


@exchange((), "hooks: {webhooks: [{url: $HOOK, secret: s, events: [delete]}]}", stores=["file"])
async def test_sessions_and_users_are_deleted_while_hooks_listen(x: Exchange) -> None:
    await delete_all(x)
