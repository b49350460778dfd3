"""Print the figures of `recall`, `evidence` and `statements` as tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import click

from benchmarks.evaluation.dataset import Dataset
from benchmarks.evaluation.evaluator import Comparison, Difference
from benchmarks.evaluation.measures import Figures
from benchmarks.evaluation.prompt_contents import PARTS, PromptFigures, PromptShares
from benchmarks.evaluation.statements.conversations import Conversation
from benchmarks.evaluation.statements.figures import Figures as StatementFigures
from benchmarks.evaluation.statements.figures import Shares
from benchmarks.evaluation.unrelated import UnrelatedFigures
from holdfast.cli.terminal import Column, format_line, show_table
from holdfast.numbers import format_count

PER_TABLE: Final = 6
"""Maximum number of strategies in one table, so that the table is at most 100 characters wide."""
LABEL: Final = 18
"""Maximum number of characters of a row's name."""


def show_recall(figures: Sequence[Figures], ks: Sequence[int], budgets: Sequence[int]) -> None:
    """Print the recall of each mode."""
    columns = [Column("recall"), *_make_columns([f"@{k}" for k in ks])]
    columns += _make_columns([f"sessions\n@{k}" for k in ks[:2]])
    columns += _make_columns([f"{budget:,}\ntokens" for budget in budgets])
    rows = []
    for one in figures:
        cells = [one.turns[str(k)] for k in ks] + [one.sessions[str(k)] for k in ks[:2]]
        cells += [one.tokens[str(budget)] for budget in budgets]
        rows.append([one.mode, *map(_format_share, cells)])
    show_table(columns, rows)
    honest = [one for one in figures if one.without_adversarial]
    if honest:
        click.echo("\nwithout adversarial questions")
        rows = [[one.mode, *(_format_share(one.without_adversarial[str(k)]) for k in ks)] for one in honest]
        show_table([Column("recall"), *_make_columns([f"@{k}" for k in ks])], rows)


def show_samples(figures: Sequence[Figures], ks: Sequence[int]) -> None:
    """Print the recall of each sample."""
    click.echo("\nby sample")
    rows = [
        [
            one.mode,
            sample.sample,
            sample.kind,
            f"{sample.questions:,}",
            *(_format_share(sample.turns[str(k)]) for k in ks),
        ]
        for one in figures
        for sample in one.samples
    ]
    heads = [Column("mode"), Column("sample"), Column("kind"), *_make_columns(["questions", *(f"@{k}" for k in ks)])]
    show_table(heads, rows, groups=len(figures[0].samples))


def show_types(figures: Sequence[Figures], ks: Sequence[int]) -> None:
    """Print the recall of each type of question."""
    for one in figures:
        click.echo(f"\n{format_line(one.mode)}")
        rows = [
            [name, f"{shares['questions']:,}", *(_format_share(shares[str(k)]) for k in ks)]
            for name, shares in one.types.items()
        ]
        show_table([Column("type"), *_make_columns(["questions", *(f"@{k}" for k in ks)])], rows)


def show_unrelated(given: Sequence[UnrelatedFigures]) -> None:
    """Print the results for each kind of question, if there are any."""
    if not given:
        return
    kinds = {
        "here": "answered here",
        "wrong": "about the wrong person",
        "unanswerable": "unanswerable",
        "elsewhere": "answered elsewhere",
    }
    click.echo("\nresults by kind of question: hits among the first 10, and turns inserted into the prompt")
    rows = [
        [
            one.mode,
            kinds[one.kind],
            f"{one.questions:,}",
            f"{one.hits:.1f}",
            _format_share(one.nothing),
            f"{one.recalled:.1f}",
            _format_share(one.untold),
            "" if one.found is None else _format_share(one.found),
        ]
        for one in given
    ]
    heads = ["questions", "hits", "no hit", "in a\nprompt", "nothing\nthere", "recall\nthere"]
    show_table([Column("mode"), Column("kind"), *_make_columns(heads)], rows)


def show_comparisons(comparisons: Sequence[Comparison]) -> None:
    """Print the differences between two modes, if they were compared."""
    if not comparisons:
        return
    first, second = comparisons[0].first, comparisons[0].second
    click.echo(f"\n{second} minus {first}, in points, with the 95 % interval of a paired bootstrap")
    rows = [
        ["all" if one.sample is None else one.sample, f"{one.questions:,}", *map(_format_interval, one.turns.values())]
        for one in comparisons
    ]
    show_table([Column("sample"), *_make_columns(["questions", *(f"@{k}" for k in comparisons[0].turns)])], rows)


def _format_interval(one: Difference) -> str:
    return f"{100 * one.mean:+.1f} ({100 * one.low:+.1f} to {100 * one.high:+.1f})"


def show_prompts(figures: PromptFigures) -> None:
    """Print the evidence in the prompts of one budget."""
    click.echo(
        f"\nevidence in the prompt at {figures.budget:,} tokens, index by {figures.mode}: "
        f"{figures.prompt_tokens:,.0f} tokens on average"
    )
    rows = [_make_prompt_row("all", "", figures.all)]
    rows += _make_prompt_rows("kind", figures.kinds)
    rows += _make_prompt_rows("type", figures.types)
    heads = ["questions", "in the\nprompt", *(f"in\n{part}" for part in PARTS), "another\nquestion's"]
    show_table([Column("by"), Column(""), *_make_columns(heads)], rows)
    if figures.refused:
        click.echo(f"{format_count(figures.refused, 'prompt')} not built: nothing fits the budget")


def _make_prompt_rows(by: str, groups: Mapping[str, PromptShares]) -> list[list[str]]:
    return [_make_prompt_row(by, name, shares) for name, shares in groups.items()]


def _make_prompt_row(by: str, name: str, shares: PromptShares) -> list[str]:
    parts = [_format_share(shares.parts[part]) for part in PARTS]
    other = "" if shares.other is None else _format_share(shares.other)
    return [by, name, f"{shares.questions:,}", _format_share(shares.evidence), *parts, other]


def show_notes(dataset: Dataset) -> None:
    """Print the sizes of a dataset."""
    click.echo(
        f"\n{format_count(dataset.queries, 'question')} about {format_count(len(dataset.samples), 'conversation')}"
    )
    unanswerable = sum(len(sample.unanswerable) for sample in dataset.samples)
    if unanswerable:
        click.echo(f"{format_count(unanswerable, 'unanswerable question')}, used only by --unrelated")
    if dataset.without_evidence:
        click.echo(f"{format_count(dataset.without_evidence, 'question')} left out: no turn answers them")
    if dataset.unknown:
        click.echo(f"{format_count(dataset.unknown, 'evidence turn')} not in the data set")


# -- statements ------------------------------------------------------------------


def show_statements(conversations: Sequence[Conversation], figures: Sequence[StatementFigures]) -> None:
    """Print the statements in the prompts of each strategy and budget."""
    asked = any(one.all.asked is not None for one in figures)
    _show_overview(figures, asked=asked)
    for budget in dict.fromkeys(one.budget for one in figures):
        rows = [one for one in figures if one.budget == budget]
        for at in range(0, len(rows), PER_TABLE):
            _show_groups(f"with topic at {budget:,}", rows[at : at + PER_TABLE], lambda shares: shares.with_topic)
            if asked:
                _show_groups(f"asked at {budget:,}", rows[at : at + PER_TABLE], lambda shares: shares.asked)
    old = sum(len(one.correctors) for one in conversations)
    total = sum(len(one.statements) for one in conversations) - old
    about = f"{format_count(total, 'statement')} of {format_count(len(conversations), 'conversation')}"
    click.echo(f"\n{about}, plus {old:,} that a later one corrects")
    for one in figures:
        if one.refused:
            built = f"of {format_count(one.prompts, 'prompt')} {one.refused:,} not built"
            click.echo(f"{format_line(one.strategy)} at {one.budget:,}: {built}")


def _show_overview(figures: Sequence[StatementFigures], *, asked: bool) -> None:
    heads = ["budget", "with\ntopic", "cue", "no cue", "present", "stale"]
    heads += ["asked", "asked\nstale"] if asked else []
    heads += ["facts per\n100 tokens", "prompt\ntokens"]
    rows = []
    for one in figures:
        cues = [one.cues[name].with_topic if name in one.cues else None for name in ("cue", "no cue")]
        cells = [_format_share(share) for share in (one.all.with_topic, *cues, one.all.present, one.stale)]
        cells += [_format_share(one.all.asked), _format_share(one.asked_stale)] if asked else []
        precision = "-" if one.per_100_tokens is None else f"{one.per_100_tokens:.2f}"
        prompt_tokens = "-" if one.prompt_tokens is None else f"{one.prompt_tokens:,.0f}"
        rows.append([one.strategy, f"{one.budget:,}", *cells, precision, prompt_tokens])
    budgets = [one.budget for one in figures]
    sizes = {budgets.count(budget) for budget in budgets}
    show_table([Column("strategy"), *_make_columns(heads)], rows, groups=sizes.pop() if len(sizes) == 1 else 0)


def _show_groups(title: str, figures: Sequence[StatementFigures], share: Callable[[Shares], float | None]) -> None:
    """Print a table with a column for each strategy. The rows are groups of statements, by wording, depth, kind and conversation."""
    click.echo(f"\n{title}")
    rows: list[list[str]] = []
    for prefix, field in (("", "cues"), ("quarter ", "quarters"), ("", "kinds"), ("in ", "conversations")):
        groups: Sequence[Mapping[str, Shares]] = [getattr(one, field) for one in figures]
        rows += [
            [
                format_line(f"{prefix}{name}", LABEL),
                f"{groups[0][name].statements:,}",
                *(_format_share(share(group[name])) for group in groups),
            ]
            for name in groups[0]
        ]
    rows.append(["all", f"{figures[0].all.statements:,}", *(_format_share(share(one.all)) for one in figures)])
    heads = ["", "of", *(_break_label(one.strategy) for one in figures)]
    show_table([Column(heads[0]), *_make_columns(heads[1:])], rows)


def _break_label(label: str, width: int = 11) -> str:
    """Break a label into lines of at most `width` characters, if possible after a punctuation mark."""
    lines = [""]
    for piece in re.findall(r"[^_,:+]*[_,:+]?", label):
        for start in range(0, len(piece), width):
            part = piece[start : start + width]
            lines = [*lines[:-1], lines[-1] + part] if len(lines[-1] + part) <= width else [*lines, part]
    return "\n".join(lines)


def _make_columns(heads: Sequence[str]) -> list[Column]:
    return [Column(head, number=True) for head in heads]


def _format_share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
