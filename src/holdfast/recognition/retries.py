"""Requests that official SDKs send again after a timeout or a failure, found by their body.

Such a request says how often it was sent before (`x-stainless-retry-count`). It joins the turn of the first attempt, or gets that
turn's reply. A process remembers attempts for ten minutes; over several servers an `Idempotency-Key` does the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from holdfast.domain.session import SessionRef
from holdfast.limits import RETRIES, RETRY_MILLISECONDS


class Attempt:
    """One attempt at a request.

    Attributes:
        ref: the session that it was given; None: none yet.
        identity: the session's.
        start: `seq` of the first entry after the request's own messages, once they are in the log.
        is_connected: whether its client may still be there.
        was_answered: whether its client was sent the whole reply.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.ref: SessionRef | None = None
        self.identity = ""
        self.start: int | None = None
        self.is_connected = True
        self.was_answered = False

    def place(self, ref: SessionRef, identity: str) -> None:
        """Note which session the request was given."""
        self.ref, self.identity = ref, identity


class Retries:
    """The attempts of the last ten minutes, by a digest of caller and body.

    Args:
        clock: milliseconds since the epoch.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._attempts: OrderedDict[bytes, list[Attempt]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def begin(self, digest: bytes) -> Attempt:
        """Note a request that is sent for the first time."""
        self._forget()
        attempt = Attempt(self._clock())
        self._attempts.setdefault(digest, []).append(attempt)
        self._attempts.move_to_end(digest)
        self._count += 1
        return attempt

    def resume(self, digest: bytes) -> Attempt | None:
        """Return the attempt that a request repeats, or None.

        Two callers without names may have sent the same: an attempt whose client has gone comes first, then one that is not
        answered yet; of these the oldest.
        """
        self._forget()
        placed = [one for one in self._attempts.get(digest, ()) if one.ref is not None]
        if not placed:
            return None
        found = min(
            placed, key=lambda one: (one.was_answered, one.is_connected, -one.at if one.was_answered else one.at)
        )
        found.is_connected, found.was_answered = True, False
        return found

    def _forget(self) -> None:
        """Forget what is too old, and the oldest where there are too many."""
        oldest = self._clock() - RETRY_MILLISECONDS
        while self._attempts:
            digest, attempts = next(iter(self._attempts.items()))
            if attempts[-1].at > oldest and self._count < RETRIES:
                return
            self._count -= len(attempts)
            del self._attempts[digest]
