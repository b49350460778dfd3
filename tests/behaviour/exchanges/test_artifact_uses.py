"""Artifacts in the library and through `connect`, in tools of a model, and what becomes of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import holdfast
from holdfast import SessionRef
from holdfast.testing import Reply
from tests.behaviour.kit import user
from tests.behaviour.kit.exchanges import Exchange, exchange

MIB = 1 << 20


def outline(found: Any) -> Any:
    """Return what an artifact is, or a content."""
    if isinstance(found, tuple | list):
        return [outline(one) for one in found]
    if hasattr(found, "data"):
        return [outline(found.artifact), found.data.decode()]
    if not hasattr(found, "mime_type"):
        return found
    return [found.name, found.version, found.mime_type, found.size, found.author, found.metadata, found.created_at]


async def pieces(*chunks: Any) -> AsyncIterator[Any]:
    for chunk in chunks:
        yield chunk


async def call_everything(x: Exchange, files: Any, name: str) -> None:
    """Call each method of a handle of artifacts."""
    for label, work in {
        "missing": files.get(name),
        "no versions": files.versions(name),
        "save": files.save(name, "zero", author="writer", metadata={"a": [1]}),
        "again": files.save(name, b"one", expect=0),
        "repeated": files.save(name, b"one", expect=0),
        "stale": files.save(name, b"two", expect=0),
        "not new": files.save(name, b"two", expect=-1),
        "wrong version": files.save(name, b"two", expect=-2),
        "typed": files.save(name, bytearray(b"two"), mime_type="text/CSV; charset=latin-1"),
        "streamed": files.save(name, pieces(b"th", b"", b"ree")),
        "no bytes": files.save(name, pieces(b"th", "ree")),
        "no content": files.save(name, 5),
        "no metadata": files.save(name, "x", metadata={"a": object()}),
        "wrong type": files.save(name, "x", mime_type="image/png"),
        "get": files.get(name),
        "get first": files.get(name, 0),
        "get none": files.get(name, 9),
        "load": files.load(name),
        "load first": files.load(name, 0),
        "load none": files.load(name, 9),
        "another": files.save(f"{name}.md", ""),
        "list": files.list(),
        "versions": files.versions(name),
        "other case": files.save(name.upper().replace("USER", "user"), "x"),
        "bad name": files.save(".a", "x"),
    }.items():
        await x.attempt(label, work, outline)


@exchange()
async def test_calls_of_the_library(x: Exchange) -> None:
    async with holdfast.connect(x.served.url) as remote:
        for hf, owner in ((x.served.native, "ada"), (remote, "bob")):
            x.note("library" if owner == "ada" else "connect", owner)
            session: Any = await hf.session("s", user_id=owner)
            for name in ("a", "user:a"):
                await call_everything(x, session.artifacts, name)
                deleted = [await session.artifacts.delete(name, 1), await session.artifacts.delete(f"{name}.md")]
                x.note("deleted", outline(deleted))
                await x.attempt("delete none", session.artifacts.delete(name, 1))
            await x.attempt("left", session.artifacts.list(), outline)
            await session.delete()
            await hf.session("s", user_id=owner)
            await x.attempt("gone", session.artifacts.save("b", "x"), outline)
            await x.attempt("shared", session.artifacts.list(), outline)


@exchange()
async def test_parts_and_owners(x: Exchange) -> None:
    native, ref = x.served.native, SessionRef("ada", "s")
    files: Any = (await native.session("s", user_id="ada")).artifacts
    shared: Any = native.user_artifacts("ada")
    content = bytes(range(97, 123)) * 100_000
    await files.save("a.txt", content)
    edges = (
        (0, 3),
        (MIB - 2, MIB + 2),
        (2 * MIB, 2 * MIB),
        (2_599_998, None),
        (2_599_998, 9_999_999),
        (2_600_000, None),
    )
    for start, stop in edges:
        await x.attempt(f"{start} to {stop}", files.load("a.txt", start=start, stop=stop), outline)
    for start, stop in ((-1, None), (5, 4), (2_600_001, None)):
        await x.attempt(f"{start} to {stop}", files.load("a.txt", start=start, stop=stop), outline)
    x.note("whole", (await files.load("a.txt")).data == content)
    await x.attempt("shared", shared.save("user:a", "x"), outline)
    await x.attempt("not shared", shared.save("a", "x"), outline)
    await x.attempt("of the user", shared.list(), outline)
    await x.attempt("of the session", files.list(), outline)
    await x.attempt("of the user bob", native.user_artifacts("bob").list(), outline)
    await x.attempt("forgotten", native.artifacts.forget(ref))
    await x.attempt("forgotten again", native.artifacts.forget(ref))
    await x.attempt("no session", native.artifacts.forget(SessionRef("ada", "none")))
    await x.attempt("after it", files.list(), outline)


@exchange(["Yes."], "sessions: {ttl: 1h}", "storage: {sessions: {retention: 1d}}", stores=["file"])
async def test_what_becomes_of_artifacts(x: Exchange) -> None:
    await x.post("/v1/chat/completions", session_id="s", user_id="ada", messages=[user("Hi.")])
    for name, text in (("a.txt", "zero"), ("a.txt", "one"), ("b", "x"), ("user:c", "shared"), ("b", "y")):
        await x.served.http.put(f"/v1/sessions/s/artifacts/{name}", content=text.encode(), params={"author": "me"})
    await x.delete("/v1/sessions/s/artifacts/b", version=1)
    await x.get("/v1/sessions/s")
    await x.post("/v1/sessions/s/fork", id="f")
    fields = ("name", "version", "size", "author", "created_at")
    for name in ("s", "f"):
        await x.rows(f"/v1/sessions/{name}/artifacts", *fields)
        await x.rows(f"/v1/sessions/{name}/artifacts", *fields, name="a.txt")
    exported = await x.get("/v1/sessions/s", user_id="ada")
    await x.send("PUT", "/v1/sessions/s?user_id=cy", exported)
    await x.rows("/v1/sessions/s/artifacts", *fields, user_id="cy")
    await x.post("/v1/sessions/s/move?user_id=ada", user_id="bob", id="m")
    await x.rows("/v1/sessions/m/artifacts", *fields)
    await x.rows("/v1/sessions/m/artifacts", *fields, name="a.txt")
    await x.get("/v1/sessions/m/artifacts/a.txt", version=0)
    native = x.served.native
    async with holdfast.open(x.served.store, clock=x.served.clock) as second:
        files: Any = (await second.session("m", user_id="bob")).artifacts
        await x.attempt("a second program", files.load("a.txt", 0), outline)
        await files.save("a.txt", "two")
    await x.get("/v1/sessions/m/artifacts/a.txt")
    await x.later(hours=2)
    await x.get("/v1/sessions/m/artifacts/a.txt")
    await x.send("PUT", "/v1/sessions/m/artifacts/late", b"x")
    await x.run("sessions", "delete", "m", "--user", "bob", "--yes")
    await x.get("/v1/sessions/m/artifacts/a.txt")
    await x.later(days=2)
    await x.get("/v1/sessions/f/artifacts")
    await x.attempt("shared still", native.user_artifacts("ada").list(), outline)
    await x.delete("/v1/users/ada")
    await x.attempt("shared no more", native.user_artifacts("ada").list(), outline)


TOOLS = "agents: {writer: {llm: default, tools: [save_artifact, load_artifact, list_artifacts]}}"
PNG = "iVBORw0KGgo="


def script(*calls: tuple[str, dict[str, Any]]) -> list[Any]:
    return [*(Reply(tool_calls=[call]) for call in calls), "Here: artifact:letter.md"]


CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("list_artifacts", {}),
    ("save_artifact", {"name": "letter.md", "content": "Dear Bob", "expect": -1}),
    ("save_artifact", {"name": "letter.md", "content": "Dear Ada", "expect": -1}),
    ("save_artifact", {"name": "user:p.png", "content": f" {PNG[:4]}\n{PNG[4:]}", "encoding": "base64"}),
    ("save_artifact", {"name": "x", "content": "?", "encoding": "base64"}),
    ("save_artifact", {"name": "plain", "content": "no type"}),
    ("save_artifact", {"name": "latin", "content": "é ü", "media_type": "text/plain; charset=latin-1"}),
    ("save_artifact", {"name": "result-1", "content": "?"}),
    ("load_artifact", {"name": "letter.md"}),
    ("load_artifact", {"name": "long.txt", "limit": 17}),
    ("load_artifact", {"name": "long.txt", "offset": 17, "limit": 17}),
    ("load_artifact", {"name": "long.txt", "offset": 40}),
    ("load_artifact", {"name": "long.txt", "offset": 41}),
    ("load_artifact", {"name": "long.txt", "version": 7}),
    ("load_artifact", {"name": "latin"}),
    ("load_artifact", {"name": "empty"}),
    ("load_artifact", {"name": "data.bin"}),
    ("load_artifact", {"name": "user:p.png"}),
    ("load_artifact", {"name": "result-2"}),
    ("load_artifact", {"name": "result-1"}),
    ("load_artifact", {"name": "lettr.md"}),
    ("list_artifacts", {"prefix": "user:"}),
)


@exchange(script(*CALLS), TOOLS)
async def test_tools_of_a_model(x: Exchange) -> None:
    await x.served.rest.create("s", user="ada", agent="writer")
    for name, content in (
        ("long.txt", "0123456789abcde é ü 🚢 0123456789abcd".encode()),
        ("empty", b""),
        ("data.bin", b"\0\1"),
    ):
        await x.served.http.put(f"/v1/sessions/s/artifacts/{name}", content=content)
    done = await x.served.chat("Write.", user_id="ada")
    x.note("answer", [done["status"], done["choices"][0]["message"]["content"]])
    asked = [one for one in x.served.sent["messages"] if one["role"] == "tool"]
    for call, result in zip(CALLS, asked, strict=True):
        x.note(f"{call[0]} {call[1]}", result["content"])
    await x.rows("/v1/sessions/s/artifacts", "name", "version", "mime_type", "size", "author", "metadata")
    found = await x.served.entries("s", "ada")
    x.note("named", found[-1]["metadata"])
    x.seen["default"] = len(x.served.upstream.requests)
