"""The gateway: a request for a reply, by whichever door, becomes a turn of a session."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from holdfast import errors
from holdfast.domain.messages import Message
from holdfast.domain.reconcile import Mode
from holdfast.domain.session import Session
from holdfast.engine.queueing import QueueMode, checked_mode
from holdfast.holdfast import Holdfast
from holdfast.media.store import taken_apart
from holdfast.numbers import check_whole
from holdfast.server.addressing import MATCHES, Asked, Matching, addressed, speaker_in
from holdfast.server.doors.base import Door, Said
from holdfast.server.http import Call, without_secrets
from holdfast.server.intake import Intake
from holdfast.server.relay import ON_DISCONNECT, Asker, Client, Relays, relayed
from holdfast.server.replies import failure, respond
from holdfast.stores.checks import check_id
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.wire.openai import split_system

OWN_FIELDS = frozenset(
    {
        "session_id",
        "session_mode",
        "session_match",
        "session_queue",
        "session_user",
        "user_id",
        "on_disconnect",
        "agent",
    }
)
"""Fields of the body that are Holdfast's own and do not travel upstream."""
MODES: tuple[str, ...] = get_args(Mode)
MAX_CHOICES = 128
_HOW_TOLD = frozenset({"stream", "stream_options", "on_disconnect"})
"""Fields that a retry may have otherwise: they are not what is asked."""


class Chat:
    """The ASGI app of a door. Raw, because the reply is a stream that ends when whoever asked has gone."""

    def __init__(self, door: Door, hf: Holdfast, intake: Intake, matching: Matching, relays: Relays) -> None:
        self._door = door
        self._hf = hf
        self._intake = intake
        self._matching = matching
        self._relays = relays

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            call = Call(scope, receive, self._hf, self._intake)
            try:
                sent = await call.body()
                said = self._door.read(sent, call.request.headers)
                turn, session = await opened(call, sent, said, self._matching)
            finally:
                call.release()
        except ClientDisconnect:
            return
        except Exception as exc:  # noqa: BLE001 - the last place before the wire: whatever happened becomes a reply
            await respond(self._door.failed(failure(exc, self._hf.guard)))(scope, receive, send)
            return
        scope.setdefault("state", {})["session_id"] = session.id
        asker = Asker(scope, receive, send, session, self._hf.guard, self._door, said.body)
        client = Client(asker, turn, self._relays)
        del call, sent  # a reply takes long, and what came may be large
        try:
            await relayed(client, turn, self._relays)
        except asyncio.CancelledError:
            # The server ends, and its grace is over. What arrived is being written; whoever waits is told.
            await client.cut()


async def opened(call: Call, sent: dict[str, Any], said: Said, matching: Matching) -> tuple[Turn, Session]:
    """The turn that a request asks for, and its session, made if there is none yet.

    Args:
        call: the request.
        sent: its body as it came; its messages are let go of.
        said: the same in the terms of a turn; its messages are, too.
        matching: how it is recognised where it names no session.
    """
    body, messages = said.body, said.messages
    check(body)
    if not messages:
        raise errors.InvalidRequest("messages is missing or empty; send at least the new message", param="messages")
    _check_said(messages)
    hf = call.hf
    system, incoming = split_system(messages)
    handed = call.handed
    key = call.header("idempotency-key") or None
    if key is not None:
        check_id(key, "Idempotency-Key")
    fingerprint = await _fingerprint(call, sent, said, keyed=key is not None)
    apart, media = await taken_apart(incoming, plain=hf.guard is None)
    messages.clear()
    sent.clear()
    del incoming
    session, is_fork = await addressed(
        call, body, Asked(system, apart, key, body.get("session_mode") or "auto", _queue(hf, body)), matching
    )
    voice = hf.voice(session, agent=body.get("agent"), model=body.get("model"))
    guest = call.user(None) not in (None, session.user_id)
    request = TurnRequest(
        ref=session.ref,
        voice=voice,
        incoming=apart,
        media=media,
        system=system,
        mode=body.get("session_mode") or "auto",
        forked=is_fork,
        queue=_turn_queue(hf, body, guest=guest),
        body={name: value for name, value in body.items() if name not in OWN_FIELDS},
        idempotency_key=key,
        fingerprint=fingerprint,
        headers=handed,
        api=said.api,
        speaker=speaker_in(call, body, session),
        guest=guest,
    )
    return Turn(hf.engine, request), session


def _turn_queue(hf: Holdfast, body: Mapping[str, Any], *, guest: bool) -> QueueMode | None:
    """What becomes of a turn while another one runs: a participant's waits for its owner's. Raises `InvalidRequest`."""
    asked = checked_mode(body.get("session_queue"))
    if guest and asked == "interrupt":
        message = "session_queue: in another user's session a participant interrupts nobody; leave it out, or say queue or reject"
        raise errors.InvalidRequest(message, param="session_queue")
    return "queue" if guest and asked is None and hf.queueing.mode == "interrupt" else asked


def _check_said(messages: Sequence[Message]) -> None:
    """Refuse a user's message that says nothing: no provider takes one, and in a log it would be sent again and again."""
    for at, message in enumerate(messages):
        if message.role == "user" and not message.text and not message.media:
            param = f"messages[{at}].content"
            raise errors.InvalidMessage(f"{param} is empty: a user's message has text, or media", param=param)


def _queue(hf: Holdfast, body: Mapping[str, Any]) -> str:
    """What a request wants done while a turn of its session runs."""
    return checked_mode(body.get("session_queue")) or hf.queueing.mode


def check(body: Mapping[str, Any]) -> None:
    """Refuse what cannot be right before a session is made for it. Raises `InvalidRequest` with the parameter."""
    kinds: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
        ("model", str, "a string"),
        ("stream", bool, "true or false"),
        ("user", str, "a string"),
        ("user_id", str, "a string"),
        ("session_id", str, "a string"),
        ("session_user", str, "a string"),
        ("agent", str, "a string"),
        ("tools", list, "a list of tools"),
        ("stream_options", dict, "an object"),
    )
    for name, kind, words in kinds:
        if body.get(name) is not None and not isinstance(body[name], kind):
            raise errors.InvalidRequest(f"{name} must be {words}", param=name)
    for name, low, high in (("max_tokens", 1, 2**31), ("max_completion_tokens", 1, 2**31), ("n", 1, MAX_CHOICES)):
        if body.get(name) is not None:
            check_whole(body[name], name, low, high)
    if body.get("session_mode") not in (None, *MODES):
        raise errors.InvalidRequest(f"session_mode must be one of {', '.join(MODES)}", param="session_mode")
    checked_mode(body.get("session_queue"))
    if body.get("on_disconnect") not in (None, *ON_DISCONNECT):
        raise errors.InvalidRequest(f"on_disconnect must be {' or '.join(ON_DISCONNECT)}", param="on_disconnect")
    if body.get("session_match") not in (None, *MATCHES):
        raise errors.InvalidRequest(f"session_match must be {' or '.join(MATCHES)}", param="session_match")


async def _fingerprint(call: Call, sent: Mapping[str, Any], said: Said, *, keyed: bool) -> bytes:
    """What an idempotency key stands for; nothing without one. Raises `SecretBlocked`."""
    hf, body, messages = call.hf, said.body, said.messages
    whole = {**body, **{name: sent[name] for name in ("messages", "system") if name in sent}}
    told = await without_secrets(hf, whole, messages, hashed=keyed)
    if not keyed:
        return b""
    hashed = {name: value for name, value in told.items() if name not in _HOW_TOLD}
    return hashlib.blake2b(msgspec.json.encode(hashed, order="sorted"), digest_size=16).digest()
