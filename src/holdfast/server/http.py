"""Requests as handlers see them. Responses are in `holdfast.server.replies`."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.types import Receive, Scope

from holdfast import errors
from holdfast.access import ForwardedHeaders, Principal, derive_upstream_user
from holdfast.accounting import run_cpu
from holdfast.domain.messages import Message
from holdfast.domain.session import DEFAULT_USER, Session, SessionRef
from holdfast.engine.redacting_store import mask_messages
from holdfast.holdfast import Holdfast
from holdfast.limits import INLINE_BODY_BYTES
from holdfast.server.body_limits import (
    BodyLimits,
    check_form,
    check_json,
    decode_body,
    get_declared_size,
    parse_form,
    read_bytes,
)
from holdfast.server.limits import FORM_BYTES, LARGE_BYTES, PARAMETERS
from holdfast.server.permissions import Refused
from holdfast.wire.openai import to_chat_message


@dataclass(eq=False, repr=False)
class Caller:
    """The authenticated caller of a request."""

    principal: Principal
    """The caller's identity and rights."""
    hf: Holdfast
    """The `Holdfast` of the caller's tenant."""
    upstream: str | None = None
    """The caller's own key for the upstream, or None. It is never logged or returned."""
    own: bool = False
    """True if the caller belongs to the server's own tenant and to no user."""
    passthrough: bool = False
    """True if the caller has to send an upstream key."""
    is_only_user: bool = False
    """True if requests that name no user come from one person, unless the configuration says otherwise."""


class Call:
    """A request with its caller and the `Holdfast` of the caller's tenant. Call `release` when the request has been handled.

    Attributes:
        body_size: size of the body in bytes; 0: it was not read.
        repaired: fields and messages of the body in which half of a surrogate pair was replaced.
        hf: the `Holdfast` of the caller's tenant.
        server_hf: the `Holdfast` of the server's own tenant. Its store contains the keys of all tenants.
        caller: the authenticated caller.
        principal: the caller's principal.
        status: status of the response; None: the route's default status.
        answer_headers: headers of the response.

    Args:
        scope: ASGI scope of the request.
        receive: ASGI function that returns the request's body.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.request = Request(scope, receive)
        hf: Holdfast = scope["app"].state.hf
        # Without authentication every caller is an anonymous reader.
        authenticated = scope.get("state", {}).get("caller")
        self.caller: Caller = authenticated or Caller(Principal(tenant=hf.tenant, role="read"), hf)
        self.hf, self.server_hf = self.caller.hf, hf
        self.principal = self.caller.principal
        self._limits: BodyLimits = scope["app"].state.limits
        self._turn: asyncio.Semaphore | None = None
        self.body_size = 0
        self.repaired: list[str] = []
        self._query: dict[str, str] | None = None
        self.status: int | None = None
        self.answer_headers: dict[str, str] = {}

    @property
    def path(self) -> Mapping[str, Any]:
        """Decoded parameters in the path. Raises `InvalidRequest` if one is not UTF-8."""
        return {name: self._decode(value) for name, value in self.request.path_params.items()}

    def _decode(self, value: str) -> str:
        try:
            return unquote(value, errors="strict")
        except UnicodeDecodeError as exc:
            raise errors.InvalidRequest(f"the path contains {value!r}, which is not percent-encoded UTF-8") from exc

    @cached_property
    def _headers(self) -> dict[bytes, list[str]]:
        found: dict[bytes, list[str]] = {}
        for name, value in self.request.scope["headers"]:
            found.setdefault(name, []).append(value.decode("latin-1"))
        return found

    def get_header(self, name: str) -> str | None:
        """Return the value of a header, or None if the header is missing. Raise `InvalidRequest` if the header is repeated."""
        values = self._headers.get(name.lower().encode(), ())
        if len(values) > 1:
            raise errors.InvalidRequest(f"the header {name} is sent {len(values)} times; send it once", param=name)
        return values[0] if values else None

    def get_path_number(self, param: str, named: str) -> int:
        """Return a numeric path parameter. Raise `InvalidRequest` if the parameter is not a whole number.

        Args:
            param: name of the path parameter.
            named: text at the beginning of the error message, such as `seq must be a number`.
        """
        given = self.path[param]
        if not re.fullmatch(r"[0-9]{1,18}", given):
            raise errors.InvalidRequest(f"{named}: expected a whole number, got {given[:40]!r}", param=param)
        return int(given)

    def get_expected_version(self) -> int | None:
        """Return the version that `If-Match` requires, or None if any is accepted.

        Raise `InvalidRequest` if the header has no valid version.
        """
        value = (self.get_header("if-match") or "").strip().strip('"')
        if not value or value == "*":
            return None
        if not value.isascii() or not value.isdigit() or len(value) > 18:
            raise errors.InvalidRequest("If-Match must be a version, a whole number", param="If-Match")
        return int(value)

    async def read_body(self) -> dict[str, Any]:
        """Return the JSON object in the body.

        Raises:
            InvalidRequest: the body is not a valid JSON object.
            TooLarge: the body is larger than `gateway.max_body`, or its contents exceed another limit.
            Refused: the headers declare another type than JSON, or the body arrived too slowly.
        """
        body = await self.read_json()
        data = await decode_body(body, self._limits.media, self.repaired)
        if not isinstance(data, dict):
            raise errors.InvalidRequest("the body must be a JSON object")
        return data

    async def read_json(self) -> bytes:
        """Return the JSON in the body, which is not decoded. Raises errors as `read_body` does."""
        check_json(self.request.headers)
        return await self._read_bytes(*self.most_body)

    async def read_form(self, most: int = FORM_BYTES) -> dict[str, list[str]]:
        """Return the fields of the form in the body, each with its values. Raises errors as `read_body` does."""
        check_form(self.request.headers)
        body = await self._read_bytes(min(most, self._limits.body), "the most that a page may send")
        return await run_cpu(parse_form, body, long=len(body) > INLINE_BODY_BYTES)

    async def _read_bytes(self, most: int, what: str) -> bytes:
        most, what = self.cap_body(most, what)
        size = get_declared_size(self.request.headers)
        await self.admit(most if size is None else min(size, most))
        body = await read_bytes(self.request, most, what)
        self.body_size = len(body)
        return body

    def cap_body(self, most: int, what: str) -> tuple[int, str]:
        """Return the maximum size of a body in bytes, which is lower than `most` if the key may not send so much, and its name for errors."""
        own = self.principal.max_body
        return (most, what) if own is None or own >= most else (own, "the most that this key may send")

    @property
    def most_body(self) -> tuple[int, str]:
        """Maximum size in bytes of a body, and its name for errors."""
        return self.cap_body(self._limits.body, "the server's gateway.max_body")

    async def admit(self, size: int) -> None:
        """Wait until the tenant may have another large request, if a body, a response or a read of about `size` bytes makes it one.

        A request waits at most once. It counts until `release`.
        """
        if size > LARGE_BYTES and self._turn is None:
            self._turn = await self._limits.take_turn(self.principal.tenant)

    def release(self) -> None:
        """Let the next large request of the tenant begin. Calling it again does nothing."""
        if self._turn is not None:
            self._turn.release()
            self._turn = None

    @property
    def is_large(self) -> bool:
        """True if the request or its response is large, see `admit`."""
        return self._turn is not None

    # -- parameters --------------------------------------------------------

    def get_parameter(self, name: str) -> str | None:
        """Return a query parameter, or None if missing. Raise `InvalidRequest` if the parameter is not UTF-8, is repeated, or is empty."""
        value = self.parameters.get(name)
        if value == "":
            raise errors.InvalidRequest(f"{name} is empty: give it a value or leave it out", param=name)
        return value

    @property
    def parameters(self) -> Mapping[str, str]:
        """Query parameters. Raises `InvalidRequest` if one is not UTF-8 or is repeated."""
        if self._query is None:
            self._query = parse_query(self.request.scope["query_string"])
        return self._query

    def set_etag(self, version: int) -> None:
        """Set the response header `ETag` to a version. Clients can send it in `If-Match`."""
        self.answer_headers["etag"] = f'"{version}"'

    # -- users ---------------------------------------------------------------

    def get_owner(self, named: str | None) -> str | None:
        """Return the user whose sessions the request may use; None: sessions of all users.

        Args:
            named: user that the request names, or None.

        Raises:
            UserNotFound: the key belongs to another user. The error does not reveal whether the named user exists.
        """
        own = self.principal.user_id
        if own is None or named is None or named == own:
            return named if own is None else own
        raise errors.UserNotFound(named)

    def get_owner_or_default(self, named: str | None) -> str:
        """Return `get_owner(named)`, with the user `default` in place of None."""
        owner = self.get_owner(named)
        return DEFAULT_USER if owner is None else owner

    def get_user(self) -> str | None:
        """Return the key's user, or else the user derived from the upstream key, or else None."""
        if self.principal.user_id is not None:
            return self.principal.user_id
        if self.caller.upstream is not None:
            return derive_upstream_user(self.principal.tenant, self.caller.upstream)
        return None

    @property
    def handed(self) -> Mapping[str, str]:
        """Headers to send with the model call. Raises `Refused` if the caller has to send a key for the upstream and did not."""
        if self.caller.upstream is not None:
            return ForwardedHeaders(authorization=f"Bearer {self.caller.upstream}")
        if self.caller.passthrough:
            raise refuse_missing_key()
        return ForwardedHeaders()

    # -- sessions ----------------------------------------------------------

    async def get_session(self) -> Session:
        """Return the session with the id in the path.

        The session belongs to the key's user, or to the user in the query parameter `user_id`. If neither is given, return the session of
        the user `default` with this id, or else the only session with this id.
        """
        owner = self.get_owner(self.get_parameter("user_id"))
        return await get_session_by_id(self.hf, self.path["session_id"], owner)


def refuse_missing_key() -> Refused:
    """Return the error for a request without the required upstream key."""
    message = (
        "this server calls the model with your own key: send it as Authorization: Bearer, in addition to X-Holdfast-Key"
    )
    return Refused(401, "upstream_key_missing", message, www_authenticate="Bearer")


async def get_session_by_id(hf: Holdfast, session_id: str, user_id: str | None) -> Session:
    """Return the session with an id.

    If `user_id` is None, return the session of the user `default`, or else the only session with this id.
    """
    if user_id is not None:
        return await hf.store.get(SessionRef(user_id, session_id))
    try:
        return await hf.store.get(SessionRef(DEFAULT_USER, session_id))
    except errors.SessionNotFound:
        return await hf.store.find(session_id)


async def mask_secrets(
    hf: Holdfast, body: dict[str, Any], messages: Sequence[Message], *, hashed: bool
) -> dict[str, Any]:
    """Return `body` with the secrets in its messages masked, so that the result can be hashed.

    Args:
        hf: provides the secret guard.
        body: body of a request.
        messages: the parsed messages of the body.
        hashed: False if the caller does not hash the result. Nothing is masked then: messages are only checked for secrets that are
            blocked.

    Raises:
        SecretBlocked: a message contains a secret, and the guard blocks it.
    """
    if hf.guard is None or not (hashed or hf.guard.is_blocking):
        return body
    clean = await mask_messages(hf.guard, messages)
    if all(new is old for new, old in zip(clean, messages, strict=True)):
        return body
    return {**body, "messages": [to_chat_message(message) for message in clean]}


def parse_query(raw: bytes) -> dict[str, str]:
    """Parse a query string. Raise `InvalidRequest` if the string is not UTF-8, has too many parameters, or repeats a parameter."""
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS)
    except UnicodeDecodeError as exc:
        raise errors.InvalidRequest("the query is not percent-encoded UTF-8") from exc
    except ValueError as exc:
        raise errors.InvalidRequest(f"the query has more than {PARAMETERS} parameters") from exc
    found: dict[str, str] = {}
    for name, value in pairs:
        if name.endswith("[]"):  # OpenAI's clients send a list so
            plain = name.removesuffix("[]")
            found[plain] = f"{found[plain]},{value}" if plain in found else value
            continue
        if name in found:
            raise errors.InvalidRequest(f"the parameter {name[:80]!r} is given twice", param=name[:80])
        found[name] = value
    return found


_QUERY_NAMES: Final = frozenset({"contains", "keyword", "keywords", "query", "search", "text"})
"""Names that other APIs have for `q`."""


def refuse_unknown(given: Iterable[str], names: Collection[str], kind: str) -> None:
    """Raise `InvalidRequest` if a given name is unknown. Otherwise a misspelt name would be ignored silently.

    Args:
        given: names in the request.
        names: names that are allowed.
        kind: kind of name, for the error message.
    """
    for name in given:
        if name not in names:
            near = ["q"] if name in _QUERY_NAMES and "q" in names else difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(names)) or 'none'}"
            raise errors.InvalidRequest(f"unknown {kind} {name[:80]!r}; {hint}", param=name[:80])
