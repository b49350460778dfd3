"""The log of a session: append, read, retire, replace, annotate and erase."""

from __future__ import annotations

from typing import Any

from tests.behaviour.kit import assistant, calls, result, system, user
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange

LOG = "/v1/sessions/s/messages"
ALL = ("seq", "turn_id", "role", "content", "pinned", "retired_by")
NOTE: dict[str, Any] = {"role": "note", "origin": {"kind": "mark", "n": [1, None]}}
LOOK = calls(("c1", "look", {"at": "kelp"}), ("c2", "look", {}), text="Let me look.")
PUT: dict[str, Any] = {"op": "put", "namespace": ["n"], "key": "k", "value": 1, "expect": 0}
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
KEY = {"Idempotency-Key": "one"}
Written = list[tuple[dict[str, str], dict[str, Any]]]


async def show(x: Exchange, answer: Any = "", session_id: str = "s") -> None:
    if "error" in answer:
        return
    await x.rows(f"/v1/sessions/{session_id}/messages", *ALL, retired=True, limit=100)
    found = await x.served.http.get(f"/v1/sessions/{session_id}/info")
    names = (
        "version",
        "log_marker",
        "status",
        "turns",
        "message_count",
        "tokens",
        "bytes",
        "usage",
        "state",
        "updated_at",
    )
    x.note("session", {name: found.json().get(name) for name in names})


APPENDED: Written = [
    ({}, {"messages": [user("Hi.", name="Ada", turn_id=2, timestamp=5, metadata={"source": "asr", "mood": []})]}),
    ({}, {"messages": [user("And?", pinned=True), LOOK, NOTE, result("c2", "nothing"), result("c1", "rocks")]}),
    ({}, {"contents": [assistant("Rocks.", agent="kim", importance=0.5), user("Thanks."), system("Be kind.")]}),
    ({}, {"messages": [user("x"), user("y", turn_id=2)]}),
    ({}, {"messages": [user("x")], "contents": [user("x")]}),
    ({}, {"messages": []}),
    ({}, {}),
    ({"If-Match": '"3"'}, {"messages": [assistant("Expected.")], "return_session": True}),
    ({"If-Match": "3"}, {"messages": [assistant("Not expected.")]}),
    (KEY, {"messages": [user("Once.")], "usage": USAGE}),
    (KEY, {"messages": [user("Once.")], "usage": USAGE, "return_session": True}),
    (KEY, {"messages": [user("Once.")]}),
    ({"Idempotency-Key": "One"}, {"messages": [result("c9", "late")]}),
    ({**KEY, "If-Match": "1"}, {"messages": [user("Once.")], "usage": USAGE}),
    ({}, {"expect_log": "1.2.3", "messages": [user("x")]}),
    ({"Idempotency-Key": "x" * 513}, {"messages": [user("x")]}),
    ({}, {"usage": USAGE}),
    ({}, {"messages": [assistant("Bye.")], "usage": {"prompt_tokens": -1}}),
]


@exchange((), stores=DATABASES)
async def test_appends(x: Exchange) -> None:
    await x.post("/v1/sessions", id="s")
    for headers, body in APPENDED:
        await x.post(LOG, headers, **body)
    await show(x)
    marker = (await x.get("/v1/sessions/s/info"))["log_marker"]
    await x.patch("/v1/sessions/s", metadata={"later": 1})
    for headers in ({"If-Match": "1"}, KEY, {}, {}):
        await x.post(LOG, headers, messages=[user("Once.")], usage=USAGE, expect_log=marker)
    await x.post(LOG, {"Idempotency-Key": "two"}, messages=[user("Once.")], expect_log=marker)
    await x.post("/v1/sessions/t/messages", messages=[user("x")])


CHANGED: Written = [
    ({}, {"changes": [{"op": "set", "key": "seat", "value": 1}, {"op": "increment", "key": "user:n", "by": 2}]}),
    (
        {},
        {
            "changes": [{"op": "expect", "key": "seat", "value": 2}, {"op": "delete", "key": "a"}],
            "messages": [user("x")],
            "retire_from": 0,
        },
    ),
    ({}, {"changes": [{"op": "expect", "key": "seat", "value": 1}, {"op": "delete", "key": "seat"}], "records": [PUT]}),
    ({}, {"records": [PUT], "messages": [user("x")], "changes": [{"op": "append", "key": "l", "values": [1]}]}),
    ({}, {"records": [{**PUT, "expect": None, "value": 2}], "retire_from": 9}),
    ({}, {"retire_from": 6, "messages": [user("f")]}),
    ({}, {"retire_from": 5}),
    ({}, {"messages": [assistant("g"), NOTE]}),
    ({}, {"retire_from": 2}),
    ({}, {"retire_from": 1, "messages": [assistant("h")], "usage": USAGE}),
    ({}, {"messages": [user("i")], "copy_of": [None]}),
    ({"If-Match": "8"}, {"messages": [user("i")], "copy_of": [None]}),
    ({"If-Match": "9"}, {"messages": [user("i")], "copy_of": [None, 0]}),
    ({"If-Match": "9"}, {"messages": [user("i"), user("a")], "copy_of": [None]}),
    ({"If-Match": "9"}, {"messages": [user("i"), user("a")], "copy_of": [None, 11]}),
    ({"If-Match": "9", **KEY}, {"messages": [user("i"), user("a"), user("a")], "copy_of": [None, 0, 0]}),
    ({"If-Match": "9", **KEY}, {"messages": [user("i"), user("a"), user("a")], "copy_of": [None, 0, 0]}),
    ({"If-Match": "9", **KEY}, {"messages": [user("i"), user("a"), user("a")], "copy_of": [None, 0, None]}),
    ({}, {"retire_from": 0, "messages": [NOTE]}),
    ({}, {"messages": [user("j")]}),
]


@exchange((), stores=DATABASES)
async def test_retired_and_changed(x: Exchange) -> None:
    """Writes that take messages out of the conversation, and their other effects; copies are erased together."""
    await x.post("/v1/sessions", id="s")
    await x.post(LOG, messages=[user("a"), assistant("b"), NOTE, user("c"), LOOK, result("c1", "d"), result("c2", "e")])
    for headers, body in CHANGED:
        await show(x, await x.post(LOG, headers, **body))
    await x.rows("/v1/records", "key", "value", "version", session_id="s", namespace="n")
    await x.get("/v1/sessions/s/state")
    for seq in (0, 15, 2, 99, "x"):
        await show(x, await x.delete(f"{LOG}/{seq}"))


PAGES: list[dict[str, Any]] = [
    {},
    {"limit": 2},
    {"limit": 4},
    {"after": 1},
    {"after": 5, "limit": 1},
    {"after": 0},
    {"after": 6},
]
WRONG: list[dict[str, Any]] = [{"after": -1}, {"limit": 0}, {"retired": "yes"}, {"since": 1}]


@exchange((), stores=DATABASES)
async def test_pages(x: Exchange) -> None:
    await x.post("/v1/sessions", id="s")
    await x.post("/v1/sessions", id="s", user_id="ada")
    await x.post(f"{LOG}?user_id=ada", messages=[user("of Ada")])
    await x.post(LOG, messages=[user("a", timestamp=9), assistant("b", timestamp=3), NOTE, user("c"), assistant("d")])
    await x.post(LOG, messages=[user("e"), NOTE], retire_from=3)
    for retired in (False, True):
        for order in ("asc", "desc"):
            for page in PAGES:
                await x.rows(LOG, "seq", "content", retired=retired, order=order, **page)
    await x.get(LOG, limit=2, after=1, retired=True)
    await x.rows(LOG, "seq", "content", user_id="ada")
    for wrong in WRONG:
        await x.get(LOG, **wrong)
    await x.get("/sessions/s")
    await x.get("/sessions/s?user_id=ada")


REPLACED: list[tuple[Any, dict[str, Any]]] = [
    (0, {"message": user("a!")}),
    (0, {"message": user("a again")}),
    (8, {"message": LOOK}),
    (9, {"message": NOTE}),
    (13, {"message": user("x")}),
    (11, {"message": calls(("c1", "look", {}), text="Look.")}),
    (11, {"message": assistant("No calls.")}),
    (12, {"message": result("c2", "other")}),
    (12, {"message": {**assistant("x"), "tool_call_id": "c1"}}),
    (15, {"message": result("c1", "x")}),
    ("x", {"message": user("a")}),
    (0, {"message": {"role": "user"}}),
    (12, {"message": result("c1", "Rocks!")}),
    (11, {"message": {**LOOK, "content": "Looking.", "turn_id": 2}}),
    (11, {"message": {**LOOK, "content": "Looking.", "agent": "lee"}, "erase": True}),
    (8, {"message": assistant("x", pinned=False, agent="kim", importance=0.3, metadata={"m": 1}, timestamp=8)}),
    (32, {"message": user("d!", turn_id=7)}),
]


@exchange((), stores=DATABASES)
async def test_replaced(x: Exchange) -> None:
    """A replaced message keeps turn, agent and pin; later ones are written again, and are erased together."""
    await x.post("/v1/sessions", id="s")
    first = [user("a", pinned=True), assistant("b", agent="lee"), user("c", importance=1), LOOK]
    await x.post(LOG, messages=[*first, result("c1", "rocks"), NOTE, result("c2", "-"), user("d", timestamp=7)])
    for seq, body in REPLACED:
        await show(x, await x.put(f"{LOG}/{seq}", **body))
    await x.rows(LOG, "seq", "agent", "importance", "metadata", "timestamp", "tokens", limit=100)
    for seq in (7, 28, 10):
        await show(x, await x.delete(f"{LOG}/{seq}"))
    await x.get("/v1/sessions/s", retired=True, digests=True)


ANNOTATED: list[tuple[int, dict[str, Any]]] = [
    (0, {"pinned": True}),
    (0, {"importance": 0.25}),
    (0, {"importance": None, "refused_by": ["b", "a"]}),
    (0, {"refused_by": ["c"]}),
    (0, {"importance": 0.75}),
    (1, {"importance": 1, "pinned": True, "refused_by": ["a"]}),
    (1, {"pinned": False, "refused_by": []}),
    (1, {}),
    (1, {"importance": 1.1}),
    (1, {"importance": -0.1}),
    (1, {"refused_by": [""]}),
    (2, {"pinned": True}),
    (3, {"pinned": True}),
    (5, {"pinned": True}),
    (5, {"pinned": True, "refused_by": ["a"]}),
]


@exchange((), stores=DATABASES)
async def test_annotated(x: Exchange) -> None:
    await x.post("/v1/sessions", id="s")
    await x.post(LOG, messages=[user("a", metadata={"m": 1}), assistant("b"), NOTE, user("c"), assistant("d")])
    await x.post(LOG, retire_from=3)
    await x.post(LOG, {"If-Match": "1", "Idempotency-Key": "x"}, messages=[user("x")], copy_of=[0])
    await x.post(LOG, {"If-Match": "1"}, messages=[user("x")], copy_of=[0])
    for seq, body in ANNOTATED:
        await x.patch(f"{LOG}/{seq}", **body)
    await show(x)
    await x.rows(LOG, *ALL, "importance", "metadata")
