"""Recognise repeated requests: retries of official SDKs, and requests whose client disconnected before the reply was complete.

The SDKs state in a header how often a request was sent before (`x-stainless-retry-count`). The earlier attempt is found by the
request's body. If the turn of that attempt is still running, the retry receives that turn's reply; otherwise the retry gets the
stored reply. A process remembers attempts for ten minutes. Across servers, an `Idempotency-Key` has the same effect.

If a client received only a part of a reply and repeats the request, the client gets the whole reply from the log.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable

from holdfast.domain.messages import Message, encode_canonical
from holdfast.domain.session import Session, SessionRef
from holdfast.limits import RETRIES, RETRY_MILLISECONDS, UNHEARD


class Attempt:
    """One attempt to send a request.

    Attributes:
        ref: the session assigned to the attempt; None if no session is assigned yet.
        identity: the identity of that session.
        start: `seq` of the first entry after the request's own messages; None until these messages are in the log.
        is_fixed: True if the attempt can have no other session than this one.
        is_connected: True as long as the client may still be connected.
        was_answered: True if the whole reply was sent to the client.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.ref: SessionRef | None = None
        self.identity = ""
        self.start: int | None = None
        self.is_fixed = False
        self.is_connected = True
        self.was_answered = False

    def assign_session(self, ref: SessionRef, identity: str, *, is_fixed: bool) -> None:
        """Record the session that the request was assigned to."""
        self.ref, self.identity, self.is_fixed = ref, identity, is_fixed

    @property
    def can_resume(self) -> bool:
        """True if a retry gets the session of this attempt.

        It does not if the attempt ended before its turn began. Other requests may have used the session since, so the retry is matched again.
        """
        return self.ref is not None and (self.is_fixed or self.is_connected or self.start is not None)


class Retries:
    """Remembers the requests of the last ten minutes, by a digest of caller and body, to recognise retries.

    Args:
        clock: returns milliseconds since the epoch.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._attempts: OrderedDict[bytes, list[Attempt]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def begin(self, digest: bytes) -> Attempt:
        """Record a request that is sent for the first time, and return the new attempt."""
        self._forget()
        attempt = Attempt(self._clock())
        self._attempts.setdefault(digest, []).append(attempt)
        self._attempts.move_to_end(digest)
        self._count += 1
        return attempt

    def resume(self, digest: bytes) -> Attempt | None:
        """Return the earlier attempt to send the same request, or None.

        Two programs of a user may have sent the same request, so there can be several attempts. Attempts whose reply was not delivered are
        preferred, then attempts whose client has disconnected. If several remain, the oldest one is returned; if all were answered, the
        newest one.
        """
        self._forget()
        placed = [one for one in self._attempts.get(digest, ()) if one.can_resume]
        if not placed:
            return None
        found = min(
            placed, key=lambda one: (one.was_answered, one.is_connected, -one.at if one.was_answered else one.at)
        )
        found.is_connected, found.was_answered = True, False
        return found

    def _forget(self) -> None:
        """Drop attempts older than ten minutes. If there are still too many, drop the oldest."""
        oldest = self._clock() - RETRY_MILLISECONDS
        while self._attempts:
            digest, attempts = next(iter(self._attempts.items()))
            if attempts[-1].at > oldest and self._count < RETRIES:
                return
            self._count -= len(attempts)
            del self._attempts[digest]


class UndeliveredReplies:
    """Remembers replies whose client disconnected before the reply was complete: the last reply of each recent session.

    If the client sends the same request again, it gets the stored reply, even without an `Idempotency-Key`. Only this process knows
    these replies; another server would answer the request again.
    """

    def __init__(self) -> None:
        self._noted: OrderedDict[SessionRef, tuple[str, int, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, session: Session, messages: Iterable[Message], key: str | None) -> None:
        """Remember that the client disconnected before the session's last reply was complete.

        Args:
            session: the session after the reply, which is the session's last entry.
            messages: the request's messages, with secrets masked.
            key: the `Idempotency-Key` of the request, or None.
        """
        self._noted[session.ref] = (session.identity, session.tail.last_seq, _digest(messages, key))
        self._noted.move_to_end(session.ref)
        if len(self._noted) > UNHEARD:
            self._noted.popitem(last=False)

    def has_reply(self, ref: SessionRef) -> bool:
        """Return True if the session has an undelivered reply."""
        return ref in self._noted

    def take(self, session: Session, messages: Iterable[Message], key: str | None) -> int | None:
        """Return the `seq` of the undelivered reply if the request is the same one again, otherwise None.

        None is also returned if the session has continued since. After this call the reply counts as delivered in any case, because a
        client that sends another request does not need the old reply.
        """
        noted = self._noted.pop(session.ref, None)
        if noted is None:  # evicted after `has_reply` was called
            return None
        identity, seq, digest = noted
        same = (identity, seq) == (session.identity, session.tail.last_seq) and digest == _digest(messages, key)
        return seq if same else None


def _digest(messages: Iterable[Message], key: str | None) -> bytes:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16)
    for message in messages:
        digest.update(encode_canonical(message) + b"\0")
    return digest.digest()
