"""Find the session of a user that a request without `session_id` belongs to.

The possible results, in order of preference, are exact continuation, edit, fork, and new session (docs/reconcile.md). Retries
are recognised before that; see `holdfast.matching.retries`. Only requests of one person are compared with each other.

`holdfast.matching.log_match` defines visible message, live path, position and landing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace as evolve

from holdfast.accounting import run_cpu
from holdfast.domain.messages import (
    GENESIS,
    Message,
    chain,
    digest_calls,
    encode_canonical,
)
from holdfast.domain.reconcile import has_same_tools
from holdfast.domain.session import Session, SessionRef
from holdfast.errors import SessionNotFound
from holdfast.limits import SIGHTINGS
from holdfast.matching.log_match import Landing, Trail, find_omitting, find_shared_places, read_remainder
from holdfast.stores.base import Store
from holdfast.stores.matching import Sighting
from holdfast.stores.walk import read_entries_until

_RUN: Final = 3
"""If a request lacks the beginning of a log, it must share at least this many consecutive visible messages with the log."""
_FIRST_TURNS: Final = 16
"""Maximum number of sessions with an unfinished first reply that are compared with a request."""
_LENGTHS: Final = 8
"""Maximum number of lengths that are tried to find an exact continuation, the longest first. After that, the request forks a session."""
_RUNNING: Final = 2
"""Rank added for a running turn, so that such a session comes after a session with another system prompt."""

Occupancy = Literal["idle", "running", "pending"]
"""State of a session on this server or another one.

`idle`: no turn is running. `running`: a turn is running. `pending`: the session is reserved for a request whose turn has not begun.
"""
MatchKind = Literal["continuation", "edit", "fork"]
"""Use of the matched session: `continuation` appends to it, `edit` changes it, and `fork` copies the common part into a new session."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a request, with functions that report whether sessions are in use.

    Attributes:
        user_id: the user.
        occupancy: returns the state of a session on this server.
        claimed: returns True if another server runs a turn of the session.
    """

    user_id: str
    occupancy: Callable[[SessionRef], Occupancy]
    claimed: Callable[[Session], bool]

    def get_occupancy(self, session: Session) -> Occupancy:
        """Return the state of a session on this server or another one."""
        here = self.occupancy(session.ref)
        return "running" if here == "idle" and self.claimed(session) else here


class Match(NamedTuple):
    """The session that a request belongs to, and how it is used."""

    kind: MatchKind
    session: Session
    landing: Landing


class MatchFinder:
    """Searches for the session of one request. Each object is used once.

    Args:
        store: the tenant's store.
        sender: the sender of the request.
        incoming: the request's messages without the leading system messages.
        system: the leading system messages; if empty, sessions keep their own.
        whole: True if the request leaves nothing out (`session_mode: transcript`).
    """

    def __init__(
        self,
        store: Store,
        sender: Sender,
        incoming: Sequence[Message],
        system: Sequence[Message] = (),
        *,
        whole: bool = False,
    ) -> None:
        self._store = store
        self._sender = sender
        self._incoming = incoming
        self._wanted = [encode_canonical(message) for message in system]
        self._whole = whole
        self._trail = Trail(store, sender.user_id, incoming)

    async def find(self) -> Match | None:
        """Return the session to use and how to use it, or None if a new session must be created.

        Nothing is awaited after the last check that the session is not in use, so the caller can still reserve the session.
        """
        replies = self._trail.list_replies(0)
        if not replies:
            return await self._find_first_turn()
        exact = await self._find_continuation(replies[0])
        if exact is not None and self._is_certain(exact):
            return exact
        places, count = await find_shared_places(self._trail, 0, GENESIS, first=replies[0])
        if count <= replies[0]:
            places, count = (), 0
        exact = await self._find_resent(exact, places, count)
        run = await self._find_shortened(places, count)
        if (
            run is not None
            and run.kind == "continuation"
            and run.landing.shared > (exact.landing.shared if exact else 0)
        ):
            exact = run
        if exact is not None and not self._has_more_shared(exact, count):
            if self._has_same_prompt(exact.session):
                return exact
            found = await self._find_by_beginning(places, count)
            return found if found is not None and self._has_same_prompt(found.session) else exact
        if run is not None and run.kind != "continuation" and run.landing.shared > count:
            return run
        return await self._find_by_beginning(places, count) or exact

    def _is_certain(self, exact: Match) -> bool:
        """Return True if the request cannot belong to any other session."""
        return not self._trail.list_replies(exact.landing.shared) and self._has_same_prompt(exact.session)

    def _has_more_shared(self, exact: Match, count: int) -> bool:
        """Return True if another session contains more of the request's replies than `exact`.

        That session is then edited. Otherwise a session that contains only an unanswered "Hi" would be used for a request that belongs
        to a longer session.
        """
        return any(at < count for at in self._trail.list_replies(exact.landing.shared))

    # -- exact continuation ----------------------------------------------------

    async def _find_continuation(self, first: int) -> Match | None:
        """Return a match for a session whose visible messages are exactly the first messages of the request, or None."""
        marks = await run_cpu(self._compute_chains, first, long=self._trail.is_long)
        waiting: Match | None = None
        for _ in range(_LENGTHS):
            places = await self._trail.find_places([mark for _, mark in marks], ends=True)
            if not places:
                break
            count = marks[places[0].mark][0] + 1
            found, running = await self._choose(places, count)
            if found is not None and not (running and count == len(self._trail.messages)):
                return found
            waiting = waiting or found
            marks = [mark for mark in marks if mark[0] + 1 < count]
        return waiting

    def _compute_chains(self, first: int) -> list[tuple[int, bytes]]:
        """Return the chained digests of the visible messages from index `first`, each with the index of its message."""
        digest, found = GENESIS, list[tuple[int, bytes]]()
        for at, message in enumerate(self._trail.messages):
            digest = chain(digest, message)
            if at >= first:
                found.append((at, digest))
        return found

    async def _find_resent(self, exact: Match | None, places: Sequence[Sighting], count: int) -> Match | None:
        """Return a match that also covers messages which the client resent in another form, if that match is longer than `exact`.

        Otherwise return `exact`.
        """
        ends = [place for place in places if place.last]
        if not ends or (exact is not None and exact.landing.shared >= count):
            return exact
        found, _ = await self._choose(ends, count)
        return found or exact

    async def _find_shortened(self, places: Sequence[Sighting], count: int) -> Match | None:
        """Return a match for a request that leaves out older messages, or None."""
        trail = self._trail
        if self._whole or not trail.list_replies(count if places else 0):
            return None
        runs = await find_omitting(trail, None, run=_RUN)
        matches: list[Match] = []
        for run in runs:
            if await self._count_shared(run) <= count:
                continue
            found, _ = await self._choose([run.place], run.shared, at=run)
            if found is not None:
                matches.append(found)
        matches.sort(key=lambda one: (one.kind == "continuation", one.landing.shared), reverse=True)
        return matches[0] if matches else None

    async def _count_shared(self, run: Landing) -> int:
        """Return the number of messages that a request shares with a session.

        These are the messages of `run`, plus the messages at the beginning of the session that match the beginning of the request, if
        they are before `run`.
        """
        places, count = await find_shared_places(self._trail.restrict_to(run.place.ref), 0, GENESIS, first=0)
        before = any(place.live and place.seq < run.place.seq for place in places)
        return run.shared + (count if before else 0)

    # -- edits and forks ---------------------------------------------------------

    async def _find_by_beginning(self, places: Sequence[Sighting], count: int) -> Match | None:
        """Return a match for the session that shares the longest beginning with the request, or None.

        If too many sessions share that beginning, the result is None, because any choice would be a guess.
        """
        if not places or (len(places) >= SIGHTINGS and not any(place.last for place in places)):
            return None
        ranked = sorted(
            _select_one_per_session(places),
            key=lambda place: (place.live and place.last, place.updated_at),
            reverse=True,
        )
        for place in ranked if not self._wanted else await self._rank_by_prompt(ranked):
            session = await self._get(place)
            if session is not None:
                return self._match_changed(session, self._trail.make_landing(place, count, count))
        return None

    async def _rank_by_prompt(self, ranked: Sequence[Sighting]) -> list[Sighting]:
        """Move the first position whose session has the request's system prompt to the front, and return the positions."""
        for place in ranked:
            session = await self._get(place)
            if session is not None and self._has_same_prompt(session):
                return [place, *(one for one in ranked if one is not place)]
        return list(ranked)

    def _match_changed(self, session: Session, landing: Landing) -> Match:
        """Return the match for a session that the request does not continue exactly: edit or fork."""
        kind: MatchKind = "edit" if self._sender.get_occupancy(session) == "idle" else "fork"
        return Match(kind, session, landing)

    # -- choosing one of several -----------------------------------------------------

    async def _choose(
        self, places: Sequence[Sighting], count: int, *, at: Landing | None = None
    ) -> tuple[Match | None, bool]:
        """Choose the session to continue.

        Idle sessions are preferred, then those with the same system prompt, then the most recently used ones.

        Args:
            places: positions at the end of the sessions, most recently used first.
            count: number of the request's visible messages up to these positions.
            at: the landing, if it is not directly after the first `count` messages.

        Returns:
            The match or None; then True if a turn of the matched session is running.
        """
        later: list[tuple[int, Sighting]] = []
        for place in _select_one_per_session(places):
            if self._sender.occupancy(place.ref) == "pending" or (session := await self._get(place)) is None:
                continue
            same, state = self._has_same_prompt(session), self._sender.get_occupancy(session)
            if state == "pending":
                continue
            if not same or state == "running":
                later.append((_RUNNING * (state == "running") + (not same), place))
                continue
            found = await self._match(place, count, at=at, is_idle=True)
            if found is not None:
                return found, False
        for rank, place in sorted(later, key=lambda one: one[0]):
            idle = rank < _RUNNING
            found = await self._match(place, count, at=at, is_idle=idle)
            if found is not None:
                return found, not idle
        return None, False

    async def _match(self, place: Sighting, count: int, *, at: Landing | None, is_idle: bool) -> Match | None:
        """Return a match for one session, or None if the session is gone or in use."""
        landing = at or self._trail.make_landing(place, count, count)
        session = await self._get(place)
        if session is None:
            return None
        if not place.last:
            return self._match_changed(session, landing)
        occupancy = self._sender.occupancy(place.ref)
        if occupancy == "pending" or (occupancy == "running" and is_idle):  # another request was faster meanwhile
            return None
        return Match("continuation", session, landing)

    async def _get(self, place: Sighting) -> Session | None:
        """Return the session at a position, or None if it is gone or another session has its name now."""
        try:
            session = await self._store.get(place.ref)
        except SessionNotFound:
            return None
        return session if session.identity == place.identity else None

    def _has_same_prompt(self, session: Session) -> bool:
        own = session.system_messages
        return not self._wanted or not own or [encode_canonical(message) for message in own] == self._wanted

    # -- the first turn --------------------------------------------------------------

    async def _find_first_turn(self) -> Match | None:
        """Return a match for a session whose first reply is not finished because the client is running tools, or None.

        The session is found by the ids of the tool calls in the request.
        """
        marks = self._list_call_marks()
        places = await self._trail.find_places([mark for mark, _, _, _ in marks], alias=True, limit=_FIRST_TURNS)
        found: list[tuple[Sighting, int, int]] = []
        for place in places:
            _, shared, sent, calls = marks[place.mark]
            tools = (
                await read_remainder(self._store, place.ref, await self._find_first_tool(place) - 1)
                if place.live
                else None
            )
            if tools is None or not has_same_tools(tools, self._incoming[sent:]):
                continue
            ids = {call.id for tool in tools.tools for call in tool.message.tool_calls}
            if all(call.id in ids for call in calls.tool_calls):
                found.append((evolve(place, last=tools.visible is None), shared, sent))
        found.sort(key=lambda one: (one[0].last, one[0].updated_at), reverse=True)
        for place, shared, sent in found:
            landing = Landing(place, sent, shared)
            match, _ = await self._choose([place], shared, at=landing)
            if match is not None:
                return match
        return None

    def _list_call_marks(self) -> list[tuple[bytes, int, int, Message]]:
        """Return the digests of the request's messages with tool calls.

        Each item has the digest, the number of visible messages before the message, the number of messages up to the last visible one
        before it, and the message itself.
        """
        digest, at, sent, marks = GENESIS, 0, 0, list[tuple[bytes, int, int, Message]]()
        for place, message in enumerate(self._incoming):
            if message.visible:
                digest, at, sent = chain(digest, message), at + 1, place + 1
            elif message.tool_calls:
                marks.append((digest_calls(digest, message), at, sent, message))
        return marks

    async def _find_first_tool(self, place: Sighting) -> int:
        """Return the `seq` of the first tool message between `place` and the last visible message before `place`."""
        tools, _ = await read_entries_until(
            self._store, place.ref, lambda entry: entry.message.visible, stop=place.seq, descending=True
        )
        return tools[-1].seq if tools else place.seq


def _select_one_per_session(places: Iterable[Sighting]) -> list[Sighting]:
    """Return one position per session: the newest live one or, if none is live, the newest."""
    chosen: dict[SessionRef, Sighting] = {}
    for place in places:
        known = chosen.get(place.ref)
        if known is None or (place.live, place.seq) > (known.live, known.seq):
            chosen[place.ref] = place
    return list(chosen.values())
