"""An index file removed under a running process is rebuilt on the next use, and a search with incomplete results says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.errors import StoreUnavailable
from holdfast.holdfast import Holdfast
from holdfast.indexes import lazy_index
from holdfast.indexes.scan import Scanner
from holdfast.indexes.service import IndexService
from holdfast.search.conversations import search_conversations
from holdfast.search.queries import SearchOptions

WHOLE = ("", "-wal", "-shm")
"""Suffixes of the files of an open SQLite database."""


class FileBench:
    """A Holdfast with an index file."""

    def __init__(self, hf: Holdfast, folder: Path) -> None:
        self.hf = hf
        self.file = folder / "chat.index.db"

    @property
    def index(self) -> IndexService:
        assert self.hf.engine.index is not None
        return self.hf.engine.index

    async def add_message(self, text: str, session_id: str = "s") -> None:
        session = await self.hf.session(session_id, user_id="ada")
        await session.append([{"role": "user", "content": text}])

    async def search(self, query: str) -> list[str]:
        return [hit.snippet for hit in (await self.hf.search(query, "ada")).hits]

    def list_suffixes(self) -> list[str]:
        return [ending for ending in WHOLE if Path(f"{self.file}{ending}").exists()]

    def remove(self, *endings: str) -> None:
        for ending in endings or WHOLE:
            Path(f"{self.file}{ending}").unlink()


@asynccontextmanager
async def open_bench(folder: Path, **settings: Any) -> AsyncIterator[FileBench]:
    async with Holdfast(f"sqlite:///{folder}/chat.db", **settings) as hf:
        yield FileBench(hf, folder)


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[FileBench]:
    """A bench with a message and a memory in its complete index."""
    async with open_bench(tmp_path) as made:
        await made.add_message("the kelp is in the cellar")
        await made.hf.memories.remember("Ada eats dulse", user_id="ada")
        assert await made.search("kelp") == ["the kelp is in the cellar"]
        assert len((await made.hf.memories.recall("dulse", user_id="ada")).found) == 1
        yield made


async def test_old_index_does_not_damage_the_new_files(
    at: FileBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed when it is no longer used; the files next to the new one belong to the new index."""
    monkeypatch.setattr(lazy_index, "_LINGER", 0.0)
    closed, gone = lazy_index._close_index, asyncio.Event()

    async def record_close(index: Any, *seconds: float) -> None:
        await closed(index, *seconds)
        gone.set()

    monkeypatch.setattr(lazy_index, "_close_index", record_close)
    at.remove()
    assert await at.search("kelp") == ["the kelp is in the cellar"]
    with anyio.fail_after(10):
        await gone.wait()
    assert at.list_suffixes() == list(WHOLE)
    await at.add_message("the dulse is in the attic", "new")
    assert await at.search("attic") == ["the dulse is in the attic"]
    async with open_bench(tmp_path) as other:
        assert await other.search("attic kelp") == ["the dulse is in the attic", "the kelp is in the cellar"]


async def test_walk_across_two_indexes_is_not_recorded(at: FileBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the new index would count as complete after a partial walk."""
    newest: Callable[..., Any] = Scanner._iterate_newest

    async def remove_during_walk(scanner: Scanner, until: int | None) -> AsyncIterator[Any]:
        at.remove()
        monkeypatch.setattr(Scanner, "_iterate_newest", newest)
        for session in tuple[Any, ...]():
            yield session

    monkeypatch.setattr(Scanner, "_iterate_newest", remove_during_walk)
    await at.index.walk()
    assert (await at.index.status()).walked_at is None
    assert await at.search("kelp") == ["the kelp is in the cellar"]


async def test_search_during_the_first_walk_reports_incomplete_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the rest. After the first walk there is no note."""
    async with open_bench(tmp_path, index=None) as made:
        await made.add_message("the kelp is in the cellar")
    walk: Callable[..., Awaitable[Any]] = Scanner.walk
    may_continue = asyncio.Event()

    async def slow(scanner: Scanner, **asked: Any) -> Any:
        await may_continue.wait()
        return await walk(scanner, **asked)

    monkeypatch.setattr(Scanner, "walk", slow)
    async with open_bench(tmp_path) as at:
        await at.add_message("the dulse is in the attic", "new")
        before = await search_conversations(at.hf.engine, "ada", "attic kelp", SearchOptions(fresh=0.5))
        assert [hit.snippet for hit in before.hits] == ["the dulse is in the attic"]
        assert before.notes == ("the index is being built: earlier messages may be missing",)
        may_continue.set()
        after = await search_conversations(at.hf.engine, "ada", "attic kelp", SearchOptions(fresh=10))
        assert ([hit.session_id for hit in after.hits], after.notes) == (["new", "s"], ())


async def test_failed_first_walk_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walk: Callable[..., Awaitable[Any]] = Scanner.walk

    async def fails(scanner: Scanner, **_: Any) -> Any:
        monkeypatch.setattr(Scanner, "walk", walk)
        raise StoreUnavailable("away")

    async with open_bench(tmp_path, index=None) as made:
        await made.add_message("the kelp is in the cellar")
    monkeypatch.setattr(Scanner, "walk", fails)
    async with open_bench(tmp_path) as at:
        assert len((await at.hf.search("kelp", "ada")).notes) == 1
        assert at.index.failures["walking"] == 1
        assert await at.search("kelp") == ["the kelp is in the cellar"]
