"""Describe how the session of a request was found, and what the request may do with the session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from holdfast.domain.session import Session
from holdfast.engine.reservations import Reservation
from holdfast.matching.retries import Attempt

PlacementKind = Literal["continuation", "edit", "fork", "new", "retry"]


class MatchLost(Exception):
    """Raised if the session changed while the request waited for it, so that the match no longer holds.

    Nothing was written. The caller matches the request again.
    """


class Placement:
    """The session that a request named, or to which it was matched.

    The arguments `session`, `kind`, `follows` and `attempt` become attributes.

    Args:
        session: the session as it was when it was found.
        kind: the kind of match; `new` also if the request named the session.
        follows: `seq` of the message that the request continues after; see `holdfast.turns.turn_start`. None: the newest message.
        reservation: reserves the session for the request until the turn begins.
        find_again: function that finds the session again. If its argument is True, it uses a new session or a fork:
            the log of this session is unchanged, so the same match would fail again. None: the request gets no other session.
        attempt: the client's attempt to send this request; None if a repetition of the request cannot be recognised.
    """

    def __init__(
        self,
        session: Session,
        kind: PlacementKind,
        *,
        follows: int | None = None,
        reservation: Reservation | None = None,
        find_again: Callable[[bool], Awaitable[Placement]] | None = None,
        attempt: Attempt | None = None,
    ) -> None:
        self.session = session
        self.kind = kind
        self.follows = follows
        self.attempt = attempt
        self._is_unchanged = False
        self._reservation = reservation
        self._find_again = find_again

    def check(self, session: Session, retire_from: int | None) -> None:
        """Check that the request still belongs to the session.

        Args:
            session: the session now.
            retire_from: the first `seq` of the entries that the request would replace; None if the request replaces
                nothing.

        Raises:
            MatchLost: the request would replace messages, and the session has changed since it was found.
        """
        if self._find_again is None or self.kind == "retry" or self.follows is not None:
            return
        self._is_unchanged = session.version == self.session.version
        if retire_from is not None and not self._is_unchanged:
            raise MatchLost

    async def find_again(self) -> Placement:
        """Find the session of the request again, and return the new placement."""
        assert self._find_again is not None, "only a request that can have another session can lose its match"
        self.release()
        placed = await self._find_again(self._is_unchanged)
        placed.record_attempt(self.attempt)
        return placed

    def record_attempt(self, attempt: Attempt | None) -> None:
        """Record the attempt that has this placement; None: a repetition of the request cannot be recognised."""
        self.attempt = attempt
        if attempt is not None:
            attempt.assign_session(self.session.ref, self.session.identity, is_fixed=self._find_again is None)

    def release(self) -> None:
        """Release the reservation, so that other requests can use the session. A second call does nothing."""
        if self._reservation is not None:
            self._reservation.release()


@contextmanager
def release_on_error(placement: Placement | None) -> Iterator[None]:
    """Release the reservation of a placement if the block raises an error, because no turn will begin then."""
    try:
        yield
    except BaseException:
        if placement is not None:
            placement.release()
        raise
