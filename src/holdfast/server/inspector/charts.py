"""Draw charts as SVG. They use classes for colours and no inline style, because the pages' security policy forbids it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
