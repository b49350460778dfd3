"""Replies that are whole in their logs, and whose clients had gone before their end: who asks for one again is given it."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

from holdfast.domain.messages import Message, canonical
from holdfast.domain.session import Session, SessionRef
from holdfast.limits import UNHEARD


class Unheard:
    """What a process remembers of them: of a session the last one, and of the oldest sessions none.

    An aid for clients that send no `Idempotency-Key`: another server does not know, and answers anew.
    """

    def __init__(self) -> None:
        self._noted: OrderedDict[SessionRef, tuple[str, int, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, session: Session, asked: Iterable[Message], key: str | None) -> None:
        """Remember that nobody was there for the end of the reply.

        Args:
            session: as it is behind the reply, which is its last entry.
            asked: what came with the request, without secrets.
            key: its `Idempotency-Key`.
        """
        self._noted[session.ref] = (session.identity, session.tail.last_seq, _digest(asked, key))
        self._noted.move_to_end(session.ref)
        if len(self._noted) > UNHEARD:
            self._noted.popitem(last=False)

    def of(self, ref: SessionRef) -> bool:
        """Whether there is one of the session."""
        return ref in self._noted

    def taken(self, session: Session, asked: Iterable[Message], key: str | None) -> int | None:
        """`seq` of the reply that the same request is given again; it counts as heard from now on.

        None where the session has gone on, or another request comes: then nobody asks for it any more.
        """
        noted = self._noted.pop(session.ref, None)
        if noted is None:  # forgotten for others' since it was looked whether there is one
            return None
        identity, seq, digest = noted
        same = (identity, seq) == (session.identity, session.tail.last_seq) and digest == _digest(asked, key)
        return seq if same else None


def _digest(asked: Iterable[Message], key: str | None) -> bytes:
    said = hashlib.blake2b(repr(key).encode(), digest_size=16)
    for message in asked:
        said.update(canonical(message) + b"\0")
    return said.digest()
