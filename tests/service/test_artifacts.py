"""Artifacts of a session and its user: saving, loading, listing, deleting, and sweeping unused contents."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.artifacts import ArtifactSettings, DeletedArtifacts
from holdfast.domain.session import SessionRef
from holdfast.errors import (
    InvalidRequest,
    SessionNotFound,
    StoreUnavailable,
)
from holdfast.holdfast import Holdfast
from holdfast.sessions.handle import SessionHandle
from tests.clocks import Clock


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


# -- names and scopes ----------------------------------------------------------


# -- types ---------------------------------------------------------------------


# -- limits --------------------------------------------------------------------


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
