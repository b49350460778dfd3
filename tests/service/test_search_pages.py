"""Paginated search: nothing twice and nothing missing, with writes in between, and cursors that belong to one search."""

from __future__ import annotations

from tests.service.search_kit import DAY, open_talks


async def test_message_written_between_two_pages_is_not_included() -> None:
    """Nothing is duplicated or shifted, and "yesterday" stays the same day."""
    async with open_talks() as at:
        await at.add_messages("a", *(("user", f"kelp number {number}") for number in range(6)))
        at.clock.now += DAY
        first = await at.hf.search("what did I say about kelp yesterday", "ada", limit=3)
        at.clock.now += DAY
        await at.add_messages("b", "kelp kelp kelp")
        second = await at.hf.search("what did I say about kelp yesterday", "ada", limit=3, after=first.cursor)
        ids = [hit.id for hit in (*first.hits, *second.hits)]
        assert sorted(ids) == [f"a#{number}" for number in range(6)]
