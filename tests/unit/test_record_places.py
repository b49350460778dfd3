"""The place of a record among those of its owner."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.record import Namespace, RecordName, decode_place, encode_place, find_range

_LABELS = st.lists(st.text("ab \x7f\U0010ffff", min_size=1, max_size=3), min_size=1, max_size=3).map(tuple)
_KEYS = st.text("ab\0\x01\x1f\U0010ffff", max_size=3)


@given(st.lists(st.tuples(_LABELS, _KEYS), min_size=2, max_size=8))
def test_places_are_in_the_order_of_names(names: list[tuple[Namespace, str]]) -> None:
    """A namespace before those below it, and its name can be read from each place."""
    places = sorted(encode_place(RecordName(*one)) for one in names)
    assert sorted(names, key=lambda one: ([label.encode() for label in one[0]], one[1].encode())) == [
        (found.namespace, found.key) for found in map(decode_place, places)
    ]


@given(_LABELS, _KEYS, _LABELS, _KEYS)
def test_ranges_contain_what_begins_with_them(space: Namespace, prefix: str, other: Namespace, key: str) -> None:
    """By labels and by the text of keys."""
    place = encode_place(RecordName(other, key))
    for nested in (False, True):
        begin, end = find_range(space, "" if nested else prefix, nested=nested)
        inside = other[: len(space)] == space if nested else other == space and key.startswith(prefix)
        assert (begin <= place < end) == inside
