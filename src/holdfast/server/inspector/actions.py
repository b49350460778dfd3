"""Call routes of the REST API from pages, and change data with forms that name an action.

A form is sent to `/inspect/do`. It contains the name of the action, parameters of its route (`path.NAME`, `query.NAME`, `body.NAME`), the
version that the data must have (`if-match`), the page to return to, and a token that pages of other sites cannot know. The macros `action`
and `fields` of `macros.html` write such forms. The browser then returns to the page, which shows the notice of the action.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from holdfast.accounting import run_cpu
from holdfast.errors import InvalidRequest, TooLarge
from holdfast.server.http import Call
from holdfast.server.inspector.access import check_origin, check_path, redirect
from holdfast.server.inspector.frame import HTML, NOTICES, InspectorState, make_csrf_token, render
from holdfast.server.limits import ANSWER_BYTES
from holdfast.server.permissions import Refused, permit
from holdfast.server.replies import Reply, encode_json
from holdfast.server.routes import Route, Routes
from holdfast.wire.strict_json import decode_json

routes = Routes("inspector", lenient=True)
FieldKind = Literal["text", "flag", "integer", "number", "json", "list", "words"]


class Action(NamedTuple):
    """A change that a form can make."""

    route: str
    """Method and path of a route of the REST API."""
    notice: str
    """Report for the page that is shown next."""
    kinds: Mapping[str, FieldKind] = {}
    """Kinds of the fields in the body. A field that is not listed is text. `words` is a list in one field, separated by commas."""
    template: str = ""
    """Template of a page that shows the answer as `answer`; empty: return to the page with the form."""


_SESSION: Final = "/v1/sessions/{session_id}"
_MESSAGE: Final = f"{_SESSION}/messages/{{seq}}"
_DONE: Final = "session_done.html"
ACTIONS: Final[Mapping[str, Action]] = {
    "pin_message": Action(
        f"PATCH {_MESSAGE}", "Pinned. The message is in every prompt from now on.", {"pinned": "flag"}
    ),
    "unpin_message": Action(
        f"PATCH {_MESSAGE}", "Unpinned. The message can leave the prompt again.", {"pinned": "flag"}
    ),
    "rate_message": Action(f"PATCH {_MESSAGE}", "The importance of the message was changed.", {"importance": "json"}),
    "send_again": Action(
        f"PATCH {_MESSAGE}",
        "The message is sent to its provider again, from the next prompt on.",
        {"refused_by": "list"},
    ),
    "erase_message": Action(f"DELETE {_MESSAGE}", "The content was erased.", template=_DONE),
    "close_session": Action(f"POST {_SESSION}/close", "Closed. The next message opens it again."),
    "delete_session": Action(f"DELETE {_SESSION}", "The session was deleted.", template=_DONE),
    "fork_session": Action(f"POST {_SESSION}/fork", "The session was copied.", {"at_turn": "integer"}, _DONE),
    "rewind_session": Action(f"POST {_SESSION}/rewind", "The session was rewound.", {"at_turn": "integer"}),
    "move_session": Action(f"POST {_SESSION}/move", "The session was moved.", {"agent": "json"}, _DONE),
    "set_session_ttl": Action(f"PATCH {_SESSION}", "The expiry was changed.", {"ttl": "json"}),
    "drop_compaction": Action(
        f"DELETE {_SESSION}/compactions/{{compaction_id}}", "Undone. Its messages are sent again, as far as they fit."
    ),
    "delete_artifact": Action(f"DELETE {_SESSION}/artifacts/{{name}}", "The artifact was deleted."),
    "create_memory": Action("POST /v1/memories", "The memory was saved.", {"tags": "words", "importance": "number"}),
    "change_memory": Action(
        "PATCH /v1/memories/{memory_id}",
        "The memory was changed. If its text is new, the old one is kept as history.",
        {"tags": "words", "importance": "number"},
    ),
    "forget_memory": Action("DELETE /v1/memories/{memory_id}", "The memory was deleted, with its older versions."),
    "review_memory": Action("POST /v1/memories/{memory_id}/review", "The review was recorded."),
    "review_file_change": Action(
        "POST /v1/users/{user_id}/memory_files/{change_id}/review", "The review was recorded."
    ),
    "consolidate": Action("POST /v1/memories/consolidate", "Consolidation", {"dry_run": "flag"}, "memory_sweep.html"),
    "checkpoint": Action("POST /v1/workspaces/{agent}/checkpoint", "The files of the workspace were committed."),
    "create_key": Action(
        "POST /v1/keys",
        "The key was created",
        {"rate": "integer", "max_body": "integer", "budget": "integer"},
        "key_created.html",
    ),
    "revoke_key": Action("DELETE /v1/keys/{key_id}", "The key was revoked, and its sign-ins have ended."),
}
"""The actions, by name."""
NOTICES.update({name: action.notice for name, action in ACTIONS.items()})


class RouteCall(Call):
    """A request of a page to a route of the REST API, with the caller of the page.

    Args:
        call: the page's request.
        route: the route.
        path: parameters of the path.
        query: query parameters.
        body: JSON-compatible body.
        version: version that the data must have, for `If-Match`; empty: any.
    """

    def __init__(
        self, call: Call, route: Route, path: Mapping[str, str], query: Mapping[str, str], *, body: Any, version: str
    ) -> None:
        headers = [(b"if-match", version.encode(errors="replace"))] if version else []
        encoded = {name: quote(value, safe="") for name, value in path.items()}
        scope = {**call.request.scope, "method": route.method, "path_params": encoded, "headers": headers}
        super().__init__(scope, call.request.receive)
        self._query = dict(query)
        self._body = body

    async def read_body(self) -> Any:
        """Return the body."""
        return self._body


async def run_route(
    call: Call,
    route: str,
    path: Mapping[str, str] | None = None,
    query: Mapping[str, Any] | None = None,
    *,
    body: Any = None,
    version: str = "",
) -> bytes:
    """Run a route of the REST API with the rights of the page's caller, and return its answer as JSON. An empty answer is `null`.

    Args:
        call: the page's request.
        route: method and path of the route, with parameters in braces.
        path: parameters of the path.
        query: query parameters. Those that are None are left out.
        body: JSON-compatible body.
        version: version that the data must have; empty: any.

    Raises:
        Refused: the caller may not use the route.
        HoldfastError: the route returns this error.
    """
    state: InspectorState = call.request.app.state.inspector
    found = state.routes[route]
    given = {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in (query or {}).items()
        if value is not None
    }
    inner = RouteCall(call, found, path or {}, given, body=body, version=version)
    try:
        permit(inner.request.scope, found.need)
        answer: bytes | None = (await encode_json(await found(inner), large=inner.is_large)).body
    finally:
        inner.release()
    return answer or b"null"


async def call_route(call: Call, route: str, *parameters: Mapping[str, Any], **more: Any) -> Any:
    """Run a route as `run_route` does, and return its answer, decoded."""
    answer = await run_route(call, route, *parameters, **more)
    return await run_cpu(msgspec.json.decode, answer, long=len(answer) > ANSWER_BYTES)


def return_to(back: str, notice: str) -> Reply:
    """Return a response that sends the browser back to a page, which then reports a change; `notice` is its name in `NOTICES`."""
    start, _, fragment = back.partition("#")
    separator = "&" if "?" in start else "?"
    return redirect(f"{start}{separator}notice={notice}" + (f"#{fragment}" if fragment else ""))


async def read_form(call: Call) -> dict[str, list[str]]:
    """Return the fields of a form. Raise `Refused` if the form does not come from a page that this server made for the caller."""
    form = await call.read_form()
    check_origin(call)
    if not hmac.compare_digest(form.get("csrf", [""])[0].encode(), make_csrf_token(call.request.scope).encode()):
        message = (
            "this form is outdated, because you signed in again or the server restarted: reload the page and repeat"
        )
        raise Refused(403, "outdated_form", message)
    return form


@routes.add("POST", "/inspect/do", "read", answer=HTML)
async def do(call: Call) -> Reply:
    """Run the action that a form names, through its REST route, which checks the caller's rights."""
    form = await read_form(call)
    name = form.get("action", [""])[0]
    action = ACTIONS.get(name)
    if action is None:
        raise InvalidRequest(f"unknown action {name[:80]!r}", param="action")
    back = check_path(form.get("next", ["/"])[0])
    path, query = ({one: values[0] for one, values in _select(form, kind).items()} for kind in ("path.", "query."))
    body = _convert(_select(form, "body."), action.kinds)
    try:
        action.route.format(**{one: value for one, value in path.items() if value})
    except KeyError as exc:
        raise InvalidRequest(f"the form of {name!r} lacks the field {exc}", param="action") from exc
    call.request.scope["state"]["back"] = back
    query = {one: value for one, value in query.items() if value}
    answer = await call_route(call, action.route, path, query, body=body, version=form.get("if-match", [""])[0])
    if action.template:
        return await render(call, action.template, title=action.notice, answer=answer, back=back)
    return return_to(back, name)


def _select(form: Mapping[str, list[str]], prefix: str) -> dict[str, list[str]]:
    """Return the fields whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): values for name, values in form.items() if name.startswith(prefix)}


def _convert(fields: Mapping[str, list[str]], kinds: Mapping[str, FieldKind]) -> dict[str, Any]:
    """Return the body of a request. Empty fields are left out. Raise `InvalidRequest` if a field is not of its kind."""
    body: dict[str, Any] = {}
    for name, values in fields.items():
        kind = kinds.get(name, "text")
        if kind == "list":
            body[name] = [value for value in values if value]
        elif kind == "words":
            body[name] = [word for value in values[0].split(",") if (word := value.strip())]
        elif values[0] != "":
            convert, words = _CONVERTERS[kind]
            try:
                body[name] = convert(values[0])
            except ValueError as exc:
                raise InvalidRequest(f"{name} must be {words}, not {values[0][:80]!r}", param=name) from exc
    return body


def decode_field(text: str) -> Any:
    """Return the JSON value in a field of a form. Raise `ValueError` if it is not valid, as in the body of a request."""
    try:
        return decode_json(text.encode(errors="replace"), what="the value")
    except (InvalidRequest, TooLarge) as exc:
        raise ValueError(str(exc)) from exc


def _parse_flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _parse_number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


_CONVERTERS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "text": (str, "text"),
    "flag": (_parse_flag, "true or false"),
    "integer": (int, "a whole number"),
    "number": (_parse_number, "a number"),
    "json": (decode_field, "JSON"),
}
"""For each kind of field, the function that converts its text, and what it must be."""
