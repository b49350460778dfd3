"""Which session a chat request is meant for: the one it names, the one that it continues by what it says, or a new one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

import msgspec

from holdfast import errors
from holdfast.domain.messages import Message
from holdfast.domain.reconcile import Mode
from holdfast.domain.session import DEFAULT_USER, Session, SessionRef
from holdfast.engine.guarded import masked
from holdfast.holdfast import Holdfast
from holdfast.recognition.matching import Landing, behind
from holdfast.recognition.recognising import recognised
from holdfast.server.http import Call, named_session
from holdfast.sessions.forking import copied
from holdfast.turns.prompting import check_body
from holdfast.turns.reconciling import NOTHING

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
    mode: Mode = "auto"
    queue: str | None = None
    """What it wants done while a turn of its session runs."""

    @property
    def yields(self) -> bool:
        """Whether it goes elsewhere, rather than edit what is being answered: not to end that turn, nor sent again by its key."""
        return self.queue != "interrupt" and self.key is None


class Addressed(NamedTuple):
    """The session that a request is meant for."""

    session: Session
    forked: bool = False
    """Whether it was made of what the request has in common with one that is being answered."""


async def addressed(call: Call, body: Mapping[str, Any], asked: Asked, matching: Matching) -> Addressed:
    """The session named by body or header, else the one of the idempotency key, else the one that is recognised, else a new one.

    A session that is made here keeps the request's system messages, for requests that bring none. What its first turn
    would refuse is refused before it is made: a request that is turned away leaves no empty session behind.
    """
    if body.get("session_user") is not None:
        return Addressed(await _joined(call, body))
    hf, user = call.hf, call.user(said_user(call, body))
    session_id, matches = _session_id(call, body), _matches(call, body, matching)
    keyed = session_id is None and asked.key is not None
    if keyed:
        session_id, user = _keyed_id(user or DEFAULT_USER, asked.key or ""), user or DEFAULT_USER
    if session_id is not None:
        try:
            return Addressed(await named_session(hf, session_id, user))
        except errors.SessionNotFound:
            pass
    check_body(hf.roster.voice(agent=body.get("agent"), model=body.get("model")), body)
    if not asked.incoming:
        raise errors.InvalidRequest(NOTHING, param="messages")
    if matches and (session_id is None or keyed) and asked.mode != "delta":
        found = await _recognised(hf, user or DEFAULT_USER, asked, matching)
        if found is not None:
            return found
    agent = body.get("agent") or (body["model"] if body.get("model") in hf.roster.agents else None)
    made = await hf.ensure(session_id, user_id=user or DEFAULT_USER, agent=agent, system_messages=asked.system)
    return Addressed(made)


async def _joined(call: Call, body: Mapping[str, Any]) -> Session:
    """The session of the user that a request names, which is there already.

    Raises:
        InvalidRequest: it does not say which one.
        UserNotFound: it is another's in which the key's user takes no part, or there is none.
    """
    session_id, owner = _session_id(call, body), body["session_user"]
    if session_id is None:
        raise errors.InvalidRequest("session_user goes with a session_id: whose session that is", param="session_user")
    if call.user(None) in (None, owner):
        return await call.hf.store.get(SessionRef(owner, session_id))
    return await call.joined(owner, session_id)


def speaker_in(call: Call, body: Mapping[str, Any], session: Session) -> str | None:
    """Whose the messages of a chat request are: see `Call.speaker`. Where the key is nobody's, its user says it beside `session_user`."""
    known, said = call.speaker(session), said_user(call, body)
    if known is None and body.get("session_user") is not None and call.user(None) is None:
        return said or None
    return known


def said_user(call: Call, body: Mapping[str, Any]) -> str | None:
    """The user that a chat request names: by `user`, which is OpenAI's, or by `user_id`, as at all other routes.

    Raises:
        InvalidRequest: they name two.
        UserNotFound: `user_id` is another one than the key's.
    """
    user: str | None = body.get("user") or None
    named: str | None = body.get("user_id") or None
    if named is None:
        return user
    call.owner(named)
    if user not in (None, named) and call.user(None) is None:
        raise errors.InvalidRequest("user and user_id name two users: leave out one", param="user_id")
    return named


async def _recognised(hf: Holdfast, user: str, asked: Asked, matching: Matching) -> Addressed | None:
    """The session of a user that a request continues. One that is being answered is not edited meanwhile: a copy is."""
    told = await masked(hf.guard, (*asked.system, *asked.incoming))
    system, incoming = told[: len(asked.system)], told[len(asked.system) :]
    whole = asked.mode == "transcript"
    try:
        landing = await recognised(hf.store, user, incoming, system, match_system=matching.system, whole=whole)
        if landing is None:
            return None
        session = await hf.store.get(landing.place.ref)
        if not landing.place.last and asked.yields and _answered(hf, session):
            return Addressed(await _fork(hf, session, landing), forked=True)
    except errors.SessionNotFound:  # one of those that were looked at has gone since
        return None
    return Addressed(session)


def _answered(hf: Holdfast, session: Session) -> bool:
    """Whether a turn of the session runs, on this server or another one."""
    claim = session.claim
    return hf.engine.busy(session.ref) or (claim is not None and claim.until > hf.clock())


async def _fork(hf: Holdfast, session: Session, landing: Landing) -> Session:
    """A new session with what is in common; of a retired branch nothing is copied, the request brings what it has."""
    if not landing.place.live:
        return await hf.create(
            user_id=session.user_id,
            greet=False,
            agent=session.agent,
            system_messages=session.system_messages,
            ttl=session.ttl,
        )
    common = await behind(hf.store, session.ref, landing.place.seq)
    stop = common.tools[-1].seq + 1 if common.tools else landing.place.seq + 1
    return await copied(hf.engine, session, stop)


# -- what a request says of it -----------------------------------------------------


def _session_id(call: Call, body: Mapping[str, Any]) -> str | None:
    named, sent = body.get("session_id"), call.header("x-session-id")
    header = header_text(sent) if sent else None
    if named and header and named != header:
        message = "session_id and the header X-Session-Id, percent-decoded, name different sessions"
        raise errors.InvalidRequest(message, param="session_id")
    return named or header


def _matches(call: Call, body: Mapping[str, Any], matching: Matching) -> bool:
    """Whether the request may be recognised by what it says."""
    named, header = body.get("session_match"), call.header("x-session-match")
    if header is not None and (header not in MATCHES or (named and named != header)):
        wanted = f"must be {' or '.join(MATCHES)}, and say the same as session_match"
        raise errors.InvalidRequest(f"the header X-Session-Match {wanted}", param="X-Session-Match")
    said = named or header
    return matching.on if said is None else said == "on"


def _keyed_id(user: str, key: str) -> str:
    said = msgspec.json.encode([user, key])
    return "sess_" + hashlib.blake2b(said, key=b"idempotency", digest_size=16).hexdigest()


def header_text(value: str) -> str:
    """An id from a header: percent-encoded, as replies have it, or as UTF-8. Raises `InvalidRequest` for neither."""
    try:
        return unquote(value.encode("latin-1").decode(), errors="strict")
    except UnicodeDecodeError as exc:
        raise errors.InvalidRequest("X-Session-Id is not UTF-8, percent-encoded or not", param="X-Session-Id") from exc
