"""The tables of `holdfast replay`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.terminal import Column, counted, line, show_table

if TYPE_CHECKING:
    from holdfast.replay import Comparison, Paired, Played, Result, SessionResult


def overview(results: Sequence[Result]) -> None:
    """A row for each strategy and budget, rows of one budget together."""
    names = [name for name in _with_figures(_COLUMNS, results) if name not in _SUMMARIES]
    rows = [[_COLUMNS[name][1](getattr(result, name)) for name in names] for result in results]
    groups = {len(list(group)) for _, group in groupby(results, key=lambda result: result.budget)}
    show_table([_COLUMNS[name][0] for name in names], rows, groups=groups.pop() if len(groups) == 1 else 0)


def summaries(told: Iterable[tuple[Result, str | None]]) -> None:
    """Below a table: who wrote the summaries of each result that may have any, and where their price is.

    Args:
        told: results of strategies with summaries, and who wrote; None where the digest stood in.
    """
    from holdfast.replay import SUMMARY_READ, SUMMARY_WRITTEN

    told = list(told)
    if told:
        click.echo()
    for note in dict.fromkeys(_note(result, writer) for result, writer in told):
        click.echo(f"  {note}")
    if any(writer is not None for _, writer in told):
        price = f"{SUMMARY_READ:g} a token read and {SUMMARY_WRITTEN:g} a token written"
        click.echo(f"  A summarizer's tokens are in the cost a call: {price}.")


def _note(result: Result, writer: str | None) -> str:
    name = line(result.strategy)
    if writer is None:
        return f"{name}: no model wrote summaries, the digest stood in (see --summarizer)"
    failed = f", {result.summaries_failed:,} failed" if result.summaries_failed else ""
    made = f"{counted(result.summaries, 'summary', 'summaries')} by {line(writer)}{failed}"
    return f"{name} at {result.budget:,}: {made}, {result.summarizer_tokens:,} tokens"


def per_session(played: Sequence[Played]) -> None:
    """A table of sessions for each strategy and budget."""
    for one in played:
        sessions = one.rows()
        names = _with_figures(_SESSION, sessions)
        click.echo(f"\n{line(one.result.strategy)} at {one.result.budget:,}")
        rows = [[session.id, *_cells(session, names)] for session in sessions]
        show_table([Column("session"), *(_COLUMNS[name][0] for name in names)], rows)


def comparison(told: Comparison) -> None:
    """Two strategies side by side, the difference, and what the sessions say one by one."""
    a, b = told.a, told.b
    columns = [
        Column(""),
        *(Column(f"{_broken(line(one.strategy))}\n{one.budget:,}", number=True) for one in (a, b)),
        Column("difference", number=True),
    ]
    rows = []
    for name in _with_figures(_COLUMNS, [a, b])[2:]:
        column, shown = _COLUMNS[name]
        change = told.difference.get(name)
        cells = [shown(getattr(one, name)) for one in (a, b)]
        rows.append([column.head.replace("\n", " "), *cells, "" if change is None else _signed(name, change)])
    show_table(columns, rows)
    click.echo()
    for name, paired in told.paired.items():
        click.echo(f"  {name:<6}  {_in_words(name, paired)}")


def sessions_compared(a: Played, b: Played) -> None:
    """A row a session: the figures of both."""
    first, second = a.rows(), b.rows()
    names = _with_figures(_PAIRED, [*first, *second])
    heads = [_COLUMNS[name][0].head.partition("\n")[0] for name in names]
    columns = [Column("session"), Column("calls", number=True)]
    columns += [Column(f"{head}\n{which}", number=True) for head in heads for which in ("first", "second")]
    rows = []
    for mine, other in zip(first, second, strict=True):
        cells = chain.from_iterable(zip(_cells(mine, names), _cells(other, names), strict=True))
        rows.append([mine.id, f"{mine.calls:,}", *cells])
    click.echo()
    show_table(columns, rows)


def _broken(label: str, width: int = 36) -> str:
    """A label in lines of at most so many characters, broken behind a comma, or before what comes behind a composition."""
    lines = [""]
    for piece in re.findall(r"\+?[^,+]*,?", label):
        for start in range(0, len(piece), width):
            part = piece[start : start + width]
            lines = [*lines[:-1], lines[-1] + part] if len(lines[-1] + part) <= width else [*lines, part]
    return "\n".join(lines)


def _with_figures(names: Iterable[str], results: Sequence[Any]) -> list[str]:
    """Without what nothing has: bound recall, summaries."""
    nothing = {"bound": None, **dict.fromkeys(_SUMMARIES, 0)}
    return [
        name for name in names if name not in nothing or any(getattr(one, name) != nothing[name] for one in results)
    ]


def _cells(session: SessionResult, names: Sequence[str]) -> list[str]:
    return [_COLUMNS[name][1](getattr(session, name)) for name in names]


def _in_words(name: str, paired: Paired) -> str:
    if paired.mean_difference is None:
        return "no session has a figure of both"
    key = "cost_per_call" if name == "cost" else name
    sessions = counted(paired.wins + paired.losses + paired.ties, "session")
    shares = f"better in {paired.wins:,}, worse in {paired.losses:,}, equal in {paired.ties:,} of {sessions}"
    return f"second {shares}; mean difference {_signed(key, paired.mean_difference)}"


# -- figures -----------------------------------------------------------------


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}".replace("100.0%", "100%")


def _milliseconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _signed(name: str, change: float) -> str:
    """A difference: shares in points of a hundred, the rest in their own unit; 0 without a sign."""
    if _COLUMNS[name][1] is _share:
        shown, unit = f"{change * 100:+.1f}", " points"
    else:
        shown, unit = f"{change:+.2f}" if name == "build_ms" else f"{change:+,.0f}", ""
    return (shown if shown.strip("+-0.,") else shown.strip("+-")) + unit


_count = "{:,}".format
# A head has two lines, so that the whole stays within 100 characters.
_COLUMNS: dict[str, tuple[Column, Callable[[Any], str]]] = {
    "strategy": (Column("strategy"), str),
    "budget": (Column("budget", number=True), _count),
    "calls": (Column("calls", number=True), _count),
    "refused": (Column("refused", number=True), _count),
    "tokens_per_call": (Column("tokens\na call", number=True), _whole),
    "recall": (Column("recall", number=True), _share),
    "bound": (Column("bound", number=True), _share),
    "cached": (Column("cached", number=True), _share),
    "cost_per_call": (Column("cost\na call", number=True), _whole),
    "orphans": (Column("orphans", number=True), _share),
    "tasks_lost": (Column("tasks\nlost", number=True), _share),
    "build_ms": (Column("build\nms", number=True), _milliseconds),
    "summaries": (Column("summaries", number=True), _count),
    "summaries_failed": (Column("summaries\nfailed", number=True), _count),
    "summarizer_tokens": (Column("summarizer\ntokens", number=True), _count),
}
_SUMMARIES = ("summaries", "summaries_failed", "summarizer_tokens")
_SESSION = ("calls", "recall", "bound", "cost_per_call", "refused")
_PAIRED = ("recall", "bound", "cost_per_call", "refused")
