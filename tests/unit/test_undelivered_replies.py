"""Undelivered replies: what a process remembers of them."""

from __future__ import annotations

from holdfast.domain.messages import Message
from holdfast.domain.session import Session, Tail
from holdfast.limits import UNHEARD
from holdfast.matching.retries import UndeliveredReplies

ASKED = [Message(role="user", content="hi")]


def session(name: str) -> Session:
    """A session whose last entry is a reply."""
    return Session(tenant="t", user_id="u", id=name, created_at=0, updated_at=0, tail=Tail(last_seq=1))


def test_an_undelivered_reply_is_returned_once() -> None:
    unheard = UndeliveredReplies()
    unheard.note(session("s"), ASKED, None)
    assert unheard.take(session("s"), ASKED, None) == 1
    assert unheard.take(session("s"), ASKED, None) is None


def test_a_forgotten_reply_is_not_returned() -> None:
    """They may have come between the look whether there is one and the look which it is."""
    unheard = UndeliveredReplies()
    unheard.note(session("s"), ASKED, None)
    for number in range(UNHEARD):
        unheard.note(session(f"other-{number}"), ASKED, None)
    assert not unheard.has_reply(session("s").ref)
    assert unheard.take(session("s"), ASKED, None) is None
