"""Records in the library and through `connect`, their sizes, and what becomes of them."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast import SessionRef
from tests.behaviour.kit import user
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange


def outline(found: Any) -> Any:
    """Return of records their names, values, versions and times, and of anything else what it is."""
    if isinstance(found, dict):
        return {key: outline(one) for key, one in found.items()}
    if hasattr(found, "hits"):
        return [found.mode, [[one.record.key, getattr(one.record, "value", "-"), one.score] for one in found.hits]]
    if hasattr(found, "records"):
        return [[outline(one) for one in found.records], found.has_more]
    if not hasattr(found, "name"):
        return [found.version, found.existed] if hasattr(found, "existed") else found
    value = getattr(found, "value", "-")
    return ["/".join((*found.namespace, found.key)), repr(value) if isinstance(value, bytes) else value, found.version]


async def call_everything(x: Exchange, records: Any) -> None:
    """Call each method of a handle of records."""

    async def collect(**options: Any) -> list[str]:
        return [one.key async for one in records.iterate(**options)]

    async def many(*keys: str) -> Any:
        return await records.get_many(keys)

    below = records.below("x", "y")
    for label, work in {
        "missing": records.get("k"),
        "put": records.put("k", {"a": [1]}),
        "put again": records.put("k", None, expect=0),
        "bytes": below.put("k", b"\0\xff", text="Some blue bytes."),
        "many": records.put_many({"k1": 1, "k2": 2.5, "l": "x"}),
        "get": records.get("k"),
        "get bytes": below.get("k"),
        "get many": many("k2", "none", "k", "k2"),
        "too many": many(*(f"{number}" for number in range(101))),
        "list": records.list("k", limit=2),
        "list after": records.list("k", after="k1"),
        "backwards": records.list(descending=True, limit=2, values=False),
        "nested": records.list(nested=True),
        "both": records.list("k", nested=True),
        "no limit": records.list(limit=0),
        "iterate": collect(),
        "iterate some": collect(prefix="k"),
        "iterate all": collect(nested=True),
        "namespaces": records.namespaces(),
        "namespaces after": records.namespaces(depth=2, after=records.namespace, limit=1),
        "search": below.search("blue"),
        "search none": records.search("blue"),
        "search nested": records.search("blue", nested=True, values=False),
        "search prefix": below.search("blue", prefix="j"),
        "change": records.change([records.make_put("k", 1), below.make_delete("k"), below.make_put("n", 2)]),
        "change twice": records.change([records.make_put("k", 1), records.make_delete("k")]),
        "delete": records.delete("l"),
        "delete again": records.delete("l"),
        "delete expected": records.delete("k", expect=1),
        "empty key": records.get(""),
        "long key": records.put("é" * 256 + "x", 1),
        "no JSON": records.put("k", object()),
        "endless": records.put("k", {"a": [1, float("-inf")]}),
        "half a letter": records.put("k", "\ud800"),
        "negative": records.put("k", 1, expect=-1),
        "no text": records.put("k", 1, text="\n"),
        "no time": records.put("k", 1, ttl="soon"),
        "brief": records.put("brief", 1, ttl=0.0004),
        "clear": records.clear(),
        "left": records.list(nested=True),
        "clear nested": records.clear(nested=True),
        "drop": records.drop(),
    }.items():
        await x.attempt(label, work, outline)


@exchange()
async def test_calls_of_the_library(x: Exchange) -> None:
    async with holdfast.connect(x.served.url) as remote:
        for hf, owner in ((x.served.native, "ada"), (remote, "bob")):
            x.note("library" if owner == "ada" else "connect", owner)
            session: Any = await hf.session("s", user_id=owner)
            handles = (session.records("a"), hf.records(("a", "b/c"), user_id=owner), hf.records("a"))
            for records in handles:
                x.note("records", repr(records))
                await call_everything(x, records)
            await x.attempt("no namespace", hf.records().list(nested=True), outline)
            await x.attempt("no user", hf.records("a", user_id=".").put("k", 1))
            await handles[0].put("k", 1)
            steps = [handles[0].make_put("2", "two", expect=0), handles[0].make_delete("k")]
            for label in ("with a message", "again"):
                await x.attempt(label, session.append(user("Hi."), records=steps), lambda found: found.version)
            await x.attempt("both", handles[0].list(), outline)
            await x.get("/v1/sessions/s/messages", user_id=owner)
            await session.delete()
            again: Any = await hf.session("s", user_id=owner)
            await again.append(user("Again."))
            for label, records in (
                ("old", handles[0]),
                ("new", again.records("a")),
                ("any", hf.records("a", session=again.ref)),
            ):
                await x.attempt(f"{label} list", records.list(), outline)
                await x.attempt(f"{label} put", records.put("1", label))


@exchange()
async def test_sizes(x: Exchange) -> None:
    records: Any = x.served.native.records("a", user_id="ada")
    mib = 1 << 20
    for label, work in {
        "a key": records.put("é" * 256, 1),
        "a text": records.put("t", 1, text="x" * 65_536),
        "a longer text": records.put("u", 1, text="x" * 65_537),
        "a value": records.put("v", b"x" * (32 * mib)),
        "a larger value": records.put("w", b"x" * (32 * mib + 1)),
        "JSON": records.put("w", "x" * (32 * mib - 1)),
        "two": records.put_many({"v": b"x" * 32 * mib, "w": b"x" * 32 * mib}),
        "two and more": records.put_many({"v": b"x" * 32 * mib, "w": b"x" * 32 * mib, "z": b"1"}),
        "list": records.list("v", values=False),
    }.items():
        await x.attempt(label, work, lambda found: outline(found) if isinstance(found, int) else len(found.records))
    for sizes in ((2, 2, 1), (4, 1), (5, 1), (1, 1, 1, 1, 1)):
        await records.drop()
        await records.put_many({f"{at}": b"x" * size * mib for at, size in enumerate(sizes)})
        page = await records.list()
        x.note(f"{sizes}", [[one.key for one in page.records], page.has_more])
        await x.rows("/v1/records", "key", "size", user_id="ada", namespace="a")
        await x.rows("/v1/records", "key", user_id="ada", namespace="a", values=False)
        x.note("all", [one.key async for one in records.iterate()])
        x.note("cleared", await records.clear())
    await records.put_many({f"{number:03}": number for number in range(100)})
    await records.below("b").put_many({f"{number:03}": number for number in range(51)})
    x.note("iterated", [one.value async for one in records.iterate(nested=True)][95:105])
    x.note("cleared", [await records.clear(), await records.clear(nested=True)])


@exchange(["Yes."], stores=["file"])
async def test_what_becomes_of_records(x: Exchange) -> None:
    await x.post("/v1/chat/completions", session_id="s", user_id="ada", messages=[user("Hi.")])
    native, listed = x.served.native, ("id", "value", "version", "created_at", "updated_at", "expires_at")
    records: Any = native.records("a", session=SessionRef("ada", "s"))
    await records.put("json", {"n": None}, text="Blue cars.")
    await records.put("bytes", b"\0", ttl=4000)
    await native.records("a", user_id="ada").put("of", "ada")
    await x.post("/v1/sessions/s/fork", id="f")
    exported = await x.get("/v1/sessions/s", user_id="ada")
    await x.post("/v1/sessions/s/move", user_id="bob", id="m")
    for query in ({"session_id": "f"}, {"session_id": "m"}, {"user_id": "ada"}, {"user_id": "bob"}):
        await x.rows("/v1/records", *listed, **query, nested=True)
    await x.rows("/v1/records", "id", session_id="m", q="blue", nested=True)
    await x.rows("/v1/records", "id", session_id="s", user_id="ada", q="blue", nested=True)
    await native.records("a", session=SessionRef("bob", "m")).put("more", 1)
    await x.send("PUT", "/v1/sessions/s?user_id=cy", exported)
    await x.rows("/v1/records", *listed, session_id="s", user_id="cy", nested=True)
    await x.run("sessions", "delete", "m", "--user", "bob", "--yes")
    await x.attempt("new m", native.session("m", user_id="bob"), lambda session: session.id)
    await x.attempt("no records", native.records("a", session=SessionRef("bob", "m")).list(), outline)
    await x.later(hours=2)
    await x.rows("/v1/records", *listed, session_id="s", user_id="cy", nested=True)
    for name in ("ada", "cy"):
        await x.delete(f"/v1/users/{name}")
    await x.rows("/v1/records", *listed, user_id="ada", nested=True)
    await native.records("a", user_id="ada").put("of", "new")
    await x.rows("/v1/records", *listed, user_id="ada", nested=True)


@exchange(stores=DATABASES)
async def test_many_records_are_dropped_together(x: Exchange) -> None:
    await x.served.rest.create("s", user="ada")
    for owner in ({"session": SessionRef("ada", "s")}, {"user_id": "ada"}, {}):
        records: Any = x.served.native.records("a", **owner)
        for start in range(0, 1001, 100):
            await records.put_many({f"{number:04}": number for number in range(start, min(start + 100, 1001))})
        page = await records.list(limit=1000)
        x.note("page", [len(page.records), page.records[-1].key, page.has_more])
        x.note("dropped", [await records.drop(), await records.drop(), (await records.list()).records])
        await x.attempt("version", records.put("k", 1, expect=0))
        await x.later(minutes=1)
        await x.attempt("left", records.list(), outline)
