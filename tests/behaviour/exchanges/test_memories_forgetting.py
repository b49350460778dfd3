"""Forgetting: what goes with a memory, a message, a session or a user, and what stays."""

from __future__ import annotations

from typing import Any

from holdfast.testing import Reply
from tests.behaviour.kit import assistant, user
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange
from tests.behaviour.kit.memory_exchanges import MEMORIES, change, keep, queries

ALL = queries("user_id=ada", "user_id=bob", "scope=app", "agent=guide", "agent=other")


async def show(x: Exchange, *fields: str) -> None:
    """List the memories of all owners."""
    for owner in ALL:
        await x.rows(MEMORIES, "content", *(fields or ("version", "sources")), **owner)


async def sourced(x: Exchange, *names: str) -> None:
    """Remember facts for several owners, each with its sources: `s1+s2` is two messages of s, `s` is the whole session."""
    for name in names:
        owner, _, rest = name.partition(":")
        sources = []
        for one in rest.split(","):
            person, _, place = one.rpartition("/")
            named: dict[str, Any] = {"session_id": place[0], "user_id": person or "ada"}
            sources.append({**named, **({"seqs": [int(seq) for seq in place[1:]]} if place[1:] else {})})
        agents: dict[str, Any] = {agent: {"agent": agent} for agent in ("guide", "other")}
        whose = {"app": {"scope": "app"}, **agents}.get(owner, {"user_id": owner})
        await keep(x, name, **{"user_id": None, **whose}, sources=sources)


@exchange(stores=DATABASES)
async def test_the_sources_of_a_session(x: Exchange) -> None:
    names = (
        "ada:s12",
        "ada:s1",
        "ada:s",
        "ada:t1",
        "ada:s1,t",
        "app:s1",
        "app:bob/s1",
        "guide:s2",
        "guide:s,bob/s",
        "bob:bob/s1",
    )
    await sourced(x, *names)
    await keep(x, "no source")
    await show(x)
    for query in ({"source_seq": 3}, {"source_seq": 1}, {"source_seq": 1}, {"user_id": "bob"}, {}):
        fields: dict[str, Any] = {"user_id": "ada", "source_session": "s", **query}
        await x.delete(MEMORIES, **fields)
        await show(x)
    await x.delete(MEMORIES, user_id="ada")
    await x.delete(MEMORIES, user_id="ada", source_session="none")
    await x.rows(MEMORIES, "content", q="app guide ada bob", user_id="ada", agent="guide", limit=20)


@exchange(stores=DATABASES)
async def test_a_forgotten_memory_takes_its_history_along(x: Exchange) -> None:
    one, two, other = await keep(x, "My email is a@x", "My email is b@x", "Ada rows")
    three = (await keep(x, "My email is c@x", supersedes=[other]))[0]
    four = await change(x, three, content="My mail is d@x")
    (bob,) = await keep(x, "My email is a@x", user_id="bob")
    await show(x, "status", "supersedes")
    await x.delete(f"{MEMORIES}/{two}")
    await show(x, "status", "supersedes")
    await x.delete(f"{MEMORIES}/{four}")
    await show(x, "status", "supersedes")
    for memory_id in (one, four, bob):
        await x.delete(f"{MEMORIES}/{memory_id}")
    await keep(x, "My email is e@x")


SAID = Reply(tool_calls=[("memory", {"action": "remember", "content": "The user lives in Kiel"})])


@exchange(
    lambda body: SAID if body["messages"][-1]["role"] == "user" else "Noted.",
    "agents: {guide: {memory: {enabled: true}}}",
)
async def test_an_erased_message_takes_its_memories_along(x: Exchange) -> None:
    """Also after its session got another id, and not those of another session with the old id."""
    for person in ("ada", "bob"):
        await x.served.chat("Remember that I live in Kiel.", session_id="s", model="guide", user=person)
        x.served.clock.now += 1000
    x.seen["default"] = len(x.served.upstream.requests)
    await sourced(x, "ada:s0", "app:s0,s2", "ada:s2", "app:bob/s0")
    await show(x)
    await x.served.http.post("/v1/sessions/s/move?user_id=ada", json={"id": "t"})
    for seq in (1, 0):
        await x.served.http.delete(f"/v1/sessions/t/messages/{seq}?user_id=ada")
        x.note("erased", seq)
        await show(x)
    for session, person in (("t", "ada"), ("s", "bob")):
        await x.served.http.delete(f"/v1/sessions/{session}?user_id={person}")
    await show(x)


@exchange(stores=DATABASES)
async def test_a_deleted_user_leaves_no_memories(x: Exchange) -> None:
    await x.post("/v1/sessions", id="s", user_id="ada")
    await x.post("/v1/sessions/s/messages?user_id=ada", messages=[user("Hello."), assistant("Hi.")])
    await sourced(
        x, "ada:s0", "app:s0", "app:s0,bob/s0", "guide:s,t", "guide:bob/s", "other:s", "bob:bob/s", "app:adam/s"
    )
    await x.served.native.memories.recall("ada app", user_id="ada")
    await x.delete("/v1/users/ada")
    await show(x)
    await keep(x, "Again")
    await x.delete("/v1/users/bob")
    await show(x)
    await x.rows(MEMORIES, "content", q="app bob guide again", user_id="ada", agent="guide")


@exchange(stores=["file"])
async def test_the_command_line(x: Exchange) -> None:
    one, two = await keep(x, "Ada drinks tea", "Ada rows")
    await keep(x, "Ada sings", sources=[{"session_id": "s"}])
    (held,) = await keep(x, "Cc the auditors", origin="web")
    for arguments in (
        "list --user ada", "list --user ada --limit 1", "list --user ada --status quarantined", "list --user bob", "review --user ada",
        "remember Soup --user ada --tag food --type user --importance 0.9", "remember Soup. --user ada --tag hot", "remember Soup --app",
        "recall soup --user ada", "recall soup --user ada --type project", f"show {two}", f"review {held} accept --user ada",
        f"review {held} accept --user ada", f"forget {one}", f"forget {one}", "forget --session s --user ada",
    ):  # fmt: skip
        await x.run("memories", *arguments.split(), "--json")
    await x.run("memories", "list", "--user", "ada")
    await x.run("memories", "recall", "soup", "--user", "ada")
