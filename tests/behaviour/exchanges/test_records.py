"""Records of sessions, users and the tenant: versions, names and lists, batches, lifetimes, searches, rights."""

from __future__ import annotations

import base64
from typing import Any

from tests.behaviour.kit import bearer
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange

ONE = "/v1/records/record"
ALL = "/v1/records"
OWNERS: list[dict[str, str]] = [{"session_id": "s", "user_id": "ada"}, {"user_id": "ada"}, {"scope": "tenant"}]
OTHERS: list[dict[str, str]] = [{"session_id": "t"}, {"session_id": "s", "user_id": "adam"}, {"user_id": "adam"}]
FIELDS = ("id", "value", "version", "created_at", "updated_at", "expires_at")


async def make_sessions(x: Exchange, *sessions: tuple[str, str]) -> None:
    for user_id, name in sessions:
        x.served.clock.now += 1000
        await x.served.rest.create(name, user=user_id)


async def put(x: Exchange, owner: dict[str, str], path: str, match: str | None = None, **body: Any) -> None:
    """Put the record `namespace:key`; `match` is a version, or `*` if there must be no record."""
    namespace, _, key = path.partition(":")
    headers = {} if match is None else {"if-none-match" if match == "*" else "if-match": match}
    await x.send("PUT", ONE, body, {**owner, "namespace": namespace, "key": key}, headers)


async def change(x: Exchange, owner: dict[str, str], *changes: tuple[Any, ...], **more: Any) -> None:
    """Post changes: `(namespace:key, value, expect)` puts a record, without a value it is deleted."""
    body = []
    for path, value, expect in changes:
        labels, _, key = path.partition(":")
        done = {"op": "delete"} if value is ... else {"op": "put", "value": value, **more}
        body.append({**done, "namespace": labels.split("/"), "key": key, "expect": expect})
    await x.send("POST", ALL, {"changes": body}, owner)


@exchange(stores=DATABASES)
async def test_one_record(x: Exchange) -> None:
    await make_sessions(x, ("ada", "s"), ("ada", "t"), ("adam", "s"))
    for owner in OWNERS:
        name = {**owner, "namespace": "a/b", "key": "k"}
        for match in ('"1"', "*", "*"):
            await put(x, owner, "a/b:k", match, value={"n": 1, "none": None}, text="Blue cars.")
        first = (await x.get(ONE, **name))["version"]
        for match, value in ((str(first), None), (str(first), 3), ("0", 3), (f'"{first + 1}"', "JSON"), ("x", 1)):
            await put(x, owner, "a/b:k", match, value=value)
        await x.get(ONE, **name)
        await put(x, owner, "a/b:k", value=base64.b64encode(b"\0\xff").decode(), encoding="base64", ttl=5000)
        await x.get(ONE, **name)
        for other in (*OWNERS, *OTHERS):
            await x.rows(ALL, *FIELDS, namespace="a/b", **other)
        await x.send("DELETE", ONE, None, name, {"if-match": str(first)})
        await x.send("DELETE", ONE, None, name, {"if-match": str(first + 3)})
        await x.delete(ONE, **name)
        await x.get(ONE, **name)
        await put(x, owner, "a/b:k", "*", value=0)
        await x.get(ONE, **name)
        await x.delete(ONE, **name)


@exchange(stores=DATABASES)
async def test_names_and_lists(x: Exchange) -> None:
    await make_sessions(x, ("ada", "s"))
    keys = ("k", "K", "k1", "k%", "k_", "ka", "l", "é", "e\u0301", "z", "\U0001f600", "\uffff", "k/1", "k~", " ", "k\0")
    for owner, namespaces in zip(OWNERS, (("a",), ("a", "a b", "ab", "a/b", "a/b/c", "A"), ("a~1b", "a")), strict=True):
        for namespace in namespaces:
            some = keys if namespace == "a" else ("k", "k1")
            await change(x, owner, *((f"{namespace}:{key}", key.upper(), None) for key in some))
        await x.rows(ALL, "id", **owner, namespace="a", limit=30)
        await x.rows(ALL, "key", **owner, namespace="a", order="desc", limit=3)
        for prefix in ("k", "k%", "k1", "kk", "\U0001f600", "K"):
            await x.rows(ALL, "key", **owner, namespace="a", prefix=prefix)
            await x.rows(ALL, "key", **owner, namespace="a", prefix=prefix, order="desc", limit=2)
        for after in ("a/k", "a/k1", "a/kb", "a/k~11", "b/a", "A/z"):
            for order in ("asc", "desc"):
                await x.rows(ALL, "key", **owner, namespace="a", prefix="k", after=after, order=order, limit=3)
        await x.get(ONE, **owner, namespace="a", key="k")
        await x.get(ONE, **owner, namespace="a", key="k2")
    ada = OWNERS[1]
    for query in ({"namespace": "a"}, {"namespace": "a/b"}, {"namespace": "A"}, {}, {"namespace": "none"}):
        await x.rows(ALL, "id", **ada, **query, nested=True, limit=50)
        await x.rows(ALL, "id", **ada, **query, nested=True, limit=3, order="desc", after="a/b/k1")
    await x.get(ALL, **ada, namespace="a/b", limit=1)
    await x.get(ALL, **ada, namespace="a/b", values=False)
    for wrong in (
        {},
        {"namespace": "a", "nested": True, "prefix": "k"},
        {"namespace": "a", "limit": 0},
        {"namespace": "a//b"},
        {"namespace": "a\n"},
    ):
        await x.get(ALL, **ada, **wrong)
    for bad in (
        {"limit": 1001},
        {"mode": "keyword"},
        {"after": "a"},
        {"after": "a/"},
        {"order": "up"},
        {"prefix": ""},
    ):
        await x.get(ALL, **ada, namespace="a", **bad)
    await x.rows(ALL, "id", **ada, namespace="ab")
    await x.rows(ALL, "id", **OWNERS[2], namespace="a~1b")


@exchange(stores=DATABASES)
async def test_namespaces(x: Exchange) -> None:
    await make_sessions(x, ("ada", "s"))
    for owner in OWNERS:
        names = ("b/c/d:1", "a:1", "a:2", "a b:1", "a/x:1", "a/x/y:1", "B:1", "b/c:1", "é:1")
        await change(x, owner, *((one, 1, None) for one in names))
        await put(x, owner, "gone:1", value=1, ttl=1000)
        await put(x, owner, "a~1b/~0:1", value=1)
        for query in (
            {},
            {"depth": 1},
            {"depth": 2, "limit": 2},
            {"namespace": "a"},
            {"namespace": "a/x", "depth": 1},
            {"namespace": "a", "after": "a", "depth": 2},
            {"after": "a", "limit": 2},
            {"after": "b", "depth": 1},
            {"limit": 9},
            {"limit": 10},
            {"limit": 11, "after": "B"},
            {"namespace": "b/c/d/e"},
        ):
            await x.rows(f"{ALL}/namespaces", "id", **owner, **query)
    for wrong in ({"depth": 0}, {"depth": 17}, {"limit": 0}, {"after": "a//b"}, {"namespace": "/".join("a" * 17)}):
        await x.get(f"{ALL}/namespaces", **OWNERS[0], **wrong)
    await x.get(f"{ALL}/namespaces", **OWNERS[1], namespace="a~1b")
    for path in ("a" * 1000, "é" * 256 + ":k", "é" * 256 + "x:k", "/".join("a" * 16) + ":k", "/".join("a" * 17) + ":k"):
        answer = await x.served.http.put(
            ONE, params={"namespace": path[:-2], "key": "k", **OWNERS[1]}, json={"value": 1}
        )
        x.note(f"{len(path)} characters", [answer.status_code, answer.json().get("error", {}).get("message")])


@exchange(stores=DATABASES)
async def test_changes_together(x: Exchange) -> None:
    await make_sessions(x, ("ada", "s"), ("bob", "s"))
    for owner in OWNERS:
        await change(x, owner, ("a:1", 1, 0), ("a:2", None, None), ("b/c:1", [1], None), ("a:no", ..., None))
        version = (await x.rows(ALL, *FIELDS, **owner, nested=True))[0]["version"]
        for wrong in (
            (("a:3", 3, None), ("a:1", 2, version - 1)),
            (("a:3", 3, None), ("a:1", ..., 1)),
            (("a:3", 3, None), ("a:2", 1, 0)),
            (("a:3", 3, None), ("a:none", ..., 4)),
            (("a:3", 3, 0), ("a:3", 4, None)),
            (("a:3", 3, None), ("a:", 4, None)),
            (("a:3", 3, None), (":k", 4, None)),
            (),
        ):
            await change(x, owner, *wrong)
        await change(x, owner, ("a:1", ..., version), ("a:none", ..., 0), ("a:2", "new", version), ("b/c:1", ..., None))
        await change(x, owner, ("a:1", ..., None), ("a:none", ..., None))
        await x.rows(ALL, *FIELDS, **owner, nested=True)
        for most in (100, 101):
            some = [{"op": "put", "namespace": ["n"], "key": f"{at}", "value": at, "ttl": 3000} for at in range(most)]
            answer = await x.served.http.post(ALL, params=owner, json={"changes": some})
            x.note(f"{most} changes", [answer.status_code, answer.json().get("error"), answer.json().get("version")])
        await x.rows(ALL, "key", **owner, namespace="n", prefix="9", limit=100)
        await x.later(seconds=5)
        await x.delete(ALL, **owner)
        await x.delete(ALL, **owner)
        await put(x, owner, "a:1", "*", value=1)
    await x.rows(ALL, *FIELDS, session_id="s", user_id="bob", nested=True)
    for body in ({"op": "put", "value": "?", "encoding": "base64"}, {"op": "put", "value": 1, "ttl": 0}, {"op": "put"}):
        await x.post(f"{ALL}?user_id=ada", changes=[{"namespace": ["a"], "key": "k", **body}])
    for given in ({"value": 1, "ttl": 0}, {"value": 1, "text": " "}, {"value": 5, "encoding": "base64"}, {"ttl": 1}):
        await put(x, OWNERS[1], "a:k", **given)


@exchange(stores=DATABASES)
async def test_lifetimes(x: Exchange) -> None:
    await make_sessions(x, ("ada", "s"))
    for owner in OWNERS:
        await put(x, owner, "a:1", value=1, ttl=3000, text="Green cars.")
        await put(x, owner, "a:2", value=2, ttl=10_000, text="Green boats.")
        await put(x, owner, "a:3", value=3, text="Green trains.")
        await x.rows(ALL, *FIELDS, **owner, namespace="a")
        await x.get(ONE, **owner, namespace="a", key="1")
        await put(x, owner, "a:1", "*", value=4, ttl=2000)
        await put(x, owner, "a:2", value=5)
        await x.rows(ALL, *FIELDS, **owner, namespace="a")
        await x.rows(ALL, "key", **owner, namespace="a", q="green")
        await x.delete(ONE, **owner, namespace="a", key="1")
        await put(x, owner, "b:1", value=6, ttl=60_000)
        x.served.clock.now += 10_000
        await put(x, owner, "b:2", value=7, ttl=5000, text="Green bikes.")
        for passed in (0, 5000):
            x.served.clock.now += passed
            await x.rows(ALL, "key", **owner, nested=True, q="green")
        await x.later(seconds=40)
        for query in ({"namespace": "b"}, {"namespace": "b"}):
            await x.rows(ALL, *FIELDS, **owner, **query)
        await x.rows(f"{ALL}/namespaces", "id", **owner)
        await change(x, owner, ("b:1", ..., None), ("b:2", 1, 0), ("a:3", ..., None))
        await x.rows(ALL, "id", "value", **owner, nested=True)
        await x.later(hours=2)
        await x.delete(ALL, **owner)


@exchange(stores=DATABASES)
async def test_searches(x: Exchange) -> None:
    await make_sessions(x, ("ada", "s"), ("ada", "t"), ("adam", "s"))
    for at, owner in enumerate((*OWNERS, *OTHERS)):
        await put(x, owner, "a:one", value={"at": at}, text=f"The parcel number {at} to Oslo arrived late.")
        await put(x, owner, "a:two", value=2, text="A parcel,\n\n  and window seats.")
        await put(x, owner, "a:three", value=3, text="Window seats are late late late.")
        await put(x, owner, "a:silent", value="parcel")
        await put(x, owner, "a/b:one", value=4, text="Another parcel below.")
    for owner in (*OWNERS, *OTHERS):
        await x.get(ALL, **owner, q="late parcels", namespace="a")
        for query in (
            {"namespace": "a", "prefix": "t"},
            {"namespace": "a", "nested": True},
            {"nested": True, "limit": 2},
        ):
            await x.rows(ALL, "id", "score", "version", **owner, q="parcel", **query)
    ada = OWNERS[1]
    for owner in OWNERS:
        await put(x, owner, "a:one", value=5, text="Nothing of the kind.")
        await put(x, owner, "a:two", value=6)
        await x.delete(ONE, **owner, namespace="a/b", key="one")
        await put(x, owner, "a:new", value=7, text="A new parcel.")
        await x.rows(ALL, "id", "value", "text", **owner, q="parcel", nested=True)
        await x.rows(ALL, "id", "value", "text", **owner, q="nothing", nested=True, values=False)
    for wrong in ({"q": " "}, {"q": "a", "after": "a/b"}, {"q": "a", "order": "desc"}, {"q": "a", "mode": "vector"}):
        await x.get(ALL, **ada, namespace="a", **wrong)
    for query in ({"mode": "hybrid"}, {"mode": "keyword"}, {"limit": 101}, {"nested": True, "prefix": "a"}):
        await x.get(ALL, **ada, namespace="a", q="seats", **query)
    await x.get(ALL, **ada, q="seats")
    await x.get(ALL, **ada, namespace="a", q="? !")
    await x.get(ALL, session_id="none", namespace="a", q="seats")
    await x.delete(ALL, **ada)
    await x.rows(ALL, "id", **ada, q="seats", nested=True)
    await put(x, ada, "a:again", value=7, text="Seats again.")
    await x.rows(ALL, "id", **ada, q="seats", nested=True)


@exchange()
async def test_rights_of_keys(x: Exchange) -> None:
    await make_sessions(x, ("ada", "s"), ("bob", "s"))
    for owner in OWNERS:
        await put(x, owner, "a:1", value=1)
    owners: list[dict[str, str]] = [
        {"session_id": "s"},
        {"user_id": "ada"},
        {"user_id": "bob"},
        {"scope": "tenant"},
        {},
    ]
    owners += [{"session_id": "s", "scope": "tenant"}, {"user_id": "ada", "scope": "tenant"}, {"session_id": "none"}]
    for owner in owners:
        await x.rows(ALL, "id", **owner, namespace="a")
        await put(x, owner, "a:2", value=2)
        await x.delete(ONE, **owner, namespace="a", key="2")
        await x.delete(ALL, **owner)
    for fields in (
        {"user_id": "ada", "role": "write"},
        {"role": "write"},
        {"role": "read"},
        {"role": "admin", "user_id": "ada"},
    ):
        x.note("with a key of", fields)
        x.served.http.headers.update(bearer(await x.served.create_key(**fields)))
        for owner in owners[:5]:
            await x.rows(ALL, "id", **owner, namespace="a")
            await x.rows(f"{ALL}/namespaces", "id", **owner)
            await put(x, owner, f"a:{fields['role']}", value=2)
        await change(x, {"scope": "tenant"}, ("a:1", 1, None))
