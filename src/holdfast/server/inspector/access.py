"""Let browsers in: sign in, sign out, serve assets, and turn errors of pages into HTML.

Signing in exchanges an API key for the token of a sign-in, which the browser keeps in a cookie. The key itself is not stored in the browser.
Only pages accept the cookie. The REST API does not.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.types import Scope

from holdfast.server.access import ASSETS, SIGN_IN, Access, is_same_origin, make_cookie
from holdfast.server.http import Call, Caller
from holdfast.server.inspector.frame import (
    ASSET_TYPES,
    HEADERS,
    HTML,
    PageQuery,
    PageView,
    is_secure,
    make_url,
    read_asset,
    render,
    render_template,
)
from holdfast.server.limits import SIGN_IN_BYTES, SIGN_IN_HOURS
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply
from holdfast.server.routes import Routes

routes = Routes("inspector", lenient=True)
OVERVIEW: Final = "/inspect/overview"


class ErrorPages:
    """Converts the errors of one request to pages, and the error that a key is missing to the sign-in page."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __call__(self, reply: Reply) -> Reply:
        if reply.status < 400 or not isinstance(reply.body, dict):
            return reply
        path, query = self._scope["path"], self._scope["query_string"].decode()
        if reply.status == 401 and self._scope["method"] in ("GET", "HEAD"):
            here = "/" if path == OVERVIEW else path
            target = make_url(SIGN_IN, next=f"{here}?{query}" if query else here)
            return Reply(None, 303, {"location": target, "cache-control": "no-store"})
        return _make_error_page(self._scope, reply.status, reply.body["error"])


_ERRORS: Final = {
    400: "The request is not valid",
    401: "Please sign in",
    403: "Not allowed",
    404: "Not found",
    409: "Not now",
    413: "Too large",
    422: "Refused",
    429: "Too many requests",
    503: "The database cannot be reached",
}
"""Titles of error pages."""


def _make_error_page(scope: Scope, status: int, error: Any) -> Reply:
    """Return a page that describes an error. It has the header and the navigation if the caller is known.

    It leads back to the page in `back` of the scope's state, or else to the overview.

    Args:
        scope: ASGI scope of the request.
        status: status of the response.
        error: the error, in OpenAI's format.
    """
    title = _ERRORS.get(status, "Something went wrong")
    values = {"status": status, "error": error, "back": scope["state"].get("back", "/"), "title": title}
    caller: Caller | None = scope["state"].get("caller")
    if caller is None:
        html = render_template("error.html", values)
    else:
        html = render_template("error_in_frame.html", {"page": PageView(scope, caller, title), **values})
    return Reply(html.encode(errors="replace"), status, HEADERS)


# -- assets ------------------------------------------------------------------------


@routes.add("GET", ASSETS, "public", answer=HTML)
async def get_asset(call: Call) -> Reply:
    """Return the stylesheet or the script of the pages."""
    name = call.path["name"]
    if name not in ASSET_TYPES:
        raise Refused(404, "not_found", f"there is no file {name[:80]!r}")
    headers = {**HEADERS, "content-type": ASSET_TYPES[name], "cache-control": "public, max-age=31536000, immutable"}
    return Reply(read_asset(name)[0], headers=headers)


# -- signing in --------------------------------------------------------------------


class SignInQuery(PageQuery, kw_only=True):
    """Query parameters of the sign-in page."""

    next: str | None = None
    """Path to open after signing in."""


def check_path(path: str | None) -> str:
    """Return a path on this server to go to, or `/` if the text is anything else, such as the address of another server."""
    is_ours = path is not None and path.startswith("/") and not path.startswith("//") and "\\" not in path
    return path if is_ours and path is not None and path.isprintable() else "/"


@routes.add("GET", SIGN_IN, "public", answer=HTML)
async def show_sign_in(call: Call, query: SignInQuery) -> Reply:
    """Return the page that asks for an API key."""
    return await render(
        call,
        "sign_in.html",
        title="Sign in",
        next=check_path(query.next),
        error="",
        is_revoked=query.notice == "revoke_key",
    )


@routes.add("POST", SIGN_IN, "public", answer=HTML)
async def sign_in(call: Call) -> Reply:
    """Exchange an API key or token for a sign-in, and send the browser to the page that it wanted."""
    check_origin(call)
    form = await call.read_form(SIGN_IN_BYTES)
    target = check_path(form.get("next", ["/"])[0])
    access: Access = call.request.app.state.access
    key = form.get("key", [""])[0].strip()
    try:
        cookie = await access.sign_in(key)
    except Refused as exc:
        error = "This key is not valid, has expired or was revoked." if exc.status == 401 and key else str(exc)
        return await render(
            call, "sign_in.html", title="Sign in", status=exc.status, next=target, error=error, is_revoked=False
        )
    if cookie is None:  # no key is required here, and this text is not a valid key
        return redirect(target)
    return redirect(target, make_cookie(cookie, is_secure=is_secure(call), seconds=SIGN_IN_HOURS * 3600))


@routes.add("POST", "/inspect/sign-out", "read", answer=HTML)
async def sign_out(call: Call) -> Reply:
    """Let this browser forget its sign-in."""
    check_origin(call)
    return redirect(SIGN_IN, make_cookie("", is_secure=is_secure(call), seconds=0))


def redirect(path: str, cookie: str = "") -> Reply:
    """Return a response that sends the browser to a path of this server with GET, after a form."""
    location = quote(path, safe="/?&=%#:+,;@!$'()*~")
    more = {"set-cookie": cookie} if cookie else {}
    return Reply(None, 303, {"location": location, "cache-control": "no-store", **more})


def check_origin(call: Call) -> None:
    """Raise `Refused` if the page of another site sent this form."""
    if not is_same_origin(call.request.headers, call.request.app.state.inspector.origins):
        raise Refused(
            403, "cross_site_form", "this form was sent by a page of another site, or through another host name"
        )
