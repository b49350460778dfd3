"""Memories: what is stored, merged, replaced and changed, whose they are, and how lists are cut."""

from __future__ import annotations

from typing import Any

from holdfast import Owner
from tests.behaviour.kit import bearer
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange
from tests.behaviour.kit.memory_exchanges import MEMORIES, ask, change, keep, queries, table

SHOWN = ("content", "status", "version", "tags")


@exchange(stores=DATABASES)
async def test_fields(x: Exchange) -> None:
    now = x.served.clock.now
    whole: dict[str, Any] = {
        "type": "project",
        "tags": [" a  b ", "c", "a b"],
        "importance": 0,
        "metadata": {"k": [1, None]},
    }
    (one,) = await keep(x, "  Ada sails.  ", **whole, valid_from=now, valid_until=now + 60_000, agent="guide")
    await keep(x, "Ada rows", importance=1, tags=["Ä", "ä"])
    await x.get(f"{MEMORIES}/{one}")
    for fields in table({"importance": 1}, {"tags": []}, {"type": "user", "metadata": {}}, {"valid_from": None}, {}):
        await change(x, one, **fields)
    for fields in table({"valid_until": now}, {"valid_until": None, "importance": 0.25}, {"importance": 0.25}):
        await change(x, one, **fields)
    await x.rows(MEMORIES, *SHOWN, user_id="ada")


@exchange(stores=DATABASES)
async def test_versions_and_history(x: Exchange) -> None:
    (one,) = await keep(x, "Ada drinks tea", tags=["t"], importance=0.9, metadata={"a": 1})
    (other,) = await keep(x, "Ada rows")
    for version in ('"2"', '"1"', '"1"', '"x"'):
        await change(x, one, expect=version, importance=0.1)
    two = await change(x, one, content="Ada drinks cocoa")
    await change(x, one, content="Ada drinks milk")
    await change(x, one, importance=0.2)
    await change(x, two, content=" Ada drinks cocoa ", importance=0.2)
    three = await change(x, two, expect='"5"', content="Ada drinks milk", tags=["m"])
    for status in (None, "active", "superseded", "quarantined", "rejected"):
        await x.rows(MEMORIES, *SHOWN, "supersedes", "superseded_by", user_id="ada", status=status)
    await x.rows(MEMORIES, "content", user_id="ada", q="drinks rows")
    await x.delete(f"{MEMORIES}/{two}")
    await x.rows(MEMORIES, *SHOWN, "supersedes", "superseded_by", user_id="ada")
    await x.delete(f"{MEMORIES}/{three}")
    await x.delete(f"{MEMORIES}/{three}")
    await x.delete(f"{MEMORIES}/{other}")
    await keep(x, "Ada drinks tea")


PAIRS = (
    ("Ada drinks tea", "ada drank the TEAS!"),
    ("Ada lives in room 12", "Ada lives in room 13"),
    ("From Rome to Paris", "To Rome from Paris"),
    ("Ada is vegan", "Ada isn't vegan"),
    ("Ada can't swim", "Ada cannot swim"),
    ("Ada owes 5 €", "Ada owes 5 $"),
    ("It is -5 outside", "It is 5 outside"),
    ("Ada's boat", "Ada boat"),
    ("The code is ORD-1", "the code is ord-1."),
    ("Ada\u200b likes \u201ctea\u201d", "Ada really likes tea"),
    ("My name is Ada", "My name is Eve"),
    ("My email: a@x.org", "My email is b@x.org"),
    ("My favourite colour is blue", "my favourite colour is now green."),
    ("My favourite colours are blue", "My favourite colours are green"),
    ("The colour of my car is blue", "The colour of my car is red"),
    ("The deadline for the report is Monday", "The deadline for the report is Tuesday"),
    ("The deadline for the report is Monday", "The deadline for the talk is Tuesday"),
    ("My friend's name is Bob", "My friend's name is Tom"),
    ("My phone number is 5", "My phone number is 6"),
    ("My number is 5", "My number is 6"),
    ("My employer is Acme", "My employer is Acme and Bolt"),
    ("My timezone is UTC", "My timezone is usually CET"),
    ("My username is a, b", "My username is c"),
    ("Die Katze heißt Minka", "Die Katze heisst Minka"),
    ("Les chats dorment", "le chat dort"),
    ("她住在基尔", "她住在汉堡"),
    ("the of", "of the"),
    ("🦀", "🦀🦀"),
    ("kelp soup " * 201, "KELP soup\n" * 201),
    ("kelp soup " * 201, "kelp soups " * 201),
    ("kelp soup " * 200, "kelp soups " * 200),
)  # fmt: skip


@exchange()
async def test_which_statements_are_the_same(x: Exchange) -> None:
    for number, pair in enumerate(PAIRS):
        await x.served.native.memories.remember(pair[0], user_id=f"u{number}")
        made = await x.served.native.memories.remember(pair[1], user_id=f"u{number}")
        same = [one.content[:40] for one in made.others]
        x.note(f"{pair[0][:40]} / {pair[1][:40]}", [made.outcome, made.memory.content[:40], same])


@exchange()
async def test_a_merge_unites_and_a_replacement_does_not(x: Exchange) -> None:
    now = x.served.clock.now
    said: dict[str, Any] = {
        "sources": [{"session_id": "s", "seqs": [1, 0]}],
        "metadata": {"a": 1, "b": 1},
        "agent": "guide",
    }
    await keep(x, "Ada drinks tea", tags=["b", "a"], importance=0.3, **said)
    more: dict[str, Any] = {
        "sources": [{"session_id": "s", "seqs": [2, 1]}, {"session_id": "t"}],
        "metadata": {"b": 2, "c": 3},
    }
    await keep(x, "Ada drinks tea.", tags=["c", "a"], importance=0.2, agent="other", type="episodic", **more)
    await keep(x, "ADA drinks tea.", importance=0.9, type="user", origin="assistant")
    await keep(x, "Ada drinks tea", valid_until=now + 9_000_000)
    await keep(x, "Ada drinks the tea", valid_until=now + 9_000_000)
    await keep(x, "Ada drinks tea", valid_from=now, valid_until=now + 9_000_000)
    await x.later(hours=3)
    await keep(x, "Ada drinks tea", tags=["late"])
    await keep(x, "My email is a@x.org", type="episodic")
    await keep(x, "My email is b@x.org")
    await keep(x, "My email is c@x.org")
    await keep(x, "My email is d@x.org", valid_until=now + 90_000_000)
    await keep(x, "My email is e@x.org", user_id="bob")
    await keep(x, "My email is f@x.org", user_id=None, scope="app")
    await keep(x, "My email is g@x.org", user_id=None, scope="app")
    await keep(x, "The deadline is May", "The deadline is June", "The project deadline is June", user_id=None)
    await keep(x, "The project deadline is July", user_id=None, scope="app")
    await keep(x, "The project deadline is August", user_id=None, scope="app")


@exchange(stores=DATABASES)
async def test_named_memories_are_replaced(x: Exchange) -> None:
    one, two, three, four = await keep(x, "Ada rows", "Ada swims", "Ada runs", "Ada sails")
    (bob,) = await keep(x, "Bob rows", user_id="bob")
    for names in ([bob], ["mem_none"], [one, "mem_none"], "x", [one, two, one]):
        await keep(x, "Ada does sports", supersedes=names)
    await keep(x, "Ada runs", supersedes=[four])
    await keep(x, "Ada climbs", supersedes=[three], origin="web")
    await keep(x, "Ada dives", supersedes=[three], origin="assistant")
    await keep(x, "Ada skates", supersedes=[three, three])
    for user in ("ada", "bob"):
        await x.rows(MEMORIES, *SHOWN, "supersedes", "superseded_by", user_id=user)


@exchange()
async def test_similar_memories_are_listed(x: Exchange) -> None:
    for number in range(7):
        await keep(x, f"Ada keeps boat {number} in the harbour")
    await keep(x, "Ada keeps the boat in the harbour")
    await keep(x, "Ada keeps bees", "The harbour", "of the")


OWNERS = table(
    {"user_id": "ada"}, {"user_id": "ad"}, {"user_id": "Ada"}, {"user_id": "ada", "agent": "guide"},
    {"agent": "guide"}, {"agent": "guid"}, {"scope": "agent", "agent": "Guide"}, {"scope": "app"}, {},
    {"scope": "app", "agent": "guide"}, {"scope": "user", "agent": "guide"}, {"user_id": "guide"},
)  # fmt: skip


@exchange(stores=DATABASES)
async def test_owners(x: Exchange) -> None:
    for number, owner in enumerate(OWNERS):
        await ask(x, "POST", MEMORIES, {"content": f"Tea {number}", **owner})
    for owner in OWNERS:
        await x.rows(MEMORIES, "content", **owner)
        await x.rows(MEMORIES, "content", "scope", q="tea", limit=20, **owner)
    for wrong in table({"scope": "agent"}, {"scope": "app", "user_id": "ada"}, {"scope": "agent", "user_id": "a"}):
        await x.post(MEMORIES, content="Tea", **wrong)
        await x.get(MEMORIES, **wrong)
        await x.get(MEMORIES, q="tea", **wrong)
    await keep(x, "Tea", agent="a/b\u0000")


@exchange()
async def test_keys(x: Exchange) -> None:
    ids: dict[str, str] = {}
    of_app = {"scope": "app", "sources": [{"session_id": "s", "user_id": "bob"}]}
    for name, owner in zip(("ada", "bob", "app"), table({"user_id": "ada"}, {"user_id": "bob"}, of_app), strict=True):
        (ids[name],) = await keep(x, f"Tea of {name}", **{"user_id": None, **owner})
    (ids["guide"],) = await keep(x, "Tea of guide", user_id=None, agent="guide")
    keys = ({"user_id": "ada", "role": "write"}, {"role": "write"}, {"role": "read"}, {"role": "admin"})
    for number, fields in enumerate(keys):
        x.served.http.headers.update(bearer(await x.served.create_key(**fields)))
        x.note("key", fields)
        for one in ids.values():
            await ask(x, "GET", f"{MEMORIES}/{one}", None)
            await change(x, one, importance=number / 10)
        ids["ada"] = await change(x, ids["ada"], content=f"Tea number {number}") or ids["ada"]
        for query in queries("", "scope=app", "user_id=bob", "agent=guide", "scope=agent&agent=guide"):
            await x.rows(MEMORIES, "content", **query)
            await x.rows(MEMORIES, "content", q="tea", **query)
        for owner in queries("", "user_id=bob", "scope=app", "agent=guide"):
            for origin in (None, "user", "summary"):
                await keep(x, f"{number}{origin}{len(owner)}", origin=origin, **{"user_id": None, **owner})
        for user in ("ada", "bob"):
            await keep(x, "Said", sources=[{"session_id": "s"}, {"session_id": "s", "user_id": user}])
        await x.delete(MEMORIES, source_session="s", user_id="bob")
        await x.delete(f"{MEMORIES}/{ids['bob']}")


@exchange(stores=DATABASES)
async def test_lists_and_pages(x: Exchange) -> None:
    kinds = ("semantic", "project", "semantic", "user", "project", "semantic", "project")
    ids = [
        (await keep(x, f"Fact {number}", type=kind, tags=["x", "y"][: number % 3], agent=["a", "b"][number % 2]))[0]
        for number, kind in enumerate(kinds)
    ]
    (foreign,) = await keep(x, "Fact", user_id="bob")
    await change(x, ids[2], content="Fact two")
    for order in ("asc", "desc"):
        for limit in (1, 3, 7, 8, 9):
            await x.rows(MEMORIES, "content", user_id="ada", order=order, limit=limit)
        for after in (ids[0], ids[3], ids[6], foreign, "mem_none"):
            await x.rows(MEMORIES, "content", user_id="ada", order=order, limit=3, after=after)
        for narrow in queries("type=project", "tag=x", "tag=y", "tag=X", "agent=a", "status=active"):
            for limit in (2, 20):
                await x.rows(MEMORIES, "content", user_id="ada", order=order, limit=limit, **narrow)
        await x.rows(MEMORIES, "content", user_id="ada", order=order, type="semantic", tag="x", agent="a")
    for wrong in queries("limit=0", "limit=1001", "mode=keyword", "min_score=0.5", "order=up", "status=x"):
        await x.get(MEMORIES, user_id="ada", **wrong)
    for options in table({"limit": 0}, {"limit": 1000}, {"limit": 1001}, {"tags": ["x", "y"]}, {"tags": ["y", "z"]}):
        page = x.served.native.memories.page(Owner("user", "ada"), **options)
        await x.attempt(f"a page of {options}", page, lambda found: len(found.memories))
