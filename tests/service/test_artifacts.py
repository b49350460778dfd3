"""Artifacts of a session and its user: saving, loading, listing, deleting, and sweeping unused contents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.artifacts.settings import ArtifactSettings
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


def test_repr_does_not_contain_the_secret_key() -> None:
    assert "hidden" not in repr(ArtifactSettings(bucket="b", secret_key="hidden"))
