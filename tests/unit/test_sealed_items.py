"""Sealed items: only the tenant and user who got one can send it back, and only unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.sealed_items import SealedItem, get_key_id, is_sealed, open_sealed, seal
from holdfast.errors import InvalidSealedItem
from holdfast.limits import SEALED_BYTES

KEY = b"k" * 32
KEYS = {"a1": KEY, "b2": b"o" * 32}
ITEMS = st.builds(
    SealedItem,
    session=st.text(max_size=20),
    identity=st.text(max_size=20),
    through=st.integers(0, 2**53),
    summarized=st.integers(-1, 2**53),
    text=st.text(max_size=200),
)


def read(token: str, tenant: str = "t", user_id: str = "u", keys: dict[str, bytes] = KEYS) -> SealedItem:
    """Open an item."""
    return open_sealed(token, keys, tenant=tenant, user_id=user_id, where="input[0].encrypted_content")


def write(item: SealedItem, key_id: str = "a1") -> str:
    """Seal an item."""
    return seal(item, key_id, KEYS[key_id], tenant="t", user_id="u")


@given(ITEMS, st.sampled_from(sorted(KEYS)))
def test_item_comes_back_unchanged(item: SealedItem, key_id: str) -> None:
    """An item opens to its content, with any of the valid keys."""
    token = write(item, key_id)
    assert is_sealed(token)
    assert get_key_id(token) == key_id
    assert read(token) == item


@given(ITEMS, st.data())
def test_flipped_bit_is_refused_anywhere(item: SealedItem, data: st.DataObject) -> None:
    """One changed bit in any character is found, in the unused bits of base64 too."""
    token = write(item)
    at, bit = data.draw(st.integers(0, len(token) - 1)), data.draw(st.integers(0, 6))
    changed = token[:at] + chr(ord(token[at]) ^ (1 << bit)) + token[at + 1 :]
    with pytest.raises(InvalidSealedItem) as refused:
        read(changed)
    assert refused.value.param == "input[0].encrypted_content"


@given(ITEMS, st.integers(0, 400), st.text(min_size=1, max_size=3))
def test_cut_and_lengthened_items_are_refused(item: SealedItem, at: int, more: str) -> None:
    """A part of an item, and an item with more text anywhere, are refused."""
    token = write(item)
    at = min(at, len(token))
    for changed in (token[: min(at, len(token) - 1)], token[:at] + more + token[at:]):
        with pytest.raises(InvalidSealedItem):
            read(changed)


@given(ITEMS)
def test_item_of_another_caller_is_refused(item: SealedItem) -> None:
    """Another tenant, another user, a removed key, and the names of both moved into each other."""
    token = write(item)
    callers: list[dict[str, Any]] = [
        {"tenant": "other"},
        {"user_id": "other"},
        {"tenant": "tu", "user_id": ""},
        {"keys": {"b2": KEYS["b2"]}},
        {"keys": {"a1": KEYS["b2"]}},
    ]
    for caller in callers:
        with pytest.raises(InvalidSealedItem):
            read(token, **caller)


def test_long_item_is_refused() -> None:
    """An item above the limit is not read."""
    item = SealedItem(session="s", identity="i", through=1, summarized=-1, text="x" * SEALED_BYTES)
    with pytest.raises(InvalidSealedItem, match="at most"):
        read(write(item))
