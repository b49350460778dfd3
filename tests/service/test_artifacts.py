"""Artifacts as a session's user has them: saved, loaded, listed, deleted; and what keeps the place clean."""

from __future__ import annotations

import asyncio
import hashlib
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.artifacts import ArtifactService, ArtifactSettings, DeletedArtifacts
from holdfast.artifacts.blobs import CHUNK, DatabaseBlobs
from holdfast.domain.artifact import UserRef
from holdfast.domain.session import SessionRef
from holdfast.errors import (
    ArtifactNotFound,
    Conflict,
    InvalidRequest,
    SessionNotFound,
    StaleArtifact,
    StoreCorrupt,
    StoreUnavailable,
    TooLarge,
    UnsupportedType,
)
from holdfast.holdfast import Holdfast
from holdfast.sessions.handle import SessionHandle
from holdfast.wire.artifacts import ArtifactObject
from tests.clocks import Clock

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
HOUR = 3_600_000


@pytest.fixture(params=["sqlite://:memory:", "sqlite:///chat.db"])
async def hf(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> AsyncIterator[Holdfast]:
    """With contents in the database, and on disk."""
    monkeypatch.chdir(tmp_path)
    async with holdfast.open(request.param, clock=clock) as opened:
        yield opened


@pytest.fixture
async def session(hf: Holdfast) -> SessionHandle:
    """One of ann's."""
    return await hf.session("s1", user_id="ann")


async def kept(hf: Holdfast) -> list[str]:
    """The keys of all contents that are there."""
    return sorted([key async for key in hf.artifacts.blobs.list_old(2**60)])


async def pieces(*chunks: bytes) -> AsyncGenerator[bytes, None]:
    """A content as it may arrive."""
    for chunk in chunks:
        yield chunk


# -- saving and loading --------------------------------------------------------


async def test_what_was_saved_is_loaded(hf: Holdfast, session: SessionHandle, clock: Clock) -> None:
    """With all that is known of it."""
    saved = await session.artifacts.save("a.txt", b"hello", metadata={"k": [1]}, author="ann")
    assert msgspec.to_builtins(ArtifactObject.from_artifact(saved)) == {
        "object": "artifact",
        "name": "a.txt",
        "version": 0,
        "mime_type": "text/plain",
        "size": 5,
        "sha256": hashlib.sha256(b"hello").hexdigest(),
        "author": "ann",
        "metadata": {"k": [1]},
        "created_at": clock.now,
    }
    loaded = await session.artifacts.load("a.txt")
    assert (loaded.artifact, loaded.data) == (saved, b"hello")
    assert await session.artifacts.get("a.txt") == saved


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, 3_000_000])
async def test_contents_of_every_kind(session: SessionHandle, tmp_path: Path, size: int) -> None:
    """Bytes and their like, a text, a file, chunks of any size."""
    data = (b"0123456789" * (size // 10 + 1))[:size]
    (tmp_path / "file").write_bytes(data)
    chunks = [data[at : at + 77_777] for at in range(0, size, 77_777)]
    for given_ in (
        data,
        bytearray(data),
        memoryview(data),
        data.decode(),
        tmp_path / "file",
        pieces(b"", *chunks, b""),
    ):
        saved = await session.artifacts.save("a.bin", given_)
        assert (saved.size, saved.sha256) == (size, hashlib.sha256(data).digest())
        assert (await session.artifacts.load("a.bin", saved.version)).data == data


async def test_what_is_no_content_is_refused(hf: Holdfast, session: SessionHandle, tmp_path: Path) -> None:
    """By its type, by a chunk's, by a file that is not there."""

    async def texts() -> AsyncGenerator[Any, None]:
        yield b"bytes"
        yield "text"

    for wrong in (5, None, [b"x"], texts(), tmp_path / "nowhere", tmp_path):
        with pytest.raises(InvalidRequest) as caught:
            await session.artifacts.save("a", wrong)  # type: ignore[arg-type]  # on purpose
        assert caught.value.param == "data"
    assert await kept(hf) == []


@pytest.mark.parametrize(
    ("start", "stop", "found"),
    [(0, None, b"0123456789"), (3, 5, b"34"), (8, 99, b"89"), (10, 12, b""), (5, 5, b"")],
)
async def test_a_part_is_loaded(session: SessionHandle, start: int, stop: int | None, found: bytes) -> None:
    """As slices are."""
    await session.artifacts.save("a", b"0123456789")
    assert (await session.artifacts.load("a", start=start, stop=stop)).data == found
    async with session.artifacts.open("a", start=start, stop=stop) as opened:
        assert b"".join([chunk async for chunk in opened.chunks]) == found
    for wrong in ({"start": -1}, {"start": 5, "stop": 4}):
        with pytest.raises(InvalidRequest):
            await session.artifacts.load("a", **wrong)


async def test_a_large_content_is_never_whole_in_memory(hf: Holdfast, session: SessionHandle) -> None:
    """Neither on its way in nor out."""
    piece = bytes(1 << 16)

    async def large() -> AsyncGenerator[bytes, None]:
        for _ in range(320):
            yield piece

    tracemalloc.start()
    try:
        saved = await session.artifacts.save("a.bin", large())
        async with session.artifacts.open("a.bin") as opened:
            size = 0
            async for chunk in opened.chunks:
                size += len(chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert saved.size == size == 20 << 20
    assert peak < 8 << 20


async def test_versions(hf: Holdfast, session: SessionHandle) -> None:
    """Of each name its own; deleting one leaves the others."""
    for text in ("one", "two", "three"):
        await session.artifacts.save("a.txt", text)
    assert [one.version for one in await session.artifacts.versions("a.txt")] == [0, 1, 2]
    assert (await session.artifacts.load("a.txt")).data == b"three"
    assert (await session.artifacts.load("a.txt", 0)).data == b"one"
    (gone,) = await session.artifacts.delete("a.txt", 1)
    assert gone.version == 1
    with pytest.raises(ArtifactNotFound):
        await session.artifacts.load("a.txt", 1)
    assert len(await session.artifacts.delete("a.txt")) == 2
    assert await session.artifacts.list() == ()
    assert await kept(hf) == []


async def test_concurrent_saves_of_one_name_all_succeed(hf: Holdfast, session: SessionHandle) -> None:
    """Each is a version, with its own content."""
    saved = await asyncio.gather(*(session.artifacts.save("a", str(at)) for at in range(20)))
    assert sorted(one.version for one in saved) == list(range(20))
    for at, one in enumerate(saved):
        assert (await session.artifacts.load("a", one.version)).data == str(at).encode()


async def test_an_expected_version(hf: Holdfast, session: SessionHandle) -> None:
    """Whoever comes late is refused, and leaves nothing; a retry is answered as the first time."""
    first = await session.artifacts.save("a", "one", expect=-1)
    second = await session.artifacts.save("a", "two", expect=0)
    assert await session.artifacts.save("a", "two", expect=0) == second
    for expect in (0, -1, 5):
        with pytest.raises(StaleArtifact):
            await session.artifacts.save("a", "other", expect=expect)
    assert await kept(hf) == sorted([first.blob, second.blob])


# -- names and scopes ----------------------------------------------------------


async def test_what_begins_with_user_is_every_sessions(hf: Holdfast, session: SessionHandle) -> None:
    """Of that user, and of nobody else."""
    await session.artifacts.save("user:logo.png", PNG)
    await session.artifacts.save("logo.png", PNG + b"x")
    other = await hf.session("s2", user_id="ann")
    assert (await other.artifacts.load("user:logo.png")).data == PNG
    with pytest.raises(ArtifactNotFound):
        await other.artifacts.load("logo.png")
    assert [one.name for one in await session.artifacts.list()] == ["logo.png", "user:logo.png"]
    assert [one.name for one in await other.artifacts.list()] == ["user:logo.png"]
    foreign = await hf.session("s1", user_id="bob")
    assert await foreign.artifacts.list() == ()
    with pytest.raises(ArtifactNotFound):
        await foreign.artifacts.load("user:logo.png")


async def test_pages_go_through_both(hf: Holdfast, session: SessionHandle) -> None:
    """The session's own first, whatever the size of a page."""
    names = ["a", "B", "c", "user:A", "user:b"]
    for name in names:
        await session.artifacts.save(name, name)
    for limit in range(1, 7):
        seen: list[str] = []
        more = True
        while more:
            page = await hf.artifacts.page(session.ref, limit=limit, after=seen[-1] if seen else None)
            assert len(page.artifacts) <= limit
            seen += [one.name for one in page.artifacts]
            more = page.has_more
        assert seen == names


async def test_forms_of_one_name_are_one(session: SessionHandle) -> None:
    """Names are brought into Unicode's form NFC; case is kept, and does not make another name."""
    await session.artifacts.save("e\u0301te\u0301.txt", "x")
    saved = await session.artifacts.save("\u00e9t\u00e9.txt", "y")
    assert (saved.name, saved.version) == ("\u00e9t\u00e9.txt", 1)
    assert (await session.artifacts.load("e\u0301t\u00e9.txt")).artifact == saved
    with pytest.raises(Conflict, match=r"artifact '\u00e9t\u00e9\.txt'"):
        await session.artifacts.save("\u00c9T\u00c9.TXT", "z")


@pytest.mark.parametrize("name", ["", "../a", "a\\b", "user:", "nul", "a\u202eb"])
async def test_tricks_with_names_are_refused(hf: Holdfast, session: SessionHandle, name: str) -> None:
    """By every operation, before anything is asked or written."""
    for attempt in (
        session.artifacts.save(name, "x"),
        session.artifacts.load(name),
        session.artifacts.versions(name),
        session.artifacts.delete(name),
    ):
        with pytest.raises(InvalidRequest) as caught:
            await attempt
        assert caught.value.param == "name"
    assert await kept(hf) == []


# -- types ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "declared"),
    [
        (b"<script>", "image/png"),
        (b"GIF89a", "image/png"),
        (PNG, "image/jpeg"),
        (PNG, "text/html"),
        (PNG, "image/svg+xml"),
        (b"PK\x03\x04", "text/plain"),
        (b"hello", "application/pdf"),
        (b"hello", "application/zip"),
        (b"", "image/gif"),
    ],
)
async def test_a_type_that_the_content_contradicts_is_refused(
    hf: Holdfast, session: SessionHandle, head: bytes, declared: str
) -> None:
    """And nothing of it is kept."""
    with pytest.raises(UnsupportedType, match=declared.replace("+", r"\+")):
        await session.artifacts.save("a", head, mime_type=declared)
    assert await kept(hf) == []


async def test_types_that_are_not_allowed_are_refused(clock: Clock) -> None:
    """The message names those that are."""
    settings = ArtifactSettings(types=("image/*", "text/plain"))
    async with holdfast.open("sqlite://:memory:", clock=clock, artifacts=settings) as hf:
        session = await hf.session("s1")
        await session.artifacts.save("a.png", PNG)
        await session.artifacts.save("a", "x", mime_type="text/plain; charset=utf-8")
        for name, data in (("a.html", b"<p>"), ("b", b"x"), ("c.png", b"x")):
            with pytest.raises(UnsupportedType, match=r"image/\*, text/plain"):
                await session.artifacts.save(name, data)
        assert len(await kept(hf)) == 2


# -- limits --------------------------------------------------------------------


async def test_contents_have_limits(clock: Clock) -> None:
    """Each, and all of a session together; what is refused is not kept."""
    settings = ArtifactSettings(max_bytes=1000, max_total=1500)
    async with holdfast.open("sqlite://:memory:", clock=clock, artifacts=settings) as hf:
        session = await hf.session("s1")
        await session.artifacts.save("a", bytes(1000))
        for data in (bytes(1001), pieces(bytes(600), bytes(401))):
            with pytest.raises(TooLarge, match="1000"):
                await session.artifacts.save("b", data)
        with pytest.raises(TooLarge, match="1500"):
            await session.artifacts.save("b", bytes(501))
        await session.artifacts.save("b", bytes(500))
        await session.artifacts.save("user:b", bytes(1000))
        assert len(await kept(hf)) == 3


async def test_what_no_store_takes_is_not_kept(hf: Holdfast, session: SessionHandle) -> None:
    """Metadata, an author, a session that is not there."""
    for fields in ({"metadata": {"k": object()}}, {"metadata": {"k": "x" * 20_000}}, {"author": ""}):
        with pytest.raises(InvalidRequest):
            await session.artifacts.save("a", "x", **fields)
    await session.delete()
    with pytest.raises(SessionNotFound):
        await session.artifacts.save("a", "x")
    with pytest.raises(SessionNotFound):
        await session.artifacts.save("user:a", "x")
    assert await kept(hf) == []


# -- damage, death, and keeping clean -------------------------------------------


async def test_damaged_contents_are_told(hf: Holdfast, session: SessionHandle) -> None:
    """Another content, a shorter one, none; the last chunk of it never comes."""
    saved = await session.artifacts.save("a", bytes(CHUNK * 2 + 5))
    for damaged in (bytes(CHUNK * 2 + 4) + b"x", bytes(CHUNK * 2), None):
        await hf.artifacts.blobs.delete([saved.blob])
        if damaged is not None:
            await hf.artifacts.blobs.put(saved.blob, pieces(damaged))
        with pytest.raises(StoreCorrupt):
            await session.artifacts.load("a")
        async with session.artifacts.open("a") as opened:
            got: list[bytes] = []
            with pytest.raises(StoreCorrupt):
                await _collect(opened.chunks, got)
        assert sum(map(len, got)) < saved.size


async def _collect(chunks: AsyncIterator[bytes], got: list[bytes]) -> None:
    async for chunk in chunks:
        got.append(chunk)


class Dying(DatabaseBlobs):
    """A place from which the process, or the database, is gone behind a content's last byte."""

    async def put(self, key: str, chunks: Any) -> None:
        await super().put(key, chunks)
        raise SystemExit


async def test_what_was_never_named_is_swept(hf: Holdfast, session: SessionHandle, clock: Clock) -> None:
    """When it is old enough to be nobody's; what has a name is left alone, however old."""
    await session.artifacts.save("a", "named")
    await session.artifacts.save("user:a", "named too")
    named = await kept(hf)
    place = DatabaseBlobs(hf.store, clock)
    here = ArtifactService(hf.store, place, clock)
    with pytest.raises(SystemExit):
        await ArtifactService(hf.store, Dying(hf.store, clock), clock).save(session.ref, "b", "x")
    assert len([key async for key in place.list_old(2**60)]) >= 1
    assert await here.sweep(clock.now + HOUR) == 0
    assert await here.sweep(clock.now + HOUR + 1) == 1
    assert await hf.artifacts.sweep(2**60) == 0
    assert await kept(hf) == named
    assert [one.name for one in await session.artifacts.list()] == ["a", "user:a"]


async def test_a_sweep_goes_through_many(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page at a time."""
    monkeypatch.setattr("holdfast.artifacts.service.PAGE", 3)
    async with holdfast.open("sqlite://:memory:", clock=clock) as hf:
        session = await hf.session("s1")
        for at in range(5):
            await session.artifacts.save(f"a{at}", "named")
            await hf.artifacts.blobs.put(f"orphan{at}", pieces(b"x"))
        assert await hf.artifacts.sweep(clock.now + 1, older_than=0) == 5
        assert len(await kept(hf)) == 5


async def test_an_outcome_that_nobody_knows_leaves_the_content(
    hf: Holdfast, session: SessionHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have a name."""

    async def lost(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("its outcome is unknown")

    with monkeypatch.context() as patch:
        patch.setattr(hf.store, "add_artifact", lost)
        with pytest.raises(StoreUnavailable):
            await session.artifacts.save("a", "x")
    assert len(await kept(hf)) == 1
    assert await hf.artifacts.sweep(2**60) == 1


async def test_a_save_that_is_given_up_leaves_nothing_for_long(hf: Holdfast, session: SessionHandle) -> None:
    """At most a content that the sweep finds."""
    reached = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        yield bytes(3 << 20)
        reached.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(session.artifacts.save("a.bin", endless()))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await kept(hf) == []
    assert await session.artifacts.list() == ()


async def test_contents_that_cannot_be_removed_now_are_left_to_the_sweep(
    hf: Holdfast, session: SessionHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names are gone all the same."""
    await session.artifacts.save("a", "x")

    async def away(keys: Sequence[str]) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(hf.artifacts.blobs, "delete", away)
        await session.artifacts.delete("a")
    assert await session.artifacts.list() == ()
    assert len(await kept(hf)) == 1
    assert await hf.artifacts.sweep(2**60) == 1


async def test_deleting_a_session_deletes_its_artifacts(hf: Holdfast, session: SessionHandle) -> None:
    """Names and contents; what the user's sessions share stays until it is forgotten itself."""
    for at in range(3):
        await session.artifacts.save("a", bytes(at))
    shared = await session.artifacts.save("user:a", "x")
    assert await hf.delete(session.ref)
    assert await kept(hf) == [shared.blob]
    again = await hf.session("s1", user_id="ann")
    assert [one.name for one in await again.artifacts.list()] == ["user:a"]
    await again.artifacts.save("a", "x")
    assert await again.delete()
    assert await hf.artifacts.forget(UserRef("ann")) == DeletedArtifacts(artifacts=1, bytes=1)
    assert await kept(hf) == []


async def test_forgetting_tells_how_much_it_was(hf: Holdfast, session: SessionHandle) -> None:
    """For a receipt; and nothing the second time."""
    await session.artifacts.save("a", bytes(10))
    await session.artifacts.save("a", bytes(20))
    await session.artifacts.save("b", bytes(30))
    assert await hf.artifacts.forget(session.ref) == DeletedArtifacts(artifacts=3, bytes=60)
    assert await hf.artifacts.forget(session.ref) == DeletedArtifacts()
    assert await hf.artifacts.forget(SessionRef("ann", "nowhere")) == DeletedArtifacts()
    assert await kept(hf) == []


def test_no_key_is_shown() -> None:
    assert "hidden" not in repr(ArtifactSettings(bucket="b", secret_key="hidden"))
