"""Paginated search: nothing twice and nothing missing, with writes in between, and cursors that belong to one search."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.search.queries import PagePosition, decode_cursor, encode_cursor
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


places = st.builds(
    PagePosition,
    score=st.floats(allow_nan=False, allow_infinity=False),
    at=st.integers(-(2**53), 2**53),
    session=st.text(max_size=40).filter(lambda text: text.isprintable()),
    seq=st.integers(0, 2**31),
    position=st.integers(1, 10**6),
    now=st.integers(0, 2**53),
    newest=st.integers(-(2**53), 2**53),
)


@given(
    place=places,
    asked=st.dictionaries(st.text(max_size=5), st.text(max_size=5)),
    at=st.integers(0),
    flip=st.integers(1, 255),
)
def test_cursor_round_trips_and_changed_ones_are_rejected(place: PagePosition, asked: Any, at: int, flip: int) -> None:
    cursor = encode_cursor(place, asked)
    assert decode_cursor(cursor, asked) == place
    spot = at % len(cursor)
    other = cursor[:spot] + chr((ord(cursor[spot]) ^ flip) % 128) + cursor[spot + 1 :]
    try:
        again = decode_cursor(other, asked)
    except InvalidRequest:
        return
    assert again == place, "the spare bits of the last character alone mean nothing"
