"""Change data from pages: forms that name an action, which is a route of the REST API.

A form is sent to `/inspect/do`. It contains the name of the action, parameters of the route (`path.NAME`, `query.NAME`, `body.NAME`), the
version that the data must have (`if-match`), the page to return to, and a token that pages of other sites cannot know. The macro `action` of
`macros.html` writes such a form.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from holdfast.errors import InvalidRequest, TooLarge
from holdfast.server.http import Call
from holdfast.server.inspector.access import check_origin, check_path, make_error_page, redirect
from holdfast.server.inspector.frame import HTML, NOTICES, make_csrf_token, render
from holdfast.server.inspector.rest import call_rest, make_path
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes
from holdfast.wire.strict_json import decode_json

routes = Routes("inspector", lenient=True)
FieldKind = Literal["text", "flag", "integer", "number", "json", "list", "words"]


@dataclass(frozen=True)
class Action:
    """A change that a form can make."""

    method: str
    path: str
    """Path of the route, with parameters in braces."""
    notice: str
    """Report for the page that is shown next."""
    kinds: Mapping[str, FieldKind]
    """Kinds of the fields in the body. A field that is not listed is text. `words` is a list in one field, separated by commas."""
    template: str
    """Template of a page that shows the answer as `answer`; empty: return to the page with the form."""


ACTIONS: Final[dict[str, Action]] = {}
"""The actions, by name. Modules of pages add theirs with `declare_action`."""


def declare_action(
    name: str, method: str, path: str, notice: str = "Done.", *, template: str = "", **kinds: FieldKind
) -> None:
    """Add an action under a name that forms use. The other arguments are the fields of `Action`; `kinds` are given one by one."""
    declare_notice(name, notice)
    ACTIONS[name] = Action(method, path, notice, kinds, template)


def declare_notice(name: str, text: str) -> None:
    """Add the report on a change that a page makes itself, without an action."""
    assert name not in NOTICES, name
    NOTICES[name] = text


def return_to(back: str, notice: str) -> Reply:
    """Return a response that sends the browser back to a page, which then reports the change."""
    start, _, fragment = back.partition("#")
    separator = "&" if "?" in start else "?"
    return redirect(f"{start}{separator}notice={notice}" + (f"#{fragment}" if fragment else ""))


def check_form(call: Call, form: Mapping[str, list[str]]) -> None:
    """Raise `Refused` if a form does not come from a page that this server made for the caller."""
    check_origin(call)
    if not hmac.compare_digest(form.get("csrf", [""])[0].encode(), make_csrf_token(call.request.scope).encode()):
        message = (
            "this form is outdated, because you signed in again or the server restarted: reload the page and repeat"
        )
        raise Refused(403, "outdated_form", message)


@routes.add("POST", "/inspect/do", "read", answer=HTML)
async def do(call: Call) -> Reply:
    """Run the action that a form names, through its REST route, which checks the caller's rights."""
    form = await call.read_form()
    check_form(call, form)
    name = form.get("action", [""])[0]
    action = ACTIONS.get(name)
    if action is None:
        raise InvalidRequest(f"unknown action {name[:80]!r}", param="action")
    back = check_path(form.get("next", ["/"])[0])
    try:
        path = make_path(action.path, **_select(form, "path."))
        body = _convert(_select(form, "body.", whole=True), action.kinds)
    except (KeyError, ValueError) as exc:
        raise InvalidRequest(f"the form of {name!r} lacks the field {exc}", param="action") from exc
    has_body = action.method in ("POST", "PUT", "PATCH")
    status, answer = await call_rest(
        call,
        action.method,
        path,
        query=_select(form, "query."),
        body=body if has_body else None,
        version=form.get("if-match", [""])[0],
    )
    if status >= 400:
        return make_error_page(call.request.scope, status, answer["error"], back)
    if action.template:
        return await render(call, action.template, title=action.notice, answer=answer, back=back)
    return return_to(back, name)


def _select(form: Mapping[str, list[str]], prefix: str, *, whole: bool = False) -> dict[str, Any]:
    """Return the fields whose names begin with `prefix`, without it. With `whole`, as lists of values; otherwise the first value."""
    found = {name.removeprefix(prefix): values for name, values in form.items() if name.startswith(prefix)}
    return dict(found) if whole else {name: values[0] for name, values in found.items() if values[0] != ""}


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
            try:
                body[name] = _CONVERTERS[kind](values[0])
            except ValueError as exc:
                raise InvalidRequest(f"{name} must be {_KIND_WORDS[kind]}, not {values[0][:80]!r}", param=name) from exc
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


_CONVERTERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "text": str,
    "flag": _parse_flag,
    "integer": int,
    "number": float,
    "json": decode_field,
}
_KIND_WORDS: Final = {"flag": "true or false", "integer": "a whole number", "number": "a number", "json": "JSON"}
