"""Typos in a query: if none of its words is known, words that differ in one letter are searched, and a note says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.recall.base import Lookup
from holdfast.search.queries import SearchResults
from tests.clocks import START
from tests.service.search_kit import DAY, Talks, open_talks
from tests.stores.conftest import _place

NOTE = "no word of the query was found: searched for words that differ in one letter"


@pytest.fixture(params=["sqlite-file", "postgres", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of each database with an index engine."""
    yield from _place(request.param, tmp_path)


async def search(at: Talks, query: str, **more: Any) -> SearchResults:
    return await at.hf.search(query, "ada", **more)


async def test_typo_finds_the_intended_word_on_every_engine(url: str) -> None:
    """With highlights and pages; words of other users are not considered."""
    async with open_talks(url=url) as at:
        await at.add_messages(
            "s", "The ferry leaves at nine.", "Noted.", "The harbour is closed.", "Ferry tickets are sold there."
        )
        await at.add_messages("b", "lobster soup", user="bob")
        found = await search(at, "ferrry")
        assert [hit.id for hit in found.hits] == await at.find("ferry")
        assert [hit.id for hit in found.hits][:2] == ["s#0", "s#3"]
        assert found.notes == (NOTE,)
        (hit,) = [one for one in found.hits if one.seq == 0]
        assert [hit.snippet[start:stop] for start, stop in hit.highlights] == ["ferry"]
        first = await search(at, "frery habrour", limit=1)
        rest = await search(at, "frery habrour", after=first.cursor)
        assert [hit.id for hit in (*first.hits, *rest.hits)] == await at.find("ferry harbour")
        assert ((await search(at, "lobtser")).hits, (await search(at, "lobtser")).notes) == ((), ())


async def test_filters_apply_to_corrected_words() -> None:
    async with open_talks() as at:
        await at.add_messages("a", "The ferry leaves at nine.")
        at.clock.now += DAY
        await at.add_messages("b", "The ferry is late.")
        for filters, wanted in (
            ({"session_id": "a"}, {"a"}),
            ({"since": START + DAY}, {"b"}),
            ({"agent": "nobody"}, set()),
            ({"session_id": "nowhere"}, set()),
        ):
            assert {hit.session_id for hit in (await search(at, "ferrry", **filters)).hits} == wanted


async def test_known_word_is_never_corrected() -> None:
    """Even if a filter leaves no hit, or another word of the query is unknown."""
    async with open_talks() as at:
        await at.add_messages("a", "The ferry leaves at nine.", "Her name is Kerry.")
        await at.add_messages("b", "Fetty came by.")
        for query, filters in (("ferry", {"session_id": "b"}), ("ferry lobtser", {}), ("Kerry", {"session_id": "b"})):
            found = await search(at, query, **filters)
            assert NOTE not in found.notes
            assert all("Fetty" not in hit.snippet for hit in found.hits)


async def test_corrected_words_are_not_recalled_into_a_prompt() -> None:
    """A message of unknown words recalls nothing."""
    async with open_talks() as at:
        await at.add_messages("a", "The ferry leaves at nine.")
        session = await at.hf.session("now", user_id="ada", agent="finder")
        await session.send("ferrry")
        assert "leaves at nine" not in str(at.model.bodies[-1]["messages"])
        await session.send("And the ferry?")
        assert "leaves at nine" in str(at.model.bodies[-1]["messages"])


async def test_correction_costs_two_look_ups_and_only_for_unknown_words() -> None:
    """For any number of words in the query and in the log."""
    async with open_talks() as at:
        await at.add_messages("a", *(f"The ferry{number} leaves at nine." for number in range(30)))
        index = at.hf.engine.index
        assert index is not None
        looked: list[Lookup] = []
        look = index.index.lookup

        async def record_lookup(lookup: Lookup) -> Any:
            looked.append(lookup)
            return await look(lookup)

        index.index.lookup = record_lookup  # type: ignore[method-assign]
        await search(at, "nine lobtser")
        assert len(looked) == 1
        await search(at, " ".join(f"lobtser{letter}" for letter in "abcdefghijkl"))
        assert len(looked) == 3
        assert max(len(one.terms) for one in looked) < 2_500
