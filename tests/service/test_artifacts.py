"""Artifacts of a session and its user: saving, loading, listing, deleting, and sweeping unused contents."""

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
from holdfast.domain.session import SessionRef
from holdfast.errors import (
    ArtifactNotFound,
    InvalidRequest,
    SessionNotFound,
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
    """Open a Holdfast with contents in the database, or on disk."""
    monkeypatch.chdir(tmp_path)
    async with holdfast.open(request.param, clock=clock) as opened:
        yield opened


@pytest.fixture
async def session(hf: Holdfast) -> SessionHandle:
    """Open a session of ann."""
    return await hf.session("s1", user_id="ann")


async def list_stored_keys(hf: Holdfast) -> list[str]:
    """Return the keys of all stored contents."""
    return sorted([key async for key in hf.artifacts.blobs.list_old(2**60)])


async def stream_chunks(*chunks: bytes) -> AsyncGenerator[bytes, None]:
    """Yield a content in chunks."""
    for chunk in chunks:
        yield chunk


# -- saving and loading --------------------------------------------------------


async def test_saved_artifact_is_loaded_with_its_metadata(hf: Holdfast, session: SessionHandle, clock: Clock) -> None:
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
async def test_content_may_be_bytes_text_file_or_chunks(session: SessionHandle, tmp_path: Path, size: int) -> None:
    data = (b"0123456789" * (size // 10 + 1))[:size]
    (tmp_path / "file").write_bytes(data)
    chunks = [data[at : at + 77_777] for at in range(0, size, 77_777)]
    for given_ in (
        data,
        bytearray(data),
        memoryview(data),
        data.decode(),
        tmp_path / "file",
        stream_chunks(b"", *chunks, b""),
    ):
        saved = await session.artifacts.save("a.bin", given_)
        assert (saved.size, saved.sha256) == (size, hashlib.sha256(data).digest())
        assert (await session.artifacts.load("a.bin", saved.version)).data == data


async def test_invalid_content_is_rejected(hf: Holdfast, session: SessionHandle, tmp_path: Path) -> None:
    """Wrong types, wrong chunks, and missing files."""

    async def texts() -> AsyncGenerator[Any, None]:
        yield b"bytes"
        yield "text"

    for wrong in (5, None, [b"x"], texts(), tmp_path / "nowhere", tmp_path):
        with pytest.raises(InvalidRequest) as caught:
            await session.artifacts.save("a", wrong)  # type: ignore[arg-type]  # on purpose
        assert caught.value.param == "data"
    assert await list_stored_keys(hf) == []


async def test_large_content_is_streamed(hf: Holdfast, session: SessionHandle) -> None:
    """It is never completely in memory, when saving or loading."""
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


async def test_concurrent_saves_of_one_name_all_succeed(hf: Holdfast, session: SessionHandle) -> None:
    """Each save is a version with its own content."""
    saved = await asyncio.gather(*(session.artifacts.save("a", str(at)) for at in range(20)))
    assert sorted(one.version for one in saved) == list(range(20))
    for at, one in enumerate(saved):
        assert (await session.artifacts.load("a", one.version)).data == str(at).encode()


# -- names and scopes ----------------------------------------------------------


async def test_user_artifacts_are_shared_by_sessions_of_the_user(hf: Holdfast, session: SessionHandle) -> None:
    """Other users do not see them."""
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
async def test_type_that_contradicts_the_content_is_rejected(
    hf: Holdfast, session: SessionHandle, head: bytes, declared: str
) -> None:
    """Nothing is stored."""
    with pytest.raises(UnsupportedType, match=declared.replace("+", r"\+")):
        await session.artifacts.save("a", head, mime_type=declared)
    assert await list_stored_keys(hf) == []


# -- limits --------------------------------------------------------------------


async def test_artifact_size_and_session_total_are_limited(clock: Clock) -> None:
    """Rejected contents are not stored."""
    settings = ArtifactSettings(max_bytes=1000, max_total=1500)
    async with holdfast.open("sqlite://:memory:", clock=clock, artifacts=settings) as hf:
        session = await hf.session("s1")
        await session.artifacts.save("a", bytes(1000))
        for data in (bytes(1001), stream_chunks(bytes(600), bytes(401))):
            with pytest.raises(TooLarge, match="1000"):
                await session.artifacts.save("b", data)
        with pytest.raises(TooLarge, match="1500"):
            await session.artifacts.save("b", bytes(501))
        await session.artifacts.save("b", bytes(500))
        await session.artifacts.save("user:b", bytes(1000))
        assert len(await list_stored_keys(hf)) == 3


async def test_content_is_not_stored_if_its_record_is_rejected(hf: Holdfast, session: SessionHandle) -> None:
    """Invalid metadata, an invalid author, or an unknown session."""
    for fields in ({"metadata": {"k": object()}}, {"metadata": {"k": "x" * 20_000}}, {"author": ""}):
        with pytest.raises(InvalidRequest):
            await session.artifacts.save("a", "x", **fields)
    await session.delete()
    with pytest.raises(SessionNotFound):
        await session.artifacts.save("a", "x")
    with pytest.raises(SessionNotFound):
        await session.artifacts.save("user:a", "x")
    assert await list_stored_keys(hf) == []


# -- damage, crashes and sweeps --------------------------------------------------


async def test_damaged_content_raises_store_corrupt(hf: Holdfast, session: SessionHandle) -> None:
    """A changed, truncated or missing content. Its last chunk is never returned."""
    saved = await session.artifacts.save("a", bytes(CHUNK * 2 + 5))
    for damaged in (bytes(CHUNK * 2 + 4) + b"x", bytes(CHUNK * 2), None):
        await hf.artifacts.blobs.delete([saved.blob])
        if damaged is not None:
            await hf.artifacts.blobs.put(saved.blob, stream_chunks(damaged))
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


class DyingBlobs(DatabaseBlobs):
    """Contents whose process or database stops after the last byte."""

    async def put(self, key: str, chunks: Any) -> None:
        await super().put(key, chunks)
        raise SystemExit


async def test_unnamed_contents_are_swept_after_an_hour(hf: Holdfast, session: SessionHandle, clock: Clock) -> None:
    """Named contents are kept, however old they are."""
    await session.artifacts.save("a", "named")
    await session.artifacts.save("user:a", "named too")
    named = await list_stored_keys(hf)
    place = DatabaseBlobs(hf.store, clock)
    here = ArtifactService(hf.store, place, clock)
    with pytest.raises(SystemExit):
        await ArtifactService(hf.store, DyingBlobs(hf.store, clock), clock).save(session.ref, "b", "x")
    assert len([key async for key in place.list_old(2**60)]) >= 1
    assert await here.sweep(clock.now + HOUR) == 0
    assert await here.sweep(clock.now + HOUR + 1) == 1
    assert await hf.artifacts.sweep(2**60) == 0
    assert await list_stored_keys(hf) == named
    assert [one.name for one in await session.artifacts.list()] == ["a", "user:a"]


async def test_sweep_handles_several_pages(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.artifacts.service.PAGE", 3)
    async with holdfast.open("sqlite://:memory:", clock=clock) as hf:
        session = await hf.session("s1")
        for at in range(5):
            await session.artifacts.save(f"a{at}", "named")
            await hf.artifacts.blobs.put(f"orphan{at}", stream_chunks(b"x"))
        assert await hf.artifacts.sweep(clock.now + 1, older_than=0) == 5
        assert len(await list_stored_keys(hf)) == 5


async def test_save_with_an_unknown_outcome_keeps_the_content(
    hf: Holdfast, session: SessionHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been named."""

    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("its outcome is unknown")

    with monkeypatch.context() as patch:
        patch.setattr(hf.store, "add_artifact", fail)
        with pytest.raises(StoreUnavailable):
            await session.artifacts.save("a", "x")
    assert len(await list_stored_keys(hf)) == 1
    assert await hf.artifacts.sweep(2**60) == 1


async def test_cancelled_save_leaves_no_artifact(hf: Holdfast, session: SessionHandle) -> None:
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
    assert await list_stored_keys(hf) == []
    assert await session.artifacts.list() == ()


async def test_contents_that_cannot_be_deleted_are_left_to_the_sweep(
    hf: Holdfast, session: SessionHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names are deleted at once."""
    await session.artifacts.save("a", "x")

    async def fail_delete(keys: Sequence[str]) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(hf.artifacts.blobs, "delete", fail_delete)
        await session.artifacts.delete("a")
    assert await session.artifacts.list() == ()
    assert len(await list_stored_keys(hf)) == 1
    assert await hf.artifacts.sweep(2**60) == 1


async def test_forgetting_returns_the_deleted_counts(hf: Holdfast, session: SessionHandle) -> None:
    """For a receipt; repeating it returns zero."""
    await session.artifacts.save("a", bytes(10))
    await session.artifacts.save("a", bytes(20))
    await session.artifacts.save("b", bytes(30))
    assert await hf.artifacts.forget(session.ref) == DeletedArtifacts(artifacts=3, bytes=60)
    assert await hf.artifacts.forget(session.ref) == DeletedArtifacts()
    assert await hf.artifacts.forget(SessionRef("ann", "nowhere")) == DeletedArtifacts()
    assert await list_stored_keys(hf) == []


def test_repr_does_not_contain_the_secret_key() -> None:
    assert "hidden" not in repr(ArtifactSettings(bucket="b", secret_key="hidden"))


async def test_a_users_artifacts_need_no_session(hf: Holdfast) -> None:
    shared = hf.user_artifacts("ann")
    saved = await shared.save("user:logo.png", PNG)
    assert saved.version == 0
    assert [one.name for one in await shared.list()] == ["user:logo.png"]
    session = await hf.session("s1", user_id="ann")
    assert (await session.artifacts.load("user:logo.png")).data == PNG
    await session.artifacts.save("own.txt", "own")
    assert await session.delete()
    assert len(await shared.versions("user:logo.png")) == 1
    assert await hf.user_artifacts("bob").list() == ()
    with pytest.raises(ArtifactNotFound):
        await hf.user_artifacts("bob").get("user:logo.png")
    await shared.delete("user:logo.png")
    assert await shared.list() == ()


async def test_a_users_artifacts_must_have_the_prefix(hf: Holdfast) -> None:
    for name in ("logo.png", "app:logo.png"):
        with pytest.raises(InvalidRequest):
            await hf.user_artifacts("ann").save(name, PNG)
