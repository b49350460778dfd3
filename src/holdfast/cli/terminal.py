"""What reaches a terminal: text that cannot control it, JSON, tables, progress bars."""

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
"""Columns of a table, at least."""
UNBOUNDED = 10_000
"""Columns where lines must not be folded: somebody's `grep` reads them."""

# C0 without tab and line feed, DEL and C1; what is invisible or turns the direction of writing; lone surrogates. The
# joiners U+200C and U+200D stay: scripts and emoji need them.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)
_IN_JSON = re.compile(r"[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")


def plain(text: str) -> str:
    r"""`text` as it may be shown: what could control a terminal, or hide, is written as an escape.

    >>> print(plain("\x1b[2Jcleared"))
    \x1b[2Jcleared
    """
    return _CONTROLS.sub(_escaped, text.replace("\r\n", "\n"))


def line(text: str, limit: int | None = None) -> str:
    """`text` in one line, as it may be shown, cut to `limit` characters."""
    folded = " ".join(plain(text).split())
    return folded if limit is None or len(folded) <= limit else folded[: limit - 1] + "…"


def counted(count: int, what: str, several: str | None = None) -> str:
    """`1 session`, `2,000 sessions`; `several` where more than one are not called by an `s` behind."""
    return f"{count:,} {what if count == 1 else several or f'{what}s'}"


def moment(timestamp: int, zone: tzinfo | None = None) -> str:
    """Milliseconds since the epoch as date and time of a zone; None: of this place."""
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # imported from somewhere: any number may stand there
        return f"{timestamp} ms"


def attended() -> bool:
    """Whether somebody sits there to be asked."""
    return sys.stdin.isatty()


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


# -- JSON --------------------------------------------------------------------


def json_line(value: Any) -> bytes:
    """`value` as one line of JSON, always UTF-8."""
    import msgspec

    # Inside JSON, characters beyond ASCII (and DEL) stand in strings only, where an escape means the same.
    text = msgspec.json.encode(value).decode()
    return _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode() + b"\n"


def show_json(value: Any) -> None:
    """Print `value` as JSON that people can read too."""
    import msgspec

    click.echo(msgspec.json.format(json_line(value).rstrip(), indent=2))


# -- tables ------------------------------------------------------------------


class Column(NamedTuple):
    """A column's head, and whether it holds numbers."""

    head: str
    number: bool = False


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, groups: int = 0) -> None:
    """Print a table; cells are folded on a terminal only.

    Args:
        columns: their heads; a line break in one makes a second line.
        rows: the cells, any text.
        groups: a blank line after each so many rows; 0: none.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    room = console.width if console.is_terminal else WIDTH
    console.width = max(room, WIDTH) if console.is_terminal else UNBOUNDED
    cells = [[line(cell) for cell in row] for row in rows]
    # The box puts one space between columns; another one where there is room.
    table = Table(
        box=SIMPLE_HEAD, padding=(0, int(_roomy(columns, cells, room)), 0, 0), pad_edge=False, show_edge=False
    )
    for column in columns:
        justify: Any = "right" if column.number else "left"
        table.add_column(Text(column.head), justify=justify, no_wrap=column.number, overflow="fold", vertical="bottom")
    for at, row in enumerate(cells, start=1):
        table.add_row(*map(Text, row), end_section=bool(groups) and at % groups == 0)
    console.print(table)


def _roomy(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> bool:
    heads = [max(map(len, column.head.split("\n"))) for column in columns]
    widths = [max(head, *(len(row[at]) for row in rows)) for at, head in enumerate(heads)]
    return sum(widths) + 2 * (len(widths) - 1) <= room


# -- progress ----------------------------------------------------------------


class Bar:
    """A progress bar that is not shown."""

    def about(self, text: str) -> None:
        """What is worked on now."""

    def step(self, count: int = 1) -> None:
        """So many steps are done."""

    def at(self, done: int, total: int) -> None:
        """`done` steps of `total` are done."""


class _Shown(Bar):
    def __init__(self, bar: Progress, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=total)

    def about(self, text: str) -> None:
        self._bar.update(self._task, description=line(text, 40))

    def step(self, count: int = 1) -> None:
        self._bar.advance(self._task, count)

    def at(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)


@contextmanager
def progress(total: int | None) -> Iterator[Bar]:
    """A bar on stderr while that is a terminal, gone in the end; nothing elsewhere. A `total` of None is not known yet."""
    if not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Shown(bar, total)
