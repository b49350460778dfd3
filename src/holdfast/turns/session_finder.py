"""Find the session that a request continues if it names none, by the digests of its messages. See docs/placing.md.

`holdfast.turns.place` explains the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from holdfast.domain.messages import GENESIS, Message, chain, digest_calls, encode_canonical
from holdfast.domain.session import SCOPE, Session, SessionRef, is_always_named
from holdfast.engine.engine import Engine
from holdfast.errors import SessionNotFound
from holdfast.limits import CALL_LOOKBACK, COMPARED_SESSIONS, MARKS, SIGHTINGS
from holdfast.log.align import has_same_tools
from holdfast.stores.base import Store
from holdfast.stores.matching import Sighting
from holdfast.stores.session_changes import is_claimed
from holdfast.stores.walk import read_entries_until
from holdfast.turns.place import ANCHORS, PLACES, Trail, find_retired, is_visible, look_up, read_remainder, read_run

_LENGTHS: Final = 8
"""Maximum number of beginnings of a request with which sessions end that are compared, the longest first."""
_RESULTS: Final = 64
"""This many of the last results of tools are compared before a session is chosen."""


class Sender(NamedTuple):
    """A request without a session, as far as the search for its session needs it."""

    user_id: str
    trail: Trail
    """The messages without the leading system messages."""
    system: Sequence[Message] = ()
    """The leading system messages; if empty, sessions keep their own."""
    whole: bool = False
    """True if the request leaves nothing out (`session_mode: transcript`)."""
    scope: str | None = None
    """Only sessions with this `SCOPE` are searched; None: all."""


class _Candidate(NamedTuple):
    """A session that a request may continue."""

    session: Session
    place: Sighting
    retires: bool
    """True if messages of the session would be retired."""
    shared: int
    """Number of visible messages in common, up to the anchor."""
    missing: int = 0
    """Number of results of tools that the request has before that, and the log has not."""


def _encode_result(message: Message) -> bytes:
    return encode_canonical(message.evolve(tool_call_id=None))  # each client may have other ids


class Finder:
    """Searches for the session that a request without a session continues.

    Args:
        store: the tenant's store.
        sender: the sender of the request.
        is_busy: returns True if a turn of a session is running.
    """

    def __init__(self, store: Store, sender: Sender, is_busy: Callable[[Session], bool]) -> None:
        self._store = store
        self._sender = sender
        self._is_busy = is_busy
        self._wanted = [encode_canonical(message) for message in sender.system]
        self._trail = sender.trail

    async def find(self) -> Session | None:
        """Return the session to continue; None: the request begins a new one."""
        trail = self._trail
        replies = [at for at in trail.list_replies(0) if at]  # an assistant's greeting is no anchor
        if not replies:
            return self._choose(await self._find_by_calls())
        ended = await self._find_ended(replies[0])
        shared = max((one.shared for one in ended), default=0)
        if ended and not trail.list_replies(shared) and not all(map(self._answers_all, ended)):
            return self._choose(ended)
        return self._choose([*ended, *await self._find_anchored(replies)])

    def _answers_all(self, found: _Candidate) -> bool:
        return found.retires or found.missing > 0 or not self._has_same_prompt(found.session)

    def _choose(self, found: Sequence[_Candidate]) -> Session | None:
        """Return the best session: one in which nothing is retired, with the same system prompt, with the longest common path, idle, used last.

        Before all this, one with the results of tools that the request has: equal questions and replies may differ in them alone.
        """
        if not found:
            return None
        last = max(one.shared for one in found)
        anchors = self._trail.list_replies(0)
        anchor = max((at for at in anchors if at < last), default=-1)
        usable = [one for one in found if one.shared > anchor]  # an older anchor counts only if there is no later one

        def rank(one: _Candidate) -> tuple[int, bool, bool, int, bool, int]:
            is_other = not self._has_same_prompt(one.session)
            return one.missing, one.retires, is_other, -one.shared, self._is_busy(one.session), -one.session.updated_at

        return min(usable, key=rank).session

    def _has_same_prompt(self, session: Session) -> bool:
        own = session.system_messages
        return not self._wanted or not own or [encode_canonical(message) for message in own] == self._wanted

    async def _find_ended(self, first: int) -> list[_Candidate]:
        """Return the sessions that end with messages of the request, the first of which has the index `first` or a later one."""
        trail, marks = self._trail, list(self._trail.digests[first:])
        found, left = list[_Candidate](), _LENGTHS
        while marks and left and all(one.retires or one.missing for one in found):
            part = marks[-MARKS:]
            limit = PLACES if self._sender.scope is None else SIGHTINGS  # those of other scopes are left out below
            places = await self._store.sightings(self._sender.user_id, part, ends=True, limit=limit)
            if not places:
                del marks[-len(part) :]
                continue
            at = len(marks) - len(part) + places[0].mark
            shared, count = first + at + 1, len(trail.messages)
            for session, place in await self._read(places):
                if trail.messages[shared - 1].role != "assistant" and not await self._is_anchored(session.ref, shared):
                    continue
                retires = shared == count and self._is_busy(session)  # its reply would be made again
                found.append(await self._make_candidate(session, place, shared, retires=retires))
            left -= 1
            del marks[at:]
        return found

    async def _make_candidate(self, session: Session, place: Sighting, shared: int, *, retires: bool) -> _Candidate:
        end = self._trail.at[shared - 1]
        results = [message for message in self._trail.incoming[:end] if message.role == "tool"]
        missing = 0
        if results:
            before = await self._store.entries(session.ref, stop=place.seq, limit=CALL_LOOKBACK, descending=True)
            stored = {_encode_result(entry.message) for entry in before if entry.kind == "result"}
            missing = sum(_encode_result(one) not in stored for one in results[-_RESULTS:])
        return _Candidate(session, place, retires, shared, missing)

    async def _find_anchored(self, replies: Sequence[int]) -> list[_Candidate]:
        """Return the sessions with the latest anchor of the request."""
        trail, user = self._trail, self._sender.user_id
        prefix = await look_up(self._store, user, trail.digests[replies[0] :])
        begun = replies[0] + prefix[0].mark + 1 if prefix else 0
        later = [at for at in replies if at >= begun] if not self._sender.whole else []
        marks = [(at, mark) for at in later for mark in trail.list_aliases(at)]
        for _ in range(ANCHORS):
            places = await look_up(self._store, user, [mark for _, mark in marks], alias=True)
            if not places:
                break
            at, found = marks[places[0].mark][0], list[_Candidate]()
            for session, newest in await self._read([one for one in places if one.live]):
                for place in [one for one in places if one.live and one.ref == newest.ref]:
                    if len(await read_run(self._store, place.ref, trail, at, place.seq)) > 1:
                        found.append(await self._make_candidate(session, place, at + 1, retires=not place.last))
                        break
            if not found:
                for session, place in await self._read(places):
                    mine = [one for one in places if one.ref == place.ref and not one.live]
                    if await find_retired(self._store, place.ref, trail, at, mine):
                        found.append(_Candidate(session, place, True, at + 1))
            if found:
                return found
            del marks[places[0].mark :]
        return await self._find_begun(replies[0], prefix, begun)

    async def _find_begun(self, first: int, prefix: Sequence[Sighting], begun: int) -> list[_Candidate]:
        """Return the sessions that share the longest beginning with the request. `prefix` are the places of its first `begun` messages."""
        for _ in range(ANCHORS):
            read = await self._read(prefix)
            found = [
                _Candidate(session, place, True, begun)
                for session, place in read
                if await self._is_anchored(session.ref, begun)
            ]
            if found or not prefix:
                return found
            prefix = await look_up(self._store, self._sender.user_id, self._trail.digests[first : begun - 1])
            begun = first + prefix[0].mark + 1 if prefix else 0
        return []

    async def _is_anchored(self, ref: SessionRef, shared: int) -> bool:
        """Return True if one of the first `shared` messages is a reply of the session, and not one that a client brought along.

        Only replies of the session have an alias.
        """
        trail, user = self._trail, ref.user_id
        digests: dict[bytes, set[bytes]] = {}
        for at in [at for at in trail.list_replies(0) if 0 < at < shared]:
            for alias in trail.list_aliases(at):
                equal = digests.pop(alias, set())
                equal.add(trail.digests[at])
                digests[alias] = equal  # the last one of the request is the last key
        marks = list(digests)
        for _ in range(ANCHORS if marks else 0):
            places = await look_up(self._store, user, marks, alias=True, session=ref, limit=SIGHTINGS)
            if not places or any(one.digest in digests[marks[one.mark]] for one in places):
                return bool(places)
            del marks[places[0].mark :]
        return False

    async def _read(self, places: Sequence[Sighting]) -> list[tuple[Session, Sighting]]:
        """Return the sessions at some places, newest first, at most eight. Those that requests always name are left out."""
        chosen: dict[SessionRef, Sighting] = {}
        for place in places:
            known = chosen.get(place.ref)
            if known is None or (place.live, place.seq) > (known.live, known.seq):
                chosen[place.ref] = place
        found: list[tuple[Session, Sighting]] = []
        for place in chosen.values():
            if is_always_named(place.ref) or len(found) >= COMPARED_SESSIONS:
                continue
            try:
                session = await self._store.get(place.ref)
            except SessionNotFound:
                continue
            if session.identity == place.identity and self._sender.scope in (None, session.metadata.get(SCOPE)):
                found.append((session, place))
        return found

    async def _find_by_calls(self) -> list[_Candidate]:
        """Return sessions whose first reply is not finished because the client runs tools: they are found by the ids of the calls."""
        marks = list[tuple[bytes, int, int, Message]]()
        digest, shared, sent = GENESIS, 0, 0
        for at, message in enumerate(self._trail.incoming):
            if message.visible:
                digest, shared, sent = chain(digest, message), shared + 1, at + 1
            elif message.tool_calls:
                marks.append((digest_calls(digest, message), shared, sent, message))
        places = await look_up(self._store, self._sender.user_id, [mark for mark, *_ in marks], alias=True)
        found = []
        for session, place in await self._read([one for one in places if one.live]):
            _, shared, sent, calls = marks[place.mark]
            before, _ = await read_entries_until(self._store, place.ref, is_visible, stop=place.seq, descending=True)
            rest = await read_remainder(self._store, place.ref, (before[-1].seq if before else place.seq) - 1)
            ids = {call.id for tool in rest.tools for call in tool.message.tool_calls}
            if has_same_tools(rest, self._trail.incoming[sent:]) and all(call.id in ids for call in calls.tool_calls):
                found.append(_Candidate(session, place, rest.following is not None, shared))
        return found


async def find_session(engine: Engine, sender: Sender) -> Session | None:
    """Return the session that a request without a session continues; None: it begins a new one."""

    def is_busy(session: Session) -> bool:
        return engine.is_busy(session.ref) or is_claimed(session, engine.clock())

    return await Finder(engine.store, sender, is_busy).find()
