"""Requests of browsers to the inspector's pages: which they are, the cookie of a sign-in, and which site sent them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from starlette.types import Scope

PAGES: Final = "/inspect/"
"""Beginning of the paths of all pages except `/`."""
SIGN_IN: Final = "/inspect/sign-in"
ASSETS: Final = "/inspect/assets/{name}"
COOKIE: Final = "holdfast_session"


def prefers_html(accept: str) -> bool:
    """Return True if the header `Accept` prefers HTML to JSON. Browsers do. Programs send `*/*` or no header."""
    kinds = [kind.partition(";")[0].strip().lower() for kind in accept.split(",")]
    named = [kind for kind in kinds if kind in ("text/html", "application/xhtml+xml", "application/json")]
    return bool(named) and named[0] != "application/json"


def is_page(scope: Scope) -> bool:
    """Return True if a request is for a page of the inspector, or for something that a page loads."""
    path: str = scope["path"]
    if path == "/":
        accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
        return prefers_html(accept.decode("latin-1"))
    return path.startswith(PAGES)


def needs_sign_in(scope: Scope) -> bool:
    """Return True if a request is for a page that only an authenticated caller may see."""
    path: str = scope["path"]
    return is_page(scope) and path != SIGN_IN and not path.startswith(ASSETS.partition("{")[0])


def read_cookie(headers: Mapping[str, str]) -> str | None:
    """Return the token in the cookie of a request, or None if the request has none.

    All servers of a host name share its cookies, whatever their port, so cookies of others may have any form. If the cookie is there twice,
    the last one counts.
    """
    pairs = (pair.partition("=") for pair in headers.get("cookie", "").split(";"))
    found = [value.strip() for name, _, value in pairs if name.strip() == COOKIE]
    return found[-1] if found else None


def make_cookie(token: str, *, is_secure: bool, seconds: int) -> str:
    """Return the header `Set-Cookie` for a token. With an empty token and 0 seconds, the browser forgets the cookie.

    Args:
        token: token of the sign-in.
        is_secure: True if the browser uses HTTPS; it then sends the cookie over HTTPS only.
        seconds: time after which the browser forgets the cookie.
    """
    # SameSite=Lax, not Strict: a link in a chat or a ticket must open the page for a user who is signed in.
    secure = "; Secure" if is_secure else ""
    return f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}"


def is_same_origin(headers: Mapping[str, str], origins: Collection[str]) -> bool:
    """Return True if a request with a form comes from this server's own pages.

    Browsers send `Sec-Fetch-Site`, `Origin` or both. A request without either is not from a page.

    Args:
        headers: headers of the request, with lower-case names.
        origins: origins that the configuration allows, such as that of a proxy.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    # No page can add the header of a proxy to a form, so it may be believed here.
    hosts = {headers.get("host"), headers.get("x-forwarded-host")} - {None, ""}
    return origin is None or origin in origins or origin.partition("://")[2] in hosts
