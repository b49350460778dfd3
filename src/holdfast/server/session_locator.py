"""Find the session of a chat request.

A request gets the session that it names, or an existing session whose log its messages match, or a new session. A request with matching
messages may be a retry, a continuation or an edit of the matching session. If the request may not change that session, it gets a fork: a
new session with a copy of the shared messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from holdfast import errors
from holdfast.agents import Responder
from holdfast.domain.messages import Message
from holdfast.domain.reconcile import Mode
from holdfast.domain.session import NO_VERSION, Session, SessionRef, is_always_named
from holdfast.engine.redacting_store import mask_messages
from holdfast.errors import SessionExists, SessionNotFound, StaleSession
from holdfast.holdfast import Holdfast
from holdfast.limits import COMPARED_SESSIONS
from holdfast.matching.log_match import read_remainder
from holdfast.matching.session_match import Match, MatchFinder, Occupancy, Sender
from holdfast.server.apis.api_format import Predecessor
from holdfast.server.http import Call, get_session_by_id
from holdfast.server.limits import REMATCHES
from holdfast.server.requester import Requester
from holdfast.sessions.forks import copy_turns, fork_for_request
from holdfast.sessions.transfer import TRIES
from holdfast.stores.log import Append
from holdfast.stores.session_changes import is_claimed
from holdfast.turns.placement import Placement, PlacementKind, release_on_error
from holdfast.turns.prompt import check_body
from holdfast.turns.turn_start import NOTHING, check_results, find_unasked_result, make_result_error


class Request(NamedTuple):
    """The parts of a request from which `SessionLocator` determines the request's session."""

    user_id: str
    system: tuple[Message, ...]
    """The leading system messages."""
    incoming: tuple[Message, ...]
    """All other messages."""
    whole: bool
    """True if the request contains the whole conversation (session mode `transcript`)."""
    key: str | None
    """Idempotency key, or None."""
    fingerprint: bytes
    """Hash of the request that is stored with its idempotency key."""
    interrupts: bool
    """True if the request should interrupt a running turn of its session."""


class SessionLocator:
    """Finds the session of one request by its messages.

    Args:
        hf: the `Holdfast` of the caller's tenant.
        request: the request.
        create: creates a session with the given id, or with a random id for None.
    """

    def __init__(self, hf: Holdfast, request: Request, create: Callable[[str | None], Awaitable[Session]]) -> None:
        self._hf = hf
        self._request = request
        self._create = create
        self._tries = 0

    @property
    def keyed_id(self) -> str | None:
        """Id to give a session that is created for the request, so that a retry finds the session; None without an idempotency key."""
        return None if self._request.key is None else make_keyed_id(self._request.user_id, self._request.key)

    async def locate(self, own: bool = False) -> Placement:  # noqa: FBT001, FBT002 - a callback's argument
        """Find or create the session of the request. An existing session is reserved until the turn begins.

        Args:
            own: True to create a new session or a fork even if the request continues an existing session.
        """
        self._tries += 1
        match = await self._find_match(own=own or self._tries > REMATCHES)
        if match is not None and match.kind == "continuation":
            return await self._prefer_repeated(self._make_placement(match.session, "continuation"), match)
        if match is not None and (repeated := await self._find_repeated(match)) is not None:
            return self._make_placement(repeated, "retry")
        if match is not None and match.kind == "edit":
            ref, engine = match.session.ref, self._hf.engine
            if self._request.interrupts or not (engine.locks.is_reserved(ref) or engine.is_busy(ref)):
                return self._make_placement(match.session, "edit")
            match = match._replace(kind="fork")  # another request took the session during the lookup of the key
        if match is None:
            return Placement(await self._create(self.keyed_id), "new")
        return Placement(await self._fork(match), "fork")

    async def _prefer_repeated(self, placement: Placement, match: Match) -> Placement:
        """Return the placement of a continuation. If another session with the same messages has this request already, return one there."""
        with release_on_error(placement):
            repeated = await self._find_repeated(match)
        if repeated is None or repeated.ref == placement.session.ref:
            return placement
        placement.release()
        return self._make_placement(repeated, "retry")

    async def _find_repeated(self, match: Match) -> Session | None:
        """Return the session that has a request with this idempotency key: the matching one, or another one with the same messages."""
        request, hf = self._request, self._hf
        if request.key is None:
            return None
        twins = await hf.store.sightings(request.user_id, [match.landing.place.digest], limit=COMPARED_SESSIONS)
        others = (one.ref for one in twins if not is_always_named(one.ref))
        for ref in dict.fromkeys((match.session.ref, *others)):
            with suppress(SessionNotFound):
                session = match.session if ref == match.session.ref else await hf.store.get(ref)
                if await _has_key(hf, session, request.key, request.fingerprint):
                    return session
        return None

    async def _find_match(self, *, own: bool) -> Match | None:
        """Return the existing session whose log matches the request's messages, or None.

        `MatchFinder.find` checks that the session is not in use. Nothing may be awaited after that check, because another request could
        take the session in the meantime.
        """
        request, hf = self._request, self._hf
        masked_messages = await mask_messages(hf.guard, (*request.system, *request.incoming))
        system, incoming = masked_messages[: len(request.system)], masked_messages[len(request.system) :]
        finder = MatchFinder(hf.store, self._make_sender(), incoming, system, whole=request.whole)
        match = await finder.find()
        if match is not None and match.kind == "fork" and request.interrupts:
            return match._replace(kind="edit")
        if match is not None and match.kind == "continuation" and own:
            return match._replace(kind="fork")
        return match

    def _make_sender(self) -> Sender:
        locks, clock = self._hf.engine.locks, self._hf.clock

        def occupancy(ref: SessionRef) -> Occupancy:
            if locks.is_reserved(ref):
                return "pending"
            return "running" if locks.is_busy(ref) else "idle"

        return Sender(self._request.user_id, occupancy, lambda session: is_claimed(session, clock()))

    def _make_placement(self, session: Session, kind: PlacementKind) -> Placement:
        reservation = self._hf.engine.locks.reserve(session.ref)
        return Placement(session, kind, reservation=reservation, find_again=self.locate)

    async def _fork(self, match: Match) -> Session:
        """Create a session for a request that may not change the matching session.

        If possible, the new session is a fork: a copy of the messages that the request and the matching session have in common.
        """
        session, landing = match.session, match.landing
        if not landing.place.live:  # a retired branch is not copied: the request contains it
            return await self._create(self.keyed_id)
        common = await read_remainder(self._hf.store, session.ref, landing.place.seq)
        stop = common.tools[-1].seq + 1 if common.tools else landing.place.seq + 1
        try:
            return await fork_for_request(self._hf.engine, session, stop, new_id=self.keyed_id)
        except (
            SessionExists,
            SessionNotFound,
            StaleSession,
        ):  # another request with this key was first, or the parent was deleted or edited
            return await self._create(self.keyed_id)


async def _has_key(hf: Holdfast, session: Session, key: str | None, fingerprint: bytes) -> bool:
    """Return True if the session has already answered a request with this idempotency key. Nothing is written."""
    if key is None:
        return False
    probe = Append(
        timestamp=hf.clock(),
        idempotency_key=key,
        fingerprint=fingerprint,
        expect=NO_VERSION,
        identity=session.identity,
    )
    try:
        return (await hf.store.append(session.ref, probe)).replayed
    except (StaleSession, SessionNotFound):
        return False


def make_keyed_id(user_id: str, key: str) -> str:
    """Return the id of the session that is created for a request with an idempotency key."""
    return _derive_id(user_id, key, b"idempotency")


def _derive_id(user_id: str, text: str, purpose: bytes) -> str:
    data = msgspec.json.encode([user_id, text])
    return "sess_" + hashlib.blake2b(data, key=purpose, digest_size=16).hexdigest()


# -- named sessions ----------------------------------------------------------------


class LocatorInput(NamedTuple):
    """The parts of a request from which `locate_session` chooses the request's session."""

    system: tuple[Message, ...]
    """The leading system messages."""
    incoming: Sequence[Message]
    """All other messages."""
    key: str | None
    """Idempotency key, or None."""
    requester: Requester
    """User of the request."""
    session_id: str | None = None
    """Id of the session that the request names, or None."""
    matches: bool = True
    """True if the messages are compared with existing sessions."""
    mode: Mode = "auto"
    queue: str | None = None
    """Queue mode of the request."""
    check: Callable[[Responder], None] = lambda _: None
    """Raises `InvalidRequest` if the given responder cannot answer the request."""
    fingerprint: bytes = b""
    """Hash of the request that is stored with its idempotency key."""
    instructions: int = 0
    """Number of leading system messages that a new session does not store."""


async def locate_session(call: Call, body: Mapping[str, Any], request_input: LocatorInput) -> Placement:
    """Find or create the session of a chat request.

    The result is the first of these that applies: the session that the request names, the session created earlier for its idempotency key,
    a session whose log its messages match, a new session. A named session that does not exist is created.

    A new session stores the request's system messages, so that later requests need not send them, unless they are only for this request. A
    request that the first turn would
    reject is rejected before the session is created, so that no empty session remains.
    """
    hf, user, owner = call.hf, request_input.requester.user_id, request_input.requester.owner
    session_id = request_input.session_id
    keyed = session_id is None and request_input.key is not None
    if keyed:
        session_id, user = make_keyed_id(owner, request_input.key or ""), owner
    if session_id is not None:
        try:
            return Placement(await get_session_by_id(hf, session_id, user), "new")
        except errors.SessionNotFound:
            pass
    responder = hf.roster.find_responder(agent=body.get("agent"), model=body.get("model"))
    check_body(responder, body)
    request_input.check(responder)
    if (unasked := find_unasked_result(None, request_input.incoming)) is not None:
        first = unasked is request_input.incoming[0]  # a new session has no call for it
        raise make_result_error(unasked) if first else make_result_error(unasked, "messages")
    if not request_input.incoming:
        if not request_input.system and session_id is not None and not keyed:
            raise errors.SessionNotFound(session_id)
        raise errors.InvalidRequest(NOTHING, param="messages")
    agent = body.get("agent") or (body["model"] if body.get("model") in hf.roster.agents else None)

    async def create(new_id: str | None) -> Session:
        if body.get("interrupt") is not None:
            message = "interrupt: this request starts a new session, so there is no reply to interrupt"
            raise errors.NoReply(message)
        stored = request_input.system[request_input.instructions :]
        return await hf.ensure(new_id, user_id=owner, agent=agent, system_messages=stored)

    if not request_input.matches or request_input.mode == "delta" or (session_id is not None and not keyed):
        return Placement(await create(session_id), "new")
    request = Request(
        user_id=owner,
        system=request_input.system,
        incoming=tuple(request_input.incoming),
        whole=request_input.mode == "transcript",
        key=request_input.key,
        fingerprint=request_input.fingerprint,
        interrupts=request_input.queue == "interrupt",
    )
    return await SessionLocator(hf, request, create).locate()


async def place_after(
    call: Call, body: Mapping[str, Any], request_input: LocatorInput, predecessor: Predecessor, *, tries: int = 0
) -> Placement:
    """Return the placement of a request that continues after a certain message: in the session of the message, or in a fork.

    A request that its turn would refuse is refused before a fork is made, so that no fork is left over.

    Args:
        call: the request.
        body: its fields.
        request_input: what else is known about it.
        predecessor: the message.
        tries: number of times that another request was faster to continue after the message.
    """
    session = predecessor.session
    if not predecessor.is_forked and tries <= REMATCHES:

        async def place_again(_: bool) -> Placement:  # noqa: FBT001 - a callback's argument
            return await place_after(call, body, request_input, await predecessor.find_again(), tries=tries + 1)

        return Placement(session, "new", follows=predecessor.seq, find_again=place_again)
    if await _has_key(call.hf, session, request_input.key, request_input.fingerprint):
        return Placement(session, "retry")
    responder = call.hf.find_responder(session, agent=body.get("agent"), model=body.get("model"))
    check_body(responder, body)
    request_input.check(responder)
    await check_results(call.hf.store, session, request_input.incoming, stop=predecessor.seq + 1)
    keyed = None if request_input.key is None else make_keyed_id(session.user_id, request_input.key)
    return Placement(await _fork_after(call.hf, predecessor, keyed), "new")


async def _fork_after(hf: Holdfast, predecessor: Predecessor, new_id: str | None) -> Session:
    """Return a fork that ends with a message. If there is a session with the id already, return that one."""
    for _ in range(TRIES):
        session = predecessor.session
        try:
            return await copy_turns(hf.engine, session, predecessor.seq + 1, predecessor.turn_id, new_id=new_id)
        except SessionExists:  # an earlier attempt at the request has made it
            return await hf.store.get(SessionRef(session.user_id, str(new_id)))
        except StaleSession:
            predecessor = await predecessor.find_again()
    raise errors.Conflict(f"session {predecessor.session.id!r} is being edited constantly: try again")
