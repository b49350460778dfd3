"""Tables of figures, formatted as aligned text, Markdown or JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Figure = int | float | str | None
"""Raw value of a cell; None if it was not measured."""
Format = Callable[[Any], str]


class Column(NamedTuple):
    """A column: its key in the rows, its heading and the formatter of its figures."""

    key: str
    heading: str
    format: Format = str


class Table(NamedTuple):
    """A table of one part."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Figure]]
    notes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the raw figures as a JSON object."""
        return {"name": self.name, "title": self.title, "rows": list(self.rows), "notes": list(self.notes)}

    def format_text(self) -> str:
        """Format the table as aligned text for a terminal."""
        grid = self._format_grid()
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        lines = ["  ".join(self._align_row(row, widths)).rstrip() for row in grid]
        return "\n".join([self.title, "", *lines, *(f"  {note}" for note in self.notes)])

    def format_markdown(self) -> str:
        """Format the table as Markdown for the documentation."""
        head, *rows = ("| " + " | ".join(row) + " |" for row in self._format_grid())
        rule = "| " + " | ".join("---" if self._is_text(column) else "---:" for column in self.columns) + " |"
        notes = [f"\n{note}" for note in self.notes]
        return "\n".join([f"**{self.title}**", "", head, rule, *rows, *notes])

    def _format_grid(self) -> list[list[str]]:
        rows = [[_format_cell(row.get(column.key), column.format) for column in self.columns] for row in self.rows]
        return [[column.heading for column in self.columns], *rows]

    def _is_text(self, column: Column) -> bool:
        return any(isinstance(row.get(column.key), str) for row in self.rows)

    def _align_row(self, row: Sequence[str], widths: Sequence[int]) -> list[str]:
        cells = zip(row, widths, self.columns, strict=True)
        return [cell.ljust(width) if self._is_text(column) else cell.rjust(width) for cell, width, column in cells]


def _format_cell(figure: Figure, format_figure: Format) -> str:
    return "-" if figure is None else format_figure(figure)


# -- formatters --------------------------------------------------------------


def format_duration(seconds: float) -> str:
    """Format a time with three digits and a fitting unit.

    >>> duration(0.0000123), duration(0.00123), duration(1.5)
    ('12.3 us', '1.23 ms', '1.50 s')
    """
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < size * 999.5:
            return f"{_format_digits(seconds / size)} {unit}"
    return f"{_format_digits(seconds)} s"


def format_ratio(value: float) -> str:
    """Format a factor with three digits.

    >>> ratio(0.5), ratio(12.34), ratio(12345)
    ('0.50x', '12.3x', '12,300x')
    """
    return f"{_format_digits(value)}x"


def format_share(value: float) -> str:
    """Format a share of one as a percentage."""
    return f"{value:.1%}".replace("100.0%", "100%")


def format_count(value: float) -> str:
    """Format a whole number."""
    return f"{value:,.0f}"


def format_decimal(value: float) -> str:
    """Format a number with two decimals."""
    return f"{value:.2f}"


def _format_digits(value: float) -> str:
    """Format a number with three significant digits: 12,300 for 12,345."""
    if value >= 1000:
        step = 10 ** (math.floor(math.log10(value)) - 2)
        return f"{round(value / step) * step:,}"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


# -- growth with length ------------------------------------------------------


def fit_slope(points: Mapping[int, float]) -> float | None:
    """Return the slope of log time over log length by least squares: 0 is constant, 1 is linear time."""
    xs, ys = [math.log(n) for n in points], [math.log(time) for time in points.values()]
    if len(points) < 2:
        return None
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return covariance / sum((x - x_mean) ** 2 for x in xs)
