"""Paginated search: nothing twice and nothing missing, with writes in between, and cursors that belong to one search."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import InvalidRequest
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


async def test_cursor_belongs_to_one_search() -> None:
    """With another query, filter, user or tenant, or one changed character, it is rejected."""
    async with open_talks() as at:
        for user in ("ada", "bob"):
            await at.add_messages("s", "kelp one", "kelp two", "kelp three", user=user)
        cursor = (await at.hf.search("kelp", "ada", limit=1)).cursor
        assert cursor is not None
        assert len(await at.find("kelp", after=cursor)) == 2
        changed: list[dict[str, Any]] = [
            {"query": "kelp soup"},
            {"user_id": "bob"},
            {"role": "user"},
            {"since": 1},
            {"session_level": True},
            {"time": "off"},
            {"tz": "Asia/Tokyo"},
            {"after": ""},
            {"after": cursor[:-1]},
            {"after": cursor + "A"},
            {"after": "ü" * 10},
            {"after": "A" * 5000},
            {"after": cursor.swapcase()},
        ]
        for other in changed:
            with pytest.raises(InvalidRequest, match="not a cursor of this search"):
                await at.hf.search(**{"query": "kelp", "user_id": "ada", "after": cursor, **other})
        async with at.hf.serve_tenant("t2") as elsewhere:
            with pytest.raises(InvalidRequest, match="not a cursor of this search"):
                await elsewhere.search("kelp", "ada", after=cursor)
