"""The commands `recall`, `evidence` and `statements` of `python -m benchmarks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

import anyio
import click
import msgspec

from benchmarks.evaluation import tables
from benchmarks.evaluation.dataset import Dataset
from benchmarks.evaluation.evaluator import BASELINES, MODES, Comparison, Evaluator, Mode, compare
from benchmarks.evaluation.library import Library
from benchmarks.evaluation.measures import Figures
from benchmarks.evaluation.prompt_contents import PromptFigures, measure_prompts
from benchmarks.evaluation.prompt_sessions import Run
from benchmarks.evaluation.readers import read
from benchmarks.evaluation.statements.conversations import Conversation, read_conversations
from benchmarks.evaluation.statements.figures import Figures as StatementFigures
from benchmarks.evaluation.statements.prompts import DEFAULT_STRATEGIES, measure_statements
from benchmarks.evaluation.unrelated import UnrelatedFigures, can_ask, count_unrelated, measure_unrelated
from holdfast import __version__
from holdfast.cli.errors import RootGroup
from holdfast.cli.terminal import json_line, show_busy, show_json, show_progress
from holdfast.context.settings import ContextSettings
from holdfast.embedders import Embedder, EmbedderSettings, embedder_of
from holdfast.errors import InvalidRequest
from holdfast.recall.base import SearchMode
from holdfast.replay.specs import Spec, parse_specs, parse_tokens

COMPARED: Final = ("bm25", "fts5", "keyword", "vector", "hybrid")
MAX_NUMBER: Final = 1_000_000
STDOUT: Final = "-"


def _parse_numbers(ctx: click.Context, param: click.Parameter, given: str) -> list[int]:
    """Parse comma-separated numbers. Return them sorted and without duplicates."""
    words = [word.strip() for word in given.split(",") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdecimal() and 0 < int(word[:9]) <= MAX_NUMBER and len(word) < 9):
            raise click.BadParameter(f"{word!r} is not a number from 1 to {MAX_NUMBER:,}.", param=param)
    if param.default and not words:
        raise click.BadParameter("the list is empty.", param=param)
    return sorted({int(word) for word in words})


def _parse_pair(ctx: click.Context, param: click.Parameter, given: str | None) -> tuple[Mode, Mode] | None:
    if given is None:
        return None
    names = [word.strip() for word in given.split(",")]
    if len(names) != 2 or names[0] == names[1] or not set(names) <= set(COMPARED):
        message = f"{given!r} is not two different modes of {', '.join(COMPARED)}, for example bm25,keyword."
        raise click.BadParameter(message, param=param)
    return cast("tuple[Mode, Mode]", tuple(names))


_dataset_argument: Final = click.argument(
    "files", metavar="DATASET...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
_captions_option: Final = click.option(
    "--captions/--no-captions", default=True, help="Include captions of shared photos (LoCoMo format)."
)
_path_option: Final = click.option("--path", metavar="DIR", help="Folder of the local model, for vectors.")
_json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")


# -- recall ----------------------------------------------------------------------


class Plan(NamedTuple):
    """The figures that the options of `recall` request."""

    modes: Sequence[Mode]
    ks: Sequence[int]
    budgets: Sequence[int]
    unrelated: Sequence[SearchMode]
    """Modes in which to search for unrelated questions; empty: none."""
    pair: tuple[Mode, Mode] | None
    """The two modes to compare; None: no comparison."""


class Results:
    """The figures of `recall`."""

    def __init__(self) -> None:
        self.figures: list[Figures] = []
        self.given: list[UnrelatedFigures] = []
        self.comparisons: list[Comparison] = []


@click.command
@_dataset_argument
@click.option(
    "--k",
    "ks",
    metavar="N,...",
    default="5,10,25,50",
    show_default=True,
    callback=_parse_numbers,
    help="Numbers of results to measure recall at.",
)
@click.option(
    "--mode",
    type=click.Choice(["keyword", "vector", "hybrid", "all"]),
    default="keyword",
    show_default=True,
    help="Kind of search. Plain BM25 is always shown for comparison.",
)
@click.option(
    "--budget",
    "budgets",
    metavar="N,...",
    default="",
    callback=_parse_numbers,
    help="Also measure recall within these token budgets.",
)
@click.option("--per-type", is_flag=True, help="Also show each type of question.")
@click.option("--per-sample", is_flag=True, help="Also show each sample.")
@click.option(
    "--compare",
    "pair",
    metavar="A,B",
    callback=_parse_pair,
    help=f"Show how much better B is than A, with 95 % confidence intervals: {', '.join(COMPARED)}.",
)
@click.option(
    "--unrelated",
    "others",
    is_flag=True,
    help="Also search with questions about another person or conversation, and unanswerable ones.",
)
@_captions_option
@_path_option
@_json_option
def recall(
    files: Sequence[Path],
    ks: list[int],
    mode: Literal["keyword", "vector", "hybrid", "all"],
    budgets: list[int],
    *,
    per_type: bool,
    per_sample: bool,
    pair: tuple[Mode, Mode] | None,
    others: bool,
    captions: bool,
    path: str | None,
    as_json: bool,
) -> None:
    """Measure how much of the evidence for questions is found.

    DATASET is a file in the format of LoCoMo, REALTALK or BEAM, or {"sessions": [...], "questions": [...]} as JSON or JSON
    lines, or a folder of such files. For each question, recall @N is the share of its evidence turns among the first N results;
    the table shows the mean. sessions @N counts sessions instead of turns.

    No data leaves this machine: vector and hybrid use a local model (`holdfast embeddings install`).
    """
    with show_busy():
        dataset = read(files, captions=captions)
    if others and not can_ask(dataset):
        message = "the data set has only one conversation and no unanswerable questions."
        raise click.BadParameter(message, param_hint="--unrelated")
    if pair and not dataset.queries:
        raise click.BadParameter("no question in the data set has evidence.", param_hint="DATASET")
    chosen: Sequence[SearchMode] = ("keyword", "vector", "hybrid") if mode == "all" else (mode,)
    wanted = {*BASELINES, *chosen, *(pair or ())}
    plan = Plan([one for one in MODES if one in wanted], ks, budgets, chosen if others else (), pair)
    with show_busy():
        results = anyio.run(_search, dataset, plan, path)
    if as_json:
        figures = [msgspec.structs.asdict(one) for one in results.figures]
        unrelated = [msgspec.structs.asdict(one) for one in results.given]
        show_json({**_describe(dataset), "modes": figures, "unrelated": unrelated, "comparisons": results.comparisons})
        return
    tables.show_recall(results.figures, ks, budgets)
    if per_sample:
        tables.show_samples(results.figures, ks)
    if per_type:
        tables.show_types(results.figures, ks)
    tables.show_comparisons(results.comparisons)
    tables.show_unrelated(results.given)
    tables.show_notes(dataset)


def _describe(dataset: Dataset) -> dict[str, Any]:
    """Return the sizes of a dataset, for the JSON output."""
    return {
        "samples": len(dataset.samples),
        "turns": sum(len(sample.turns) for sample in dataset.samples),
        "questions": dataset.queries,
        "without_evidence": dataset.without_evidence,
        "unknown_evidence": dataset.unknown,
    }


async def _search(dataset: Dataset, plan: Plan, path: str | None) -> Results:
    """Search for all questions in each mode. Return the recall of each mode, and the results of unrelated questions."""
    embedder = await _try_embedder(path) if {"vector", "hybrid"} & set(plan.modes) else None
    results = Results()
    with show_progress(sum(len(sample.sessions) for sample in dataset.samples)) as bar:
        bar.describe("import")
        library = Library(dataset, embedder=embedder, on_session=bar.advance)
        await library.__aenter__()
    try:
        total = dataset.queries * len(plan.modes) + count_unrelated(dataset) * len(plan.unrelated)
        with show_progress(total) as bar:
            evaluator = Evaluator(dataset, library)
            for mode in plan.modes:
                bar.describe(mode)
                found = await evaluator.run(mode, ks=plan.ks, budgets=plan.budgets, on_question=bar.advance)
                results.figures.append(found)
            for other in plan.unrelated:
                bar.describe(f"{other}, unrelated")
                results.given += await measure_unrelated(dataset, library, other, on_question=bar.advance)
    finally:
        await library.__aexit__(None, None, None)
    if plan.pair:
        results.comparisons += compare(dataset.samples, evaluator.outcomes, *plan.pair, plan.ks)
    return results


def _open_embedder(path: str | None) -> Embedder:
    return embedder_of(EmbedderSettings(provider="local", path=path))


async def _try_embedder(path: str | None) -> Embedder:
    """Open the local embedder. A model that does not work fails before anything is imported."""
    embedder = _open_embedder(path)
    await embedder.embed(["test"])
    return embedder


# -- evidence --------------------------------------------------------------------


@click.command
@_dataset_argument
@click.option(
    "--budgets",
    "--budget",
    "budgets",
    metavar="N,...",
    default="2048,4096,8192",
    show_default=True,
    callback=_parse_numbers,
    help="Token budgets of the prompts.",
)
@click.option(
    "--mode",
    type=click.Choice(["keyword", "hybrid", "all"]),
    default="keyword",
    show_default=True,
    help="Index with words only (keyword), with vectors too (hybrid), or one after the other (all).",
)
@_captions_option
@_path_option
@_json_option
def evidence(
    files: Sequence[Path], budgets: list[int], mode: str, *, captions: bool, path: str | None, as_json: bool
) -> None:
    """Measure whether the prompt of a question holds the evidence of its answer.

    DATASET is the same as for `recall`. The prompt of each question is built by the default strategy, without a model.
    """
    with show_busy():
        dataset = read(files, captions=captions)
    if not dataset.queries:
        raise click.BadParameter("no question in the data set has evidence.", param_hint="DATASET")
    with show_busy():
        figures = anyio.run(_build_prompts, dataset, budgets, mode, path)
    if as_json:
        show_json({**_describe(dataset), "prompts": figures})
        return
    for one in figures:
        tables.show_prompts(one)
    tables.show_notes(dataset)


async def _build_prompts(dataset: Dataset, budgets: Sequence[int], mode: str, path: str | None) -> list[PromptFigures]:
    """Build a prompt for each question, budget and kind of index, and return the figures about the evidence in these prompts."""
    indexes: list[Callable[[], Embedder] | None] = [] if mode == "hybrid" else [None]
    if mode != "keyword":
        await (await _try_embedder(path)).close()
        indexes.append(partial(_open_embedder, path))
    found: list[PromptFigures] = []
    with show_progress(dataset.queries * len(budgets) * len(indexes)) as bar:
        bar.describe("prompts")
        for index in indexes:
            found += await measure_prompts(dataset, budgets, open_embedder=index, on_prompt=bar.advance)
    return found


# -- statements ------------------------------------------------------------------


def _parse_strategies(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> list[Spec]:
    try:
        found = parse_specs(given)
    except InvalidRequest as exc:
        raise click.BadParameter(str(exc).removeprefix("strategy: "), param=param) from exc
    if not found:
        raise click.BadParameter("the list is empty.", param=param)
    return found


def _parse_budgets(ctx: click.Context, param: click.Parameter, given: str) -> list[int]:
    try:
        found = sorted({parse_tokens(word) for word in given.split(",") if word.strip()})
    except InvalidRequest as exc:
        raise click.BadParameter(str(exc), param=param) from exc
    if not found:
        raise click.BadParameter("the list is empty.", param=param)
    return found


@click.command
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--strategies",
    "--strategy",
    "specs",
    metavar="S,...",
    multiple=True,
    default=[DEFAULT_STRATEGIES],
    show_default=True,
    callback=_parse_strategies,
    help="Strategies to measure, written as for `holdfast replay`.",
)
@click.option(
    "--budgets",
    "--budget",
    "budgets",
    metavar="N,...",
    default="1024,2048,4096,8192",
    show_default=True,
    callback=_parse_budgets,
    help="Token budgets of the conversation, without the system prompt.",
)
@click.option(
    "--asked",
    is_flag=True,
    help="Also ask each statement's question; takes minutes, because it builds one prompt per question.",
)
@click.option("--json", "output", metavar="FILE", help="Write all figures to FILE; - for standard output.")
def statements(
    files: Sequence[Path], specs: Sequence[Spec], budgets: Sequence[int], *, asked: bool, output: str | None
) -> None:
    """Measure which statements are still in the prompts.

    FILE is a conversation with labelled statements as JSON, or a folder of such files; benchmarks/statements/README.md
    describes the format. Each prompt is built as for a real turn, without a model.

    "with topic" is the share of statements of which a value and a topic word are on the same line of the prompt. The system
    prompt and the current user message do not count. Statements that a later one corrects are counted separately.
    """
    conversations = read_conversations(files)
    runs = _make_runs(specs, budgets)
    prompts = sum(1 + len(one.statements) * asked for one in conversations) * len(runs)
    with show_progress(prompts) as bar:
        measure = partial(measure_statements, conversations, runs, asked=asked, on_prompt=bar.advance)
        figures = anyio.run(measure)
    if output == STDOUT:
        show_json(_to_json(conversations, figures))
        return
    if output is not None:
        Path(output).write_bytes(json_line(_to_json(conversations, figures)))
    tables.show_statements(conversations, figures)


def _make_runs(specs: Sequence[Spec], budgets: Sequence[int]) -> list[Run]:
    """Return a run for each spec and budget, without duplicates and sorted by budget.

    A spec with its own budget gets a single run with that budget.
    """
    runs: dict[tuple[str, int], Run] = {}
    for budget in budgets:
        for spec in specs:
            own = spec.budget or budget
            settings = spec.make_settings(own)
            if spec.has_summaries:  # no model writes summaries here, so the digest is used
                settings = ContextSettings(settings.strategy, {**settings.options, "summarizer_llm": "none"})
            runs.setdefault((spec.label, own), Run(spec.label, own, settings))
    return sorted(runs.values(), key=lambda run: run.budget)


def _to_json(conversations: Sequence[Conversation], figures: Sequence[StatementFigures]) -> dict[str, Any]:
    return {
        "conversations": [
            {
                "id": one.id,
                "kind": one.kind,
                "messages": len(one.messages),
                "tokens": one.totals[-1],
                "statements": len(one.statements),
                "superseded": len(one.correctors),
            }
            for one in conversations
        ],
        "figures": figures,
    }


commands: Final = RootGroup(
    name="benchmarks",
    version=__version__,
    help="Measure the quality of search and of prompts.",
    commands=[recall, evidence, statements],
)
