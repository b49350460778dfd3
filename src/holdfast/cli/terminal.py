"""Print to the terminal: text that cannot control the terminal, JSON, tables and progress bars."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

WIDTH = 100
"""Width in characters that a table may always have, even on a narrower terminal."""
LABEL_CHARACTERS = 30
"""Maximum characters of the label of a progress bar."""
BUSY_SECONDS = 1.0
"""Time after which a command without a progress bar shows that it is working."""
UNBOUNDED = 10_000
"""Width in characters of a table that is piped to a program such as `grep`. With this width, no cell is folded."""

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
    """Return `text` on one line and sanitized. If `limit` is given, cut the line to that number of characters."""
    folded = " ".join(sanitize(text).split())
    return folded if limit is None else cut(folded, limit)


def cut(text: str, limit: int) -> str:
    """Return `text`, cut to `limit` characters if it is longer. The cut is marked."""
    end = get_ellipsis()
    return text if len(text) <= limit else text[: limit - len(end)] + end


def get_ellipsis() -> str:
    """Return the mark of an omission that the encoding of standard output has."""
    return "…" if can_print("…") else "..."


def format_time(timestamp: int, zone: tzinfo | None = None) -> str:
    """Format a time in milliseconds since the epoch as date and time. If `zone` is None, the local time zone is used."""
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # imported sessions may contain any number
        return f"{timestamp} ms"


def is_interactive() -> bool:
    """Return True if standard input is a terminal, so that questions can be answered."""
    return sys.stdin.isatty()


def can_print(symbols: str) -> bool:
    """Return True if the encoding of standard output has all of `symbols`."""
    # While a progress bar is shown, rich replaces standard output by an object without an encoding.
    stream = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    try:
        symbols.encode(stream.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


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
    """A column of a table."""

    head: str
    """Heading of the column. It may contain line breaks."""
    number: bool = False
    """True: the column contains numbers, which are aligned to the right and never folded."""


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, groups: int = 0) -> None:
    """Print a table. On a terminal, cells that are too wide are folded.

    Args:
        columns: the columns.
        rows: the cells of each row. Any text is allowed, because it is sanitized.
        groups: number of rows after which a blank line follows; 0: no blank lines.
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


def show_rows(rows: Sequence[Mapping[str, object]]) -> None:
    """Print a table. Each row has its cells by the heading of their column; columns of integers are aligned to the right."""
    columns = [Column(head, number=isinstance(cell, int)) for head, cell in rows[0].items()]
    show_table(
        columns, [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values()] for row in rows]
    )


def _has_spare_width(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> bool:
    heads = [max(map(len, column.head.split("\n"))) for column in columns]
    widths = [max(head, *(len(row[at]) for row in rows)) for at, head in enumerate(heads)]
    return sum(widths) + 2 * (len(widths) - 1) <= room


# -- progress ----------------------------------------------------------------


class ProgressBar:
    """A progress bar that shows nothing. A subclass shows the progress on a terminal."""

    def describe(self, text: str) -> None:
        """Set the label of the bar, which names the item in progress."""

    def advance(self, count: int = 1) -> None:
        """Add `count` to the number of steps that are done."""

    def update(self, done: int, total: int) -> None:
        """Set the number of steps that are done, and the number of all steps."""


class _RichProgressBar(ProgressBar):
    def __init__(self, bar: Progress, total: int | None, text: str) -> None:
        self._bar = bar
        self._task = bar.add_task(text, total=total)

    def describe(self, text: str) -> None:
        self._bar.update(self._task, description=format_line(text, LABEL_CHARACTERS))

    def advance(self, count: int = 1) -> None:
        self._bar.advance(self._task, count)

    def update(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)


@contextmanager
def show_progress(total: int | None, text: str = "") -> Iterator[ProgressBar]:
    """Show a progress bar on stderr for the duration of the block, and then remove it. If stderr is not a terminal, show nothing.

    Args:
        total: number of all steps; None: unknown.
        text: label of the bar.
    """
    if not sys.stderr.isatty():
        yield ProgressBar()
        return
    for stop in _busy:
        stop()
    from rich.progress import MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn

    time = TimeElapsedColumn() if total is None else TimeRemainingColumn()
    with _make_bar(MofNCompleteColumn(), time) as bar:
        yield _RichProgressBar(bar, total, text)


def _make_bar(*columns: ProgressColumn) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    # At the end, so that labels of different lengths do not move the bar.
    label = TextColumn("{task.description}", markup=False)
    bar = BarColumn(max(10, min(40, console.width - LABEL_CHARACTERS - 30)))
    # What goes to a pipe or file meanwhile must not be redirected to the terminal.
    return Progress(bar, *columns, label, console=console, transient=True, redirect_stdout=sys.stdout.isatty())


# -- commands without a progress bar -------------------------------------------


@contextmanager
def show_busy() -> Iterator[None]:
    """Show on a terminal that the command is working, if the block takes longer than `BUSY_SECONDS` and shows no progress bar."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    # A thread, because the event loop may be blocked for longer than a moment.
    thread = threading.Thread(target=_show_working, args=(ended,), name="holdfast-busy", daemon=True)
    thread.start()

    def stop() -> None:
        ended.set()
        thread.join()

    _busy.append(stop)
    try:
        yield
    finally:
        _busy.remove(stop)
        stop()


def _show_working(ended: threading.Event) -> None:
    if ended.wait(BUSY_SECONDS):
        return
    from rich.progress import TimeElapsedColumn

    with _make_bar(TimeElapsedColumn()) as bar:
        bar.add_task("working", total=None)
        ended.wait()


_busy: list[Callable[[], None]] = []
"""For each running block of `show_busy`: the function that removes its bar."""
