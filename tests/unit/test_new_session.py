"""Copies of sessions: no field is forgotten."""

from __future__ import annotations

from typing import Any

from holdfast.domain.messages import Message
from holdfast.domain.session import Session, Tail
from holdfast.stores.session_changes import make_session
from holdfast.stores.sessions import OWN_FIELDS, NewSession, SessionPatch
from holdfast.wire.exports import Imported

OWN: dict[str, Any] = {
    "agent": "helper",
    "system_messages": (Message(role="system", content="Be brief."),),
    "state": {"k": 1},
    "metadata": {"m": 2},
    "ttl": 5,
}
"""A value of each own field that is not its default."""
NOT_OWN = {
    "id": "copied too, but not a field that callers can change",
    "user_id": "like the id",
    "timestamp": "the time of the copy; given by the caller",
    "identity": "a copy is another session",
    "past": "only moves and imports have one",
    "origins": "only copies of entries have them",
}
"""Fields of `NewSession` that are not own fields, and why."""


def make_full_session() -> Session:
    return Session(tenant="t", user_id="ada", id="s", identity="first", created_at=1, updated_at=1, tail=Tail(), **OWN)


def test_each_field_of_a_new_session_is_copied_or_listed_as_an_exception() -> None:
    assert set(OWN_FIELDS) == set(OWN) == set(SessionPatch.__struct_fields__)
    assert set(NewSession.__struct_fields__) - set(OWN_FIELDS) == set(NOT_OWN)
    assert set(OWN_FIELDS) < set(Imported.__struct_fields__)


def test_copy_has_the_own_fields_of_the_session() -> None:
    """Its identity, time and past are not those of the session."""
    new = NewSession.from_session(make_full_session(), timestamp=9)
    assert {name: getattr(new, name) for name in OWN_FIELDS} == OWN
    assert (new.id, new.user_id, new.timestamp, new.past, new.origins) == ("s", "ada", 9, None, ())
    assert new.identity not in ("", "first")


def test_changes_replace_copied_fields() -> None:
    new = NewSession.from_session(make_full_session(), timestamp=9, id="t", state={}, ttl=None, identity="first")
    assert (new.id, new.state, new.ttl, new.identity, new.metadata) == ("t", {}, None, "first", {"m": 2})


def test_stores_create_a_session_with_its_own_fields() -> None:
    stored = make_session("t", NewSession(id="s", user_id="ada", timestamp=1, **OWN))
    assert {name: getattr(stored, name) for name in OWN_FIELDS} == OWN
