"""Declare routes, with method, path, permission, error statuses and types next to the handler.

    routes = Routes("sessions")

    @routes.add("POST", "/v1/sessions", "write", status=201, error_statuses=(422,))
    async def create(call: Call, body: NewSessionObject) -> SessionObject: ...

The handler's annotations give the types of a route. The annotation of `query` is the type of the query parameters. The annotation of `body`
is the type of the body. A handler with the parameter `session` gets the session that the path names; without `query`, its only query
parameter is `user_id`. The return annotation is the type of the response. `holdfast.server.openapi` describes the routes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeVar, get_type_hints

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from holdfast.domain.objects import Count, NonEmpty, Request, json_schema
from holdfast.domain.session import Session
from holdfast.errors import InvalidRequest
from holdfast.limits import PAGE
from holdfast.numbers import MOST, check_number, check_whole
from holdfast.server.http import Call, get_session_by_id, refuse_unknown
from holdfast.server.permissions import Need, permit
from holdfast.server.replies import Reply, encode_json, make_error_body, make_failure_reply, to_response
from holdfast.server.schema import Schema, make_parameters_schema

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
S = TypeVar("S", bound=msgspec.Struct)
JSON: Final = "application/json"
TEXT: Final[Schema] = {"schema": {"type": "string"}}
"""The content of an answer that is not JSON, such as HTML: `answer={"text/html": TEXT}`."""
BODY: Final = (400, 408, 413, 415)
"""Error statuses of a route that reads a JSON body."""
_OF_SESSION: Final = re.compile(r"{(session|conversation|response)_id}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Route:
    """A route: an HTTP method on a path, with its handler and its types."""

    method: str
    path: str
    need: Need
    tag: str
    handler: Callable[..., Awaitable[Any]] | None
    """Async function that handles a `Call`; None if an ASGI app serves the route."""
    summary: str
    """Text for the API description. Its first line is the summary, and the rest the description."""
    query: type[msgspec.Struct] | None = None
    body: Any = None
    """Type of the body: a struct, or a mapping from media types to schemas; None: the route has no body."""
    answer: Any
    """Type of the response: a struct, a tuple of possible structs, or a mapping from media types to structs or OpenAPI schemas."""
    status: int = 200
    error_statuses: tuple[int, ...] = ()
    """Error statuses of this route, in addition to those that follow from its other fields."""
    request_headers: tuple[Schema, ...] = ()
    """Descriptions of the request headers."""
    response_headers: Schema = field(default_factory=dict)
    """Descriptions of the response headers."""
    errors: tuple[Any, ...] = ()
    """Structs of the route's errors; empty: errors have OpenAI's format."""
    others: Mapping[int, str] = field(default_factory=dict)
    """Descriptions of other successful statuses. Of these, 200 and 206 have a body of the type `answer`; the others have no body."""
    lenient: bool = False
    """True: ignore unknown query parameters."""
    parameters: frozenset[str] = frozenset()
    """Names of the handler's parameters."""

    def list_error_statuses(self) -> set[int]:
        """Return all error statuses that the route can return, except those of every route."""
        found = set(self.error_statuses)
        if self.handler is None or self.need == "public":
            return found
        if not self.lenient:
            found |= {400, 503}  # it reads parameters, and the store
        if self.body is not None:
            found |= set(BODY)
        if _OF_SESSION.search(self.path) or (self.query is not None and issubclass(self.query, OwnerQuery)):
            found |= {404, 409}
        return found | ({412} if any(one["name"] == "If-Match" for one in self.request_headers) else set())

    async def __call__(self, call: Call) -> Reply:
        """Parse the request, call the handler, and return its reply. Raise `InvalidRequest` if parameters or body are not valid."""
        assert self.handler is not None, "an ASGI app answers this route"
        given: dict[str, Any] = {}
        if self.query is not None:
            query = read_query(call.parameters, self.query)
            given |= {"query": query} if "query" in self.parameters else {}
        elif not self.lenient:
            refuse_unknown(call.parameters, (), "parameter")
        if isinstance(self.body, type):
            body = await call.read_body()
            given["body"] = read_body(body, self.body) if issubclass(self.body, Request) else body
        if "session" in self.parameters:
            given["session"] = await call.get_session()
        answer = await self.handler(call, **given)
        return answer if isinstance(answer, Reply) else Reply(answer, call.status or self.status, call.answer_headers)


class Routes:
    """The routes of one subject.

    Args:
        tag: name of the subject in the API description.
        lenient: True: the routes ignore unknown query parameters.
    """

    def __init__(self, tag: str, *, lenient: bool = False) -> None:
        self.all: list[Route] = []
        self._tag = tag
        self._lenient = lenient

    def add(self, method: str, path: str, need: Need, **more: Any) -> Callable[[F], F]:
        """Return a decorator that declares a route.

        Args:
            method: HTTP method.
            path: path, with parameters in braces.
            need: permission that the route requires.
            more: other fields of `Route`. Fields that are not given come from the handler's docstring and annotations.
        """

        def declare(handler: F) -> F:
            hints = get_type_hints(handler)
            route = {
                "tag": self._tag,
                "summary": inspect.getdoc(handler) or "",
                "query": hints.get("query", SessionQuery if "session" in hints else None),
                "body": hints.get("body"),
                "answer": hints["return"],
                "lenient": self._lenient,
                "parameters": frozenset(hints),
                **more,
            }
            self.all.append(Route(method=method, path=path, need=need, handler=handler, **route))
            return handler

        return declare


class Endpoint:
    """ASGI app for one path. It returns errors in OpenAI's format.

    Args:
        routes: routes of the path.
        post: function that answers POST requests, if the route has no handler because its reply may be a stream.
    """

    def __init__(
        self, routes: Iterable[Route], *, post: Callable[[Call, Receive, Send], Awaitable[None]] | None = None
    ) -> None:
        self._routes = {route.method: route for route in routes}
        self._post = post

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = self._routes.get(method)
        post = self._post if method == "POST" else None
        call = Call(scope, receive)
        try:
            try:
                if route is not None:
                    permit(scope, route.need)
                if post is None:
                    reply = await self._answer(route, call)
            except ClientDisconnect:
                return
            except Exception as exc:  # noqa: BLE001 - the last place before the response: every error becomes a response
                reply, post = make_failure_reply(exc, call.server_hf.guard), None
            if post is not None:
                await post(call, receive, send)
            else:
                await to_response(reply, scope)(scope, receive, send)
        finally:
            call.release()

    async def _answer(self, route: Route | None, call: Call) -> Reply:
        if route is None:
            known = ", ".join(sorted(self._routes))
            message = f"{call.request.method} is not supported here; use {known}"
            body = make_error_body(message, kind="invalid_request_error", code="method_not_allowed")
            return Reply(body, 405, {"allow": known})
        reply = await encode_json(await route(call), large=call.is_large)
        if isinstance(reply.body, bytes):
            await call.admit(len(reply.body))
        return reply


# -- parsing ---------------------------------------------------------------------


def read_query(given: Mapping[str, str], kind: type[S]) -> S:
    """Convert query parameters to a struct. Raise `InvalidRequest` if one is unknown, missing or not valid."""
    known = make_parameters_schema(kind)
    refuse_unknown(given, known, "parameter")
    for one in msgspec.structs.fields(kind):
        if one.required and one.name not in given:
            raise InvalidRequest(f"{one.name} is missing", param=one.name)
    return kind(**{name: _convert_parameter(name, text, known[name]) for name, text in given.items()})


def _convert_parameter(name: str, text: str, schema: Schema) -> Any:
    """Convert a query parameter to the type in its schema. Raise `InvalidRequest` if the parameter is not valid."""
    if text == "":
        raise InvalidRequest(f"{name} is empty: give it a value or leave it out", param=name)
    kind = schema.get("type")
    choices = ["false", "true"] if kind == "boolean" else _list_choices(schema)
    if choices is not None and text not in choices:
        raise InvalidRequest(f"{name} must be one of {', '.join(choices)}, not {text[:80]!r}", param=name)
    if kind == "boolean":
        return text == "true"
    if kind == "integer":
        number = int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text
        check_whole(number, name, schema.get("minimum", 0), schema.get("maximum", MOST))
        return number
    if kind == "number":
        try:
            fraction = float(text)
        except ValueError:
            fraction = -1.0
        check_number(fraction, name, schema["minimum"], schema["maximum"])
        return fraction
    return text


def _list_choices(schema: Schema) -> list[str] | None:
    """Return the values that a parameter may have, or None if it may have others. A parameter that may be left out is `anyOf` with null."""
    if "const" in schema:
        return [schema["const"]]
    options = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return _list_choices(options[0]) if len(options) == 1 else schema.get("enum")


def read_body(body: dict[str, Any], kind: type[S]) -> S:
    """Convert a body to a struct. If a field is not valid, raise an `InvalidRequest` that names the field."""
    if kind.__struct_config__.forbid_unknown_fields:
        refuse_unknown(body, kind.__struct_encode_fields__, "field")
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as exc:
        raise _make_error(str(exc), kind) from exc


_MISTAKE: Final = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_TYPES: Final = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<given>[^`]+)`")
_FIELD: Final = re.compile(r"Object (?P<how>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_WORDS: Final = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


def _make_error(message: str, kind: type[msgspec.Struct]) -> InvalidRequest:
    """Return the `InvalidRequest` for an error message of msgspec."""
    mistake = _MISTAKE.fullmatch(message)
    assert mistake is not None, "it matches anything"
    path = mistake["path"] or ""
    if field_ := _FIELD.fullmatch(mistake["what"]):
        name = field_["name"]
        place = f"{path}.{name}" if path else name
        if field_["how"].startswith("missing"):
            return InvalidRequest(f"{place} is missing", param=place)
        return InvalidRequest(f"unknown field {name[:80]!r} of {path}", param=name[:80])
    if types := _TYPES.fullmatch(mistake["what"]):
        wanted = " or ".join(_WORDS.get(one, one) for one in types["wanted"].split(" | "))
        return InvalidRequest(f"{path} must be {wanted}, not {_WORDS.get(types['given'], types['given'])}", param=path)
    if choices := make_parameters_schema(kind).get(path, {}).get("enum"):
        return InvalidRequest(f"{path} must be one of {', '.join(map(str, choices))}", param=path)
    return InvalidRequest(f"{path}: {mistake['what'][:200]}", param=path)


# -- shared by routes ------------------------------------------------------------


class SessionQuery(Request):
    """Query parameters of a route for one session."""

    user_id: NonEmpty | None = None
    """User of the session. Default: the key's user. If the key has no user, the session is that of the user `default`, or else the only
    session with this id."""


class PromptOptions(SessionQuery, kw_only=True):
    """Query parameters that choose the agent, model and settings of a prompt."""

    agent: str | None = None
    """Agent whose prompt it is; default: the one of the session, or of the call."""
    model: str | None = None
    """Model whose context window and tokenizer are used; default: the agent's."""
    strategy: str | None = None
    """Strategy of the prompt, with the default values of its options; default: that of the agent, the session or the turn."""
    budget: Annotated[int | None, json_schema(minimum=1)] = None
    """Token budget of the conversation; default: the strategy's."""


PageLimit = Annotated[int, json_schema(description="maximum number of items; default 20", minimum=1, maximum=PAGE)]
Order = Annotated[Literal["asc", "desc"], json_schema(description="`asc`: oldest first; `desc`: newest first")]


class PageQuery(SessionQuery, kw_only=True):
    """Query parameters of a list that belongs to a session."""

    limit: PageLimit = 20
    order: Order = "asc"


class SeqPageQuery(PageQuery, kw_only=True):
    """Query parameters of a list with numeric ids that belongs to a session."""

    after: Count | None = None
    """`last_id` of the previous page, after which this page begins."""


def describe_header(name: str, text: str) -> Schema:
    """Return the OpenAPI description of a request header."""
    return {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}


def describe_headers(**headers: str) -> Schema:
    """Return the OpenAPI descriptions of response headers. An underscore in a name stands for a hyphen."""
    return {
        name.replace("_", "-"): {"description": text, "schema": {"type": "string"}} for name, text in headers.items()
    }


MATCH: Final = describe_header("If-Match", "version that the session must have")
KEY: Final = describe_header(
    "Idempotency-Key", "1 to 512 bytes; repeating a request with the same key and body writes nothing again"
)
ETAG: Final = describe_headers(ETag="version of the session")


# -- owners ----------------------------------------------------------------------


class SharedQuery(Request, kw_only=True):
    """Query parameters that name the owner of what sessions share: a user, or the tenant."""

    user_id: NonEmpty | None = None
    """User who owns the values. With `session_id`: user of the session."""
    scope: Literal["tenant"] | None = None
    """`tenant`: the values that all users share. Without another owner, it is required to write, and the default to read."""


class OwnerQuery(SharedQuery, kw_only=True):
    """Query parameters that name the owner: a session, a user, or the tenant."""

    session_id: NonEmpty | None = None
    """Session that owns the values. The state of a session includes the shared state."""


async def find_owner(call: Call, query: OwnerQuery, *, read: Need | None = None, write: Need) -> Session | str | None:
    """Return the session, or the id of the user, or None for the tenant. See `get_shared_owner`.

    Raises:
        SessionNotFound: there is no such session.
    """
    if query.session_id is None:
        return get_shared_owner(call, query, read=read, write=write)
    if query.scope is not None:
        raise InvalidRequest("scope cannot be used together with session_id", param="scope")
    return await get_session_by_id(call.hf, query.session_id, call.get_owner(query.user_id))


def get_shared_owner(call: Call, query: SharedQuery, *, read: Need | None = None, write: Need) -> str | None:
    """Return the id of the user, or None for the tenant. For the tenant, the caller needs the permission `read` or `write`.

    Raises:
        InvalidRequest: a request that writes names no owner. A client that loses a parameter must not change what all users share.
        UserNotFound: the key belongs to another user.
        Refused: the caller lacks the permission.
    """
    if query.user_id is not None and query.scope is not None:
        raise InvalidRequest("scope cannot be used together with user_id", param="scope")
    if query.user_id is not None:
        return call.get_owner(query.user_id)
    reads = call.request.method in ("GET", "HEAD")
    if (needed := read if reads else write) is not None:
        permit(call.request.scope, needed)
    if not reads and query.scope is None:
        raise InvalidRequest("name the owner: session_id, user_id, or scope=tenant", param="scope")
    return None
