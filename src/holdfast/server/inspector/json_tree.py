"""Show JSON as a tree of foldable parts that works without a script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import jinja2
import msgspec
from jinja2.runtime import Context
from markupsafe import Markup

from holdfast.limits import INSPECTOR_JSON_CHARS
from holdfast.server.inspector.frame import FILTERS, format_number, hide_text, mark_controls

_OPEN: Final = 12
"""Objects and lists with more items than this are folded at first."""
_DEPTH: Final = 30
"""Deeper values are shown as a line of JSON."""
_TEXT: Final = 2_000
"""Characters of one text in a tree."""
_WHOLE: Final = 5_000
"""Characters of a text that is not JSON."""
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
        return Markup('<div class="text">%s</div>') % _cut(value)
    tree = _Tree(min(_ITEMS, context["page"].json_items))
    drawn = Markup('<div class="tree">%s</div>') % tree.draw(value)
    context["page"].json_items -= tree.drawn
    return drawn


class _Tree:
    """Draws one tree with at most `limit` items."""

    def __init__(self, limit: int) -> None:
        self.drawn = 0
        self._limit = limit

    def draw(self, value: Any, depth: int = 0) -> Markup:
        if not isinstance(value, Mapping | list):
            return _draw_leaf(value)
        if depth >= _DEPTH:
            return Markup('<span class="text">%s</span>') % _cut(msgspec.json.encode(value).decode())
        items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else enumerate(value)
        if not value:
            return Markup("{}") if isinstance(value, Mapping) else Markup("[]")
        rows: list[Markup] = []
        for name, item in items:
            if self.drawn >= self._limit:
                more = format_number(len(value) - len(rows))
                rows.append(Markup('<li class="cut">… %s more items</li>') % more)
                break
            self.drawn += 1
            rows.append(self._draw_item(str(name), item, depth))
        return Markup("<ul>%s</ul>") % Markup("").join(rows)

    def _draw_item(self, name: str, value: Any, depth: int) -> Markup:
        key = Markup('<span class="key">%s</span>') % mark_controls(name[:200])
        if not isinstance(value, Mapping | list) or not value:
            return Markup("<li>%s %s</li>") % (key, self.draw(value, depth + 1))
        count = f"{{{len(value)}}}" if isinstance(value, Mapping) else f"[{len(value)}]"
        is_open = Markup(" open") if len(value) <= _OPEN and depth < 3 else ""
        return Markup('<li><details%s><summary>%s <span class="soft">%s</span></summary>%s</details></li>') % (
            is_open,
            key,
            count,
            self.draw(value, depth + 1),
        )


def _draw_leaf(value: Any) -> Markup:
    if isinstance(value, str):
        return Markup('<span class="text">%s</span>') % _cut(value, _TEXT)
    return Markup('<span class="literal">%s</span>') % msgspec.json.encode(value).decode()


def _cut(text: str, limit: int = _WHOLE) -> Markup:
    shown = mark_controls(text[:limit])
    if len(text) > limit:
        shown += Markup('<span class="cut">… %s more characters</span>') % format_number(len(text) - limit)
    return shown


FILTERS["tree"] = format_tree
