"""The same calls through the library and through `holdfast.connect`: both return the same, or both answers are pinned."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import holdfast
from holdfast import SessionRef
from holdfast.errors import HoldfastError
from holdfast.testing import Reply
from tests.behaviour.kit import assistant, calls, result, system, user
from tests.behaviour.kit.exchanges import Exchange, exchange, steady
from tests.behaviour.kit.library import to_row

Step = tuple[str, Callable[[Any, Any, str], Any]]
HIDDEN: Final = frozenset(
    [
        "identity",
        "tail",
        "build",
        "view",
        "hash",
        "tenant",
        "state_turns",
        "withdrawn",
        "reshaped",
        "damaged",
        "claim",
        "blob",
        "is_json",
        "unit",
        "total",
        "digest",
        "number",
        "type_of",
    ]
)
"""Fields of structs whose values differ from run to run, or are the store's own."""


def shape(value: Any) -> Any:
    """Return the public fields of what a call returned, as JSON values."""
    if isinstance(value, dict):
        return {str(name): shape(one) for name, one in value.items() if name not in HIDDEN and one is not None}
    return [shape(one) for one in value] if isinstance(value, list) else value


async def compare(x: Exchange, steps: tuple[Step, ...]) -> None:
    """Make each call with both clients, each for a user of its own."""
    async with holdfast.connect(x.served.url, max_retries=0) as connected:
        handles = {
            name: (hf, await hf.session("s", user_id=name))
            for name, hf in (("library", x.served.native), ("connect", connected))
        }
        for label, call in steps:
            said: dict[str, Any] = {}
            for name, (hf, session) in handles.items():
                try:
                    made = await call(hf, session, name)
                    found = shape(to_row(await made.info() if hasattr(made, "info") else made))
                except HoldfastError as error:
                    found = [type(error).__name__, error.code, str(error)]
                said[name] = json.loads(steady(json.dumps(found), {name: "user-0"}))
            await x.settle()
            same = said["library"] == said["connect"]
            x.note(label, said["library"] if same else said)
            x.served.clock.now += 1000


def ref(w: str, name: str = "s") -> SessionRef:
    return SessionRef(w, name)


FIND: Final = [user("Find it"), calls(("c1", "find", {"to": "x"})), result("c1", "[erased]"), assistant("Here.")]
SESSIONS: Final[tuple[Step, ...]] = (
    ("append", lambda hf, s, w: s.append([user("One, I live in Oslo."), assistant("Fine.")], state={"a": 1, "user:b": 2})),
    ("append more", lambda hf, s, w: s.append(FIND, note={"k": 1}, idempotency_key="k1")),
    ("append again", lambda hf, s, w: s.append(FIND, note={"k": 1}, idempotency_key="k1")),
    ("append late", lambda hf, s, w: s.append(user("x"), expect=1)),
    ("append wrong", lambda hf, s, w: s.append([{"role": "king", "content": "x"}])),
    ("info", lambda hf, s, w: s.info()),
    ("messages", lambda hf, s, w: s.messages()),
    ("export", lambda hf, s, w: s.export()),
    ("history", lambda hf, s, w: s.history()),
    ("plain history", lambda hf, s, w: s.history(view="plain")),
    ("entries", lambda hf, s, w: s.entries(1, 2)),
    ("last entries", lambda hf, s, w: s.entries(stop=5, limit=2, descending=True)),
    ("context", lambda hf, s, w: s.context("buffer_window", window_size=2)),
    ("context for Claude", lambda hf, s, w: s.context(dialect="anthropic", at_turn=0, tools=[{"type": "function", "function": {"name": "f"}}])),
    ("explain", lambda hf, s, w: s.explain(seq=2)),
    ("explain a text", lambda hf, s, w: s.explain(text="find", before=4, limit=1, strategy="token_window", budget=600)),
    ("explain nothing", lambda hf, s, w: s.explain(seq=99)),
    ("annotate", lambda hf, s, w: s.annotate(0, pinned=True, importance=0.5, refused_by=["default"])),
    ("annotate back", lambda hf, s, w: s.annotate(0, pinned=False, importance=None, refused_by=[])),
    ("annotate nothing", lambda hf, s, w: s.annotate(99, pinned=True)),
    ("replace", lambda hf, s, w: s.replace(1, assistant("Better."))),
    ("erase", lambda hf, s, w: hf.erase(ref(w), 4)),
    ("update", lambda hf, s, w: s.update(metadata={"m": 1, "n": None}, state={"a": None, "c": [1]}, ttl=90_000, system_messages="Be brief.")),
    ("update back", lambda hf, s, w: s.update(ttl=None, agent=None, system_messages=None, metadata=None)),
    ("update wrong", lambda hf, s, w: s.update(agent="nobody")),
    ("fork", lambda hf, s, w: s.fork(0, "f")),
    ("fork again", lambda hf, s, w: hf.fork(ref(w), at_turn=0, id="f")),
    ("fork whole", lambda hf, s, w: hf.fork(ref(w), id="g")),
    ("rewind", lambda hf, s, w: s.rewind(0)),
    ("rewind late", lambda hf, s, w: s.rewind(0, expect=1)),
    ("rewind far", lambda hf, s, w: s.rewind(9)),
    ("retired", lambda hf, s, w: s.entries(retired=True)),
    ("pop", lambda hf, s, w: s.pop()),
    ("facts", lambda hf, s, w: s.facts()),
    ("pin a fact", lambda hf, s, w: s.facts.pin("0.0")),
    ("facts again", lambda hf, s, w: s.facts("digest", budget=900)),
    ("drop a fact", lambda hf, s, w: s.facts.drop("9.9")),
    ("speak", lambda hf, s, w: s.speak("Hello?", source="silence")),
    ("interrupt", lambda hf, s, w: s.interrupt(chars=3)),
    ("send", lambda hf, s, w: s.send("And now?", temperature=0.5, budget=900)),
    ("send tools", lambda hf, s, w: s.send([user("Use it")], tools=[{"type": "function", "function": {"name": "f"}}])),
    ("calls", lambda hf, s, w: s.calls(1)),
    ("prompt", lambda hf, s, w: s.prompt(strategy="token_window", budget=600, dialect="gemini")),
    ("compact", lambda hf, s, w: s.compact(preview=True, strategy="token_window", budget=400)),
    ("compact later", lambda hf, s, w: s.compact(wait=False, budget=400, target=0.1)),
    ("compactions", lambda hf, s, w: s.compactions()),
    ("drop a compaction", lambda hf, s, w: s.drop_compaction(7)),
    ("clear", lambda hf, s, w: s.clear()),
    ("close", lambda hf, s, w: s.close()),
    ("close again", lambda hf, s, w: hf.close_session(ref(w))),
)  # fmt: skip


@exchange(
    lambda body: Reply(tool_calls=[("f", {})]) if body.get("tools") else "Now.",
    "agents: {clerk: {instruction: Be a clerk.}}",
    stores=["file"],
)
async def test_calls_of_a_session(x: Exchange) -> None:
    await compare(x, SESSIONS)


HANDLES: Final[tuple[Step, ...]] = (
    ("create", lambda hf, s, w: hf.create("a", user_id=w, agent="clerk", system_messages=["Be kind."], state={"n": 1}, metadata={"m": 2}, ttl=5000)),
    ("create again", lambda hf, s, w: hf.create("a", user_id=w)),
    ("create badly named", lambda hf, s, w: hf.create(7, user_id=w)),
    ("session of a bad agent", lambda hf, s, w: hf.session("b", user_id=w, agent=7)),
    ("get badly named", lambda hf, s, w: hf.get(7, user_id=w)),
    ("session of an agent", lambda hf, s, w: hf.session("b", user_id=w, agent="clerk", system="Be short.")),
    ("session again", lambda hf, s, w: hf.session("b", user_id=w, system=[system("Other.")])),
    ("get", lambda hf, s, w: hf.get(ref(w, "b"))),
    ("get by name", lambda hf, s, w: hf.get("b", user_id=w)),
    ("get nothing", lambda hf, s, w: hf.get("zzz", user_id=w)),
    ("sessions", lambda hf, s, w: hf.sessions(user_id=w)),
    ("sessions by page", lambda hf, s, w: hf.sessions(user_id=w, limit=1, after=ref(w, "b"))),
    ("sessions oldest first", lambda hf, s, w: hf.sessions(user_id=w, descending=False, agent="clerk", status="active")),
    ("sessions of a time", lambda hf, s, w: hf.sessions(user_id=w, since=1_700_000_001_000, until=1_700_000_001_500)),
    ("move", lambda hf, s, w: hf.move(ref(w, "b"), id="c", agent=None)),
    ("move to nobody", lambda hf, s, w: hf.move(ref(w, "b"), id="c")),
    ("move onto another", lambda hf, s, w: hf.move(ref(w, "c"), id="a")),
    ("export", lambda hf, s, w: hf.export(ref(w, "c"), retired=True, calls=True, digests=True, records=False)),
    ("import", lambda hf, s, w: hf.import_({"messages": [user("Ferry at noon"), assistant("Ok")]}, session_id="i", user_id=w)),
    ("import other", lambda hf, s, w: hf.import_({"messages": [user("Other")]}, session_id="i", user_id=w)),
    ("replace", lambda hf, s, w: hf.import_({"messages": [user("Ferry to Oslo")]}, session_id="i", user_id=w, replace=True)),
    ("import wrong", lambda hf, s, w: hf.import_({"messages": 3}, session_id="j", user_id=w)),
    ("search", lambda hf, s, w: hf.search("ferry", w)),
    ("search narrowly", lambda hf, s, w: hf.search("ferry", w, limit=1, session_id="i", role="user", since=1, neighbours=1, time="off")),
    ("search nothing", lambda hf, s, w: hf.search("", w)),
    ("delete", lambda hf, s, w: hf.delete(ref(w, "c"))),
    ("delete again", lambda hf, s, w: hf.delete(ref(w, "c"))),
    ("remove", lambda hf, s, w: hf.remove(ref(w, "i"))),
    ("remove again", lambda hf, s, w: hf.remove(ref(w, "i"))),
    ("deletions", lambda hf, s, w: hf.deletions(user_id=w, limit=1)),
    ("deletions of a session", lambda hf, s, w: hf.deletions(user_id=w, session_id="c")),
    ("state", lambda hf, s, w: s.state.update({"a": 1, "l": [1], "user:u": "x", "app:z": None})),
    ("increment", lambda hf, s, w: s.state.increment("a", 2.5)),
    ("append to a list", lambda hf, s, w: s.state.append("l", 2, 3)),
    ("append to a number", lambda hf, s, w: s.state.append("a", 2)),
    ("swap", lambda hf, s, w: s.state.compare_and_set("a", 3.5, 4)),
    ("swap late", lambda hf, s, w: s.state.compare_and_set("a", 3.5, 5)),
    ("delete a key", lambda hf, s, w: s.state.delete("l")),
    ("a temporary key", lambda hf, s, w: s.state.set("temp:x", 1)),
    ("get a key", lambda hf, s, w: s.state.get("user:u")),
    ("get a missing key", lambda hf, s, w: s.state.get("nothing", 7)),
    ("whole state", lambda hf, s, w: s.state.all()),
    ("state of the user", lambda hf, s, w: hf.user_state(w).all()),
    ("set state of the user", lambda hf, s, w: hf.user_state(w).set("user:v", {"k": None})),
    ("a key of another scope", lambda hf, s, w: hf.user_state(w).set("v", 1)),
    ("state of the app", lambda hf, s, w: hf.app_state().all()),
)  # fmt: skip


@exchange((), "agents: {clerk: {instruction: Be a clerk.}}", stores=["file"])
async def test_calls_about_sessions_and_state(x: Exchange) -> None:
    await compare(x, HANDLES)


def recs(hf: Any, w: str, *labels: str) -> Any:
    return hf.records(labels, user_id=w)


async def remember(hf: Any, w: str, content: str, **options: Any) -> Any:
    return await hf.memories.remember(content, user_id=w, **options)


async def first_id(hf: Any, w: str) -> str:
    found = await hf.memories.recall("tea", user_id=w, limit=1)
    return str(found.found[0].memory.id)


async def on_first(hf: Any, w: str, name: str, *given: Any, **options: Any) -> Any:
    return await getattr(hf.memories, name)(await first_id(hf, w), *given, **options)


DATA: Final[tuple[Step, ...]] = (
    ("put", lambda hf, s, w: recs(hf, w, "a").put("k", {"n": 1}, text="blue cat")),
    ("put again", lambda hf, s, w: recs(hf, w, "a").put("k", [1], expect=0)),
    ("put late", lambda hf, s, w: recs(hf, w, "a").put("k", [2], expect=7)),
    ("put many", lambda hf, s, w: recs(hf, w, "a", "b").put_many({"k1": 1, "k2": 2, "K1": None}, ttl="1h")),
    ("get", lambda hf, s, w: recs(hf, w, "a").get("k")),
    ("get nothing", lambda hf, s, w: recs(hf, w, "a").get("z")),
    ("get null", lambda hf, s, w: recs(hf, w, "a", "b").get("K1")),
    ("get many", lambda hf, s, w: recs(hf, w, "a").below("b").get_many(["k2", "z", "k1"])),
    ("list", lambda hf, s, w: recs(hf, w, "a").list()),
    ("a page", lambda hf, s, w: recs(hf, w, "a", "b").read_page("k", limit=1)),
    ("a page from the end", lambda hf, s, w: recs(hf, w).read_page(nested=True, limit=2, descending=True, values=False)),
    ("namespaces", lambda hf, s, w: recs(hf, w).namespaces()),
    ("namespaces of a depth", lambda hf, s, w: recs(hf, w).namespaces(depth=1)),
    ("search records", lambda hf, s, w: recs(hf, w, "a").search("cat", nested=True, limit=1)),
    ("delete", lambda hf, s, w: recs(hf, w, "a", "b").delete("k2")),
    ("delete again", lambda hf, s, w: recs(hf, w, "a", "b").delete("k2")),
    ("change", lambda hf, s, w: recs(hf, w, "a").change([recs(hf, w, "a").make_put("p", 1), recs(hf, w, "a").make_delete("k")])),
    ("clear", lambda hf, s, w: recs(hf, w, "a").clear(nested=True)),
    ("records of a session", lambda hf, s, w: s.records("n").put("k", 1)),
    ("drop", lambda hf, s, w: s.records("n").drop()),
    ("save", lambda hf, s, w: s.artifacts.save("a.txt", "One", metadata={"m": 1}, author="me")),
    ("save again", lambda hf, s, w: s.artifacts.save("a.txt", b"Two!", expect=0)),
    ("save late", lambda hf, s, w: s.artifacts.save("a.txt", "x", expect=0)),
    ("save for the user", lambda hf, s, w: s.artifacts.save("user:b.csv", "1,2", mime_type="text/markdown")),
    ("load", lambda hf, s, w: s.artifacts.load("a.txt", 0)),
    ("load nothing", lambda hf, s, w: s.artifacts.load("a.txt", 9)),
    ("get an artifact", lambda hf, s, w: s.artifacts.get("a.txt")),
    ("list artifacts", lambda hf, s, w: s.artifacts.list()),
    ("versions", lambda hf, s, w: s.artifacts.versions("a.txt")),
    ("delete a version", lambda hf, s, w: s.artifacts.delete("a.txt", 0)),
    ("delete an artifact", lambda hf, s, w: s.artifacts.delete("a.txt")),
    ("remember", lambda hf, s, w: remember(hf, w, "Likes tea", tags=["t"], importance=0.9, metadata={"m": 1}, valid_until=1_800_000_000_000)),
    ("remember again", lambda hf, s, w: remember(hf, w, "Likes tea")),
    ("remember for an agent", lambda hf, s, w: hf.memories.remember("Prefers short answers", agent=w, type="procedural", origin="web")),
    ("recall", lambda hf, s, w: hf.memories.recall("Who likes tea?", user_id=w, limit=1)),
    ("get a memory", lambda hf, s, w: on_first(hf, w, "get")),
    ("update a memory", lambda hf, s, w: on_first(hf, w, "update", content="Likes green tea", tags=["g"], importance=0.1, valid_until=None)),
    ("update late", lambda hf, s, w: on_first(hf, w, "update", content="x", expect=0)),
    ("review", lambda hf, s, w: on_first(hf, w, "review", "reject")),
    ("forget", lambda hf, s, w: hf.memories.forget("mem_nothing")),
    ("delete the user", lambda hf, s, w: hf.delete_user(w)),
    ("delete the user again", lambda hf, s, w: hf.delete_user(w)),
)  # fmt: skip


@exchange((), stores=["file"])
async def test_calls_about_records_artifacts_and_memories(x: Exchange) -> None:
    await compare(x, DATA)
