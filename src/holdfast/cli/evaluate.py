"""`holdfast eval`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import click

from holdfast.cli.embeddings import LOCAL_NAMES, local_model
from holdfast.cli.statements import statements
from holdfast.cli.stores import json_option
from holdfast.cli.terminal import plain, progress, show_json

if TYPE_CHECKING:
    from holdfast.cli.recall_figures import Results
    from holdfast.embedders import Embedder
    from holdfast.evaluation import Dataset, Mode, PromptFigures
    from holdfast.recall.base import SearchMode

MODES = ("keyword", "vector", "hybrid", "all")
COMPARED = ("bm25", "fts5", "keyword", "vector", "hybrid")
MOST = 1_000_000


def _numbers(ctx: click.Context, param: click.Parameter, given: str) -> list[int]:
    """Numbers separated by commas, each once, in order."""
    words = [word.strip() for word in given.split(",") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdecimal() and 0 < int(word[:9]) <= MOST and len(word) < 9):
            raise click.BadParameter(f"{plain(repr(word))} is no number from 1 to {MOST:,}.", param=param)
    return sorted({int(word) for word in words})


def _parse_pair(ctx: click.Context, param: click.Parameter, given: str | None) -> tuple[Mode, Mode] | None:
    """Return the two modes to compare."""
    if given is None:
        return None
    names = [word.strip() for word in given.split(",")]
    if len(names) != 2 or names[0] == names[1] or not set(names) <= set(COMPARED):
        message = f"{plain(repr(given))} is not two different modes of {', '.join(COMPARED)}, for example bm25,keyword."
        raise click.BadParameter(message, param=param)
    return cast("tuple[Mode, Mode]", tuple(names))


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
@click.option("--per-sample", is_flag=True, help="Show each sample as well.")
@click.option(
    "--compare",
    "pair",
    metavar="A,B",
    callback=_parse_pair,
    help="Show how much more B finds than A, with 95 % intervals: bm25, fts5, keyword, vector, hybrid.",
)
@click.option(
    "--prompt",
    "prompts",
    metavar="N,...",
    default="",
    callback=_numbers,
    help="Also build each question's prompt at so many tokens, and count the evidence in it.",
)
@click.option(
    "--unrelated",
    "others",
    is_flag=True,
    help="Also count what questions get that ask of the wrong one or of another conversation, or that nothing answers.",
)
@click.option(
    "--captions/--no-captions", default=True, help="Whether captions of shared photos are searched (LoCoMo's form)."
)
@click.option(
    "--model",
    type=click.Choice(LOCAL_NAMES),
    default=LOCAL_NAMES[0],
    show_default=True,
    help="Local model for --mode vector and hybrid.",
)
@click.option("--path", metavar="DIR", help="Where the local model's weights are.")
@json_option
def recall(
    files: Sequence[Path],
    ks: list[int],
    mode: Literal["keyword", "vector", "hybrid", "all"],
    budgets: list[int],
    *,
    per_type: bool,
    per_sample: bool,
    pair: tuple[Mode, Mode] | None,
    prompts: list[int],
    others: bool,
    captions: bool,
    model: str,
    path: str | None,
    as_json: bool,
) -> None:
    """Ask a set's questions, and see how much of the evidence is found.

    DATASET is a file in the published form of LoCoMo, REALTALK or BEAM, or {"sessions": [...], "questions": [...]} as JSON or JSON
    lines, or a folder of such files. The share of each question's evidence turns among the first N is averaged over the questions;
    sessions counts the evidence's sessions among the first N sessions.

    Nothing leaves this machine: vector and hybrid use a local model (`holdfast embeddings install`).
    """
    from holdfast.cli.recall_figures import Tables, show_all, to_json
    from holdfast.evaluation import BASELINES, MODES, can_ask, read

    if not ks:
        raise click.BadParameter("nothing is named.", param_hint="--k")
    dataset = read(files, captions=captions)
    if others and not can_ask(dataset):
        message = "one conversation has no other to ask, and no question in it is unanswerable."
        raise click.BadParameter(message, param_hint="--unrelated")
    if not dataset.queries and (pair or prompts):
        raise click.BadParameter("no question in the set has evidence.", param_hint="DATASET")
    chosen: Sequence[SearchMode] = ("keyword", "vector", "hybrid") if mode == "all" else (mode,)
    wanted = {*BASELINES, *chosen, *(pair or ())}
    plan = _Plan([one for one in MODES if one in wanted], ks, budgets, chosen if others else (), pair, prompts)
    results = _measure(dataset, plan, (model, path))
    if as_json:
        show_json(to_json(dataset, results))
    else:
        show_all(dataset, results, Tables(ks, budgets, per_type=per_type, per_sample=per_sample))


class _Plan(NamedTuple):
    """The measurements of one call."""

    modes: Sequence[Mode]
    ks: Sequence[int]
    budgets: Sequence[int]
    unrelated: Sequence[SearchMode]
    """Modes in which unrelated questions are asked."""
    pair: tuple[Mode, Mode] | None
    """Modes to compare."""
    prompts: Sequence[int]
    """Budgets of prompts."""

    @property
    def needs_vectors(self) -> bool:
        """True if the local model is needed."""
        return bool({"vector", "hybrid"} & set(self.modes))


def _measure(dataset: Dataset, plan: _Plan, local: tuple[str, str | None]) -> Results:
    """Return all figures that were asked for; `local`: name and path of the local model."""
    import anyio

    from holdfast.evaluation import compare

    async def run() -> Results:
        embedder = _open_embedder(*local) if plan.needs_vectors else None
        if embedder is not None:
            await embedder.embed(["a model that does not work fails before anything is imported"])
        results = await _search(dataset, plan, embedder)
        results.prompts += await _build_prompts(dataset, plan, local)
        return results

    results: Results = anyio.run(run)
    if plan.pair:
        results.comparisons += compare(dataset.samples, results.outcomes, *plan.pair, plan.ks)
    return results


async def _search(dataset: Dataset, plan: _Plan, embedder: Embedder | None) -> Results:
    """Return the figures of the modes, and what questions of each kind get."""
    from holdfast.cli.recall_figures import Results
    from holdfast.evaluation import Evaluator, Library, count_unrelated, unrelated

    results = Results()
    with progress(sum(len(sample.sessions) for sample in dataset.samples)) as bar:
        bar.about("import")
        library = Library(dataset, embedder=embedder, on_session=bar.step)
        await library.__aenter__()
    try:
        total = dataset.queries * len(plan.modes) + count_unrelated(dataset) * len(plan.unrelated)
        with progress(total) as bar:
            evaluator = Evaluator(dataset, library)
            for mode in plan.modes:
                bar.about(mode)
                found = await evaluator.run(mode, ks=plan.ks, budgets=plan.budgets, on_question=bar.step)
                results.figures.append(found)
            results.outcomes |= evaluator.outcomes
            for other in plan.unrelated:
                bar.about(f"{other}, unrelated")
                results.given += await unrelated(dataset, library, other, on_question=bar.step)
    finally:
        await library.__aexit__(None, None, None)
    return results


async def _build_prompts(dataset: Dataset, plan: _Plan, local: tuple[str, str | None]) -> list[PromptFigures]:
    """Return what prompts contain, with an index of words, and with the local model if a mode needs it."""
    from holdfast.evaluation import measure_prompts

    if not plan.prompts:
        return []
    indexes: list[Callable[[], Embedder] | None] = []
    indexes += [None] if "keyword" in plan.modes else []
    indexes += [partial(_open_embedder, *local)] if plan.needs_vectors else []
    found: list[PromptFigures] = []
    with progress(dataset.queries * len(plan.prompts) * len(indexes)) as bar:
        bar.about("prompts")
        for index in indexes:
            found += await measure_prompts(dataset, plan.prompts, open_embedder=index, on_prompt=bar.step)
    return found


def _open_embedder(name: str, path: str | None) -> Embedder:
    from holdfast.embedders import EmbedderSettings, embedder_of

    return embedder_of(EmbedderSettings(provider="local", model=local_model(name), path=path))
