"""Render pages: the template environment, what every template can use, and the headers of every page."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial, wraps
from importlib.resources import files
from itertools import islice
from secrets import token_bytes
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import jinja2
import msgspec
from jinja2.runtime import Context
from markupsafe import Markup, escape
from starlette.types import Scope

from holdfast._version import __version__
from holdfast.accounting import run_cpu
from holdfast.config.gateway import Inspector
from holdfast.domain.objects import Request
from holdfast.domain.session import DEFAULT_USER, SessionRef
from holdfast.durations import format_utc
from holdfast.numbers import format_count
from holdfast.server.http import Call, Caller
from holdfast.server.inspector.live import LiveUpdates
from holdfast.server.limits import INSPECTOR_JSON_ITEMS, INSPECTOR_TEXT_CHARS
from holdfast.server.permissions import Need, Refused, is_permitted
from holdfast.server.replies import Reply
from holdfast.server.routes import TEXT, Route, Routes

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
HTML: Final = {"text/html": TEXT}
"""The `answer` of a route that returns a page."""
HEADERS: Final[Mapping[str, str]] = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    # With `no-referrer`, browsers would send `Origin: null` with forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
    "vary": "Accept",
}
"""Headers of every page."""
NAVIGATION: Final[tuple[tuple[str, str, Need], ...]] = (
    ("/", "Overview", "read"),
    ("/inspect/sessions", "Sessions", "read"),
    ("/inspect/memories", "Memories", "read"),
    ("/inspect/state", "State", "read"),
    ("/inspect/artifacts", "Artifacts", "read"),
    ("/inspect/agents", "Agents", "read"),
    ("/inspect/playground", "Playground", "write"),
    ("/inspect/keys", "Keys", "shared admin"),
    ("/inspect/retention", "Retention", "shared admin"),
)
"""Path, title and needed permission of the pages in the navigation."""


_PARENTS: Final = {"/inspect/deletions": "/inspect/retention"}
"""For pages below none of these paths, the page to which they belong."""
_CURSORS: Final = ("after", "after_user", "before", "start")
"""Query parameters that choose a page of a list."""
NOTICES: Final = {
    "state_saved": "The value was saved.",
    "state_deleted": "The key was deleted.",
    "record_saved": "The record was saved.",
    "record_deleted": "The record was deleted.",
}
"""Reports on what led to a page, by the name of the change. `actions` adds those of the actions."""
FILTERS: Final[dict[str, Callable[..., Any]]] = {}
"""Filters that other modules add to the templates, by name."""
GLOBALS: Final[dict[str, Any]] = {}
"""Functions and tables that other modules add to the templates, by name."""


class PageQuery(Request, kw_only=True):
    """Query parameters of every page."""

    notice: str | None = None
    """Name of the action that led to this page, which then reports it."""


@dataclass(frozen=True)
class InspectorState:
    """The settings and secrets that all pages of a server share."""

    settings: Inspector
    origins: frozenset[str]
    """Origins that the configuration allows in addition to the server's own."""
    routes: Mapping[str, Route]
    """Routes of the REST API, by method and path, for the pages and their actions."""
    secret: bytes = field(default_factory=partial(token_bytes, 32))
    """Secret of the forms of callers that are not signed in."""
    live: LiveUpdates = field(default_factory=LiveUpdates)
    """Streams of events to open pages."""


class Segment(NamedTuple):
    """A part of a stacked bar."""

    name: str
    """Class name of the colour, such as `task`; see `inspector.css`."""
    label: str
    """Text in the legend."""
    value: float
    href: str = ""
    """Address that the part links to; empty: none."""


class PageView:
    """The page that a template renders: its address, its caller, and the rights of the caller. Templates know it as `page`.

    Args:
        scope: ASGI scope of the request.
        caller: the caller.
        title: title of the page.
        parameters: query parameters of the page.
    """

    def __init__(self, scope: Scope, caller: Caller, title: str, parameters: Mapping[str, str] | None = None) -> None:
        given = parameters or {}
        self.title = title
        self.notice = NOTICES.get(given.get("notice", ""), "")
        """Report on the action that led to the page; empty: none."""
        self.version = __version__
        self.principal = caller.principal
        self.tenant = caller.hf.tenant
        self.hides_content = hides_content(scope, caller)
        """True if the caller may not see what messages say."""
        self.json_items = INSPECTOR_JSON_ITEMS
        """Items of JSON that may still be drawn on the page."""
        self.is_signed_in = get_token(scope) is not None
        self.csrf = make_csrf_token(scope)
        path: str = scope["path"]
        self.path = "/" if path == "/inspect/overview" else path
        self._scope = scope
        self.parameters = {name: value for name, value in given.items() if name != "notice"}
        """Query parameters of the page."""

    @property
    def navigation(self) -> list[tuple[str, str, bool]]:
        """Path and title of the pages that the caller may open, and whether it is the current one."""
        here = _PARENTS.get(self.path, self.path)
        return [
            (path, title, here == path or (path != "/" and here.startswith(f"{path}/")))
            for path, title, need in NAVIGATION
            if self.can(need)
        ]

    def can(self, need: Need) -> bool:
        """Return True if the caller has a permission."""
        return is_permitted(self._scope, need)

    def url(self, **changes: Any) -> str:
        """Return the address of this page with other query parameters. None removes a parameter."""
        return make_url(self.path, **{**self.parameters, **changes})

    @property
    def first_url(self) -> str | None:
        """Address of the first page of the list on this page; None: this is the first page."""
        later = {name: None for name in _CURSORS if name in self.parameters}
        return self.url(**later) if later else None


def hides_content(scope: Scope, caller: Caller) -> bool:
    """Return True if the caller may not see what messages say."""
    settings: Inspector = scope["app"].state.inspector.settings
    return caller.principal.role in settings.hide_content


def check_content(call: Call) -> None:
    """Raise `Refused` if the caller may not see what messages say."""
    if hides_content(call.request.scope, call.caller):
        raise Refused(403, "content_hidden", f"keys with the role {call.principal.role!r} see no content here")


def make_url(path: str, /, **query: Any) -> str:
    """Return a path with query parameters. Parameters that are None or empty are left out."""
    given = {name: value for name, value in query.items() if value is not None and value != ""}
    return f"{path}?{urlencode(given)}" if given else path


def make_path(template: str, /, **parameters: str) -> str:
    """Return a path with these parameters, which are encoded."""
    return template.format(**{name: quote(value, safe="") for name, value in parameters.items()})


def make_session_url(session: Any, *parts: Any, **query: Any) -> str:
    """Return the address of a session's page.

    Args:
        session: anything with `session_id` or `id`, and `user_id`, or an object of the REST API.
        parts: further parts of the path, such as `prompt`.
        query: query parameters.
    """
    if isinstance(session, Mapping):
        session = SessionRef(session["user_id"], session["id"])
    session_id = getattr(session, "session_id", None) or session.id
    path = "/".join(["/inspect/sessions", *(quote(str(part), safe="") for part in (session_id, *parts))])
    user = None if session.user_id == DEFAULT_USER else session.user_id
    return make_url(path, user_id=user, **query)


def is_secure(call: Call) -> bool:
    """Return True if the browser uses HTTPS, directly or through a trusted proxy."""
    return call.request.url.scheme == "https"


def make_origin(call: Call) -> str:
    """Return the address under which the browser reaches this server, without a path. Pages show it in commands."""
    return f"{'https' if is_secure(call) else 'http'}://{call.request.url.netloc}"


def get_token(scope: Scope) -> str | None:
    """Return the token of the browser's sign-in, or None if the request did not use one."""
    token: str | None = scope.get("state", {}).get("sign_in")
    return token


def make_csrf_token(scope: Scope) -> str:
    """Return the text that forms of this caller must contain. Pages of other sites cannot know it.

    It is derived from the token of the sign-in. On a server that requires no key, it is derived from a secret of the process.
    """
    state: InspectorState = scope["app"].state.inspector
    token = get_token(scope)
    key = state.secret if token is None else token.encode()
    return hmac.new(key, b"inspector form", hashlib.sha256).hexdigest()


async def render(call: Call, template: str, *, title: str, status: int = 200, **values: Any) -> Reply:
    """Return a page, rendered in a thread.

    Args:
        call: the request.
        template: name of the template, such as `sessions.html`.
        title: title of the page.
        status: status of the response.
        values: variables of the template.
    """
    page = PageView(call.request.scope, call.caller, title, call.parameters)
    html = await run_cpu(render_template, template, {"page": page, **values})
    return Reply(html.encode(errors="replace"), status, HEADERS)


Values = dict[str, Any] | Reply
"""The result of a page: the variables of its template, which may also name another `template`, `title` or `status`; or a finished response."""


class Pages(Routes):
    """The pages of one subject."""

    def __init__(self) -> None:
        super().__init__("inspector")

    def page(self, path: str, need: Need, template: str, title: str = "", tab: str = "") -> Callable[[F], F]:
        """Return a decorator that declares a page: an async function that gets the request and its parameters, as a route does.

        Args:
            path: path, with parameters in braces.
            need: permission that the page requires.
            template: name of its template, which also gets the parameters.
            title: its title.
            tab: its tab, for pages of a session.
        """

        def declare(show: F) -> F:
            @wraps(show)
            async def handler(call: Call, **given: Any) -> Reply:
                shown: Values = await show(call, **given)
                if isinstance(shown, Reply):
                    return shown
                frame = {"template": template, "title": title, **self.make_frame(call, title, tab, given)}
                return await render(call, **{**frame, **given, **shown})

            self.add("GET", path, need, answer=HTML)(handler)
            return show

        return declare

    def make_frame(self, call: Call, title: str, tab: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the variables that all pages of the subject have."""
        return {}


def render_template(template: str, values: Mapping[str, Any]) -> str:
    """Render a template with these variables."""
    return load_environment().get_template(template).render(values)


@cache
def load_environment() -> jinja2.Environment:
    """Return the environment of all templates. Every value is escaped, and unknown variables are errors."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.server.inspector"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        content=_format_content,
        inline=_format_inline,
        name=format_name,
        number=format_number,
        plural=_format_plural,
        share=format_share,
        utc=format_utc,
        size=format_size,
        **FILTERS,
    )
    environment.globals.update(
        session_url=make_session_url,
        make_url=make_url,
        make_path=make_path,
        asset=make_asset_url,
        mark_spans=mark_spans,
        **GLOBALS,
    )
    return environment


# -- formats -----------------------------------------------------------------------

_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that change how other text appears, or are invisible: control characters, and marks for the direction of text."""


def mark_controls(text: str, most: int = 100) -> Markup:
    """Return a text as HTML in which invisible characters and control characters are visible, as `U+202E`.

    A mark is much longer than its character. So the first `most` characters are marked, and the others become U+FFFD.
    """
    if _CONTROLS.search(text) is None:
        return escape(text)
    parts: list[Markup] = []
    end = 0
    for found in islice(_CONTROLS.finditer(text), most):
        mark = Markup('<span class="control">%s</span>') % f"U+{ord(found[0]):04X}"
        parts += [escape(text[end : found.start()]), mark]
        end = found.end()
    return Markup("").join([*parts, escape(_CONTROLS.sub("\ufffd", text[end:]))])


def spell_controls(text: str) -> str:
    """Return a text in which invisible characters and control characters are spelt, as `U+202E`, for a stream of plain text."""
    return _CONTROLS.sub(lambda found: f"U+{ord(found[0]):04X}", text)


_MARKS: Final = 50
"""Occurrences of words that are marked in one text."""


def hide_text(text: Any) -> Markup:
    """Return the placeholder that a caller who may not see a text gets: its length."""
    text = text if isinstance(text, str) else format_json(text)
    return Markup('<span class="hidden-content">hidden: %s characters</span>') % format_number(len(text))


def highlight(text: str, words: str) -> Markup:
    """Return a text as HTML in which the first occurrences of `words` are marked. Case and white space are ignored."""
    if not words.split():
        return mark_controls(text)
    pattern = r"\s+".join(map(re.escape, words.split()))
    pieces = re.split(f"({pattern})", text, maxsplit=_MARKS, flags=re.IGNORECASE)
    marked = [
        Markup("<mark>%s</mark>") % mark_controls(one) if at % 2 else mark_controls(one)
        for at, one in enumerate(pieces)
    ]
    return Markup("").join(marked)


def mark_spans(text: str, spans: Sequence[Sequence[int]]) -> Markup:
    """Return a text as HTML in which ranges of characters, each with its start and end, are marked."""
    parts, end = [], 0
    for start, stop in spans:
        parts += [mark_controls(text[end:start]), Markup("<mark>%s</mark>") % mark_controls(text[start:stop])]
        end = stop
    return Markup("").join([*parts, mark_controls(text[end:])])


@jinja2.pass_context
def _format_content(context: Context, text: Any, limit: int = INSPECTOR_TEXT_CHARS, words: str | None = None) -> Markup:
    """Return text of a log as HTML. Every text that a user, a model or a tool wrote must pass this filter or `inline`.

    A caller who may not see content gets only its length. A long text is cut, and the rest is counted. Occurrences of `words` are marked.
    """
    text = text if isinstance(text, str) else format_json(text)
    if context["page"].hides_content:
        return hide_text(text)
    shown = highlight(text[:limit], words or "")
    if len(text) > limit:
        shown += Markup('<span class="cut">… %s more characters</span>') % format_number(len(text) - limit)
    return shown


@jinja2.pass_context
def _format_inline(context: Context, text: Any, limit: int = 160) -> Markup:
    """Return the beginning of a text of a log on one line, as HTML."""
    text = text if isinstance(text, str) else format_json(text)
    if context["page"].hides_content:
        return _format_content(context, text)
    words = " ".join(text[: 4 * limit].split())
    shown = mark_controls(words[:limit])
    return shown + "…" if len(words) > limit or len(text) > 4 * limit else shown


def format_name(name: str, limit: int = 200) -> Markup:
    """Return an id or a name as HTML, with invisible characters marked. Unlike `inline`, it is shown to every role."""
    return mark_controls(name[:limit]) + ("…" if len(name) > limit else "")


def format_number(value: float | None) -> str:
    """Return a number with commas; an unknown number is a dash."""
    return "\N{EN DASH}" if value is None else f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _format_plural(count: int | None, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, such as `1 session`; an unknown number is a dash."""
    return f"{format_number(None)} {plural or f'{noun}s'}" if count is None else format_count(count, noun, plural)


def format_share(value: float | None) -> str:
    """Return a fraction as a percentage; an unknown one is a dash."""
    return "\N{EN DASH}" if value is None else f"{100 * value:.1f} %" if 0 < value < 0.1 else f"{100 * value:.0f} %"


def format_size(size: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def format_compact(value: float) -> str:
    """Return a number with at most three digits and a unit, such as `1.2 M`."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.1f} {unit}" if scaled < 9.95 else f"{scaled:.0f} {unit}"
    return f"{value:.0f}"


def format_json(value: Any) -> str:
    """Return a value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def format_editable_json(value: Any) -> str:
    """Return a value as indented JSON for a form. Characters that change how other text appears are escaped, which JSON allows in texts."""
    return _CONTROLS.sub(lambda found: json.dumps(found[0])[1:-1], format_json(value))


# -- assets ------------------------------------------------------------------------

ASSET_TYPES: Final = {
    "inspector.css": "text/css; charset=utf-8",
    "inspector.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""Files that pages load, with their types."""


@cache
def read_asset(name: str) -> tuple[bytes, str]:
    """Return the content of a file that pages load, and a hash of it."""
    data = files("holdfast.server.inspector").joinpath("static", name).read_bytes()
    return data, hashlib.sha256(data).hexdigest()[:16]


def make_asset_url(name: str) -> str:
    """Return the address of a file that pages load. It changes with the content, so browsers may keep the file forever."""
    return f"/inspect/assets/{name}?v={read_asset(name)[1]}"
