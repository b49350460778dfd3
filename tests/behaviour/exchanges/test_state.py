"""State of sessions, users and the tenant: who shares a key, what operations do, and what is refused."""

from __future__ import annotations

from typing import Any

from tests.behaviour.kit import bearer
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange

OWNERS = ({"session_id": "s", "user_id": "ada"}, {"user_id": "ada"}, {"scope": "tenant"})
OTHERS: list[dict[str, str]] = [
    {"session_id": "t"}, {"session_id": "s", "user_id": "adam"}, {"user_id": "adam"}, {"user_id": "nobody"}, {}
]  # fmt: skip


async def make_sessions(x: Exchange, *sessions: tuple[str, str]) -> None:
    for user_id, name in sessions:
        x.served.clock.now += 1000
        await x.served.rest.create(name, user=user_id)


async def operate(x: Exchange, *changes: tuple[Any, ...], match: Any = None, **owner: str) -> None:
    """Post operations, written as `("set", key, value)`; `match` is the version that the owner must have."""
    fields = {"set": "value", "increment": "by", "append": "values", "expect": "value"}
    body = {
        "changes": [{"op": op, "key": key, **({fields[op]: more[0]} if more else {})} for op, key, *more in changes]
    }
    done = await x.send("POST", "/v1/state", body, owner, {} if match is None else {"if-match": f'"{match}"'})
    x.note("keys", list(done.get("values", ())))


@exchange(stores=DATABASES)
async def test_who_shares_a_key(x: Exchange) -> None:
    await make_sessions(x, ("ada", "s"), ("ada", "t"), ("adam", "s"))
    values = {"topic": 1, "Topic": 2, "user:theme": "dark", "user:Theme": "", "app:v": [2, {"a": None}], "temp:x": 1}
    await x.patch("/v1/sessions/s/state?user_id=ada", **values, **{"User:a": 0, ":b": False, "user": [], "é": "ü"})
    for query in (*OWNERS, *OTHERS):
        await x.get("/v1/state", **query)
    await x.patch("/v1/state?user_id=adam", **{"user:theme": "light", "user:n": 0, "user:é": "ü"})
    await x.patch("/v1/state?scope=tenant", **{"app:v": 3, "app:w": "new"})
    await x.patch("/v1/state?session_id=s&user_id=ada", topic=None, **{"user:theme": None, "app:none": None})
    await x.patch("/v1/sessions/t/state", **{"user:theme": "dim", "topic": "t"})
    for query in (*OWNERS, *OTHERS):
        await x.get("/v1/state", **query)
    for path in ("/v1/sessions?user_id=ada", "/v1/sessions"):
        await x.rows(path, "user_id", "id", "state", "version")
    await x.get("/sessions/t")


@exchange(stores=DATABASES)
async def test_versions(x: Exchange) -> None:
    await make_sessions(x, ("ada", "s"))
    for query, key in zip(OWNERS, ("k", "user:k", "app:k"), strict=True):
        for value, match in (
            (1, None), (1, None), (1.0, '"1"'), (2, '"0"'), (2, "1"), (2, "*"), (3, '"9"'), (None, None)
        ):  # fmt: skip
            headers = {} if match is None else {"if-match": match}
            await x.send("PATCH", "/v1/state", {key: value}, query, headers)
        await x.send("PATCH", "/v1/state", {}, query)
        for match in ("4", "9"):
            await x.send("PATCH", "/v1/state", {"temp:a": 1}, query, {"if-match": match})
        await x.send("PATCH", "/v1/state", {key: 5}, query, {"if-match": "x"})
    for query in OWNERS[1:]:
        key = "user:k" if "user_id" in query else "app:k"
        await x.send("PATCH", "/v1/state", {key: 1, key + "2": 2}, query)
        await x.send("DELETE", "/v1/state", None, query, {"if-match": "1"})
        await x.send("DELETE", "/v1/state", None, query, {"if-match": "5"})
        await x.delete("/v1/state", **query)
        await x.get("/v1/state", **query)
        await x.send("PATCH", "/v1/state", {key: 1}, query)
        await x.delete("/v1/state", **query)
        await x.delete("/v1/state", **query)
        await x.send("PATCH", "/v1/state", {key: 1}, query)
    await x.patch("/v1/state?user_id=bob", **{"user:first": 1})
    await x.get("/v1/state", **OWNERS[0])


@exchange(stores=DATABASES)
async def test_operations(x: Exchange) -> None:
    await make_sessions(x, ("ada", "s"))
    for owner, p in zip(OWNERS, ("", "user:", "app:"), strict=True):
        n, a = f"{p}n", f"{p}l"
        await operate(
            x, ("set", n, 1), ("increment", n), ("increment", n, 2.5), ("append", a, ["a"]), ("append", a, []), **owner
        )
        await operate(x, ("increment", n, -4.5), ("increment", f"{p}new", 3), ("increment", f"{p}new"), **owner)
        await operate(
            x, ("append", a, [1, None]), ("append", a, ["a"]), ("set", f"{p}m", [0]), ("append", f"{p}m", [1]), **owner
        )
        await operate(x, ("delete", n), ("increment", n, 7), ("delete", a), ("append", a, ["z"]), **owner)
        await operate(
            x, ("append", f"{p}m", [2]), ("set", f"{p}m", "w"), ("increment", f"{p}new"), ("delete", f"{p}new"), **owner
        )
        for wrong in (
            (("set", n, 0), ("increment", f"{p}m")), (("set", n, 0), ("append", f"{p}m", [1])), (("set", n, 0), ("increment", a)),
            (("set", n, "w"), ("increment", n)), (("append", a, [1]), ("increment", a)), (("increment", n), ("append", n, [1])),
            (("set", f"{p}x", 0), ("increment", n, True)), (("set", f"{p}x", 0), ("increment", n, "1")),
            (("set", f"{p}x", 0), ("increment", n, 2**53)), (("set", f"{p}x", 0), ("increment", n, 2**53 - 7))
        ):  # fmt: skip
            await operate(x, *wrong, **owner)
        await operate(x, ("increment", n, 2**53 - 8), ("set", "temp:t", 1), **owner)
        await operate(x, ("increment", n, -(2**53) + 1), **owner)
        await x.get("/v1/state", **owner)
    await x.post("/v1/state?session_id=s")
    for changes in ([], [{"op": "set", "key": "a"}], [{"op": "put", "key": "a"}]):
        await x.post("/v1/state?session_id=s", changes=changes)
    many = [{"op": "increment", "key": "n"}] * 1001
    answer = await x.served.http.post("/v1/state?session_id=s", json={"changes": many})
    x.note("too many", answer.json())


@exchange(stores=DATABASES)
async def test_expected_values(x: Exchange) -> None:
    await make_sessions(x, ("ada", "s"))
    for owner, p in zip(OWNERS, ("", "user:", "app:"), strict=True):
        k = f"{p}k"
        await operate(x, ("expect", k, None), ("set", k, {"a": 1, "b": [True]}), ("set", f"{p}n", 0), **owner)
        for value in (None, {"a": 1}, {"b": [True], "a": 1.0}):
            await operate(x, ("increment", f"{p}n"), ("expect", k, value), **owner)
        await operate(x, ("expect", f"{p}n", 1), ("expect", k, 0), ("delete", k), **owner)
        for number in (True, 1.5):
            await operate(x, ("expect", f"{p}n", number), ("delete", k), **owner)
        await operate(x, ("expect", f"{p}n", 1), ("expect", f"{p}no", None), ("delete", k), **owner)
        await operate(x, ("expect", k, None), **owner)
        await operate(x, ("expect", k, None), ("expect", k, None), ("set", k, 1), **owner)
    await x.get("/v1/state", **OWNERS[0])
    for mixed in (
        (("expect", "k", 1), ("set", "user:n", 5)),
        (("expect", "k", None), ("set", "user:n", 5), ("increment", "app:n"), ("set", "temp:a", 1)),
        (("expect", "user:n", 5), ("set", "n", 1)), (("expect", "user:n", 5), ("set", "app:n", 1)),
        (("expect", "user:n", 5), ("increment", "user:n"), ("set", "temp:a", 1)), (("expect", "app:n", 5), ("set", "app:n", 1)),
        (("expect", "app:n", 2), ("set", "app:n", 1)), (("expect", "k", None), ("expect", "user:n", 6), ("set", "n", 1)),
        (("expect", "temp:a", None), ("set", "n", 1)), (("expect", "k", None), ("set", "temp:a", 1)),
        (("expect", "k", 3), ("set", "temp:a", 1))
    ):  # fmt: skip
        await operate(x, *mixed, **OWNERS[0])
    version = (await x.get("/v1/sessions/s"))["version"]
    await operate(x, ("expect", "user:n", 6), ("set", "user:n", 1), match=version, **OWNERS[0])
    await operate(x, ("set", "user:n", 1), match=version + 1, **OWNERS[0])
    await operate(x, ("set", "user:n", 1), match=version, **OWNERS[0])
    await operate(x, ("set", "user:n", 2), **OWNERS[0])
    await operate(x, ("set", "app:n", 1), match=0, **OWNERS[1])
    await operate(x, ("expect", "app:n", 1), ("set", "user:n", 1), **OWNERS[1])
    await x.get("/v1/state", **OWNERS[0])


@exchange()
async def test_owners_that_cannot_be(x: Exchange) -> None:
    await make_sessions(x, ("ada", "s"), ("bob", "s"), ("default", "d"), ("eve", "d"))
    for query in (
        {"session_id": "s"}, {"session_id": "d"}, {"session_id": "none"}, {"session_id": "s", "scope": "tenant"},
        {"user_id": "ada", "scope": "tenant"}, {"scope": "user"}, {"user_id": ""}, {}
    ):  # fmt: skip
        await x.get("/v1/state", **query)
        await x.send("PATCH", "/v1/state", {"user:a": 1}, query)
        await operate(x, ("set", "app:a", 1), **query)
        await x.delete("/v1/state", **query)
    await x.get("/v1/sessions/d/state", user_id="eve")
    for name in ("new%09line", "."):
        await x.patch(f"/v1/state?user_id={name}", **{"user:a": 1})
    for wrong in ({"": 1}, {"user:": 1}, {"a\0b": 1}, {"app:a": 1, "b": 2}, {"user:a": 1, "app:b": 2}, {"temp:a": 1}):
        await x.send("PATCH", "/v1/state", {**wrong}, {"user_id": "ada"})
        await x.send("PATCH", "/v1/sessions/s/state", {"ok": 1, **wrong}, {"user_id": "ada"})
    await x.get("/v1/state", session_id="s", user_id="ada")


@exchange()
async def test_rights_of_keys(x: Exchange) -> None:
    await make_sessions(x, ("ada", "s"), ("bob", "s"))
    await x.patch("/v1/state?scope=tenant", **{"app:v": 1})
    given = ({"user_id": "ada", "role": "write"}, {"role": "write"}, {"role": "read"}, {"role": "admin"})
    keys = [await x.served.create_key(**fields) for fields in given]
    for fields, key in zip(given, keys, strict=True):
        x.note("with a key of", fields)
        x.served.http.headers.update(bearer(key))
        for query in ({"session_id": "s"}, {"user_id": "ada"}, {"user_id": "bob"}, {"scope": "tenant"}, {}):
            await x.get("/v1/state", **query)
        for query in ({"user_id": "ada"}, {"user_id": "bob"}, {"scope": "tenant"}):
            await operate(x, ("increment", "user:a" if "user_id" in query else "app:a"), **query)
        for change in ({"user:b": 1}, {"app:b": 1, "own": 1}):
            await x.send("PATCH", "/v1/sessions/s/state", change, {"user_id": "ada"})
        await operate(x, ("set", "own", 2), ("increment", "app:b"), session_id="s", user_id="ada")
        await x.post("/v1/sessions", id=f"of {fields['role']}", user_id="ada", state={"app:c": 1})
        await x.patch("/v1/sessions/s?user_id=ada", state={"app:d": 1})
        await x.delete("/v1/state?scope=tenant" if fields["role"] == "read" else "/v1/state?user_id=bob")
    await x.get("/v1/state", session_id="s", user_id="ada")
