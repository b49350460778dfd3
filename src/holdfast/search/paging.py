"""Cursors of a search: where a page ends, bound to what was asked, by whom. Pure.

A cursor holds the place of the last hit in the order of the ranking, and the moment of the first page: "yesterday" stays the same day,
and what is said later does not come in. It is no secret and grants nothing: whose messages are searched, the request alone says.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from typing import Any, Final

import msgspec

from holdfast.errors import InvalidRequest

_KEY: Final = b"holdfast search cursor 1"
_CHECK_BYTES: Final = 12
_LONGEST: Final = 4_500


class Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a page ends: in the order of the ranking, or within the hits that a reranker has put in another order."""

    score: float
    """Of the hit; in the midst of reranked hits of the one of them that is last in the order of the ranking."""
    at: int
    session: str
    seq: int
    position: int
    """Of the hit, from 1 on the first page."""
    now: int
    """When the first page was asked for: milliseconds since the epoch."""
    newest: int
    """When the newest of all hits was said, as far as they were known then: clocks may differ."""
    reranked: bytes = b""
    """Reranked hits that are still to come before the ranking goes on, in their order; see `holdfast.search.reranking`."""

    @property
    def key(self) -> tuple[float, int, str, int]:
        """What orders hits: the better, the newer, then by session and place."""
        return order_of(self.score, self.at, self.session, self.seq)


def order_of(score: float, at: int, session: str, seq: int) -> tuple[float, int, str, int]:
    """The key by which hits are in order, best first."""
    return -score, -at, session, seq


def cursor_of(place: Place, asked: Any) -> str:
    """A place as an opaque text.

    Args:
        place: the place.
        asked: all that the search depends on, as JSON has it: a page of another search cannot be continued with it.
    """
    said = msgspec.json.encode(place)
    return urlsafe_b64encode(_check(said, asked) + said).rstrip(b"=").decode()


def place_in(cursor: str, asked: Any) -> Place:
    """The place that a cursor names. Raises `InvalidRequest` for one that was not given for this very search."""
    if len(cursor) <= _LONGEST:
        try:
            data = urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
            said = data[_CHECK_BYTES:]
            if data[:_CHECK_BYTES] == _check(said, asked):
                return msgspec.json.decode(said, type=Place)
        except (BadBase64, UnicodeEncodeError, msgspec.MsgspecError):
            pass
    message = "after is no cursor of this search: give the `cursor` (over HTTP `last_id`) of the page before, with the same query, filters and user"
    raise InvalidRequest(message, param="after")


def _check(said: bytes, asked: Any) -> bytes:
    about = msgspec.json.encode(asked, order="sorted")
    digest = hashlib.blake2b(key=_KEY, digest_size=_CHECK_BYTES)
    digest.update(len(about).to_bytes(8) + about + said)
    return digest.digest()
