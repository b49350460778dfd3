"""Artifacts: named and versioned files of a session or of a user."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InvalidRequest, TooLarge
from holdfast.testing import Reply
from tests.behaviour.kit import World, bucket, refused, through, user
from tests.behaviour.kit.data import Files

DAY = 86_400_000
HERE = ("library", "connect", "rest")
LARGE = bytes(range(251)) * 13_000
"""More than one part of any backend, and not a whole number of parts."""


@pytest.fixture(scope="module")
def buckets() -> Iterator[str]:
    """The address of an S3 server."""
    with bucket.serving() as url:
        yield url


@pytest.fixture(params=["disk", "database", "s3"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def config(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The configuration of a backend."""
    url = request.getfixturevalue("buckets") if backend == "s3" else ""
    where = {"bucket": f"{bucket.BUCKET}/{tmp_path.name}", "endpoint": url, **bucket.KEYS} if url else {}
    return f"storage: {{artifacts: {json.dumps({'backend': backend, **where})}}}"


@through("library", "rest")
async def test_contents_survive_in_each_backend(world: World, backend: str, config: str) -> None:
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
async def test_saves_of_one_name_get_versions_of_their_own(world: World) -> None:
    async with world.open() as hf:
        files = Files(await hf.given("s", user("Hi.")))
        saved = await asyncio.gather(*(files.save("a.txt", str(number)) for number in range(6)))
        assert sorted(row["version"] for row in saved) == [0, 1, 2, 3, 4, 5]
        for row, number in zip(saved, range(6), strict=True):
            assert await files.load("a.txt", row["version"]) == str(number).encode()


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
async def test_all_tenants_have_the_same_limits(world: World) -> None:
    async with world.open("storage: {artifacts: {max_bytes: 1KiB}}") as hf, hf.native.serve_tenant("acme") as acme:
        for one in (hf.native, acme):
            artifacts = (await one.session("s")).artifacts
            await artifacts.save("a.bin", bytes(1024))
            with pytest.raises(TooLarge):
                await artifacts.save("b.bin", bytes(1025))


@through("library")
async def test_an_upload_that_breaks_off_leaves_nothing(world: World, config: str) -> None:
    """Whether its source fails or its caller is cancelled."""
    reached = asyncio.Event()

    async def chunks(*, fails: bool) -> AsyncIterator[bytes]:
        for _ in range(3):
            yield LARGE
        if fails:
            raise ZeroDivisionError
        reached.set()
        await asyncio.Event().wait()

    async with world.open(config, store="file") as hf:
        artifacts = (await hf.native.session("s")).artifacts
        with pytest.raises(ZeroDivisionError):
            await artifacts.save("a.bin", chunks(fails=True))
        task = asyncio.create_task(artifacts.save("a.bin", chunks(fails=False)))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await artifacts.list() == ()
        assert await hf.native.artifacts.sweep(time.time_ns() // 1_000_000 + DAY) == 0
        assert [path for path in world.folder.rglob("*.artifacts/**/*") if path.is_file()] == []
        url = re.search(r'"endpoint": "([^"]+)"', config)
        assert url is None or bucket.list_unfinished_uploads(url[1]) == []


@through("library")
@pytest.mark.parametrize(("name", "url"), [("nowhere", ""), (bucket.BUCKET, "http://127.0.0.1:9")])
async def test_a_bucket_that_is_not_there_is_reported_without_keys(
    world: World, buckets: str, name: str, url: str
) -> None:
    where = {"backend": "s3", "bucket": name, "endpoint": url or buckets, **bucket.KEYS}
    async with world.open(f"storage: {{artifacts: {json.dumps(where)}}}", store="file") as hf:
        with refused("store_unavailable") as caught:
            await Files(await hf.given("s")).save("a.txt", "x")
        assert "test-secret" not in str(caught.value)


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
async def test_content_without_a_name_is_swept_when_it_is_an_hour_old(world: World, config: str) -> None:
    world.clock.now = time.time_ns() // 1_000_000
    async with world.open(config, store="file") as hf:
        artifacts = hf.native.artifacts
        assert await artifacts.sweep(world.clock.now + DAY) == 0
        for _ in range(2):  # a repeated save keeps one content
            await (await hf.native.session("s")).artifacts.save("a.txt", "x", expect=-1)
        await artifacts.blobs.put("orphan", _once(b"lost"))
        assert await artifacts.sweep(world.clock.now) == 0
        assert await artifacts.sweep(world.clock.now + DAY) == 1
        assert await Files(hf.session("s")).load("a.txt") == b"x"


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


# -- over HTTP -------------------------------------------------------------------------


# -- tools of the model ----------------------------------------------------------------


def results(hf: Any) -> list[str]:
    """Return the results of tools in the last request."""
    return [one["content"] for one in hf.upstream.requests[-1].body["messages"] if one["role"] == "tool"]


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


@through("rest")
async def test_a_range_and_a_condition_hold_for_one_content(world: World) -> None:
    """After another version with the same number, an ETag of the old one fits neither."""
    path = "/v1/sessions/s/artifacts/f.txt"
    async with world.open() as hf:
        await hf.given("s", user("Hi."))
        etags = []
        for text in (b"first one", b"other one"):
            etags.append((await hf.http.put(path, content=text)).headers["etag"])
            part = await hf.http.get(path, headers={"range": "bytes=0-4", "if-range": etags[0]})
            assert (part.status_code, part.content) == ((206, b"first") if text == b"first one" else (200, text))
            if len(etags) == 1:
                await hf.session().delete()
                await hf.given("s", user("Hi."))
        assert etags[0].partition("-")[0] == etags[1].partition("-")[0]
        saved = [await hf.http.put(path, content=b"new", headers={"if-match": etag}) for etag in etags]
        assert [one.status_code for one in saved] == [412, 201]


@through("rest")
async def test_a_page_of_artifacts_says_that_shared_ones_follow(world: World) -> None:
    async with world.open() as hf:
        session = await hf.create("s", user="ada")
        for name in ("a.txt", "b.txt", "user:c.txt"):
            await Files(session).save(name, "x")
        pages = [
            (await hf.http.get("/v1/sessions/s/artifacts", params={"user_id": "ada", "limit": at})).json()
            for at in (2, 3)
        ]
        assert [(len(page["data"]), page["has_more"]) for page in pages] == [(2, True), (3, False)]
