"""Which session a chat request is meant for: the one it names, the one that it continues by what it says, or a new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from holdfast import errors
from holdfast.agents import Voice
from holdfast.domain.messages import Message
from holdfast.domain.reconcile import Mode
from holdfast.domain.session import Session, SessionRef
from holdfast.server.http import Call, named_session
from holdfast.server.requester import Requester
from holdfast.server.session_locator import Request, SessionLocator, keyed_id
from holdfast.turns.opening import NOTHING, refuse_result, unasked_result
from holdfast.turns.placement import Placement
from holdfast.turns.prompt import check_body

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
    unasked = unasked_result(None, incoming)
    if unasked is not None:
        raise refuse_result(unasked)


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
