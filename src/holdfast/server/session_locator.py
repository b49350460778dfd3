"""Find the session of a chat request that names none: a retry, a continuation, an edit, a fork, or a new session."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Final, Literal, NamedTuple

import msgspec

from holdfast.domain.messages import Message
from holdfast.domain.session import Session, SessionRef
from holdfast.engine.guarded import masked
from holdfast.errors import SessionExists, SessionNotFound, StaleSession
from holdfast.holdfast import Holdfast
from holdfast.limits import REMATCHES
from holdfast.liveness import is_dead
from holdfast.recognition.matching import behind
from holdfast.recognition.session_match import Match, MatchFinder, Occupancy, Sender
from holdfast.sessions.forking import fork_for_request
from holdfast.stores.log import Append
from holdfast.stores.logic.claims import held_until
from holdfast.turns.placement import Placement, PlacementKind

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
        told = await masked(hf.guard, (*request.system, *request.incoming))
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
