"""The gateway: run a chat request in any API format as a turn of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send

from holdfast import errors
from holdfast.accounting import run_cpu
from holdfast.agents import Agent, Responder
from holdfast.config.gateway import Gateway
from holdfast.context.settings import RequestSettings
from holdfast.context.units import EMPTY
from holdfast.domain.interruptions import HEARD, HeardReport, parse_heard
from holdfast.domain.messages import Message
from holdfast.engine.session_lock import check_mode
from holdfast.limits import INLINE_BODY_BYTES
from holdfast.log.align import Mode
from holdfast.media.store import take_media_out
from holdfast.models.codecs.messages.betas import check_native_fields
from holdfast.numbers import check_whole
from holdfast.server.apis.api_format import ApiFormat, ParsedRequest
from holdfast.server.http import Call, mask_secrets, refuse_unknown
from holdfast.server.placing import PlacedRequest, is_repeated, place_request
from holdfast.server.replies import make_failure_reply, respond
from holdfast.server.requester import (
    MATCHES,
    MODES,
    Requester,
    can_match,
    drop_own_fields,
    find_unknown_fields,
    get_memory_place,
    get_requested_mode,
    identify_requester,
    is_interface_job,
    make_field_warnings,
    name_session,
    should_match,
)
from holdfast.server.streaming import ON_DISCONNECT, Client
from holdfast.stores.checks import check_id
from holdfast.stores.log import TurnKey
from holdfast.tools.memory_files import has_fact_tool
from holdfast.turns.interruptions import separate_heard
from holdfast.turns.turn import Turn, TurnRequest, TurnWarning, make_fingerprint
from holdfast.wire.openai import split_system
from holdfast.wire.request_fields import is_session_name

MAX_CHOICES = 128
_UNNAMED_KEY_CHARS = 16
"""Minimum number of characters of an `Idempotency-Key` in a request that names no user."""
_SHORT_KEY = TurnWarning(
    "short_idempotency_key",
    f"the Idempotency-Key was ignored: in a request that names no user it must have at least {_UNNAMED_KEY_CHARS} characters",
    param="Idempotency-Key",
)
_UNIDENTIFIED = TurnWarning(
    "unidentified",
    "the request names neither a user nor a session, so it was compared with no other: name its user, or its session next time",
    param="user",
)
_DELIVERY_FIELDS = frozenset({"stream", "stream_options", "on_disconnect"})
"""Fields in which a repeated request may differ from the first one, because they do not affect the reply."""
_RESOLVED_FIELDS = ("previous_response_id", "system")
"""Fields that the API formats convert or resolve, so that the parsed fields do not contain them. A repeated request may not differ in them."""

_OTHER_UNITS = {"seconds": range(10**9, 10**11), "microseconds": range(10**15, 10**16)}
"""Times of other units since the epoch, from the year 2001 on."""

Resolve = Callable[[Call, ParsedRequest, Gateway], Awaitable[ParsedRequest]]
"""Function that replaces the ids in a parsed request, which name stored sessions and messages."""


class Chat:
    """Answers chat requests in one API format.

    It uses ASGI directly, because it must stop a streamed reply when the client disconnects.

    Args:
        api_format: the API format.
        resolve: replaces ids of the API format in a request; None: the format has none.
    """

    def __init__(self, api_format: ApiFormat, *, resolve: Resolve | None = None) -> None:
        self._api_format = api_format
        self._resolve = resolve

    async def __call__(self, call: Call, receive: Receive, send: Send) -> None:
        arrived = asyncio.get_running_loop().time()
        scope, state, guard = call.request.scope, call.request.app.state, call.server_hf.guard
        gateway: Gateway = state.gateway
        try:
            sent = await call.read_body()
            parsed = await run_cpu(
                self._api_format.parse, sent, call.request.headers, long=call.body_size > INLINE_BODY_BYTES
            )
            if self._resolve is not None:
                parsed = await self._resolve(call, parsed, gateway)
            turn = await open_turn(call, sent, parsed, gateway)
            client = Client(call, send, self._api_format, parsed, turn, arrived=arrived)
        except ClientDisconnect:
            return
        except Exception as exc:  # noqa: BLE001 - the last place before the response: every error becomes a response
            await respond(self._api_format.to_error(make_failure_reply(exc, guard)))(scope, receive, send)
            return
        turn.on_open = call.release  # a turn that waits for another one still holds the body
        del sent  # a reply takes long, and the request may be large
        try:
            await client.relay()
        except asyncio.CancelledError:
            # The server shuts down, and its grace period is over. The received part of the reply is being written; notify the client.
            await client.cut()
        finally:
            scope.setdefault("state", {})["session_id"] = turn.request.ref.id
            client.encoder.close()


async def open_turn(call: Call, sent: dict[str, Any], parsed: ParsedRequest, gateway: Gateway) -> Turn:
    """Create the turn for a request. Create the session too, if it does not exist yet.

    Args:
        call: the request.
        sent: the body of the request as decoded from JSON. It is emptied, to release its memory.
        parsed: the parsed body. Its list of messages is emptied, to release its memory.
        gateway: settings of the gateway.
    """
    hf, body, forwarded = call.hf, parsed.body, call.handed
    check_fields(body)
    unknown, session_id = find_unknown_fields(body, gateway), name_session(call, body, gateway)
    warnings = [*parsed.warnings, *_check_messages(parsed, session_id)]
    warnings += make_field_warnings(unknown, names_session=session_id is not None)
    requester = identify_requester(call, body, gateway, parsed.api)
    key = await _make_key(call, sent, parsed, requester, session_id)
    wanted = get_requested_mode(call, sent, body)
    system, apart, media = await _take_messages(call, sent, parsed)
    mode = wanted or _choose_mode(hf.roster.agents.get(body.get("agent") or body.get("model") or ""), gateway)
    settings = read_settings(call, parsed)
    if is_job := parsed.predecessor is None and is_interface_job(system, apart):
        session_id = None
    separated = separate_heard(apart, parsed.own[len(system) :], mode, _parse_interruption(body))
    placed = PlacedRequest(
        *(body, system, separated.messages, key, requester, session_id, parsed.predecessor),
        matches=should_match(call, body, requester, gateway) and not is_job,
        mode=separated.mode,
        check=partial(_check_responder, settings, gateway, parsed, unknown),
        instructions=parsed.instructions,
        is_unplaced=is_job or (session_id is None and not can_match(requester, gateway)),
        repeats=is_repeated(call, requester),
    )
    place = await place_request(call, placed)
    session = place.session
    if parsed.instructions and len(system) == parsed.instructions:
        system = (*system, *session.system_messages)
    responder = hf.find_responder(session, agent=body.get("agent"), model=body.get("model"))
    placed.check(responder)
    if call.get_header("idempotency-key") and (key is None or not key.name):
        warnings.append(_SHORT_KEY)
    elif placed.is_unplaced and place.kind == "new" and not is_job:
        warnings.append(_UNIDENTIFIED)
    warnings += (*_warn_of_repairs(call), *_warn_of_times(parsed.own), *_warn_of_hosted_tools(responder, parsed))
    request = TurnRequest(
        ref=session.ref,
        responder=hf.roster.with_request_settings(responder, settings),
        settings=settings,
        warnings=tuple(warnings),
        incoming=separated.messages,
        own=separated.own,
        heard=separated.heard,
        interruption=separated.interruption,
        media=media,
        system=system,
        mode=separated.mode if separated.mode != mode else wanted or _choose_mode(responder.agent, gateway),
        queue="queue" if place.kind == "keyed" else check_mode(body.get("session_queue")),
        body=drop_own_fields(body),
        key=key,
        headers=forwarded,
        api=parsed.api,
        note=parsed.note,
        compaction=parsed.compaction,
        cache_key=parsed.cache_key,
        repeats=placed.repeats,
        hosted_tools=parsed.hosted_tools,
    )
    turn = Turn(hf.engine, request)
    turn.place = place
    return turn


async def _take_messages(
    call: Call, sent: dict[str, Any], parsed: ParsedRequest
) -> tuple[tuple[Message, ...], tuple[Message, ...], dict[bytes, bytes]]:
    """Return the system messages of a request, the others without the data of their media, and these data by SHA-256.

    The messages are removed from the request, to release their memory while the reply is made.
    """
    given, at = parsed.messages, parsed.instructions
    system, incoming = (tuple(given[:at]), given[at:]) if parsed.logs_system else split_system(given)
    apart, media = await take_media_out(incoming, plain=call.hf.guard is None)
    given.clear()
    sent.clear()
    if isinstance(parsed.given, list):
        parsed.given.clear()
    return system, apart, media


def _warn_of_hosted_tools(responder: Responder, parsed: ParsedRequest) -> Iterator[TurnWarning]:
    """Yield a warning for each kind of tool that runs at the provider, if the model's provider has no such tools."""
    if not responder.llm.hosts_tools:
        for kind in dict.fromkeys(tool["type"] for tool in parsed.hosted_tools):
            message = f"the tool {kind[:80]!r} runs only at OpenAI, so it was not sent to the model"
            yield TurnWarning("tool_not_served", message, param="tools")


def read_settings(call: Call, parsed: ParsedRequest) -> RequestSettings:
    """Return the context settings of a request and of its key."""
    body = parsed.body
    return RequestSettings(
        body.get("strategy"),
        body.get("budget"),
        call.principal.budget,
        body.get("recall"),
        parsed.clearing,
        get_memory_place(call, body),
        parsed.is_whole,
    )


def _check_responder(
    settings: RequestSettings, gateway: Gateway, parsed: ParsedRequest, unknown: Sequence[str], responder: Responder
) -> None:
    """Raise `InvalidRequest` if the responder cannot answer a request with these settings and fields, of which some are unknown."""
    settings.check(responder.context, gateway.allowed_strategies)
    if settings.memory == "server" and has_fact_tool(responder.tools):
        message = "memory: server is not possible here, because the agent already has another tool of the name `memory`"
        raise errors.InvalidRequest(message, param="memory")
    if parsed.api == "anthropic":
        _check_native_fields(parsed, unknown, responder)


def _check_native_fields(parsed: ParsedRequest, unknown: Sequence[str], responder: Responder) -> None:
    """Raise `InvalidRequest` if a request of Anthropic's API has fields that would be dropped, because the model has another API."""
    for step in responder.steps:
        _check_native_fields(parsed, unknown, step)
    llm = responder.llm
    if responder.steps or llm.dialect == "anthropic":
        return
    check_native_fields(parsed.body, llm.name)
    for name in unknown:
        reason = f"unknown field {name[:80]!r}: the model {llm.name!r} is not Anthropic's, and cannot get it"
        hint = (
            "did you mean 'session_id'?"
            if is_session_name(name)
            else "leave it out, or list it in gateway.pass_fields of the server"
        )
        raise errors.InvalidRequest(f"{reason}; {hint}", param=name[:80])


def _get_idempotency_key(call: Call, requester: Requester) -> str | None:
    """Return the request's idempotency key, or None if it has none that counts. Raise `InvalidRequest` if the key is not valid.

    A short key of a request that names no user could be another person's.
    """
    key = call.get_header("idempotency-key") or None
    if key is None:
        return None
    check_id(key, "Idempotency-Key")
    return key if requester.identified or len(key) >= _UNNAMED_KEY_CHARS else None


def _warn_of_repairs(call: Call) -> Iterator[TurnWarning]:
    for place in call.repaired:
        message = f"{place} contained half of a surrogate pair, as of an emoji cut in two: it was replaced by U+FFFD"
        yield TurnWarning("text_repaired", message, param=place)


def _warn_of_times(own: Sequence[Mapping[str, Any]]) -> Iterator[TurnWarning]:
    """Yield a warning for the first message whose time is probably not in milliseconds. Times are stored as they were sent."""
    for at, fields in enumerate(own):
        time = fields.get("timestamp", 0)
        unit = next((unit for unit, times in _OTHER_UNITS.items() if time in times), None)
        if unit is not None:
            param = f"messages[{at}].timestamp"
            message = f"{param} is {time:,}: it must be in milliseconds since the epoch, and these are probably {unit}"
            yield TurnWarning("timestamp_unit", message, param=param)
            return


def _parse_interruption(body: Mapping[str, Any]) -> HeardReport | None:
    """Parse the field `interrupt`, which says what the user heard of the last reply. Return None if it is missing.

    Raises:
        InvalidRequest: the field is not valid.
    """
    given = body.get("interrupt")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise errors.InvalidRequest('interrupt must be an object, for example {"chars": 22}', param="interrupt")
    refuse_unknown(given, HEARD, "field of interrupt")
    return parse_heard(given)


def _check_messages(parsed: ParsedRequest, session_id: str | None) -> list[TurnWarning]:
    """Check that a request has messages that can be answered. Return a warning for each earlier message of the user that is empty.

    Models get other words for such a message, because some refuse it, and once in the log it is sent again with every later request.

    Raises:
        InvalidMessage: the last message is one of the user, and empty.
        InvalidRequest: there are no messages, and the request names no session whose last message could be answered.
    """
    messages = parsed.messages
    if not messages and parsed.given != []:
        raise errors.InvalidRequest("messages is missing: send at least the new message", param="messages")
    if not messages and session_id is None:
        message = "messages is empty: send the new message, or a session_id to answer the last message of that session"
        raise errors.InvalidRequest(message, param="messages")
    warnings = []
    for at, one in enumerate(messages):
        if one.role == "user" and not one.text and not one.media:
            param = f"messages[{at}].content"
            if at == len(messages) - 1:
                raise errors.InvalidMessage(f"{param} is empty: a user message needs text or media", param=param)
            warnings.append(
                TurnWarning("empty_message", f"{param} is empty: models that refuse it get {EMPTY!r}", param=param)
            )
    return warnings


def _choose_mode(agent: Agent | None, gateway: Gateway) -> Mode:
    """Return the session mode for requests to an agent, if neither the request nor its key specifies one."""
    return (agent.session_mode if agent else None) or gateway.session_mode


def check_fields(body: Mapping[str, Any]) -> None:
    """Check the types of a request's fields, before a session is created.

    Raises:
        InvalidRequest: a field has a wrong type or value. The error names the field.
    """
    kinds: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
        ("model", str, "a string"),
        ("stream", bool, "true or false"),
        ("user", str, "a string"),
        ("user_id", str, "a string"),
        ("safety_identifier", str, "a string"),
        ("session_id", str, "a string"),
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


async def _make_key(
    call: Call, sent: Mapping[str, Any], parsed: ParsedRequest, requester: Requester, session_id: str | None
) -> TurnKey | None:
    """Return the key by which the request is known again: the one that the client chose, or a hash of the request.

    Return None for a request without a key that names no user, since it may come from anyone.

    Raises:
        InvalidRequest: the key is not valid.
        SecretBlocked: a message contains a secret, and the secret guard blocks it.
    """
    hf, messages, name = call.hf, parsed.messages, _get_idempotency_key(call, requester)
    is_keyed = name is not None or requester.identified
    # Nothing is given if the session has all messages already, as it may after the first attempt.
    given = parsed.given or sent.get("input", sent.get("messages"))
    resolved = {name: sent[name] for name in _RESOLVED_FIELDS if name in sent}
    place = {"session_id": session_id, "scope": requester.scope}
    whole = {**parsed.body, "messages": given, **resolved, **place}
    cleaned = await mask_secrets(hf, whole, messages, hashed=is_keyed)
    if not is_keyed:
        return None
    hashed = {name: value for name, value in cleaned.items() if name not in _DELIVERY_FIELDS}
    return TurnKey(name or "", make_fingerprint(msgspec.json.encode(hashed, order="sorted"), name or ""))
