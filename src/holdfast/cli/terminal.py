"""Terminal output: text that cannot control the terminal, JSON, tables, progress bars."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from rich.progress import Progress

WIDTH = 100
"""Minimum width of a table, in columns."""
UNBOUNDED = 10_000
"""Width without folding, for output that is piped to programs such as `grep`."""

# C0 without tab and line feed, DEL and C1; invisible characters and direction overrides; lone surrogates. The
# joiners U+200C and U+200D are allowed: scripts and emoji need them.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)
_IN_JSON = re.compile(r"[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")


def sanitize(text: str) -> str:
    r"""Return `text` with control and invisible characters written as escapes.

    >>> print(sanitize("\x1b[2Jcleared"))
    \x1b[2Jcleared
    """
    return _CONTROLS.sub(_escape_match, text.replace("\r\n", "\n"))


def format_line(text: str, limit: int | None = None) -> str:
    """Return `text` sanitized, on one line, cut to `limit` characters."""
    folded = " ".join(sanitize(text).split())
    return folded if limit is None or len(folded) <= limit else folded[: limit - 1] + "…"


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun: `1 session`, `2,000 sessions`. `plural` is needed if it is not noun + "s"."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def format_time(timestamp: int, zone: tzinfo | None = None) -> str:
    """Format milliseconds since the epoch as date and time in `zone`, by default the local one."""
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # imported sessions may contain any number
        return f"{timestamp} ms"


def is_interactive() -> bool:
    """Return True if standard input is a terminal, so that questions can be answered."""
    return sys.stdin.isatty()


def _escape_match(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


# -- JSON --------------------------------------------------------------------


def json_line(value: Any) -> bytes:
    """Encode `value` as one line of JSON in UTF-8."""
    import msgspec

    # In JSON, DEL and characters beyond ASCII occur only in strings, where an escape means the same.
    text = msgspec.json.encode(value).decode()
    return _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode() + b"\n"


def show_json(value: Any) -> None:
    """Print `value` as indented JSON."""
    import msgspec

    click.echo(msgspec.json.format(json_line(value).rstrip(), indent=2))


# -- tables ------------------------------------------------------------------


class Column(NamedTuple):
    """Heading of a table column, and its alignment."""

    head: str
    number: bool = False


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, groups: int = 0) -> None:
    """Print a table. Cells are folded only on a terminal.

    Args:
        columns: the headings; a line break makes a second line.
        rows: the cells; any text is allowed.
        groups: put a blank line after this many rows; 0 for none.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    room = console.width if console.is_terminal else WIDTH
    console.width = max(room, WIDTH) if console.is_terminal else UNBOUNDED
    cells = [[format_line(cell) for cell in row] for row in rows]
    # The box puts one space between columns; add another if the table stays narrow enough.
    table = Table(
        box=SIMPLE_HEAD, padding=(0, int(_has_spare_width(columns, cells, room)), 0, 0), pad_edge=False, show_edge=False
    )
    for column in columns:
        justify: Any = "right" if column.number else "left"
        table.add_column(Text(column.head), justify=justify, no_wrap=column.number, overflow="fold", vertical="bottom")
    for at, row in enumerate(cells, start=1):
        table.add_row(*map(Text, row), end_section=bool(groups) and at % groups == 0)
    console.print(table)


def _has_spare_width(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> bool:
    heads = [max(map(len, column.head.split("\n"))) for column in columns]
    widths = [max(head, *(len(row[at]) for row in rows)) for at, head in enumerate(heads)]
    return sum(widths) + 2 * (len(widths) - 1) <= room


# -- progress ----------------------------------------------------------------


class ProgressBar:
    """A progress bar that shows nothing."""

    def describe(self, text: str) -> None:
        """Set the label: the item in progress."""

    def advance(self, count: int = 1) -> None:
        """Report `count` more steps as done."""

    def update(self, done: int, total: int) -> None:
        """Report `done` of `total` steps as done."""


class _RichProgressBar(ProgressBar):
    def __init__(self, bar: Progress, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=total)

    def describe(self, text: str) -> None:
        self._bar.update(self._task, description=format_line(text, 40))

    def advance(self, count: int = 1) -> None:
        self._bar.advance(self._task, count)

    def update(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)


@contextmanager
def show_progress(total: int | None) -> Iterator[ProgressBar]:
    """Show a progress bar on stderr if that is a terminal, and remove it at the end.

    Args:
        total: number of steps; None if unknown.
    """
    if not sys.stderr.isatty():
        yield ProgressBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _RichProgressBar(bar, total)
