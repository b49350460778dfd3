"""What every endpoint is made of: a call comes in, a handler answers it, a reply goes out (`holdfast.server.replies`)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast import errors
from holdfast.access import Handed, Principal, upstream_user
from holdfast.domain.messages import Message
from holdfast.domain.participants import participants_of
from holdfast.domain.session import DEFAULT_USER, Session, SessionRef
from holdfast.engine.redacting_store import mask_messages
from holdfast.holdfast import Holdfast
from holdfast.limits import PARAMETERS
from holdfast.server.intake import Held, Intake
from holdfast.server.permissions import Refused
from holdfast.wire.openai import message_to


class Caller:
    """Who asks.

    Attributes:
        principal: as whom the request is made.
        hf: its tenant's.
        upstream: the key that the model is called with, if that is the caller's own; never shown.
        own: whether it is of the server's own tenant, and of no user.
        passthrough: whether the caller has to bring such a key.
    """

    def __init__(
        self,
        principal: Principal,
        hf: Holdfast,
        upstream: str | None = None,
        *,
        own: bool = False,
        passthrough: bool = False,
    ) -> None:
        self.principal = principal
        self.hf = hf
        self.upstream = upstream
        self.own = own
        self.passthrough = passthrough


class Call:
    """One request, with what an endpoint needs of it. `release` it in the end.

    Attributes:
        hf: the sessions of the caller's tenant.
        caller: who asks.
        principal: as whom.
        status: of the answer; None: the route's.
        answer_headers: of the answer.

    Args:
        scope: of the request.
        receive: gives its body.
        hf: the server's own.
        intake: how bodies are read.
    """

    def __init__(self, scope: Scope, receive: Receive, hf: Holdfast, intake: Intake) -> None:
        self.request = Request(scope, receive)
        # Where nobody is asked who they are, nobody is anybody.
        nobody = Caller(Principal(tenant=hf.tenant, role="read"), hf)
        self.caller: Caller = scope.get("state", {}).get("caller") or nobody
        self.hf = self.caller.hf
        self.principal = self.caller.principal
        self._intake = intake
        self._held = Held()
        self._query: dict[str, str] | None = None
        self.status: int | None = None
        self.answer_headers: dict[str, str] = {}

    @property
    def path(self) -> Mapping[str, Any]:
        """The parameters in the path. Raises `InvalidRequest` for one that is no UTF-8."""
        return {name: self._decoded(value) for name, value in self.request.path_params.items()}

    def _decoded(self, value: str) -> str:
        try:
            return unquote(value, errors="strict")
        except UnicodeDecodeError as exc:
            raise errors.InvalidRequest(f"the path holds {value!r}, which is not percent-encoded UTF-8") from exc

    def header(self, name: str) -> str | None:
        """A header, or None. Raises `InvalidRequest` for one that is sent twice."""
        values = self.request.headers.getlist(name)
        if len(values) > 1:
            raise errors.InvalidRequest(f"the header {name} is sent {len(values)} times; send it once", param=name)
        return values[0] if values else None

    def path_number(self, param: str, named: str) -> int:
        """Return what the path names by a whole number. Raises `InvalidRequest`.

        Args:
            param: of the path.
            named: what it names, for the error: `a message is named by its seq`.
        """
        given = self.path[param]
        if not re.fullmatch(r"[0-9]{1,18}", given):
            raise errors.InvalidRequest(f"{named}, a whole number, not {given[:40]!r}", param=param)
        return int(given)

    def if_match(self) -> int | None:
        """Return the version that the session, the state or the memory must be at, from `If-Match`. Raises `InvalidRequest`."""
        value = (self.header("if-match") or "").strip().strip('"')
        if not value or value == "*":
            return None
        if not value.isascii() or not value.isdigit() or len(value) > 18:
            raise errors.InvalidRequest("If-Match must be a version, a whole number", param="If-Match")
        return int(value)

    async def body(self) -> dict[str, Any]:
        """The request's JSON object. Raises as `Intake.read` does, and `InvalidRequest` for what is no object."""
        data = await self._intake.read(self.request, self._held)
        if not isinstance(data, dict):
            raise errors.InvalidRequest("the body must be a JSON object")
        return data

    @property
    def most_speech(self) -> int:
        """Bytes of a text that is spoken from outside."""
        return self._intake.limits.speech

    @property
    def patience(self) -> float:
        """Seconds that the server waits for a body, or its next piece."""
        return self._intake.limits.body_timeout

    @property
    def held(self) -> Held:
        """The room that the body takes."""
        return self._held

    def release(self) -> None:
        """Give back the room that the body took."""
        self._held.release()

    # -- parameters --------------------------------------------------------

    def text(self, name: str) -> str | None:
        """A query parameter, or None. Raises `InvalidRequest` for one that is no UTF-8, is given twice, or says nothing."""
        value = self.parameters.get(name)
        if value == "":
            raise errors.InvalidRequest(f"{name} is empty; give it a value, or leave it out", param=name)
        return value

    @property
    def parameters(self) -> Mapping[str, str]:
        """The parameters of the query. Raises `InvalidRequest` for one that is no UTF-8, or is given twice."""
        if self._query is None:
            self._query = query_of(self.request.scope["query_string"])
        return self._query

    def tag(self, version: int) -> None:
        """Name the version of what is answered in the header `ETag`, for `If-Match`."""
        self.answer_headers["etag"] = f'"{version}"'

    # -- who -----------------------------------------------------------------

    def owner(self, named: str | None) -> str | None:
        """Whose sessions are meant, where the request names a user or None. None: anybody's.

        Raises:
            UserNotFound: the key is another user's, whether or not there is one of that name.
        """
        own = self.principal.user_id
        if own is None or named is None or named == own:
            return named if own is None else own
        raise errors.UserNotFound(named)

    def owner_or_default(self, named: str | None) -> str:
        """The same, where somebody has to be meant: the user `default` where nobody is named. Raises as `owner`."""
        owner = self.owner(named)
        return DEFAULT_USER if owner is None else owner

    def user(self, said: str | None) -> str | None:
        """Whose turn it is, where `said` is what a chat request says of its end user: the key's user comes before it.

        That of a passed-through upstream key does, too. None: nobody says.
        """
        if self.principal.user_id is not None:
            return self.principal.user_id
        if self.caller.upstream is not None:
            return upstream_user(self.principal.tenant, self.caller.upstream)
        return said or None

    @property
    def handed(self) -> Mapping[str, str]:
        """Headers that are handed on to the model. Raises `Refused` where the caller has to bring a key, and has not."""
        if self.caller.upstream is not None:
            return Handed(authorization=f"Bearer {self.caller.upstream}")
        if self.caller.passthrough:
            raise not_handed()
        return Handed()

    # -- sessions ----------------------------------------------------------

    async def session(self, *, shared: bool = False) -> Session:
        """The session that the path names: the `user_id`'s of the query, else the only one of that id.

        Where it is `shared`, it may be another user's in which the key's user takes part.
        """
        named = self.text("user_id")
        if shared and named is not None and self.principal.user_id not in (None, named):
            return await self.joined(named, self.path["session_id"])
        return await named_session(self.hf, self.path["session_id"], self.owner(named))

    async def joined(self, owner: str, session_id: str) -> Session:
        """Another user's session in which the key's user takes part.

        Raises:
            UserNotFound: there is none, or they do not; that is not told apart.
        """
        try:
            session = await self.hf.store.get(SessionRef(owner, session_id))
        except (errors.SessionNotFound, errors.InvalidRequest) as exc:
            raise errors.UserNotFound(owner) from exc
        if self.principal.user_id not in participants_of(session.metadata):
            raise errors.UserNotFound(owner)
        return session

    def is_guest(self, session: Session) -> bool:
        """Whether the session is another user's than the key's."""
        return self.principal.user_id not in (None, session.user_id)

    def speaker(self, session: Session) -> str | None:
        """Whose the messages of the request are, whatever they say; None: where they say it, they are believed.

        The key's user's, in a session in which several take part.
        """
        return self.principal.user_id if participants_of(session.metadata) else None


def not_handed() -> Refused:
    """Who brings no key of the model's gets no answer, where it has to be the client's."""
    message = "this server calls the model with your own key: send it as Authorization: Bearer, beside X-Holdfast-Key"
    return Refused(401, "upstream_key_missing", message, www_authenticate="Bearer")


async def named_session(hf: Holdfast, session_id: str, user_id: str | None) -> Session:
    """A session by id: of the user if one is named, else the only one of that id among all users."""
    if user_id is not None:
        return await hf.store.get(SessionRef(user_id, session_id))
    try:
        return await hf.store.get(SessionRef(DEFAULT_USER, session_id))
    except errors.SessionNotFound:
        return await hf.store.find(session_id)


async def without_secrets(
    hf: Holdfast, body: dict[str, Any], messages: Sequence[Message], *, hashed: bool
) -> dict[str, Any]:
    """`body` with its messages as a log would have them: what may be hashed. Raises `SecretBlocked`.

    Args:
        hf: whose guard looks.
        body: a request's.
        messages: those in it.
        hashed: whether it will be; else there is nothing to do but to refuse it.
    """
    if hf.guard is None or not (hashed or hf.guard.refuses):
        return body
    told = await mask_messages(hf.guard, messages)
    if all(new is old for new, old in zip(told, messages, strict=True)):
        return body
    return {**body, "messages": [message_to(message) for message in told]}


def query_of(raw: bytes) -> dict[str, str]:
    """A query string as its parameters, each given once."""
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS)
    except UnicodeDecodeError as exc:
        raise errors.InvalidRequest("the query is not percent-encoded UTF-8") from exc
    except ValueError as exc:
        raise errors.InvalidRequest(f"the query has more than {PARAMETERS} parameters") from exc
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise errors.InvalidRequest(f"the parameter {name[:80]!r} is given twice", param=name[:80])
        found[name] = value
    return found


def refuse_unknown(given: Iterable[str], names: Collection[str], kind: str) -> None:
    """Refuse what nobody reads: a misspelt name would be lost silently, and a `version` with it. Raises `InvalidRequest`."""
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(names)) or 'none'}"
            raise errors.InvalidRequest(f"unknown {kind} {name[:80]!r}; {hint}", param=name[:80])


class SentPath:
    """ASGI middleware: routes match the path as it was sent, so that an id may hold a slash; `Call.path` decodes it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw = scope.get("raw_path")
            scope = {**scope, "path": quote(scope["path"]) if raw is None else raw.decode("latin-1")}
        await self._app(scope, receive, send)
