"""An index whose file is removed under a running process is made anew by the next use, and a search that finds less meanwhile says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.errors import StoreError, StoreUnavailable
from holdfast.holdfast import Holdfast
from holdfast.indexes import lazy_index
from holdfast.indexes.backfill import Walker
from holdfast.indexes.service import IndexService
from holdfast.search.conversations import search_conversations
from holdfast.search.queries import SearchOptions

WHOLE = ("", "-wal", "-shm")
"""What an open SQLite file is made of."""


class Bench:
    """A Holdfast with a file, and what was said in it."""

    def __init__(self, hf: Holdfast, folder: Path) -> None:
        self.hf = hf
        self.file = folder / "chat.index.db"

    @property
    def index(self) -> IndexService:
        assert self.hf.engine.index is not None
        return self.hf.engine.index

    async def said(self, text: str, session_id: str = "s") -> None:
        session = await self.hf.session(session_id, user_id="ada")
        await session.append([{"role": "user", "content": text}])

    async def found(self, query: str) -> list[str]:
        return [hit.snippet for hit in (await self.hf.search(query, "ada")).hits]

    def there(self) -> list[str]:
        return [ending for ending in WHOLE if Path(f"{self.file}{ending}").exists()]

    def remove(self, *endings: str) -> None:
        for ending in endings or WHOLE:
            Path(f"{self.file}{ending}").unlink()


@asynccontextmanager
async def opened(folder: Path, **settings: Any) -> AsyncIterator[Bench]:
    async with Holdfast(f"sqlite:///{folder}/chat.db", **settings) as hf:
        yield Bench(hf, folder)


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Bench]:
    """One that has been looked over, with a message and a memory in its index."""
    async with opened(tmp_path) as made:
        await made.said("the kelp is in the cellar")
        await made.hf.memories.remember("Ada eats dulse", user_id="ada")
        assert await made.found("kelp") == ["the kelp is in the cellar"]
        assert len((await made.hf.memories.recall("dulse", user_id="ada")).found) == 1
        yield made


@pytest.mark.parametrize("endings", [WHOLE, ("",)], ids=["whole", "without what lies beside it"])
async def test_all_is_found_by_the_next_search(
    at: Bench, endings: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing that was said or remembered is missing, before or behind it, and the log says what has happened."""
    at.remove(*endings)
    assert await at.found("kelp") == ["the kelp is in the cellar"]
    assert len((await at.hf.memories.recall("dulse", user_id="ada")).found) == 1
    await at.said("the dulse is in the attic", "new")
    assert await at.found("attic") == ["the dulse is in the attic"]
    assert at.file.exists()
    assert "the file of the index was removed" in caplog.text


async def test_memories_are_found_without_a_search(at: Bench) -> None:
    at.remove()
    assert len((await at.hf.memories.recall("dulse", user_id="ada")).found) == 1


async def test_the_one_that_is_left_spoils_nothing_of_the_new_one(
    at: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed when nobody is at it any more; what lies beside the new file is the new one's then."""
    monkeypatch.setattr(lazy_index, "_LINGER", 0.0)
    closed, gone = lazy_index._close_index, asyncio.Event()

    async def noted(index: Any) -> None:
        await closed(index)
        gone.set()

    monkeypatch.setattr(lazy_index, "_close_index", noted)
    at.remove()
    assert await at.found("kelp") == ["the kelp is in the cellar"]
    with anyio.fail_after(10):
        await gone.wait()
    assert at.there() == list(WHOLE)
    await at.said("the dulse is in the attic", "new")
    assert await at.found("attic") == ["the dulse is in the attic"]
    async with opened(tmp_path) as other:
        assert await other.found("attic kelp") == ["the dulse is in the attic", "the kelp is in the cellar"]


async def test_one_that_another_process_has_made_again_is_shared(at: Bench, tmp_path: Path) -> None:
    at.remove()
    async with opened(tmp_path) as other:
        assert await other.found("kelp") == ["the kelp is in the cellar"]
        await at.said("the dulse is in the attic", "new")
        assert await at.found("attic") == ["the dulse is in the attic"]
        assert (await other.index.status()).documents == (await at.index.status()).documents == 3


async def test_one_that_was_made_again_beside_what_is_left_is_told_with_what_to_do(at: Bench) -> None:
    """Two databases on one `-shm` spoil each other, so neither is used; words are remembered and said all the same."""
    at.remove("")
    at.file.touch()
    with pytest.raises(
        StoreUnavailable, match=r"stop all programs that use it, delete chat\.index\.db, chat\.index\.db-wal and"
    ):
        await at.found("kelp")
    await at.said("the dulse is in the attic", "new")
    assert len((await at.hf.memories.recall("dulse", user_id="ada")).found) == 1
    at.remove()
    assert await at.found("attic kelp") == ["the dulse is in the attic", "the kelp is in the cellar"]


@pytest.mark.parametrize("kept", [0, 4096], ids=["its beginning", "all but its beginning"])
async def test_a_damaged_one_is_told_with_what_to_do_and_that_helps(tmp_path: Path, kept: int) -> None:
    """Nobody is sent for a backup of what is made of the sessions, nor has to start anything again."""
    async with opened(tmp_path) as at:
        await at.said("the kelp is in the cellar")
        await at.hf.memories.remember("Ada eats dulse", user_id="ada")
        assert await at.found("kelp") == ["the kelp is in the cellar"]
    whole = at.file.read_bytes()
    at.file.write_bytes(whole[:kept] + bytes(range(256)) * ((len(whole) - kept) // 256))
    async with opened(tmp_path) as at:
        with pytest.raises(StoreError, match=r"the index is damaged.* remove the file with its -wal and -shm"):
            await at.found("kelp")
        assert len((await at.hf.memories.recall("dulse", user_id="ada")).found) == 1
        at.remove(*at.there())
        assert await at.found("kelp") == ["the kelp is in the cellar"]


async def test_a_walk_over_two_indexes_is_noted_in_neither(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the new one would pass for whole with what this walk came by: the next one looks at all of it."""
    newest: Callable[..., Any] = Walker._iter_newest

    async def removed(walker: Walker, until: int | None) -> AsyncIterator[Any]:
        at.remove()
        monkeypatch.setattr(Walker, "_iter_newest", newest)
        for session in tuple[Any, ...]():
            yield session

    monkeypatch.setattr(Walker, "_iter_newest", removed)
    await at.index.walk()
    assert (await at.index.status()).walked_at is None
    assert await at.found("kelp") == ["the kelp is in the cellar"]


async def test_a_search_before_all_was_looked_over_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has what is in by then, and does not wait for the rest; behind the first walk nothing is said any more."""
    async with opened(tmp_path, index=None) as made:
        await made.said("the kelp is in the cellar")
    walk: Callable[..., Awaitable[Any]] = Walker.walk
    goes_on = asyncio.Event()

    async def slow(walker: Walker, **asked: Any) -> Any:
        await goes_on.wait()
        return await walk(walker, **asked)

    monkeypatch.setattr(Walker, "walk", slow)
    async with opened(tmp_path) as at:
        await at.said("the dulse is in the attic", "new")
        before = await search_conversations(at.hf.engine, "ada", "attic kelp", SearchOptions(fresh=0.5))
        assert [hit.snippet for hit in before.hits] == ["the dulse is in the attic"]
        assert before.notes == ("the index is being built: earlier messages may be missing",)
        goes_on.set()
        after = await search_conversations(at.hf.engine, "ada", "attic kelp", SearchOptions(fresh=10))
        assert ([hit.session_id for hit in after.hits], after.notes) == (["new", "s"], ())


async def test_a_first_walk_that_fails_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walk: Callable[..., Awaitable[Any]] = Walker.walk

    async def fails(walker: Walker, **_: Any) -> Any:
        monkeypatch.setattr(Walker, "walk", walk)
        raise StoreUnavailable("away")

    async with opened(tmp_path, index=None) as made:
        await made.said("the kelp is in the cellar")
    monkeypatch.setattr(Walker, "walk", fails)
    async with opened(tmp_path) as at:
        assert len((await at.hf.search("kelp", "ada")).notes) == 1
        assert at.index.failures["walking"] == 1
        assert await at.found("kelp") == ["the kelp is in the cellar"]
