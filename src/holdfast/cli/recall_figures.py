"""The results of `holdfast eval recall`: as tables, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from holdfast.cli.terminal import Column, counted, line, show_table

if TYPE_CHECKING:
    from holdfast.evaluation import Comparison, Dataset, Figures, Given, Outcome, PromptFigures
    from holdfast.evaluation.comparing import Difference
    from holdfast.evaluation.prompt_contents import PromptShares

_PARTS = ("messages", "facts", "digest", "recalled")


class Results:
    """All figures that were asked for."""

    def __init__(self) -> None:
        self.figures: list[Figures] = []
        self.given: list[Given] = []
        self.comparisons: list[Comparison] = []
        self.prompts: list[PromptFigures] = []
        self.outcomes: dict[str, list[Outcome]] = {}


class Tables(NamedTuple):
    """The columns and tables that are wanted."""

    ks: Sequence[int]
    budgets: Sequence[int]
    per_type: bool
    per_sample: bool


def to_json(dataset: Dataset, results: Results) -> dict[str, Any]:
    """Return all figures as `--json` prints them."""
    return {
        "samples": len(dataset.samples),
        "turns": sum(len(sample.turns) for sample in dataset.samples),
        "questions": dataset.queries,
        "without_evidence": dataset.without_evidence,
        "unknown_evidence": dataset.unknown,
        "modes": [msgspec.structs.asdict(one) for one in results.figures],
        "unrelated": [msgspec.structs.asdict(one) for one in results.given],
        "comparisons": results.comparisons,
        "prompts": results.prompts,
    }


def show_all(dataset: Dataset, results: Results, tables: Tables) -> None:
    """Print the tables."""
    _show(results.figures, tables.ks, tables.budgets)
    if tables.per_sample:
        _show_samples(results.figures, tables.ks)
    if tables.per_type:
        _show_types(results.figures, tables.ks)
    if results.comparisons:
        _show_comparisons(results.comparisons)
    if results.given:
        _show_given(results.given)
    for one in results.prompts:
        _show_prompts(one)
    _notes(dataset)


def _show(figures: Sequence[Figures], ks: Sequence[int], budgets: Sequence[int]) -> None:
    columns = [Column("recall"), *_columns([f"@{k}" for k in ks])]
    columns += _columns([f"sessions\n@{k}" for k in ks[:2]])
    columns += _columns([f"{budget:,}\ntokens" for budget in budgets])
    rows = []
    for one in figures:
        cells = [one.turns[str(k)] for k in ks] + [one.sessions[str(k)] for k in ks[:2]]
        cells += [one.tokens[str(budget)] for budget in budgets]
        rows.append([one.mode, *map(_share, cells)])
    show_table(columns, rows)
    honest = [one for one in figures if one.without_adversarial]
    if honest:
        click.echo("\nwithout adversarial questions")
        rows = [[one.mode, *(_share(one.without_adversarial[str(k)]) for k in ks)] for one in honest]
        show_table([Column("recall"), *_columns([f"@{k}" for k in ks])], rows)


def _show_samples(figures: Sequence[Figures], ks: Sequence[int]) -> None:
    click.echo("\nby sample")
    rows = [
        [one.mode, sample.sample, sample.kind, f"{sample.questions:,}", *(_share(sample.turns[str(k)]) for k in ks)]
        for one in figures
        for sample in one.samples
    ]
    heads = [Column("mode"), Column("sample"), Column("kind"), *_columns(["questions", *(f"@{k}" for k in ks)])]
    show_table(heads, rows, groups=len(figures[0].samples))


def _show_types(figures: Sequence[Figures], ks: Sequence[int]) -> None:
    for one in figures:
        click.echo(f"\n{line(one.mode)}")
        rows = [
            [name, f"{shares['questions']:,}", *(_share(shares[str(k)]) for k in ks)]
            for name, shares in one.types.items()
        ]
        show_table([Column("type"), *_columns(["questions", *(f"@{k}" for k in ks)])], rows)


def _show_given(given: Sequence[Given]) -> None:
    kinds = {
        "here": "answered here",
        "wrong": "of the wrong one",
        "unanswerable": "unanswerable",
        "elsewhere": "answered elsewhere",
    }
    click.echo("\nwhat questions get: hits among the first 10 of a search, and turns that come into a prompt")
    rows = [
        [
            one.mode,
            kinds[one.kind],
            f"{one.questions:,}",
            f"{one.hits:.1f}",
            _share(one.nothing),
            f"{one.recalled:.1f}",
            _share(one.untold),
            "" if one.found is None else _share(one.found),
        ]
        for one in given
    ]
    heads = ["questions", "hits", "no hit", "in a\nprompt", "nothing\nthere", "recall\nthere"]
    show_table([Column("mode"), Column("kind"), *_columns(heads)], rows)


def _show_comparisons(comparisons: Sequence[Comparison]) -> None:
    first, second = comparisons[0].first, comparisons[0].second
    click.echo(f"\n{second} minus {first}, in points, with the 95 % interval of a paired bootstrap")
    rows = [
        ["all" if one.sample is None else one.sample, f"{one.questions:,}", *map(_interval, one.turns.values())]
        for one in comparisons
    ]
    show_table([Column("sample"), *_columns(["questions", *(f"@{k}" for k in comparisons[0].turns)])], rows)


def _interval(one: Difference) -> str:
    return f"{100 * one.mean:+.1f} ({100 * one.low:+.1f} to {100 * one.high:+.1f})"


def _show_prompts(figures: PromptFigures) -> None:
    click.echo(
        f"\nevidence in the prompt at {figures.budget:,} tokens, index by {figures.mode}: "
        f"{figures.prompt_tokens:,.0f} tokens on average"
    )
    rows = [_prompt_row("all", "", figures.all)]
    rows += _prompt_rows("kind", figures.kinds)
    rows += _prompt_rows("type", figures.types)
    heads = ["questions", "in the\nprompt", *(f"in\n{part}" for part in _PARTS), "another\nquestion's"]
    show_table([Column("by"), Column(""), *_columns(heads)], rows)
    if figures.late:
        click.echo(f"{counted(figures.late, 'prompt')} built again because a search was late")
    if figures.refused:
        click.echo(f"{counted(figures.refused, 'prompt')} refused: nothing fits the budget")


def _prompt_rows(by: str, groups: Mapping[str, PromptShares]) -> list[list[str]]:
    return [_prompt_row(by, name, shares) for name, shares in groups.items()]


def _prompt_row(by: str, name: str, shares: PromptShares) -> list[str]:
    parts = [_share(shares.parts[part]) for part in _PARTS]
    other = "" if shares.other is None else _share(shares.other)
    return [by, name, f"{shares.questions:,}", _share(shares.evidence), *parts, other]


def _notes(dataset: Dataset) -> None:
    click.echo(f"\n{counted(dataset.queries, 'question')} about {counted(len(dataset.samples), 'conversation')}")
    unanswerable = sum(len(sample.unanswerable) for sample in dataset.samples)
    if unanswerable:
        click.echo(f"{counted(unanswerable, 'unanswerable question')}, in `--unrelated` only")
    if dataset.without_evidence:
        click.echo(f"{counted(dataset.without_evidence, 'question')} left out: no turn that there is answers them")
    if dataset.unknown:
        click.echo(f"{counted(dataset.unknown, 'name')} of turns in evidence that there are not")


def _columns(heads: Sequence[str]) -> list[Column]:
    return [Column(head, number=True) for head in heads]


def _share(value: float) -> str:
    return f"{100 * value:.1f}"
