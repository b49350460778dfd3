"""The gateway: a request for a reply, by whichever door, becomes a turn of a session."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from holdfast import errors
from holdfast.accounting import run_cpu
from holdfast.agents import Agent, Voice
from holdfast.context.settings import RequestSettings
from holdfast.domain.heard import HEARD, Heard, heard_from
from holdfast.domain.messages import Message
from holdfast.domain.reconcile import Mode
from holdfast.engine.session_lock import QueueMode, check_mode
from holdfast.holdfast import Holdfast
from holdfast.limits import INLINE_BODY_BYTES
from holdfast.media.store import taken_apart
from holdfast.numbers import check_whole
from holdfast.server.doors.base import Door, Said
from holdfast.server.http import Call, refuse_unknown, without_secrets
from holdfast.server.intake import Held, Intake
from holdfast.server.relay import ON_DISCONNECT, Asker, Client, Relays, relayed
from holdfast.server.repeated_request import RepeatedRequest, digest_attempt
from holdfast.server.replies import failure, respond
from holdfast.server.requester import (
    MODES,
    RequestRules,
    identify_requester,
    name_client,
    name_session,
    requested_mode,
    unknown_fields,
    warn_of_unknown,
    without_own,
)
from holdfast.server.session_locator import MATCHES, Asked, Matching, addressed, speaker_in
from holdfast.stores.checks import check_id
from holdfast.turns.interruptions import separate_heard
from holdfast.turns.placement import Placement
from holdfast.turns.turn import Turn, TurnRequest, TurnWarning
from holdfast.wire.openai import split_system
from holdfast.wire.voice import find_records

MAX_CHOICES = 128
_SEVERAL = TurnWarning(
    "several_sessions",
    "several sessions of the user `default` match this request; name the user (user_id) or the session (session_id)",
)
_HOW_TOLD = frozenset({"stream", "stream_options", "on_disconnect"})
"""Fields that a retry may have otherwise: they are not what is asked."""


class Chat:
    """The ASGI app of a door. Raw, because the reply is a stream that ends when whoever asked has gone."""

    def __init__(
        self, door: Door, hf: Holdfast, intake: Intake, relays: Relays, *, matching: Matching, rules: RequestRules
    ) -> None:
        self._door = door
        self._hf = hf
        self._intake = intake
        self._matching = matching
        self._relays = relays
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = asyncio.get_running_loop().time()
        call = Call(scope, receive, self._hf, self._intake)
        held = call.held
        try:
            # A turn that waits for another one still holds what was sent: it counts until the turn begins.
            await self._answer(call, held, arrived, receive, send)
        finally:
            held.release()

    async def _answer(self, call: Call, held: Held, arrived: float, receive: Receive, send: Send) -> None:
        scope = call.request.scope
        try:
            sent = await call.body()
            said = await run_cpu(self._door.read, sent, call.request.headers, long=held.size > INLINE_BODY_BYTES)
            turn = await opened(call, sent, said, self._matching, self._rules)
        except ClientDisconnect:
            return
        except Exception as exc:  # noqa: BLE001 - the last place before the wire: whatever happened becomes a reply
            await respond(self._door.failed(failure(exc, self._hf.guard)))(scope, receive, send)
            return
        turn.on_open = held.release
        asker = Asker(scope, receive, send, self._hf.guard, self._door, said.body, arrived)
        client = Client(asker, turn, self._relays)
        del call, sent  # a reply takes long, and what came may be large
        try:
            await relayed(client, turn, self._relays)
        except asyncio.CancelledError:
            # The server ends, and its grace is over. What arrived is being written; whoever waits is told.
            await client.cut()
        finally:
            scope.setdefault("state", {})["session_id"] = turn.request.ref.id
            client.note_attempt()


async def opened(call: Call, sent: dict[str, Any], said: Said, matching: Matching, rules: RequestRules) -> Turn:
    """The turn that a request asks for; its session is made if there is none yet.

    Args:
        call: the request.
        sent: its body as it came; its messages are let go of.
        said: the same in the terms of a turn; its messages are, too.
        matching: how it is recognised where it names no session.
        rules: how it names its user and its session.
    """
    body, messages = said.body, said.messages
    check(body)
    unknown = unknown_fields(body, rules)
    hf, session_id = call.hf, name_session(call, body, rules)
    _check_messages(sent, messages, session_id)
    requester = identify_requester(call, body, rules, said.api)
    (system, incoming), handed = split_system(messages), call.handed
    key = _idempotency_key(call)
    fingerprint = await _fingerprint(call, sent, said, keyed=key is not None)
    attempt_digest = await digest_attempt(call, sent, key, identified=requester.identified)
    apart, media = await taken_apart(incoming, plain=hf.guard is None)
    messages.clear()
    sent.clear()
    del incoming
    wanted = requested_mode(call, body)
    mode = wanted or _mode_of(hf.roster.agents.get(body.get("agent") or body.get("model") or ""), rules)
    settings = RequestSettings(body.get("strategy"), body.get("budget"), call.principal.budget, body.get("recall"))
    spoken = separate_heard(apart, said.own[len(system) :], mode, _interruption(body))
    asked = Asked(system, spoken.messages, key, requester, session_id, spoken.mode, _queue(hf, body))
    asked = asked._replace(check=partial(_check_voice, settings, rules), fingerprint=fingerprint)
    placement = await _place(call, attempt_digest, body, asked, matching)
    session = placement.session
    voice = hf.voice(session, agent=body.get("agent"), model=body.get("model"))
    asked.check(voice)
    guest = call.user(None) not in (None, session.user_id)
    request = TurnRequest(
        ref=session.ref,
        voice=hf.roster.with_context(voice, settings.apply(voice.context)),
        settings=settings,
        warnings=warn_of_unknown(unknown, said.api, voice.llm.dialect),
        incoming=spoken.messages,
        own=spoken.own,
        heard=spoken.heard,
        interruption=spoken.interruption,
        media=media,
        system=system,
        mode=spoken.mode if spoken.mode != mode else wanted or _mode_of(voice.agent, rules),
        client="" if session_id is None else name_client(call),  # without a session id the messages decide
        identified=requester.identified,
        queue="queue" if placement.kind == "retry" else _turn_queue(hf, body, guest=guest),
        body=without_own(body),
        idempotency_key=key,
        fingerprint=fingerprint,
        headers=handed,
        api=said.api,
        speaker=speaker_in(call, body, session, requester),
        guest=guest,
    )
    return _placed(Turn(hf.engine, request), placement)


def _check_voice(settings: RequestSettings, rules: RequestRules, voice: Voice) -> None:
    settings.check(voice.context, rules.allowed_strategies)


async def _place(
    call: Call, digest: bytes | None, body: Mapping[str, Any], asked: Asked, matching: Matching
) -> Placement:
    """Give the request its session: that of an earlier attempt at it, else another one."""
    attempts = RepeatedRequest(call, digest)
    return await attempts.resume() or await attempts.begin(addressed(call, body, asked, matching))


def _placed(turn: Turn, placement: Placement) -> Turn:
    """Let a turn know how its request came to the session, and its client if that was a choice among several people's."""
    turn.placement = placement
    if placement.several and not turn.request.identified:
        turn.warnings.add(_SEVERAL)
    return turn


def _idempotency_key(call: Call) -> str | None:
    """Return the request's idempotency key, or None. Raises `InvalidRequest` for one that cannot be."""
    key = call.header("idempotency-key") or None
    if key is not None:
        check_id(key, "Idempotency-Key")
    return key


def _interruption(body: Mapping[str, Any]) -> Heard | None:
    """What a request says of the last reply in its field `interrupt`. Raises `InvalidRequest`."""
    given = body.get("interrupt")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise errors.InvalidRequest('interrupt must be an object, for example {"chars": 22}', param="interrupt")
    refuse_unknown(given, HEARD, "field of interrupt")
    return heard_from(given)


def _turn_queue(hf: Holdfast, body: Mapping[str, Any], *, guest: bool) -> QueueMode | None:
    """What becomes of a turn while another one runs: a participant's waits for its owner's. Raises `InvalidRequest`."""
    asked = check_mode(body.get("session_queue"))
    if guest and asked == "interrupt":
        message = "session_queue: in another user's session a participant interrupts nobody; leave it out, or say queue or reject"
        raise errors.InvalidRequest(message, param="session_queue")
    return "queue" if guest and asked is None and hf.queueing.mode == "interrupt" else asked


def _check_nothing_new(sent: Mapping[str, Any], session_id: str | None) -> None:
    """Refuse a request without messages unless its list is empty and it names a session to answer in. Raises `InvalidRequest`."""
    if find_records(sent)[0] != []:
        raise errors.InvalidRequest("messages is missing; send at least the new message", param="messages")
    if session_id is None:
        message = "messages is empty: send the new message, or a session_id to have what was said last in that session answered"
        raise errors.InvalidRequest(message, param="messages")


def _check_messages(sent: Mapping[str, Any], messages: Sequence[Message], session_id: str | None) -> None:
    """Refuse a user's message that says nothing: no provider takes one, and in a log it would be sent again and again."""
    if not messages:
        _check_nothing_new(sent, session_id)
    for at, message in enumerate(messages):
        if message.role == "user" and not message.text and not message.media:
            param = f"messages[{at}].content"
            raise errors.InvalidMessage(f"{param} is empty: a user's message has text, or media", param=param)


def _mode_of(agent: Agent | None, rules: RequestRules) -> Mode:
    """Return how messages to an agent are read, where neither the request nor its key says."""
    return (agent.session_mode if agent else None) or rules.session_mode


def _queue(hf: Holdfast, body: Mapping[str, Any]) -> str:
    """What a request wants done while a turn of its session runs."""
    return check_mode(body.get("session_queue")) or hf.queueing.mode


def check(body: Mapping[str, Any]) -> None:
    """Refuse what cannot be right before a session is made for it. Raises `InvalidRequest` with the parameter."""
    kinds: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
        ("model", str, "a string"),
        ("stream", bool, "true or false"),
        ("user", str, "a string"),
        ("user_id", str, "a string"),
        ("safety_identifier", str, "a string"),
        ("session_id", str, "a string"),
        ("session_user", str, "a string"),
        ("agent", str, "a string"),
        ("strategy", str, "a string"),
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
    check_mode(body.get("session_queue"))
    if body.get("on_disconnect") not in (None, *ON_DISCONNECT):
        raise errors.InvalidRequest(f"on_disconnect must be {' or '.join(ON_DISCONNECT)}", param="on_disconnect")
    if body.get("session_match") not in (None, *MATCHES):
        raise errors.InvalidRequest(f"session_match must be {' or '.join(MATCHES)}", param="session_match")


async def _fingerprint(call: Call, sent: Mapping[str, Any], said: Said, *, keyed: bool) -> bytes:
    """What an idempotency key stands for; nothing without one. Raises `SecretBlocked`."""
    hf, body, messages = call.hf, said.body, said.messages
    whole = {**body, "messages": find_records(sent)[0], **({"system": sent["system"]} if "system" in sent else {})}
    told = await without_secrets(hf, whole, messages, hashed=keyed)
    if not keyed:
        return b""
    hashed = {name: value for name, value in told.items() if name not in _HOW_TOLD}
    return hashlib.blake2b(msgspec.json.encode(hashed, order="sorted"), digest_size=16).digest()
