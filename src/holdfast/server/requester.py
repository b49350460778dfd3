"""Read the user, the session and the session mode of a chat request from its key, body and headers.

The headers are read only here, once per request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast, get_args
from urllib.parse import unquote

from holdfast import errors
from holdfast.config.gateway import Gateway
from holdfast.context.dialects import Dialect
from holdfast.domain.messages import Message
from holdfast.domain.session import DEFAULT_USER, Session
from holdfast.log.align import Mode
from holdfast.models.codecs.messages.requests import read_scope, read_user
from holdfast.server.http import Call
from holdfast.turns.turn import TurnWarning
from holdfast.wire.request_fields import PROVIDER_FIELDS, find_misspelt_name, is_session_name

Source = Literal["key", "user_id", "user", "safety_identifier", "metadata.user_id", "header", "default"]
MODES: Final[tuple[str, ...]] = get_args(Mode)
MATCHES: Final = ("on", "off")
"""Values of `session_match`."""
MODE_HEADER: Final = "X-Session-Mode"
MEMORY_HEADER: Final = "X-Memory"
_JOB_CHARS: Final = 200
"""Number of characters at the beginning of a prompt that are compared with those of jobs."""
MEMORY_PLACES: Final = ("client", "server")
_SCOPE_HEADERS: Final = ("X-Claude-Code-Session-Id", "session_id", "conversation_id", "X-OpenWebUI-Chat-Id")
"""Headers in which Claude Code, Codex and Open WebUI name the conversation of a request. Their side calls have the same ones."""


class Requester(NamedTuple):
    """The user that a chat request belongs to."""

    user_id: str | None
    """The user; None if no source names one. The request then belongs to the user `default`."""
    identified: bool
    """True if the request can only come from this user. Other requests that name no user may come from anyone, so they are compared with no
    session and no earlier request.
    """
    source: Source
    scope: str | None = None
    """Id that a program gives all its requests, main and side calls alike; None: it gives none. Only sessions of the scope are matched."""

    @property
    def owner(self) -> str:
        """The user who owns the sessions of the request: `user_id`, or `default`."""
        return DEFAULT_USER if self.user_id is None else self.user_id


def identify_requester(call: Call, body: Mapping[str, Any], gateway: Gateway, api: Dialect = "openai") -> Requester:
    """Return the user of a request. The sources, in this order, are the key or token, the body, and the headers.

    Args:
        call: the request.
        body: fields of the request, with checked types.
        gateway: settings of the gateway.
        api: API format of the body. Only Anthropic's format has `metadata.user_id`.

    Raises:
        InvalidRequest: two sources name different users, or a required user is missing.
        UserNotFound: the key belongs to a user, and `user_id` names another one.
    """
    own, named = call.get_user(), _list_users(call, body, gateway, api)
    if "user_id" in named:
        call.get_owner(named["user_id"])
    if own is not None:
        # OpenAI's and Anthropic's own fields are set by the application, so they do not count next to a key of one user.
        named = {"key": own, **{source: user for source, user in named.items() if source in ("user_id", "header")}}
    if not named:
        _refuse_unnamed(gateway)
        scope = _find_scope(call, body, gateway, api)
        return Requester(None, identified=_has_one_user(call, gateway), source="default", scope=scope)
    (source, user), *others = named.items()
    for other, its in others:
        if its != user and (source, other) != ("user", "safety_identifier"):
            name = _find_header(call, gateway.user_headers) if other == "header" else other
            whose = "the user of the key" if source == "key" else source
            message = f"{whose} and {name} name different users: leave out one of them or use the same value"
            raise errors.InvalidRequest(message, param=name if source == "key" else source)
    # The user `default` also has the sessions of everyone who names no user.
    # A provider's key that a client sends separates its sessions from those of other keys, but an application may send one for many people.
    shared = source == "key" and call.principal.user_id is None
    identified = (user != DEFAULT_USER and not shared) or _has_one_user(call, gateway)
    return Requester(user, identified=identified, source=source, scope=_find_scope(call, body, gateway, api))


def _find_scope(call: Call, body: Mapping[str, Any], gateway: Gateway, api: Dialect) -> str | None:
    """Return the id that a program gives all its requests, which is no session here: side calls have the same one. None: it gives none."""
    metadata = body.get("metadata")
    given = metadata.get("user_id") if api == "anthropic" and isinstance(metadata, Mapping) else None
    named = read_scope(given) if isinstance(given, str) else None
    names = [name for name in (*gateway.scope_headers, *_SCOPE_HEADERS) if name not in gateway.session_headers]
    return named or next((decode_header(sent, name) for name in names if (sent := call.get_header(name))), None)


def _has_one_user(call: Call, gateway: Gateway) -> bool:
    """Return True if all requests that name no user come from one person."""
    return call.caller.is_only_user if gateway.single_user is None else gateway.single_user


def _refuse_unnamed(gateway: Gateway) -> None:
    """Raise `InvalidRequest` if a request must name its user."""
    if gateway.require_user:
        also = f", or the header {' or '.join(gateway.user_headers)}" if gateway.user_headers else ""
        message = f"requests must name their user: use a key of a user, user_id, user{also}"
        raise errors.InvalidRequest(message, param="user_id")


def _list_users(call: Call, body: Mapping[str, Any], gateway: Gateway, api: Dialect) -> dict[Source, str]:
    """Return, for each source that names a user (key, body or header), that user. The source with the highest precedence is first.

    Raises:
        InvalidRequest: two headers name different users.
    """
    found: dict[Source, str] = {}
    for source in ("user_id", "user", "safety_identifier"):
        if body.get(source):
            found[source] = body[source]
    metadata = body.get("metadata")
    if api == "anthropic" and isinstance(metadata, Mapping) and metadata.get("user_id"):
        named = read_user(metadata["user_id"])
        if found.get("user") == named:  # copied from there, see `decode_fields`
            del found["user"]
        found["metadata.user_id"] = named
    if user := _read_headers(call, gateway.user_headers, "users"):
        found["header"] = user
    return found


# -- session mode --------------------------------------------------------------------


def get_requested_mode(call: Call, sent: Mapping[str, Any], body: Mapping[str, Any]) -> Mode | None:
    """Return the session mode that the request specifies, or else the mode of its key, or None if neither specifies one.

    The header is a client's default. It has no effect on a request that names a response, a conversation or a thread.

    Args:
        call: the request.
        sent: the body as it was sent.
        body: the fields of the request. If it names a message or conversation by its id, its mode is `delta`; see `continue_session`.

    Raises:
        InvalidRequest: body and header specify different modes, or the header is not a mode.
    """
    body_mode, header = sent.get("session_mode"), call.get_header(MODE_HEADER)
    if header is not None and (header not in MODES or (body_mode and body_mode != header)):
        message = f"the header {MODE_HEADER} must be one of {', '.join(MODES)} and equal session_mode in the body"
        raise errors.InvalidRequest(message, param=MODE_HEADER)
    return cast("Mode | None", body.get("session_mode") or header or call.principal.session_mode)


def should_match(call: Call, body: Mapping[str, Any], requester: Requester, gateway: Gateway) -> bool:
    """Return True if the messages of a request that names no session are compared with existing sessions.

    A request can ask for it in `session_match` or the header. No request that may come from anyone can.

    Raises:
        InvalidRequest: body and header differ, or the header has another value.
    """
    named, header = body.get("session_match"), call.get_header("x-session-match")
    if header is not None and (header not in MATCHES or (named and named != header)):
        wanted = f"must be {' or '.join(MATCHES)} and equal session_match in the body"
        raise errors.InvalidRequest(f"the header X-Session-Match {wanted}", param="X-Session-Match")
    value = named or header
    is_on = gateway.match != "off" if value is None else value == "on"
    return is_on and can_match(requester, gateway)


def can_match(requester: Requester, gateway: Gateway) -> bool:
    """Return True if the requests of the caller may be compared with sessions. Otherwise a request without a session is unplaced."""
    return requester.identified or requester.scope is not None or gateway.match == "anyone"


def get_memory_place(call: Call, body: Mapping[str, Any]) -> Literal["client", "server"] | None:
    """Return who runs Anthropic's memory tool for the request, from the field `memory` or the header `X-Memory`; None: as the agent says.

    Raises:
        InvalidRequest: the value is not `client` or `server`, or field and header differ.
    """
    field, header = body.get("memory"), call.get_header(MEMORY_HEADER)
    for value, name in ((field, "memory"), (header, MEMORY_HEADER)):
        if value is not None and value not in MEMORY_PLACES:
            raise errors.InvalidRequest(f"{name} must be client or server, not {value!r:.80}", param=name)
    if field and header and field != header:
        message = f"memory and the header {MEMORY_HEADER} differ: leave out one of them or use the same value"
        raise errors.InvalidRequest(message, param="memory")
    return cast('Literal["client", "server"] | None', field or header)


# -- jobs of chat interfaces ---------------------------------------------------------

_JOBS: Final = (
    ("### Task: Generate ", "<chat_history>"),  # Open WebUI: titles, tags, image prompts
    ("### Task: Suggest ", "<chat_history>"),
    ("### Task: Analyze ", "<chat_history>"),
    ("### Task: You are an autocompletion system", ""),
    ("Analyze if this message indicates a new conversation topic", ""),  # Claude Code
    ("Please write a 5-10 word title", ""),
    ("Summarize this coding conversation in under 50 characters", ""),
    ("Please generate a concise, 5-word-or-less title", ""),  # LibreChat
    ("Provide a concise, 5-word-or-less title", ""),
)
"""Beginnings of the prompts with which programs ask for titles, tags and follow-ups, in single spaces, each with what is in the prompt, too."""


def is_interface_job(system: Sequence[Message], incoming: Sequence[Message]) -> bool:
    """Return True for a request that a chat interface makes for itself: a prompt that begins like one of its jobs, and nothing before it."""
    if len(incoming) != 1 or incoming[0].role != "user":
        return False
    for message in (*system, *incoming):
        text = message.text
        begin = " ".join(text[:_JOB_CHARS].split())
        if any(begin.startswith(opening) and mark in text for opening, mark in _JOBS):
            return True
    return False


# -- session -------------------------------------------------------------------------


def name_session(call: Call, body: Mapping[str, Any], gateway: Gateway) -> str | None:
    """Return the id of the session that a request names, or None.

    The id can be in `session_id`, in `X-Session-Id`, and in the headers of `gateway.session_headers`.

    Raises:
        InvalidRequest: `session_id` and the headers name different sessions.
    """
    named: str | None = body.get("session_id") or None
    names = ("X-Session-Id", *gateway.session_headers)
    header = _read_headers(call, names, "sessions")
    if named and header and named != header:
        message = f"session_id and the header {_find_header(call, names)} (percent-decoded) name different sessions"
        raise errors.InvalidRequest(message, param="session_id")
    return named or header


def _find_header(call: Call, names: tuple[str, ...]) -> str:
    """Return the name of the first of these headers that the request has."""
    return next(name for name in names if call.get_header(name))


def _read_headers(call: Call, names: tuple[str, ...], what: str) -> str | None:
    """Return the decoded value of the first of these headers that the request has, or None.

    Args:
        call: the request.
        names: names of the headers.
        what: what they name, for the error message.

    Raises:
        InvalidRequest: two headers have different values, or a value is not UTF-8.
    """
    found: str | None = None
    for name in names:
        sent = call.get_header(name)
        if not sent:
            continue
        value = decode_header(sent, name)
        if found is not None and value != found:
            raise errors.InvalidRequest(f"the headers {', '.join(names)} name different {what}", param=name)
        found = value
    return found


def decode_header(value: str, name: str) -> str:
    """Decode the value of a header from UTF-8 or percent-encoded UTF-8. Raise `InvalidRequest` if the value is neither."""
    try:
        return unquote(value.encode("latin-1").decode(), errors="strict")
    except UnicodeDecodeError as exc:
        raise errors.InvalidRequest(f"{name} is neither UTF-8 nor percent-encoded UTF-8", param=name) from exc


# -- fields of the body ----------------------------------------------------------

OWN_FIELDS: Final = frozenset(
    {
        "session_id",
        "session_mode",
        "session_match",
        "session_queue",
        "interrupt",
        "user_id",
        "on_disconnect",
        "agent",
        "strategy",
        "budget",
        "recall",
        "memory",
    }
)
"""Holdfast's own fields in the body of a request. They are not sent upstream."""
_SHOWN: Final = 80
"""Maximum number of characters of a field name that a message quotes."""


def continue_session(body: Mapping[str, Any], session: Session, user_id: str | None) -> dict[str, Any]:
    """Return the fields of a request that continues a session which the client named by the id of a message, response or conversation.

    Args:
        body: the fields of the request.
        session: the session.
        user_id: the user of the request; None: the caller may use the sessions of all users.

    Raises:
        InvalidRequest: `session_id` names another session, or `session_mode` is not possible.
    """
    if body.get("session_id") not in (None, session.id):
        message = "session_id names another session than the thread, conversation or response"
        raise errors.InvalidRequest(message, param="session_id")
    if body.get("session_mode") not in (None, "auto", "delta"):
        message = (
            "session_mode must be auto or delta after a thread, conversation or response: the messages are new ones"
        )
        raise errors.InvalidRequest(message, param="session_mode")
    owner = {} if user_id is not None else {"user_id": session.user_id}
    return {**body, "session_id": session.id, "session_mode": "delta", **owner}


def drop_own_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a body without Holdfast's own fields. These are the fields that are sent upstream."""
    return {name: value for name, value in body.items() if name not in OWN_FIELDS}


def find_unknown_fields(body: Mapping[str, Any], gateway: Gateway) -> list[str]:
    """Return the names of fields that are unknown to Holdfast and not known from a provider.

    Raises:
        InvalidRequest: the name of a field looks like a misspelt name of one of Holdfast's own fields, which would have no effect.
    """
    known = (OWN_FIELDS, PROVIDER_FIELDS, gateway.pass_fields)
    unknown = [name for name in body if not any(name in names for names in known)]
    for name in unknown:
        if (ours := find_misspelt_name(name, OWN_FIELDS)) is not None:
            message = (
                f"unknown field {name[:_SHOWN]!r}: did you mean {ours!r}? If it is the provider's, list it in"
                " gateway.pass_fields of the server"
            )
            raise errors.InvalidRequest(message, param=name[:_SHOWN])
    return unknown


def make_field_warnings(names: list[str], *, names_session: bool = True) -> tuple[TurnWarning, ...]:
    """Return a warning for each unknown field.

    Args:
        names: names of the unknown fields.
        names_session: True if the request names a session. If False, a field such as `conversation_id` is probably meant to name one.
    """

    def explain(name: str) -> str:
        if not names_session and is_session_name(name):
            return "did you mean 'session_id'? The request names no session"
        return "list it in gateway.pass_fields of the server to end this warning"

    return tuple(
        TurnWarning(
            "unknown_field",
            f"unknown field {name[:_SHOWN]!r} was passed to the provider; {explain(name)}",
            param=name[:_SHOWN],
        )
        for name in names
    )
