"""`holdfast eval`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from holdfast.cli.statements import statements
from holdfast.cli.stores import json_option
from holdfast.cli.terminal import Column, counted, line, plain, progress, show_json, show_table

if TYPE_CHECKING:
    from holdfast.embedders import Embedder
    from holdfast.evaluation import Dataset, Figures, Given, Mode
    from holdfast.recall.base import SearchMode

MODES = ("keyword", "vector", "hybrid", "all")
LOCAL = "local"
MOST = 1_000_000


def _numbers(ctx: click.Context, param: click.Parameter, given: str) -> list[int]:
    """Numbers separated by commas, each once, in order."""
    words = [word.strip() for word in given.split(",") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdecimal() and 0 < int(word[:9]) <= MOST and len(word) < 9):
            raise click.BadParameter(f"{plain(repr(word))} is no number from 1 to {MOST:,}.", param=param)
    return sorted({int(word) for word in words})


@click.group("eval")
def evaluate() -> None:
    """Measure how well things are found, and what is still in a prompt."""


evaluate.add_command(statements)


@evaluate.command("recall")
@click.argument("files", metavar="DATASET...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--k",
    "ks",
    metavar="N,...",
    default="5,10,25,50",
    show_default=True,
    callback=_numbers,
    help="First turns looked at.",
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="keyword",
    show_default=True,
    help="What is searched by; plain BM25 is shown beside it.",
)
@click.option(
    "--budget",
    "budgets",
    metavar="N,...",
    default="",
    callback=_numbers,
    help="Also recall within so many tokens of turns.",
)
@click.option("--per-type", is_flag=True, help="Show each type of question as well.")
@click.option(
    "--unrelated",
    "others",
    is_flag=True,
    help="Also count what questions get that ask of the wrong one, or of another conversation.",
)
@click.option(
    "--captions/--no-captions", default=True, help="Whether captions of shared photos are searched (LoCoMo's form)."
)
@click.option("--path", metavar="DIR", help="Where the local model's weights are, for --mode vector and hybrid.")
@json_option
def recall(
    files: Sequence[Path],
    ks: list[int],
    mode: Literal["keyword", "vector", "hybrid", "all"],
    budgets: list[int],
    *,
    per_type: bool,
    others: bool,
    captions: bool,
    path: str | None,
    as_json: bool,
) -> None:
    """Ask a set's questions, and see how much of the evidence is found.

    DATASET is a file in LoCoMo's published form, or {"sessions": [...], "questions": [...]} as JSON or JSON lines, or a folder of such
    files. The share of each question's evidence turns among the first N is averaged over the questions; sessions counts the
    evidence's sessions among the first N sessions.

    Nothing leaves this machine: vector and hybrid use the local model (`holdfast embeddings install`).
    """
    from holdfast.evaluation import BASELINES, read

    if not ks:
        raise click.BadParameter("nothing is named.", param_hint="--k")
    dataset = read(files, captions=captions)
    if others and len(dataset.samples) < 2:
        raise click.BadParameter("one conversation has no other to ask.", param_hint="--unrelated")
    chosen: Sequence[SearchMode] = ("keyword", "vector", "hybrid") if mode == "all" else (mode,)
    modes: list[Mode] = [*BASELINES, *chosen]
    figures, given = _figures(dataset, modes, ks, budgets, path=path, others=chosen if others else ())
    if as_json:
        show_json(_told(dataset, figures, given))
        return
    _show(figures, ks, budgets)
    if per_type:
        _show_types(figures, ks)
    if given:
        _show_given(given)
    _notes(dataset)


def _figures(
    dataset: Dataset,
    modes: Sequence[Mode],
    ks: list[int],
    budgets: list[int],
    *,
    path: str | None,
    others: Sequence[SearchMode],
) -> tuple[list[Figures], list[Given]]:
    """The figures of the modes, and what questions of each kind get in those of `others`."""
    import anyio

    from holdfast.evaluation import Evaluator, Library, unrelated

    async def run() -> tuple[list[Figures], list[Given]]:
        found: list[Figures] = []
        given: list[Given] = []
        embedder = _embedder(path) if {"vector", "hybrid"} & set(modes) else None
        if embedder is not None:
            await embedder.embed(["whether it works is told before anything is imported"])
        with progress(sum(len(sample.sessions) for sample in dataset.samples)) as bar:
            bar.about("import")
            library = Library(dataset, embedder=embedder, on_session=bar.step)
            await library.__aenter__()
        try:
            with progress(dataset.queries * (len(modes) + 2 * len(others))) as bar:
                for mode in modes:
                    bar.about(mode)
                    evaluator = Evaluator(dataset, library)
                    found.append(await evaluator.run(mode, ks=ks, budgets=budgets, on_question=bar.step))
                for other in others:
                    bar.about(f"{other}, unrelated")
                    given += await unrelated(dataset, library, other, on_question=bar.step)
        finally:
            await library.__aexit__(None, None, None)
        return found, given

    return anyio.run(run)


def _embedder(path: str | None) -> Embedder:
    from holdfast.embedders import EmbedderSettings, embedder_of

    return embedder_of(EmbedderSettings(provider=LOCAL, path=path))


# -- the results -------------------------------------------------------------


def _told(dataset: Dataset, figures: Sequence[Figures], given: Sequence[Given]) -> dict[str, Any]:
    import msgspec

    return {
        "samples": len(dataset.samples),
        "turns": sum(len(sample.turns) for sample in dataset.samples),
        "questions": dataset.queries,
        "without_evidence": dataset.without_evidence,
        "unknown_evidence": dataset.unknown,
        "modes": [msgspec.structs.asdict(one) for one in figures],
        "unrelated": [msgspec.structs.asdict(one) for one in given],
    }


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


def _show_types(figures: Sequence[Figures], ks: Sequence[int]) -> None:
    for one in figures:
        click.echo(f"\n{line(one.mode)}")
        rows = [
            [name, f"{shares['questions']:,}", *(_share(shares[str(k)]) for k in ks)]
            for name, shares in one.types.items()
        ]
        show_table([Column("type"), *_columns(["questions", *(f"@{k}" for k in ks)])], rows)


def _show_given(given: Sequence[Given]) -> None:
    kinds = {"here": "answered here", "wrong": "of the wrong one", "elsewhere": "answered elsewhere"}
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


def _notes(dataset: Dataset) -> None:
    click.echo(f"\n{counted(dataset.queries, 'question')} about {counted(len(dataset.samples), 'conversation')}")
    if dataset.without_evidence:
        click.echo(f"{counted(dataset.without_evidence, 'question')} left out: no turn that there is answers them")
    if dataset.unknown:
        click.echo(f"{counted(dataset.unknown, 'name')} of turns in evidence that there are not")


def _columns(heads: Sequence[str]) -> list[Column]:
    return [Column(head, number=True) for head in heads]


def _share(value: float) -> str:
    return f"{100 * value:.1f}"
