"""Show JSON as a tree of foldable parts that works without a script."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any, Final

import jinja2
import msgspec
from jinja2.runtime import Context
from markupsafe import Markup

from holdfast.server.inspector.frame import FILTERS, hide_text, mark_controls
from holdfast.server.limits import INSPECTOR_JSON_CHARS

_OPEN: Final = 12
"""Objects and lists with more items than this are folded at first."""
_OPEN_DEPTH: Final = 3
"""Objects and lists at this depth or deeper are folded at first."""
_DEPTH: Final = 30
"""Deeper values are shown as a line of JSON."""
_NAME: Final = 200
"""Characters of the name of a field."""
_TEXT: Final = 2_000
"""Characters of one text in a tree."""
_WHOLE: Final = 5_000
"""Characters of a text that is not JSON."""
_CONTROLS: Final = 10
"""Control characters of one text in a tree that are marked."""
_ITEMS: Final = 300
"""Items of one tree."""


def parse_json(text: str) -> Any:
    """Return the JSON object or list in a text; the text itself if it is something else, or too long to be shown as a tree."""
    if len(text) > INSPECTOR_JSON_CHARS or not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text


@jinja2.pass_context
def format_tree(context: Context, value: Any) -> Markup:
    """Return a value from a log as HTML: JSON as a tree, any other text as text. It is the filter `tree`."""
    if context["page"].hides_content:
        return hide_text(value)
    value = parse_json(value) if isinstance(value, str) else value
    if isinstance(value, str):
        return Markup(f'<div class="text">{_escape(value, _WHOLE)}</div>')  # noqa: S704 - escaped
    tree = _Tree(min(_ITEMS, context["page"].json_items))
    drawn = Markup(f'<div class="tree">{tree.draw(value)}</div>')  # noqa: S704 - escaped
    context["page"].json_items -= tree.drawn
    return drawn


@jinja2.pass_context
def format_preview(context: Context, text: str, limit: int = 110) -> Markup:
    """Return the beginning of the arguments of a tool call on one line, as HTML. It is the filter `preview`."""
    if context["page"].hides_content:
        return hide_text(text)
    value = parse_json(text)
    if isinstance(value, dict):
        names = list(value.items())[:20]
        text = ", ".join(f"{name}: {one if isinstance(one, str) else _encode(one)}" for name, one in names)
    line = " ".join(text[: 4 * limit].split())
    return mark_controls(line[:limit]) + ("…" if len(line) > limit else "")


class _Tree:
    """Draws one tree with at most `limit` items.

    It joins plain strings, in which every text from outside passes `_escape`: `Markup` would take three times as long.
    """

    def __init__(self, limit: int) -> None:
        self.drawn = 0
        self._limit = limit

    def draw(self, value: Any, depth: int = 0) -> str:
        if not isinstance(value, dict | list):
            return _draw_leaf(value)
        if depth >= _DEPTH:
            return f'<span class="text">{_escape(_encode(value), _TEXT)}</span>'
        items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
        rows: list[str] = []
        for name, item in items:
            if self.drawn >= self._limit:
                rows.append(f'<li class="cut">… {len(value) - len(rows):,} more items</li>')
                break
            self.drawn += 1
            rows.append(self._draw_item(str(name), item, depth))
        return f"<ul>{''.join(rows)}</ul>"

    def _draw_item(self, name: str, value: Any, depth: int) -> str:
        key = f'<span class="key">{_escape(name, _NAME)}</span>'
        if not isinstance(value, dict | list):
            return f"<li>{key} {_draw_leaf(value)}</li>"
        if not value:
            return f"<li>{key} {'{}' if isinstance(value, dict) else '[]'}</li>"
        count = f"{{{len(value)}}}" if isinstance(value, dict) else f"[{len(value)}]"
        is_open = " open" if len(value) <= _OPEN and depth < _OPEN_DEPTH else ""
        inner = self.draw(value, depth + 1)
        return f'<li><details{is_open}><summary>{key} <span class="soft">{count}</span></summary>{inner}</details></li>'


def _draw_leaf(value: Any) -> str:
    if isinstance(value, str):
        return f'<span class="text">{_escape(value, _TEXT)}</span>'
    return f'<span class="literal">{_escape(msgspec.json.encode(value).decode(), _TEXT)}</span>'


def _encode(value: Any) -> str:
    """Return a value as JSON. A value that could just be decoded may be nested too deeply to be encoded."""
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        return "… nested too deeply"


def _escape(text: str, limit: int) -> str:
    """Return a text as HTML, cut after `limit` characters."""
    shown = text[:limit]
    marked = escape(shown) if shown.isascii() and shown.isprintable() else str(mark_controls(shown, _CONTROLS))
    if len(text) > limit:
        marked += f'<span class="cut">… {len(text) - limit:,} more characters</span>'
    return marked


FILTERS.update(tree=format_tree, preview=format_preview)
