"""Entries that a process without an index erases or deletes are not found, and the next backfill removes them from the index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domain.session import SessionRef
from holdfast.lifecycle.settings import LifeSettings
from holdfast.limits import INDEX_DEPARTED_WALK, INDEX_MARGIN
from holdfast.recall.base import Lookup, Space
from holdfast.recall.terms import extract_terms
from tests.stores.conftest import _place
from tests.words import says

STILL = LifeSettings(session_ttl=0, sweep=False)
LATER = INDEX_DEPARTED_WALK + 2 * INDEX_MARGIN


@pytest.fixture(params=["sqlite-file", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that several processes share."""
    yield from _place(request.param, tmp_path)


async def count_indexed(hf: holdfast.Holdfast, words: str, space: Space) -> int:
    """Return how many documents of the index contain one of these words."""
    index = hf.engine.index
    assert index is not None
    lookup = Lookup(space=space, terms=tuple(extract_terms(words).counts))
    return len((await index.index.lookup(lookup)).found)


TALK, KEPT = Space("talk", "ada"), Space("user", "ada")


async def test_entries_erased_elsewhere_are_not_found_and_leave_the_index(url: str) -> None:
    """No kind of search shows them. A search that meets them removes them, otherwise the next walk does."""
    now = 1_700_000_000_000
    async with (
        holdfast.open(url, life=STILL, clock=lambda: now) as here,
        holdfast.open(url, life=STILL, clock=lambda: now, index=None) as elsewhere,
    ):
        said = {"s": ["The gate code is 4711.", "The gate is green."], "gone": ["The gate code was 1234."]}
        for name, texts in said.items():
            session = await here.session(name, user_id="ada")
            await session.append([{"role": "user", "content": text} for text in texts])
        kept = await here.memories.remember("The code of the safe is 9876", user_id="ada")
        index = here.engine.index
        assert index is not None
        await index.walk()
        assert {hit.id for hit in (await here.search("gate code", "ada")).hits} == {"s#0", "s#1", "gone#0"}
        now += LATER
        await index.walk()
        await elsewhere.erase(SessionRef("ada", "s"), 0)
        await elsewhere.delete(SessionRef("ada", "gone"))
        assert await elsewhere.memories.forget(kept.memory.id)
        assert (
            await count_indexed(here, "4711", TALK),
            await count_indexed(here, "1234", TALK),
            await count_indexed(here, "9876", KEPT),
        ) == (*(1, 1, 1),)
        for asked in ({}, {"neighbours": 2}, {"session_level": True}, {"limit": 1}, {"session_id": "s"}):
            found: Any = await here.search("gate code 4711 1234", "ada", **asked)
            assert [hit.id for hit in found.hits] == ["s#1"], asked
            assert not says(str(found), "4711"), asked
            assert not says(str(found), "1234"), asked
        assert (await here.memories.recall("code of the safe", user_id="ada")).found == ()
        await index.settled()
        assert (
            await count_indexed(here, "4711", TALK),
            await count_indexed(here, "1234", TALK),
            await count_indexed(here, "9876", KEPT),
        ) == (*(0, 0, 0),)


# -- removal marks ---------------------------------------------------------------
