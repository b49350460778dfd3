"""Tables of times by session length, with slopes and ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.tables import (
    Column,
    Figure,
    Table,
    fit_slope,
    format_count,
    format_decimal,
    format_duration,
    format_ratio,
)
from benchmarks.timing import Samples

TOKENS_PER_MESSAGE = 65
"""Average size of a message. Slopes are computed over the lengths that fill the budget."""
Cells = dict[tuple[str, int, int], Samples]
"""Samples by candidate, budget and session length."""


def make_length_table(
    name: str,
    title: str,
    cells: Mapping[tuple[str, int, int], Samples],
    *,
    base: str,
    notes: Sequence[str] = (),
) -> Table:
    """Return a table with one row per candidate and budget.

    Args:
        name: the table's name in JSON.
        title: the heading.
        cells: the samples.
        base: the candidate that ratios refer to, at the two longest lengths.
        notes: lines below the table.
    """
    lengths = sorted({length for _, _, length in cells})
    rows = []
    for what, budget in dict.fromkeys((what, budget) for what, budget, _ in cells):
        rows.append(_make_row(what, budget, lengths, cells, base))
    columns = [
        Column("what", ""),
        *([Column("budget", "budget", format_count)] if len({budget for _, budget, _ in cells}) > 1 else []),
        *(Column(f"median_{length}", f"{length:,}", format_duration) for length in lengths),
        Column("mean", f"mean at {lengths[-1]:,}", format_duration),
        Column("p99", f"p99 at {lengths[-1]:,}", format_duration),
        Column("slope", "slope", format_decimal),
        *(Column(f"ratio_{length}", f"ratio at {length:,}", format_ratio) for length in lengths[-2:]),
    ]
    rows.sort(key=lambda row: str(row["budget"]).zfill(9))
    return Table(name, title, columns, rows, [*notes, *_note_stopped(cells)])


def _make_row(
    what: str, budget: int, lengths: Sequence[int], cells: Mapping[tuple[str, int, int], Samples], base: str
) -> dict[str, Figure]:
    measured = {n: samples for n in lengths if (samples := cells.get((what, budget, n)))}
    medians = {n: samples.median for n, samples in measured.items()}
    full = {n: median for n, median in medians.items() if n * TOKENS_PER_MESSAGE >= budget}
    last = measured.get(lengths[-1])
    row: dict[str, Figure] = {"what": what, "budget": budget}
    row |= {f"median_{n}": median for n, median in medians.items()}
    row |= {"mean": last.mean if last else None, "p99": last.quantile(0.99) if last else None, "slope": fit_slope(full)}
    for n in lengths[-2:]:
        reference = cells.get((base, budget, n))
        row[f"ratio_{n}"] = medians[n] / reference.median if reference and n in medians else None
    return row


def _note_stopped(cells: Mapping[tuple[str, int, int], Samples]) -> list[str]:
    """Return a note that lists the candidates that reached their time limit."""
    stopped = [
        f"{what} at {length:,} entries"
        + (f", {budget:,} tokens" if budget else "")
        + f" ({len(samples.seconds)} calls)"
        for (what, budget, length), samples in cells.items()
        if samples.is_stopped
    ]
    return [f"Stopped at the time limit: {'; '.join(stopped)}."] if stopped else []
