"""Follow a session live: report what changed in its log since the last look.

A look reads the session's row. Only if the session has changed, it also reads the new messages and model calls. So its cost does not
depend on the length of the log. It works on every database, whichever process writes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final, Literal

import msgspec

from holdfast.domain.session import EndReason, Entry, ModelCall, Session
from holdfast.errors import SessionNotFound
from holdfast.limits import FOLLOWED_PAGE
from holdfast.stores.base import Store
from holdfast.stores.session_changes import is_claimed


class TurnStarted(msgspec.Struct, frozen=True):
    """A turn has written its first message."""

    name: ClassVar[str] = "turn_started"
    turn_id: int
    timestamp: int
    """Milliseconds since the epoch."""
    resumed: bool
    """True if this is not its first message: it ended before, or began before the follower's first look."""


class MessageAppended(msgspec.Struct, frozen=True):
    """A message was written to the log."""

    name: ClassVar[str] = "message"
    entry: Entry


class PromptSent(msgspec.Struct, frozen=True):
    """A prompt was built and sent to a model, and the reply is stored."""

    name: ClassVar[str] = "prompt"
    call: ModelCall


class TurnEnded(msgspec.Struct, frozen=True):
    """No turn is running any more, and no tool call waits for its result."""

    name: ClassVar[str] = "turn_ended"
    turn_id: int
    timestamp: int
    """Time of the last message, in milliseconds since the epoch."""
    duration_ms: int | None
    """Time from the first to the last message; None if the follower has not seen the first one."""


class MessagesRetired(msgspec.Struct, frozen=True):
    """An edit or a rewind replaced messages. They stay in the log, but are no longer sent."""

    name: ClassVar[str] = "messages_retired"
    count: int


class SessionClosed(msgspec.Struct, frozen=True):
    """The session was closed. The next message opens it again."""

    name: ClassVar[str] = "session_closed"
    reason: EndReason | None


class SessionReplaced(msgspec.Struct, frozen=True):
    """The session was deleted, and a new session has its id. The new session is followed from now on."""

    name: ClassVar[str] = "session_replaced"
    session: Session


class SessionDeleted(msgspec.Struct, frozen=True):
    """The session was deleted."""

    name: ClassVar[str] = "session_deleted"


SessionEvent = (
    TurnStarted
    | MessageAppended
    | PromptSent
    | TurnEnded
    | MessagesRetired
    | SessionClosed
    | SessionReplaced
    | SessionDeleted
)
Activity = Literal["idle", "running", "waiting"]
"""`running`: a turn is running; `waiting`: a client must send results of tools."""
_NEVER: Final = -1


class SessionFollower:
    """Finds the changes of a session since the last look.

    Args:
        store: the store of the session.
        session: the session, as read from the store.
        now: returns the time in milliseconds since the epoch.

    Attributes:
        session: the session as of the last look.
        has_more: True if there are more changes than the last look returned, so that the next look should follow at once.
    """

    def __init__(self, store: Store, session: Session, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now
        self.session = session
        self.has_more = False
        self._calls: list[ModelCall] = []
        """Calls that have been read, but whose place in the log has not been reached."""
        self._start_at_end(session)

    def _start_at_end(self, session: Session) -> None:
        self.session = session
        self._next_seq = session.tail.next_seq
        self._live = session.messages
        self._used = session.usage.calls
        self._open = session.tail.turn_id if self.activity != "idle" else _NEVER
        self._turn = session.tail.turn_id
        self._began: int | None = None
        self._latest = session.updated_at
        self._calls.clear()

    @property
    def activity(self) -> Activity:
        """The state of the session at the last look."""
        if is_claimed(self.session, self._now()):
            return "running"
        return "waiting" if self.session.tail.open_calls else "idle"

    async def read_last(self, count: int) -> list[SessionEvent]:
        """Return events for the last `count` messages before the follower's start, and for the prompts between them."""
        ref = self.session.ref
        # One more, to find out if the first turn is shown from its beginning.
        found = await self._store.entries(ref, stop=self._next_seq, limit=count + 1, descending=True)
        entries = found[count - 1 :: -1] if count else ()
        if not entries:
            return []
        calls = await self._store.calls(ref, limit=count)
        self._calls = [call for call in reversed(calls) if call.through >= entries[0].seq]
        self._turn, self._open = found[count].turn_id if len(found) > count else _NEVER, _NEVER
        return [*self._order(entries), *self._flush_calls(), *self._end_turn()]

    async def look(self) -> list[SessionEvent]:
        """Return what changed since the last look, in order.

        At most `FOLLOWED_PAGE` messages are returned, and of new prompts the newest `FOLLOWED_PAGE`.
        """
        try:
            return await self._look()
        except SessionNotFound:  # perhaps between two reads
            self.has_more = False
            return [SessionDeleted()]

    async def _look(self) -> list[SessionEvent]:
        session = await self._store.get(self.session.ref)
        before = self.session
        if session.identity != before.identity:
            self._start_at_end(session)
            return [SessionReplaced(session)]
        events = list[SessionEvent]()
        self.session = session
        if self.has_more or session.version != before.version:
            events += await self._read_changes(session)
        if not self.has_more:
            events += self._end_turn()
        if session.status == "closed" and before.status != "closed":
            events.append(SessionClosed(session.end_reason))
        return events

    async def _read_changes(self, session: Session) -> list[SessionEvent]:
        """Read the messages and calls that are new in `session`, and move the follower past them."""
        ref, end = session.ref, session.tail.next_seq
        stop = min(end, self._next_seq + FOLLOWED_PAGE)
        is_longer = stop > self._next_seq  # a write to state or fields also changes the version
        entries = await self._store.entries(ref, start=self._next_seq, stop=stop) if is_longer else ()
        if new := min(session.usage.calls - self._used, FOLLOWED_PAGE - len(self._calls)):
            self._calls += (await self._store.calls(ref, limit=new))[::-1]
        self._next_seq, self._used, self.has_more = stop, session.usage.calls, stop < end
        self._live += len(entries)
        events = list[SessionEvent]()
        if not self.has_more and (retired := self._live - session.messages) > 0:
            events.append(MessagesRetired(retired))
            # The next turn may have the number of a turn that was retired.
            self._turn = min(self._turn, entries[0].turn_id - 1 if entries else session.tail.turn_id)
        events += self._order(entries)
        if not self.has_more:
            self._live = session.messages
            events += self._flush_calls()
        return events

    def _order(self, entries: Sequence[Entry]) -> Iterator[SessionEvent]:
        """Yield the events of new messages. A prompt comes directly before the reply to it."""
        for entry in entries:
            yield from self._take_calls(entry.seq, other_than=entry.turn_id)
            if entry.turn_id != self._open:
                yield from self._end_turn(even_if_running=True)
                resumed = entry.turn_id <= self._turn
                yield TurnStarted(entry.turn_id, entry.timestamp, resumed)
                self._open, self._began = entry.turn_id, None if resumed else entry.timestamp
                self._turn = max(self._turn, entry.turn_id)
            yield from self._take_calls(entry.seq)
            self._latest = entry.timestamp
            yield MessageAppended(entry)

    def _end_turn(self, *, even_if_running: bool = False) -> Iterator[SessionEvent]:
        """Yield the end of the open turn, if there is one and it has ended."""
        if self._open != _NEVER and (even_if_running or self.activity == "idle"):
            duration = None if self._began is None else max(0, self._latest - self._began)
            yield TurnEnded(self._open, self._latest, duration)
            self._open = _NEVER

    def _take_calls(self, before: int, *, other_than: int = _NEVER) -> Iterator[SessionEvent]:
        """Yield the prompts that precede the message `before`, up to the first one of the turn `other_than`."""
        while self._calls and self._calls[0].through < before and self._calls[0].turn_id != other_than:
            yield PromptSent(self._calls.pop(0))

    def _flush_calls(self) -> Iterator[SessionEvent]:
        while self._calls:
            yield PromptSent(self._calls.pop(0))
