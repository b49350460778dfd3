"""Artifacts: named and versioned files of a session or of a user."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InvalidRequest
from holdfast.settings import ArtifactSettings
from holdfast.testing import Reply
from tests.behaviour.kit import Refused, World, bucket, refused, through, user
from tests.behaviour.kit.data import Files, names

HERE = ("library", "connect", "rest")
LARGE = bytes(range(251)) * 13_000
"""More than one part of any backend, and not a whole number of parts."""
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


@pytest.fixture(scope="module")
def buckets() -> Iterator[str]:
    """The address of an S3 server."""
    with bucket.serving() as url:
        yield url


@through(*HERE)
async def test_a_file_is_saved_with_its_metadata_and_read_back(world: World) -> None:
    async with world.open() as hf:
        files = Files(await hf.given("s", user("Hi."), user="ada"))
        saved = await files.save("report.md", "# Lisbon\n", author="writer", metadata={"draft": True})
        assert {name: saved[name] for name in ("name", "version", "mime_type", "size", "author", "metadata", "created_at")} == {
            "name": "report.md", "version": 0, "mime_type": "text/markdown", "size": 9, "author": "writer",
            "metadata": {"draft": True}, "created_at": world.clock.now,
        }  # fmt: skip
        await files.save("report.md", b"# Lisbon\n\nFour days.\n")
        assert await files.load("report.md") == b"# Lisbon\n\nFour days.\n"
        assert await files.load("report.md", 0) == b"# Lisbon\n"
        if world.driver != "connect":
            assert await files.load("report.md", part=(2, 8)) == b"Lisbon"
        assert names(await files.versions("report.md")) == [("report.md", 0), ("report.md", 1)]
        await files.save("empty.txt", b"")
        assert await files.load("empty.txt") == b""
        assert names(await files.list()) == [("empty.txt", 0), ("report.md", 1)]


@pytest.mark.parametrize("backend", ["disk", "database", "s3"])
@through("library", "rest")
async def test_contents_survive_in_each_backend(world: World, backend: str, request: pytest.FixtureRequest) -> None:
    where: dict[str, Any] = {"backend": backend}
    if backend == "s3":
        where |= {
            "bucket": f"{bucket.BUCKET}/{world.folder.name}",
            "endpoint": request.getfixturevalue("buckets"),
            **bucket.KEYS,
        }
    config = f"storage: {{artifacts: {json.dumps(where)}}}"
    async with world.open(config, store="file") as hf:
        session = await hf.given("s", user("Hi."))
        saved = await Files(session).save("map.bin", LARGE)
        assert saved["sha256"] == hashlib.sha256(LARGE).hexdigest()
        url = hf.url
        stored = sum(path.stat().st_size for path in world.folder.rglob("*.artifacts/**/*") if path.is_file())
        assert stored == (len(LARGE) if backend == "disk" else 0)
    async with world.open(config, store=url) as hf:
        files = Files(hf.session("s"))
        assert await files.load("map.bin") == LARGE
        edge = 1 << 20
        assert await files.load("map.bin", part=(edge - 2, 2 * edge + 2)) == LARGE[edge - 2 : 2 * edge + 2]
        await files.delete("map.bin")
        with refused("artifact_not_found", "map.bin"):
            await files.load("map.bin")
        assert [path for path in world.folder.rglob("*.artifacts/**/*") if path.is_file()] == []


@through(*HERE)
async def test_a_name_of_the_user_is_shared_by_all_sessions(world: World) -> None:
    async with world.open() as hf:
        one, two = [Files(await hf.given(name, user("Hi."), user="ada")) for name in ("s", "t")]
        other = Files(await hf.given("s", user("Hi."), user="bob"))
        await one.save("user:logo.png", PNG)
        await one.save("a.txt", "a")
        assert names(await one.list()) == [("a.txt", 0), ("user:logo.png", 0)]
        assert names(await two.list()) == [("user:logo.png", 0)]
        assert await other.list() == []
        with refused("artifact_not_found"):
            await other.load("user:logo.png")
        await hf.session("s", "ada").delete()
        assert await two.load("user:logo.png") == PNG
        assert (await hf.delete_user("ada"))["artifacts"] == 1


@through(*HERE)
async def test_saves_of_one_name_get_versions_of_their_own(world: World) -> None:
    async with world.open() as hf:
        files = Files(await hf.given("s", user("Hi.")))
        saved = await asyncio.gather(*(files.save("a.txt", str(number)) for number in range(6)))
        assert sorted(row["version"] for row in saved) == [0, 1, 2, 3, 4, 5]
        for row, number in zip(saved, range(6), strict=True):
            assert await files.load("a.txt", row["version"]) == str(number).encode()


@through(*HERE)
async def test_an_expected_version_guards_a_save(world: World) -> None:
    async with world.open() as hf:
        files = Files(await hf.given("s", user("Hi.")))
        first = await files.save("plan.txt", "walk", expect=-1)
        second = await files.save("plan.txt", "tram", expect=first["version"])
        assert await files.save("plan.txt", "tram", expect=0) == second, "a repeated save returns the first result"
        for expected in (-1, 0):
            with refused("stale_artifact"):
                await files.save("plan.txt", "swim", expect=expected)
        assert await files.load("plan.txt") == b"tram"


@through(*HERE)
async def test_version_numbers_are_not_used_again(world: World) -> None:
    async with world.open() as hf:
        files = Files(await hf.given("s", user("Hi.")))
        for text in ("0", "1", "2"):
            await files.save("a.txt", text)
        await files.delete("a.txt", 2)
        assert await files.load("a.txt") == b"1"
        assert (await files.save("a.txt", "3"))["version"] == 3
        await files.delete("a.txt")
        assert await files.list() == []
        for version in (None, 1):
            with refused("artifact_not_found"):
                await files.load("a.txt", version)


BAD_NAMES = [
    "../etc/passwd",
    "a\\b",
    ".hidden",
    "end.",
    "con.txt",
    "NUL",
    "a\x00b",
    "a\u202eb",
    "x" * 256,
    "a:b",
    "user:",
]


@through("library", "connect")
@pytest.mark.parametrize("name", BAD_NAMES)
async def test_a_dangerous_name_is_refused(world: World, name: str) -> None:
    async with world.open() as hf:
        files = Files(await hf.given("s", user("Hi.")))
        with refused("invalid_request"):
            await files.save(name, "x")
        assert await files.list() == []


@through("rest")
@pytest.mark.parametrize("name", BAD_NAMES)
async def test_a_dangerous_name_is_refused_over_http(world: World, name: str) -> None:
    async with world.open() as hf:
        files = Files(await hf.given("s", user("Hi.")))
        with pytest.raises(Refused) as refusal:
            await files.save(name, "x")
        assert refusal.value.status in {400, 404}
        assert await files.list() == []


@through(*HERE)
async def test_names_are_unicode_and_differ_by_more_than_case(world: World) -> None:
    async with world.open() as hf:
        files = Files(await hf.given("s", user("Hi.")))
        await files.save("Reise\u0308 (1)+,@.txt", "x")
        assert names(await files.list()) == [("Reis\u00eb (1)+,@.txt", 0)]
        with refused("conflict", "Reis\u00eb (1)+,@.txt"):
            await files.save("REISË (1)+,@.txt", "y")


TYPES: list[tuple[str, bytes, str | None, str]] = [
    ("a.json", b"{}", None, "application/json"),
    ("a.md", b"x", "text/plain; charset=latin-1", "text/plain; charset=latin-1"),
    ("a", b"x", None, "application/octet-stream"),
    ("a.txt", PNG, None, "image/png"),
    ("a", b"%PDF-1.7", None, "application/pdf"),
    ("a.jpg", b"\xff\xd8\xff\xe0", None, "image/jpeg"),
    ("a", b"GIF89a", None, "image/gif"),
    ("a", b"RIFF\x00\x00\x00\x00WEBP", None, "image/webp"),
    ("a.docx", b"PK\x03\x04", None, "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
]


@through(*HERE)
async def test_the_type_is_given_or_detected(world: World) -> None:
    async with world.open() as hf:
        files = Files(await hf.given("s", user("Hi.")))
        found = []
        for number, (name, data, given, _) in enumerate(TYPES):
            more: dict[str, Any] = {} if given is None else {"mime_type": given}
            found.append((await files.save(f"{number}{name}", data, **more))["mime_type"])
        assert found == [kind for *_, kind in TYPES]
        with refused("unsupported_type", "image/png"):
            await files.save("b", PNG, mime_type="image/jpeg")


@through(*HERE)
async def test_sizes_are_limited(world: World) -> None:
    async with world.open("storage: {artifacts: {max_bytes: 1KiB, max_total: 2500}}") as hf:
        files = Files(await hf.given("s", user("Hi.")))
        with refused("too_large"):
            await files.save("a", bytes(1025))
        for name in ("a", "b"):
            await files.save(name, bytes(1000))
        with refused("too_large"):
            await files.save("c", bytes(1000))
        await files.delete("a")
        await files.save("c", bytes(1000))
        assert names(await files.list()) == [("b", 0), ("c", 0)]


@through("library")
async def test_a_program_streams_files_in_and_out(world: World) -> None:
    async with world.open(store="file") as hf:
        artifacts = (await hf.native.session("s")).artifacts
        source = world.folder / "map.bin"
        source.write_bytes(LARGE)

        async def chunks() -> AsyncIterator[bytes]:
            for at in range(0, len(LARGE), 70_001):
                yield LARGE[at : at + 70_001]

        for number, content in enumerate((Path(source), chunks())):
            saved = await artifacts.save(f"{number}.bin", content)
            read = b""
            async with artifacts.open(f"{number}.bin") as opened:
                async for chunk in opened.chunks:
                    read += chunk
            assert (read == LARGE, saved.size, opened.artifact) == (True, len(LARGE), saved)
        with pytest.raises(InvalidRequest, match="not int"):
            await artifacts.save("x.bin", 7)


@through("library")
async def test_an_upload_that_fails_leaves_nothing(world: World) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield bytes(300_000)
        raise ZeroDivisionError

    async with world.open(store="file") as hf:
        artifacts = (await hf.native.session("s")).artifacts
        with pytest.raises(ZeroDivisionError):
            await artifacts.save("a.bin", chunks())
        assert await artifacts.list() == ()
        assert [path for path in world.folder.rglob("*.artifacts/**/*") if path.is_file()] == []


@through("library")
async def test_damaged_content_is_noticed(world: World) -> None:
    async with world.open(store="file") as hf:
        files = Files(await hf.given("s", user("Hi.")))
        await files.save("a.txt", "unharmed")
        (stored,) = [path for path in world.folder.rglob("*.artifacts/**/*") if path.is_file()]
        assert stored.stat().st_mode & 0o777 == 0o600
        stored.write_bytes(b"xxharmed")
        with refused("store_corrupt"):
            await files.load("a.txt")
        stored.unlink()
        with refused("store_corrupt"):
            await files.load("a.txt")


@through("library")
async def test_content_without_a_name_is_swept_when_it_is_an_hour_old(world: World) -> None:
    settings = ArtifactSettings(backend="database")
    async with world.open(store="file", artifacts=settings) as hf:
        artifacts = hf.native.artifacts
        await Files(await hf.given("s", user("Hi."))).save("a.txt", "x")
        await artifacts.blobs.put("orphan", _once(b"lost"))
        assert await artifacts.sweep(hf.native.clock()) == 0
        world.clock.now += 3_600_001
        assert await artifacts.sweep(hf.native.clock()) == 1
        assert await Files(hf.session("s")).load("a.txt") == b"x"


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


@through("library")
async def test_a_users_files_need_no_session(world: World) -> None:
    async with world.open() as hf:
        shared = hf.native.user_artifacts("ada")
        await shared.save("user:logo.png", PNG)
        assert [one.name for one in await shared.list()] == ["user:logo.png"]
        with pytest.raises(Exception, match="user:"):
            await shared.save("logo.png", PNG)


# -- over HTTP -------------------------------------------------------------------------


@through("rest")
@pytest.mark.parametrize(
    ("asked", "status", "found", "told"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=0-99", 200, b"0123456789", None),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=4-2", 200, b"0123456789", None),
        ("bytes=0-1,4-5", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
    ],
)
async def test_a_range_is_answered(
    world: World, asked: str, status: int, found: bytes | None, told: str | None
) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("Hi."))
        await Files(session).save("a.txt", "0123456789")
        answer = await hf.http.get(f"{session.path}/artifacts/a.txt", headers={"range": asked})
        assert (answer.status_code, answer.headers.get("content-range")) == (status, told)
        if found is not None:
            assert answer.content == found


@through("rest")
async def test_an_unchanged_file_is_not_sent_again(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("Hi."))
        await Files(session).save("a.html", "<script>alert(1)</script>")
        url = f"{session.path}/artifacts/a.html"
        first = await hf.http.get(url)
        again = await hf.http.get(url, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        head = await hf.http.head(url)
        assert (head.headers["content-length"], head.content) == ("25", b"")
        assert first.headers["content-disposition"].startswith("attachment")
        assert (first.headers["x-content-type-options"], first.headers["content-security-policy"]) == (
            "nosniff",
            "sandbox; default-src 'none'",
        )
        assert first.headers["repr-digest"].startswith("sha-256=:")
        part = await hf.http.get(url, headers={"range": "bytes=0-1", "if-range": '"other"'})
        assert (part.status_code, len(part.content)) == (200, 25)
        page = (await hf.http.get(f"{session.path}/artifacts", params={"limit": 1})).json()
        assert (names(page["data"]), page["has_more"]) == ([("a.html", 0)], False)


# -- tools of the model ----------------------------------------------------------------

TOOLS = "agents: {writer: {tools: [save_artifact, load_artifact, list_artifacts]}}"


def results(hf: Any) -> list[str]:
    """Return the results of tools in the last request."""
    return [one["content"] for one in hf.upstream.requests[-1].body["messages"] if one["role"] == "tool"]


@through("library", "rest")
async def test_a_model_saves_lists_and_loads_files(world: World) -> None:
    letter = {"name": "letter.md", "content": "Dear Bob"}
    script = [
        Reply(tool_calls=[("save_artifact", letter), ("save_artifact", {"name": "p.png", "content": "iVBORw0KGgo=", "encoding": "base64"})]),
        Reply(tool_calls=[("list_artifacts", {}), ("load_artifact", {"name": "letter.md"})]),
        Reply(tool_calls=[("save_artifact", {"name": "../x", "content": ""}), ("load_artifact", {"name": "nope"})]),
        "Here: artifact:letter.md",
    ]  # fmt: skip
    async with world.open(TOOLS, script=script) as hf:
        session = await hf.create("s", agent="writer")
        await session.send(user("Write."))
        assert await Files(session).load("letter.md") == b"Dear Bob"
        saved, _, listed, loaded, wrong, missing = results(hf)
        assert json.loads(saved)["version"] == 0
        assert [one["name"] for one in json.loads(listed)["artifacts"]] == ["letter.md", "p.png"]
        assert "Dear Bob" in loaded
        assert "nope" in missing
        assert "name" in wrong
        saved_in_turn = (await session.messages())[-1]["metadata"]["artifacts"]
        assert sorted(saved_in_turn, key=lambda one: one["name"]) == [
            {"name": "letter.md", "version": 0},
            {"name": "p.png", "version": 0},
        ]


@through("library", "rest")
async def test_a_long_text_is_loaded_in_parts(world: World) -> None:
    script = [
        Reply(tool_calls=[("load_artifact", {"name": "a.txt", "limit": 16})]),
        Reply(tool_calls=[("load_artifact", {"name": "a.txt", "offset": 16, "limit": 16})]),
        "Read.",
    ]
    async with world.open(TOOLS, script=script) as hf:
        session = await hf.create("s", agent="writer")
        await Files(session).save("a.txt", "0123456789abcdefghijklmnopqrstuvwxyz")
        await session.send(user("Read."))
        first, second = results(hf)
        assert "0123456789abcdef" in first
        assert "ghij" not in first
        assert "ghijklmnopqrstuv" in second


@through("library", "rest")
async def test_the_text_editor_edits_files(world: World) -> None:
    edits: list[dict[str, Any]] = [
        {"command": "create", "path": "/a.md", "file_text": "one\ntwo\n"},
        {"command": "str_replace", "path": "a.md", "old_str": "two", "new_str": "three"},
        {"command": "insert", "path": "a.md", "insert_line": 0, "insert_text": "zero\n"},
        {"command": "view", "path": "a.md", "view_range": [2, 3]},
        {"command": "view", "path": "/"},
        {"command": "undo_edit", "path": "a.md"},
        {"command": "str_replace", "path": "a.md", "old_str": "absent", "new_str": "x"},
        {"command": "view", "path": "../x"},
    ]
    script = [*(Reply(tool_calls=[("text_editor", edit)]) for edit in edits), "Done."]
    async with world.open("agents: {writer: {tools: [text_editor]}}", script=script) as hf:
        session = await hf.create("s", agent="writer")
        await session.send(user("Edit."))
        assert await Files(session).load("a.md") == b"one\nthree\n"
        assert [await Files(session).load("a.md", number) for number in range(3)] == [
            b"one\ntwo\n", b"one\nthree\n", b"zero\none\nthree\n",
        ]  # fmt: skip
        *_, view, folder, _, absent, wrong = results(hf)
        assert "one" in view
        assert "zero" not in view
        assert "a.md" in folder
        assert "absent" in absent or "not" in absent
        assert "name" in wrong or "path" in wrong
