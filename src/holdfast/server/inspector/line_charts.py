"""Draw line charts as SVG. Like all charts, they use classes for colours, because the pages' security policy forbids inline styles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup


class Line(NamedTuple):
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float | None]]
    """Points from left to right. A point without a value leaves a gap."""


_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 460, 280, 52, 26, 12, 40
_COLOURS: Final = 10
_X_LABELS: Final = 6
"""Maximum number of labels on the horizontal axis."""
_MARKERS: Final = (
    '<circle cx="%(x).1f" cy="%(y).1f" r="4"/>',
    '<rect x="%(left).1f" y="%(top).1f" width="7" height="7"/>',
    '<path d="M%(x).1f %(high).1fl5 5l-5 5l-5 -5z"/>',
    '<path d="M%(x).1f %(high).1fl5 9h-10z"/>',
    '<path d="M%(x).1f %(low).1fl5 -9h-10z"/>',
)
"""Shapes of the markers, so that lines do not differ by colour alone."""


def draw_lines(
    lines: Sequence[Line], *, label: str, x_label: str, format_y: Callable[[float], str], y_top: float | None = None
) -> Markup:
    """Return a line chart as HTML. The horizontal axis is logarithmic.

    Args:
        lines: the lines. Their colours and markers are those of `draw_legend`.
        label: description of the chart, for screen readers and as its title.
        x_label: name of the horizontal axis.
        format_y: formats a value of the vertical axis.
        y_top: largest value of the vertical axis; None: the smallest round number that fits.
    """
    xs = sorted({x for line in lines for x, _ in line.points})
    top = y_top or _round_up(max((y for line in lines for _, y in line.points if y is not None), default=1.0))
    low, high = (math.log2(max(1.0, x)) for x in (xs[0], xs[-1])) if xs else (0.0, 0.0)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(max(1.0, x)) - low) / (high - low) if high > low else 0.5
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [*_draw_axes(xs, top, x_label, format_y, place)]
    for at, line in enumerate(lines):
        pieces, last = [], False
        for x, y in line.points:
            if y is not None:
                pieces.append(f"{'L' if last else 'M'}{place(x, y)[0]:.1f} {place(x, y)[1]:.1f}")
            last = y is not None
        parts.append(Markup('<path class="stroke line-%d" d="%s"/>') % (at % _COLOURS, "".join(pieces)))
        for x, y in line.points:
            if y is not None:
                title = f"{line.name}, {x_label} {x:,.0f}: {format_y(y)}"
                parts.append(_draw_marker(at, *place(x, y), title))
    overlaps = _describe_overlaps(lines)
    note = Markup('<p class="soft">%s</p>') % overlaps if overlaps else ""
    return Markup(
        '<figure class="line-chart"><figcaption>%s</figcaption><svg viewBox="0 0 %d %d" role="img" aria-label="%s">%s</svg>%s</figure>'
    ) % (label, _WIDTH, _HEIGHT, label, Markup("").join(parts), note)


def _describe_overlaps(lines: Sequence[Line]) -> str:
    """Return a sentence about lines that overlap; empty if no two lines do."""
    groups: dict[tuple[tuple[float, float | None], ...], list[str]] = {}
    for line in lines:
        groups.setdefault(tuple(line.points), []).append(line.name)
    same = "; ".join(", ".join(names) for names in groups.values() if len(names) > 1)
    points = [point for group in groups for point in group if point[1] is not None]
    if same:
        return f"These lines have the same values and overlap: {same}."
    return "Lines overlap where their values are equal." if len(set(points)) < len(points) else ""


def draw_legend(names: Sequence[str]) -> Markup:
    """Return the legend of line charts, as HTML."""
    items = (
        Markup('<li><svg class="swatch" viewBox="0 0 14 14" aria-hidden="true">%s</svg><span>%s</span></li>')
        % (_draw_marker(at, 7, 7, ""), name)
        for at, name in enumerate(names)
    )
    return Markup('<ul class="legend lines">%s</ul>') % Markup("").join(items)


def _draw_marker(at: int, x: float, y: float, title: str) -> Markup:
    # A shape of its own for each line of a colour, and another order of shapes for the next ten lines.
    shape = _MARKERS[(at + at // _COLOURS) % len(_MARKERS)]
    drawn = Markup(shape % {"x": x, "y": y, "left": x - 3.5, "top": y - 3.5, "high": y - 5, "low": y + 5})  # noqa: S704 - numbers only
    return Markup('<g class="marker line-%d">%s%s</g>') % (
        at % _COLOURS,
        Markup("<title>%s</title>") % title if title else "",
        drawn,
    )


def _draw_axes(
    xs: Sequence[float],
    top: float,
    x_label: str,
    format_y: Callable[[float], str],
    place: Callable[[float, float], tuple[float, float]],
) -> Iterator[Markup]:
    for quarter in range(5):
        value = top * quarter / 4
        y = place(1, value)[1]
        yield Markup('<path class="grid" d="M%d %.1fH%d"/>') % (_LEFT, y, _WIDTH - _RIGHT)
        yield Markup('<text x="%d" y="%.1f" text-anchor="end">%s</text>') % (_LEFT - 8, y + 4, format_y(value))
    step = -(-len(xs) // _X_LABELS)
    for x in xs[:: step or 1]:
        at = place(x, 0)[0]
        yield Markup('<text x="%.1f" y="%d" text-anchor="middle">%s</text>') % (at, _HEIGHT - 22, f"{x:,.0f}")
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield Markup('<text x="%.1f" y="%d" text-anchor="middle">%s</text>') % (middle, _HEIGHT - 4, x_label)


def _round_up(value: float) -> float:
    """Return the smallest number of the form 1, 2, 4, 6 or 8 times a power of ten that is not below a value."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next((step * power for step in (1, 2, 4, 6, 8) if step * power >= value), 10 * power)
