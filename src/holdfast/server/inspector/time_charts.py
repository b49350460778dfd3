"""Draw small charts over time as SVG: one column for each step. Colours are classes, because the pages' policy forbids inline style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from markupsafe import Markup

_WIDTH, _GAP, _HEIGHT = 10, 2, 100
_UNITS: Final = ((1e9, "B"), (1e6, "M"), (1e3, "k"))


class Layer(NamedTuple):
    """One value of each column. Layers are drawn over each other, from the first to the last, and not on top of each other."""

    name: str
    """Class name of the colour, such as `accent`; see `inspector.css`."""
    values: Sequence[float]


def draw_columns(layers: Sequence[Layer], titles: Sequence[str], *, label: str, highest: float) -> Markup:
    """Return a chart of columns as SVG. It has no text; the page shows the axis, and a table has the figures.

    Args:
        layers: the values of the columns.
        titles: text about each column, which browsers show when the pointer is on it.
        label: description of the chart, for screen readers.
        highest: value at the top of the chart.
    """
    columns: list[Markup] = []
    for at, title in enumerate(titles):
        left, width = at * _WIDTH + _GAP / 2, _WIDTH - _GAP
        bars = [
            Markup('<rect class="fill-%s" x="%g" y="%.1f" width="%g" height="%.1f"/>')
            % (layer.name, left, _HEIGHT - height, width, height)
            for layer in layers
            if (height := _compute_height(layer.values[at], highest)) > 0
        ]
        area = Markup('<rect class="hit" x="%g" y="0" width="%g" height="%d"/>') % (at * _WIDTH, _WIDTH, _HEIGHT)
        columns.append(Markup("<g><title>%s</title>%s%s</g>") % (title, Markup("").join(bars), area))
    right = len(titles) * _WIDTH
    base = Markup('<path class="base" d="M0 %d H%d"/>') % (_HEIGHT, right)
    return Markup(
        '<svg class="columns-chart" viewBox="0 0 %d %d" preserveAspectRatio="none" role="img" aria-label="%s">%s%s</svg>'
    ) % (
        right,
        _HEIGHT,
        label,
        Markup("").join(columns),
        base,
    )


def _compute_height(value: float, top: float) -> float:
    """Return the height of a column. A small value is still visible."""
    return max(2.0, _HEIGHT * min(value, top) / top) if value > 0 and top > 0 else 0.0


def format_compact(value: float) -> str:
    """Return a number with at most three digits and a unit, such as `1.2 M`."""
    for size, unit in _UNITS:
        if value >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.1f} {unit}" if scaled < 9.95 else f"{scaled:.0f} {unit}"
    return f"{value:.0f}"
