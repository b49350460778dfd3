"""Draw charts as SVG. They use classes for colours and no inline style, because the pages' security policy forbids it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from markupsafe import Markup


class Segment(NamedTuple):
    """A part of a stacked bar."""

    name: str
    """Class name of the colour, such as `task`; see `inspector.css`."""
    label: str
    """Text in the legend."""
    value: float
    href: str = ""
    """Address that the part links to; empty: none."""


def draw_bar(
    segments: Sequence[Segment], *, unit: str = "tokens", label: str = "", height: int = 28, legend: bool = True
) -> Markup:
    """Return a stacked bar with its legend, as HTML. Parts whose value is 0 are left out.

    Args:
        segments: the parts, from left to right.
        unit: unit of the values, for the texts.
        label: description of the whole bar, for screen readers.
        height: height in pixels.
        legend: False: return only the bar. Its parts still have titles.
    """
    shown = [one for one in segments if one.value > 0]
    total = sum(one.value for one in shown)
    parts: list[Markup] = []
    left = 0.0
    for one in shown:
        width = 1000 * one.value / total
        box = Markup(
            '<rect class="fill-%s" x="%.2f" y="0" width="%.2f" height="%d"><title>%s: %s %s</title></rect>'
        ) % (
            one.name,
            left,
            max(width, 1.0),
            height,
            one.label,
            f"{one.value:,.0f}",
            unit,
        )
        parts.append(Markup('<a href="%s">%s</a>') % (one.href, box) if one.href else box)
        left += width
    names = Markup("").join(
        Markup(
            '<li><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true"><rect class="fill-%s" width="10" height="10"/></svg>'
            "<span>%s</span> <b>%s</b></li>"
        )
        % (one.name, one.label, f"{one.value:,.0f}")
        for one in shown
        if one.label
    )
    listed = Markup('<ul class="legend" aria-label="%s">%s</ul>') % (unit, names) if legend else ""
    return Markup(
        '<figure class="bar"><svg viewBox="0 0 1000 %d" preserveAspectRatio="none" height="%d" role="%s" aria-label="%s">%s</svg>%s</figure>'
    ) % (
        height,
        height,
        "group" if any(one.href for one in shown) else "img",
        label or f"{total:,.0f} {unit}",
        Markup("").join(parts),
        listed,
    )


_WIDTH, _GAP, _HEIGHT = 10, 2, 100
_UNITS: Final = ((1e9, "B"), (1e6, "M"), (1e3, "k"))


class Layer(NamedTuple):
    """One value of each column. Columns of later layers are drawn in front of earlier ones. They are not stacked."""

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
