"""Find the session of a chat request: the one it names, a retry, a continuation, an edit, a fork, or a new session."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import msgspec

from holdfast import errors
from holdfast.agents import Voice
from holdfast.domain.messages import Message
from holdfast.domain.reconcile import Mode
from holdfast.domain.session import Session, SessionRef
from holdfast.engine.redacting_store import mask_messages
from holdfast.errors import SessionExists, SessionNotFound, StaleSession
from holdfast.holdfast import Holdfast
from holdfast.limits import REMATCHES
from holdfast.liveness import is_dead
from holdfast.matching.log_match import behind
from holdfast.matching.session_match import Match, MatchFinder, Occupancy, Sender
from holdfast.server.http import Call, named_session
from holdfast.server.requester import Requester
from holdfast.sessions.forking import fork_for_request
from holdfast.stores.log import Append
from holdfast.stores.session_changes import held_until
from holdfast.turns.opening import NOTHING, find_unasked_result, make_result_error
from holdfast.turns.placement import Placement, PlacementKind
from holdfast.turns.prompt import check_body

NO_VERSION: Final = -1
"""A version that no session is at."""


class Request(NamedTuple):
    """What of a request decides which session it belongs to."""

    user_id: str
    identified: bool
    system: tuple[Message, ...]
    """The leading system messages."""
    incoming: tuple[Message, ...]
    """All others."""
    whole: bool
    """Whether it leaves nothing out."""
    key: str | None
    """The idempotency key."""
    fingerprint: bytes
    """What the key stands for."""
    interrupts: bool
    """Whether it ends a turn that runs in its session."""


class SessionLocator:
    """The search for the session of one request.

    Args:
        hf: the sessions of the caller's tenant.
        request: what is looked for.
        system: `strict` refuses a session with another system prompt.
        create: makes a session that has nothing yet, by its id; None makes an id.
    """

    def __init__(
        self,
        hf: Holdfast,
        request: Request,
        system: Literal["rank", "strict"],
        create: Callable[[str | None], Awaitable[Session]],
    ) -> None:
        self._hf = hf
        self._request = request
        self._strict = system == "strict"
        self._create = create
        self._tries = 0

    @property
    def keyed_id(self) -> str | None:
        """The id of the session that is made for a request with an idempotency key, so that its retry finds it."""
        return None if self._request.key is None else keyed_id(self._request.user_id, self._request.key)

    async def locate(self, own: bool = False) -> Placement:  # noqa: FBT001, FBT002 - a callback's argument
        """Give the request a session, and keep others from being given the same until its turn has opened.

        Args:
            own: give it a session of its own if the match is a continuation.
        """
        self._tries += 1
        match = await self._match(own=own or self._tries > REMATCHES)
        if match is not None and match.kind == "continuation":
            return self._placed(match.session, "continuation", match)
        if match is not None and await self._knows_key(match.session):
            return self._placed(match.session, "retry", match)
        if match is not None and match.kind == "edit":
            if self._request.interrupts or not self._is_in_use(match.session.ref):
                return self._placed(match.session, "edit", match)
            match = match._replace(kind="fork")  # another request was faster while the key was looked up
        if match is None:
            return Placement(await self._create(self.keyed_id), "new")
        session = await self._fork(match)
        return Placement(session, match.kind, several=match.several)

    def _is_in_use(self, ref: SessionRef) -> bool:
        return self._hf.engine.locks.is_reserved(ref) or self._hf.engine.busy(ref)

    async def _match(self, *, own: bool) -> Match | None:
        """Find the match. Nothing is awaited after the occupancy of its session was looked at."""
        request, hf = self._request, self._hf
        told = await mask_messages(hf.guard, (*request.system, *request.incoming))
        system, incoming = told[: len(request.system)], told[len(request.system) :]
        finder = MatchFinder(hf.store, self._sender(), incoming, system, strict=self._strict, whole=request.whole)
        match = await finder.find()
        if match is None or match.kind in ("edit", "own"):
            return match
        if match.kind == "fork" and request.interrupts:
            return match._replace(kind="edit")
        if match.kind == "continuation" and own:
            return match._replace(kind="fork" if request.identified else "own")
        return match

    def _sender(self) -> Sender:
        locks, clock = self._hf.engine.locks, self._hf.clock

        def occupancy(ref: SessionRef) -> Occupancy:
            if locks.is_reserved(ref):
                return "pending"
            return "running" if locks.is_busy(ref) else "idle"

        def claimed(session: Session) -> bool:
            claim, now = session.claim, clock()
            return claim is not None and held_until(claim, now) > now and not is_dead(claim.holder)

        return Sender(self._request.user_id, self._request.identified, occupancy, claimed)

    def _placed(self, session: Session, kind: PlacementKind, match: Match) -> Placement:
        reservation = self._hf.engine.locks.reserve(session.ref)
        return Placement(
            session,
            kind,
            reservation=reservation,
            find_again=self.locate,
            several=match.several,
            may_edit=self._request.identified,
        )

    async def _knows_key(self, session: Session) -> bool:
        """Return True if the session has answered this request's idempotency key before. Writes nothing."""
        request = self._request
        if request.key is None:
            return False
        probe = Append(
            timestamp=self._hf.clock(),
            idempotency_key=request.key,
            fingerprint=request.fingerprint,
            expect=NO_VERSION,
            identity=session.identity,
        )
        try:
            return (await self._hf.store.append(session.ref, probe)).replayed
        except (StaleSession, SessionNotFound):
            return False

    async def _fork(self, match: Match) -> Session:
        """Make a session for a request that may not change the one it matches."""
        session, landing = match.session, match.landing
        if (
            match.kind == "own" or not landing.place.live
        ):  # of a retired branch nothing is copied: the request brings it
            return await self._create(self.keyed_id)
        common = await behind(self._hf.store, session.ref, landing.place.seq)
        stop = common.tools[-1].seq + 1 if common.tools else landing.place.seq + 1
        try:
            return await fork_for_request(self._hf.engine, session, stop, new_id=self.keyed_id)
        except (
            SessionExists,
            SessionNotFound,
            StaleSession,
        ):  # the same key was faster, or the parent is gone or edited
            return await self._create(self.keyed_id)


def keyed_id(user_id: str, key: str) -> str:
    """Return the id of the session that is made for a user's idempotency key."""
    said = msgspec.json.encode([user_id, key])
    return "sess_" + hashlib.blake2b(said, key=b"idempotency", digest_size=16).hexdigest()


# -- the session that a request names --------------------------------------------

MATCHES: Final = ("on", "off")
"""What `session_match` may say."""


@dataclass(slots=True)
class Matching:
    """How requests that name no session are recognised; it may change between two of them."""

    on: bool = True
    """Whether they are, where a request does not say."""
    system: Literal["rank", "strict"] = "rank"
    """What another system prompt means."""


class Asked(NamedTuple):
    """What a request says, as far as it tells which session it is meant for."""

    system: tuple[Message, ...]
    """The leading system messages."""
    incoming: Sequence[Message]
    """All others."""
    key: str | None
    """The idempotency key."""
    requester: Requester
    """Whose request it is."""
    session_id: str | None = None
    """The session that it names."""
    mode: Mode = "auto"
    queue: str | None = None
    """What it wants done while a turn of its session runs."""
    check: Callable[[Voice], None] = lambda _: None
    """Refuses the request for whoever would answer it, with `InvalidRequest`."""
    fingerprint: bytes = b""
    """What the key stands for."""


async def addressed(call: Call, body: Mapping[str, Any], asked: Asked, matching: Matching) -> Placement:
    """The session named by body or header, else the one of the idempotency key, else the one that is recognised, else a new one.

    A session that is made here keeps the request's system messages, for requests that bring none. What its first turn
    would refuse is refused before it is made: a request that is turned away leaves no empty session behind.
    """
    if body.get("session_user") is not None:
        return Placement(await _joined(call, body, asked.session_id), "new")
    hf, user, owner = call.hf, asked.requester.user_id, asked.requester.owner
    session_id, matches = asked.session_id, _matches(call, body, matching)
    keyed = session_id is None and asked.key is not None
    if keyed:
        session_id, user = keyed_id(owner, asked.key or ""), owner
    if session_id is not None:
        try:
            return Placement(await named_session(hf, session_id, user), "new")
        except errors.SessionNotFound:
            pass
    voice = hf.roster.voice(agent=body.get("agent"), model=body.get("model"))
    check_body(voice, body)
    asked.check(voice)
    _check_results(asked.incoming)
    if not asked.incoming:
        if not asked.system and session_id is not None and not keyed:
            raise errors.SessionNotFound(session_id)
        raise errors.InvalidRequest(NOTHING, param="messages")
    agent = body.get("agent") or (body["model"] if body.get("model") in hf.roster.agents else None)

    async def create(new_id: str | None) -> Session:
        if body.get("interrupt") is not None:
            message = "interrupt: this request begins a session, so there is no reply that could be interrupted"
            raise errors.NoReply(message)
        return await hf.ensure(new_id, user_id=owner, agent=agent, system_messages=asked.system)

    if not matches or asked.mode == "delta" or (session_id is not None and not keyed):
        return Placement(await create(session_id), "new")
    request = Request(
        user_id=owner,
        identified=asked.requester.identified,
        system=asked.system,
        incoming=tuple(asked.incoming),
        whole=asked.mode == "transcript",
        key=asked.key,
        fingerprint=asked.fingerprint,
        interrupts=asked.queue == "interrupt",
    )
    return await SessionLocator(hf, request, matching.system, create).locate()


def _check_results(incoming: Sequence[Message]) -> None:
    """Refuse results of tools that a new session cannot have asked for. Raises `InvalidMessage`."""
    unasked = find_unasked_result(None, incoming)
    if unasked is not None:
        raise make_result_error(unasked)


async def _joined(call: Call, body: Mapping[str, Any], session_id: str | None) -> Session:
    """The session of the user that a request names, which is there already.

    Raises:
        InvalidRequest: it does not say which one.
        UserNotFound: it is another's in which the key's user takes no part, or there is none.
    """
    owner = body["session_user"]
    if session_id is None:
        raise errors.InvalidRequest("session_user goes with a session_id: whose session that is", param="session_user")
    if call.user(None) in (None, owner):
        return await call.hf.store.get(SessionRef(owner, session_id))
    return await call.joined(owner, session_id)


def speaker_in(call: Call, body: Mapping[str, Any], session: Session, requester: Requester) -> str | None:
    """Return whose the messages of a chat request are, see `Call.speaker`; with a key of no user, what it says next to `session_user`."""
    known = call.speaker(session)
    if known is None and body.get("session_user") is not None and call.user(None) is None:
        return requester.user_id
    return known


# -- what a request says of it -----------------------------------------------------


def _matches(call: Call, body: Mapping[str, Any], matching: Matching) -> bool:
    """Whether the request may be recognised by what it says."""
    named, header = body.get("session_match"), call.header("x-session-match")
    if header is not None and (header not in MATCHES or (named and named != header)):
        wanted = f"must be {' or '.join(MATCHES)}, and say the same as session_match"
        raise errors.InvalidRequest(f"the header X-Session-Match {wanted}", param="X-Session-Match")
    said = named or header
    return matching.on if said is None else said == "on"
