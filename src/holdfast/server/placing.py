"""Place a chat request: find or create its session. `holdfast.turns.place` compares it with the sessions of its user."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from holdfast import errors
from holdfast.agents import Responder
from holdfast.domain.messages import Message
from holdfast.domain.session import SCOPE, UNPLACED, Session, SessionRef, is_unplaced
from holdfast.engine.redacting_store import mask_messages
from holdfast.errors import SessionExists, SessionNotFound, StaleSession
from holdfast.holdfast import Holdfast
from holdfast.log.align import Mode
from holdfast.server.apis.api_format import Predecessor
from holdfast.server.http import Call, get_session_by_id
from holdfast.server.limits import REMATCHES
from holdfast.server.requester import Requester
from holdfast.sessions.forks import copy_turns
from holdfast.sessions.transfer import TRIES
from holdfast.stores.log import TurnKey
from holdfast.turns.place import Place, Trail
from holdfast.turns.prompt import check_body
from holdfast.turns.request_keys import KnownTurn, find_known_turn
from holdfast.turns.session_finder import Sender, find_session
from holdfast.turns.turn_start import NOTHING, check_results, find_unasked_result, make_result_error

RETRY_COUNT: Final = "x-stainless-retry-count"
"""Header in which the official SDKs of OpenAI and Anthropic count the retries of a request."""


class PlacedRequest(NamedTuple):
    """The parts of a request from which its session is chosen."""

    body: Mapping[str, Any]
    """Fields of the request."""
    system: tuple[Message, ...]
    """The leading system messages."""
    incoming: Sequence[Message]
    """All other messages."""
    key: TurnKey | None
    """Key of the request; None: nobody can know it again."""
    requester: Requester
    """User of the request."""
    session_id: str | None = None
    """Id of the session that the request names, or None."""
    predecessor: Predecessor | None = None
    """The message that the request continues after; None: it names none."""
    matches: bool = True
    """True if the messages are compared with existing sessions."""
    mode: Mode = "auto"
    check: Callable[[Responder], None] = lambda _: None
    """Raises `InvalidRequest` if the given responder cannot answer the request."""
    instructions: int = 0
    """Number of leading system messages that a new session does not store."""
    is_unplaced: bool = False
    """True if it is a job of a chat interface, whatever session it names, or if nothing shows whose it is, unless it names a session."""
    repeats: bool = False
    """True if the client says that it repeats an earlier request."""

    @property
    def new_id(self) -> str | None:
        """Id of a session that the request creates: attempts with a key share it, and unplaced sessions and their forks show it; None: any."""
        is_apart = self.is_unplaced or (self.predecessor is not None and is_unplaced(self.predecessor.session.ref))
        begin = UNPLACED if is_apart else "sess_"
        if self.key is None or not self.key.name:
            return UNPLACED + uuid.uuid4().hex if is_apart else None
        data = msgspec.json.encode([self.requester.owner, self.key.name])
        return begin + hashlib.blake2b(data, key=b"idempotency", digest_size=16).hexdigest()


def is_repeated(call: Call, requester: Requester) -> bool:
    """Return True if an identified client says that it repeats a request."""
    count = call.get_header(RETRY_COUNT) or ""
    return requester.identified and count.isascii() and count.isdigit() and int(count[:9]) > 0


async def place_request(call: Call, request: PlacedRequest, *, tries: int = 0) -> Place:
    """Find or create the session of a chat request.

    The result is the first of these that applies: the session with the turn of its key, that of the message that the request continues
    after, the session that it names, a session that its messages continue, a new session. A named session that does not
    exist is created.

    A new session stores the request's system messages, so that later requests need not send them, unless they are only for this request. A
    request that the first turn would reject is rejected before the session is created, so that no empty session remains.

    Args:
        call: the request.
        request: what is known about it.
        tries: number of times that the session changed before the turn began.
    """

    async def place_again() -> Place:
        return await place_request(call, request, tries=tries + 1)

    find_again = place_again if tries < REMATCHES else None
    if (known := await find_keyed(call.hf, request)) is not None:
        return Place(known.session, "keyed", find_again=find_again)
    if request.predecessor is not None:
        return await _place_after(call, request, request.predecessor, tries=tries)
    hf, owner = call.hf, request.requester.owner
    named, new_id = request.session_id, request.new_id
    for session_id, user in ((named, request.requester.user_id), (None if named else new_id, owner)):
        if session_id is not None:
            with suppress(SessionNotFound):
                return Place(await get_session_by_id(hf, session_id, user), "named", find_again=find_again)
    _check_new(call, request)
    if named is None and request.matches and request.mode != "delta":
        found = await _match(call, request)
        if found is not None:
            return Place(found, "matched", find_again=find_again)
    if request.body.get("interrupt") is not None:
        message = "interrupt: this request starts a new session, so there is no reply to interrupt"
        raise errors.NoReply(message)
    agent = request.body.get("agent") or (
        request.body["model"] if request.body.get("model") in hf.roster.agents else None
    )
    stored = request.system[request.instructions :]
    scope = request.requester.scope
    metadata = None if scope is None or named or request.is_unplaced else {SCOPE: scope}
    ttl = hf.engine.life.settings.unplaced_ttl if request.is_unplaced and not named else None
    more: Any = {"agent": agent, "system_messages": stored, "metadata": metadata, "ttl": ttl}
    session = await hf.ensure(named or new_id, user_id=owner, **more)
    return Place(session, "new", find_again=find_again)


def _check_new(call: Call, request: PlacedRequest) -> None:
    """Raise the error with which the first turn of a new session would refuse the request."""
    responder = call.hf.roster.find_responder(agent=request.body.get("agent"), model=request.body.get("model"))
    check_body(responder, request.body)
    request.check(responder)
    if (unasked := find_unasked_result(None, request.incoming)) is not None:
        first = unasked is request.incoming[0]  # a new session has no call for it
        raise make_result_error(unasked) if first else make_result_error(unasked, "messages")
    if not request.incoming:
        if not request.system and request.session_id is not None:
            raise SessionNotFound(request.session_id)
        raise errors.InvalidRequest(NOTHING, param="messages")


async def _match(call: Call, request: PlacedRequest) -> Session | None:
    """Return the session that the request's messages continue; None: there is none."""
    hf, owner = call.hf, request.requester.owner
    masked = await mask_messages(hf.guard, (*request.system, *request.incoming))
    system, incoming = masked[: len(request.system)], masked[len(request.system) :]
    trail = await Trail.make(incoming)
    whole = request.mode == "transcript"
    sender = Sender(owner, trail, system, whole=whole, scope=request.requester.scope)
    return await find_session(hf.engine, sender)


async def find_keyed(hf: Holdfast, request: PlacedRequest) -> KnownTurn | None:
    """Return the turn that the request repeats, as its key says; None: there is none."""
    owner = request.requester.owner
    return await find_known_turn(hf.store, owner, request.key, repeats=request.repeats, now=hf.clock())


# -- after a message ---------------------------------------------------------------


async def _place_after(call: Call, request: PlacedRequest, predecessor: Predecessor, *, tries: int) -> Place:
    """Return the place of a request that continues after a certain message: in the session of the message, or in a fork.

    A request that its turn would refuse is refused before a fork is made, so that no fork is left over.
    """
    session, body = predecessor.session, request.body
    if not predecessor.is_forked and tries <= REMATCHES:

        async def place_again() -> Place:
            return await _place_after(call, request, await predecessor.find_again(), tries=tries + 1)

        return Place(session, "named", follows=predecessor.seq, find_again=place_again)
    responder = call.hf.find_responder(session, agent=body.get("agent"), model=body.get("model"))
    check_body(responder, body)
    request.check(responder)
    await check_results(call.hf.store, session, request.incoming, stop=predecessor.seq + 1)
    return Place(await _fork_after(call.hf, predecessor, request.new_id), "fork")


async def _fork_after(hf: Holdfast, predecessor: Predecessor, new_id: str | None) -> Session:
    """Return a fork that ends with a message. If there is a session with the id already, return that one."""
    for _ in range(TRIES):
        session = predecessor.session
        try:
            at = (predecessor.seq + 1, predecessor.turn_id)
            return await copy_turns(hf.engine, session, *at, new_id=new_id, branch=predecessor.branch)
        except SessionExists:  # an earlier attempt at the request has made it
            return await hf.store.get(SessionRef(session.user_id, str(new_id)))
        except StaleSession:
            predecessor = await predecessor.find_again()
    raise errors.Conflict(f"session {predecessor.session.id!r} is being edited constantly: try again")
