"""Rows of sessions: the fields that are stored in the JSON of the state."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from holdfast.domain.session import Session, Tail
from holdfast.domain.state import get_scope
from holdfast.stores.logic import rows


def make(**fields: Any) -> Session:
    return Session(
        tenant="t",
        user_id="ada",
        id="s",
        identity="one",
        created_at=1,
        updated_at=2,
        accessed_at=2,
        tail=Tail(),
        **fields,
    )


def decode(session: Session, profile: Any) -> Session:
    """Return the session that is decoded from the row of `session` with another profile."""
    names = (1, session.tenant, session.user_id, session.id, session.agent, session.version)
    times = (session.created_at, session.updated_at, session.status, session.ttl)
    rest = (session.accessed_at, None, None, None, "", session.identity, "", 0, 0, session.reshaped)
    return rows.decode_session((*names, *times, *rows.encode_counters(session), *(profile or (None,) * 3), *rest))


@pytest.mark.parametrize(
    ("fields", "profile"),
    [
        ({}, None),
        ({"state": {"k": 1}}, (b"[]", b'{"k":1}', b"{}")),
        ({"metadata": {"m": 1}}, (b"[]", b"{}", b'{"m":1}')),
        ({"state": {"k": 1}, "state_turns": {"k": 0}}, (b"[]", b'{"k":1,"temp:turns":{"k":0}}', b"{}")),
        ({"state_turns": {"k": 0}}, (b"[]", b'{"temp:turns":{"k":0}}', b"{}")),
    ],
)
def test_profile_is_stored_in_these_bytes_and_read_again(fields: dict[str, Any], profile: Any) -> None:
    """Other releases read them too. Each field alone is stored."""
    session = make(**fields)
    assert rows.encode_profile(session) == profile
    assert decode(session, profile) == session


@pytest.mark.parametrize("value", [b"null", b"7", b'"x"', b"[]"])
def test_a_damaged_field_in_the_state_is_read_as_its_default(value: bytes) -> None:
    session = make(state={"k": 1})
    assert decode(session, (b"[]", b'{"k":1,"temp:turns":%s}' % value, b"{}")) == session


def test_fields_in_the_state_have_their_own_keys_and_empty_defaults() -> None:
    """An empty value is not stored, so it must be the default. No key of users begins with `temp:`."""
    for key, name, kind in rows.IN_STATE:
        assert get_scope(key) == "temp"
        assert getattr(make(), name, UNSET) == kind()
        assert not kind()
