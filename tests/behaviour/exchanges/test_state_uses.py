"""State in the library, in turns and on the command line: limits, and what becomes of it."""

from __future__ import annotations

import json
from typing import Any

import holdfast
from holdfast import ToolContext, tool_from
from holdfast.testing import Reply
from tests.behaviour.kit import user
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange


@exchange(stores=DATABASES)
async def test_limits(x: Exchange) -> None:
    native, own = x.served.native, (await x.served.native.session("s", user_id="ada")).state
    for state, p in ((own, ""), (native.user_state("ada"), "user:"), (native.app_state(), "app:")):
        deep = [json.loads("[" * depth + "]" * depth) for depth in (64, 65)]
        cases: dict[str, dict[str, Any]] = {
            "256 bytes": {p + "é" * 128: 1},
            "257 bytes": {p + "é" * 128 + "k": 1},
            "a value of 256 KiB": {f"{p}big": "x" * (262_144 - 2)},
            "a value that is larger": {f"{p}a": 1, f"{p}big": "y" * (262_144 - 1)},
            "64 levels": {f"{p}deep": deep[0]},
            "65 levels": {f"{p}a": 1, f"{p}deep": deep[1]},
            "brackets in a text": {f"{p}deep": ["[" * 100, {'a"[': "]" * 100}]},
            "three more": {f"{p}big{number}": "z" * 250_000 for number in range(3)},
            "the last bytes": {f"{p}big3": "z" * 35_000},
            "too many bytes": {f"{p}big3": "z" * 40_000},
            "smaller": {f"{p}big": None, f"{p}big1": None, f"{p}big2": None},
            "9,996 keys": {f"{p}{number}": 0 for number in range(9996)},
            "10,001 keys": {f"{p}last": 0},
            "another value": {f"{p}0": 1},
            "one for another": {f"{p}0": None, f"{p}last": 0},
            "10,001 at once": {f"{p}{number}": None for number in range(10_001)},
        }
        for label, values in cases.items():
            await x.attempt(f"{p}{label}", state.update(values))
        await x.attempt("appended", state.append(f"{p}big0", "x"))
        await state.update({f"{p}l": ["x" * 262_000], f"{p}1": None})
        await x.attempt("list", state.append(f"{p}l", "x" * 136))
        await x.attempt("longer list", state.append(f"{p}l", "x" * 137, 1))
        found = await state.all()
        x.note("keys", [len(found), sorted(key[:20] for key in found if not key.rpartition(":")[2].isdigit())])
        await x.attempt("cleared", state.update(dict.fromkeys(key for key in found if key.startswith(p))))


async def call_everything(x: Exchange, hf: Any, owner: str) -> None:
    """Call each method of the handles of state."""
    own = (await hf.session("s", user_id=owner)).state
    user_state, app_state = hf.user_state(owner), hf.app_state()
    for state, p in ((own, ""), (own, "user:"), (user_state, "user:"), (app_state, "app:")):
        k = f"{p}k"
        x.note("state", repr(state))
        for label, work in {
            "missing": state.get(k),
            "default": state.get(k, 7),
            "required": state[k],
            "set": state.set(k, {"a": [1]}),
            "get": state.get(k, 7),
            "item": state[k],
            "temporary": state.set("temp:a", 1),
            "incremented": state.increment(f"{p}n"),
            "incremented again": state.increment(f"{p}n", 1.5),
            "appended": state.append(f"{p}l", 1, None, [2]),
            "appended nothing": state.append(f"{p}l"),
            "replaced": state.compare_and_set(k, {"a": [1.0]}, 0),
            "not replaced": state.compare_and_set(k, None, 1),
            "deleted if": state.compare_and_set(k, 0, None),
            "empty": state.set("", 1),
            "no text": state.set(5, 1),
            "no mapping": state.update([("a", 1)]),
            "no JSON": state.set(k, object()),
            "endless": state.set(k, float("inf")),
            "endless expected": state.compare_and_set(k, float("inf"), 1),
            "half a letter": state.set(f"{p}\ud800", 1),
            "of another": state.get("app:other" if p != "app:" else "user:other"),
            "deleted": state.delete(f"{p}l"),
            "all": state.all(),
        }.items():
            await x.attempt(label, work)
    user_state, app_state = x.served.native.user_state(owner), x.served.native.app_state()
    await x.attempt("version", user_state.version())
    await x.attempt("cleared", user_state.clear())
    await x.attempt("cleared again", user_state.clear())
    await x.attempt("version after it", user_state.version())
    await x.attempt("all left", own.all())
    await x.attempt("cleared app", app_state.clear())


@exchange()
async def test_calls_of_the_library(x: Exchange) -> None:
    async with holdfast.connect(x.served.url) as remote:
        for hf, owner in ((x.served.native, "ada"), (remote, "bob")):
            await call_everything(x, hf, owner)


async def start(context: ToolContext) -> str:
    """Change every scope."""
    state: Any = context.state
    state["topic"], state["user:theme"], state["temp:step"] = "moon", "dark", 1
    state.increment("app:runs")
    state.append("user:places", "Lisbon")
    state["old"] = None
    return str({key: state.get(key) for key in ("topic", "user:theme", "app:runs", "old", "temp:step", "user:places")})


async def fail(context: ToolContext) -> str:
    """Change something that cannot be stored."""
    context.state["topic"] = "sun"
    context.state.increment("user:theme")
    return str(sorted(context.state))


TURNS = [
    Reply(tool_calls=[("start", {})]),
    Reply(tool_calls=[("start", {})]),
    "Done.",
    Reply(tool_calls=[("fail", {})]),
    "No.",
]
AGENT = """
agents:
  guide:
    instruction: "Topic {topic}, theme {user:theme?}, runs {app:runs?}, step {temp:step?}."
    llm: default
    tools: [start, fail]
    state: {topic: none, old: 1, "user:theme": light, "app:runs": 5}
  other:
    llm: default
"""


@exchange(TURNS, AGENT, tools=[tool_from(start), tool_from(fail)])
async def test_state_in_turns(x: Exchange) -> None:
    await x.patch("/v1/state?user_id=bob", **{"user:theme": "blue"})
    for user_id, given in (("ada", {}), ("bob", {"topic": "given", "app:runs": 7}), ("cy", {"old": None})):
        await x.post("/v1/sessions", id="s", user_id=user_id, agent="guide", state=given)
        await x.get("/v1/state", session_id="s", user_id=user_id)
    await x.post("/v1/sessions", id="t", user_id="dora", agent="other")
    for said in ("Start.", "Fail."):
        await x.post("/v1/chat/completions", session_id="s", user_id="ada", messages=[user(said)])
        await x.get("/v1/state", session_id="s", user_id="ada")
    await x.get("/v1/state", session_id="s", user_id="bob")
    await x.get("/v1/state", session_id="t", user_id="dora")


@exchange(["Yes.", "Yes."], stores=["file"])
async def test_what_becomes_of_state(x: Exchange) -> None:
    await x.post("/v1/chat/completions", session_id="s", user_id="ada", messages=[user("Hi.")])
    await x.patch("/v1/sessions/s/state", **{"a": 1, "b": {"c": [2]}, "user:a": 1, "app:a": 1})
    await x.patch("/v1/state?user_id=bob", **{"user:a": "of bob"})
    await x.post("/v1/sessions/s/fork", id="f")
    await x.patch("/v1/sessions/f/state", a=2, **{"user:f": 1})
    await x.post("/v1/sessions/s/move", user_id="bob", id="m")
    for query in (
        {"session_id": "f"},
        {"session_id": "m"},
        {"session_id": "s"},
        {"user_id": "ada"},
        {"user_id": "bob"},
    ):
        await x.get("/v1/state", **query)
    await x.patch("/v1/sessions/m", state={"b": None, "d": 4, "user:d": 4}, metadata={"a": 1})
    await x.get("/v1/sessions/m/state")
    for line in (
        "get --session m --user bob",
        "get --user bob --json",
        "get --app",
        "get b --session m",
        "get no --user bob",
        "get",
        "get --app --user bob",
        "set user:list [1,2] --user ada",
        "set user:list 3 null --append --user ada --json",
        "set user:n --increment 2.5 --user ada",
        "set user:n --increment x --user ada",
        "set user:n --increment 1 --append --user ada",
        "set a word --session m --user bob --json",
        "set a 1 2 --session m",
        "set a null --session m",
        "set a null --text --session m",
        "set temp:a 1 --session m --user bob",
        "set a 1 --app",
        "unset user:list user:no --user ada",
        "unset temp:a --user ada",
        "get --user ada",
        "get --user nobody",
    ):
        await x.run("state", *line.split())
    await x.run("sessions", "delete", "m", "--user", "bob", "--yes")
    await x.get("/v1/state", session_id="m")
    await x.get("/v1/state", user_id="bob")
    await x.delete("/v1/users/bob")
    await x.get("/v1/state", user_id="bob")
    await x.patch("/v1/state?user_id=bob", **{"user:again": 1})
    await x.get("/v1/state", scope="tenant")
