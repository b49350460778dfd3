"""API keys and their stored form, roles, and users derived from upstream keys."""

from __future__ import annotations

import hashlib
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.access import (
    ID_RANDOM,
    SECRET_RANDOM,
    ForwardedHeaders,
    create_key,
    derive_upstream_user,
    hash_key,
    is_key,
    is_valid_key,
    parse_key_id,
)
from holdfast.stores.keys import ApiKey

RANDOM = st.binary(min_size=ID_RANDOM + SECRET_RANDOM, max_size=ID_RANDOM + SECRET_RANDOM)
NOW = 1_000


def make_stored_key(key: bytes, **fields: object) -> ApiKey:
    made = create_key(key)
    known = {"id": made.id, "hash": made.hash, "tenant": "t", "created_at": 0, **fields}
    return msgspec.convert(known, ApiKey)


@given(RANDOM)
def test_a_key_is_text_with_its_id_and_256_random_bits(random: bytes) -> None:
    """It fits into a header, contains its id, and only its SHA-256 is stored."""
    made = create_key(random)
    assert re.fullmatch(r"hf_[a-z2-7]{16}_[a-z2-7]{52}", made.text)
    assert is_key(made.text)
    assert not is_key("hf_AbCdEfGhIjKlMnOpQrStUvWxYz"), "others' keys begin like ours"
    assert parse_key_id(made.text) == made.id
    assert made.hash == hash_key(made.text) == hashlib.sha256(made.text.encode()).digest()
    assert made.text not in repr(made)
    assert is_valid_key(make_stored_key(random), made.text, NOW)


@given(RANDOM, RANDOM)
def test_different_bits_are_different_keys(one: bytes, two: bytes) -> None:
    """No two keys share text or hash, and neither is valid for the other."""
    same = one == two
    assert (create_key(one).text == create_key(two).text) is same
    assert is_valid_key(make_stored_key(one), create_key(two).text, NOW) is same


@given(st.text(max_size=100))
def test_any_other_text_is_not_a_key(text: str) -> None:
    """Neither alone nor after the prefix of a key."""
    random = bytes(ID_RANDOM + SECRET_RANDOM)
    for shown in (text, "hf_" + text, create_key(random).text + (text or "x")):
        assert parse_key_id(shown) is None


def test_too_few_random_bytes_are_rejected() -> None:
    """A short secret could be guessed."""
    with pytest.raises(ValueError, match="42 random bytes"):
        create_key(b"x" * ID_RANDOM)


@given(st.text(), st.text(), st.text(min_size=1), st.text(min_size=1))
def test_an_upstream_key_is_one_user_of_one_tenant(tenant: str, other: str, token: str, another: str) -> None:
    """The user id is stable and unique, and does not reveal the key."""
    user = derive_upstream_user(tenant, token)
    assert user == derive_upstream_user(tenant, token)
    assert (user == derive_upstream_user(other, another)) is ((tenant, token) == (other, another))
    assert re.fullmatch(r"key_[0-9a-f]{32}", user)


def test_forwarded_headers_are_masked_in_repr() -> None:
    assert "sk-secret" not in repr(ForwardedHeaders(authorization="Bearer sk-secret"))
