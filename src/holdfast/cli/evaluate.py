"""`holdfast eval recall` and `holdfast eval statements`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import click

from holdfast.cli.index import LOCAL_NAMES, get_local_model
from holdfast.cli.stores import json_option
from holdfast.cli.terminal import (
    Column,
    format_line,
    json_line,
    sanitize,
    show_busy,
    show_json,
    show_progress,
    show_table,
)
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.embedders import Embedder
    from holdfast.evaluation import Comparison, Dataset, Figures, Mode, Outcome, PromptFigures, UnrelatedFigures
    from holdfast.evaluation.evaluator import Difference
    from holdfast.evaluation.prompt_contents import PromptShares
    from holdfast.evaluation.statements import Conversation, Run, Shares
    from holdfast.evaluation.statements import Figures as StatementFigures
    from holdfast.recall.base import SearchMode
    from holdfast.replay import Spec

MODES = ("keyword", "vector", "hybrid", "all")
COMPARED = ("bm25", "fts5", "keyword", "vector", "hybrid")
MAX_NUMBER = 1_000_000


def _parse_numbers(ctx: click.Context, param: click.Parameter, given: str) -> list[int]:
    """Parse comma-separated numbers. Return them sorted and without duplicates."""
    words = [word.strip() for word in given.split(",") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdecimal() and 0 < int(word[:9]) <= MAX_NUMBER and len(word) < 9):
            raise click.BadParameter(f"{sanitize(repr(word))} is not a number from 1 to {MAX_NUMBER:,}.", param=param)
    return sorted({int(word) for word in words})


def _parse_pair(ctx: click.Context, param: click.Parameter, given: str | None) -> tuple[Mode, Mode] | None:
    if given is None:
        return None
    names = [word.strip() for word in given.split(",")]
    if len(names) != 2 or names[0] == names[1] or not set(names) <= set(COMPARED):
        message = (
            f"{sanitize(repr(given))} is not two different modes of {', '.join(COMPARED)}, for example bm25,keyword."
        )
        raise click.BadParameter(message, param=param)
    return cast("tuple[Mode, Mode]", tuple(names))


@click.group("eval")
def evaluate() -> None:
    """Measure the quality of search and of prompts."""


@evaluate.command("recall")
@click.argument("files", metavar="DATASET...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
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
    type=click.Choice(MODES),
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
    help="Show how much better B is than A, with 95 % confidence intervals: bm25, fts5, keyword, vector, hybrid.",
)
@click.option(
    "--prompt",
    "prompts",
    metavar="N,...",
    default="",
    callback=_parse_numbers,
    help="Also build the prompt of each question with these token budgets, and count the evidence in it.",
)
@click.option(
    "--unrelated",
    "others",
    is_flag=True,
    help="Also search with questions about another person or conversation, and unanswerable ones.",
)
@click.option("--captions/--no-captions", default=True, help="Search captions of shared photos too (LoCoMo format).")
@click.option(
    "--model",
    type=click.Choice(LOCAL_NAMES),
    default=LOCAL_NAMES[0],
    show_default=True,
    help="Local model for --mode vector and hybrid.",
)
@click.option("--path", metavar="DIR", help="Folder of the local model.")
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
    """Measure how much of the evidence for questions is found.

    DATASET is a file in the format of LoCoMo, REALTALK or BEAM, or {"sessions": [...], "questions": [...]} as JSON or JSON
    lines, or a folder of such files. For each question, recall @N is the share of its evidence turns among the first N results;
    the table shows the mean. sessions @N counts sessions instead of turns.

    No data leaves this machine: vector and hybrid use a local model (`holdfast embeddings install`).
    """
    from holdfast.evaluation import BASELINES, MODES, can_ask, read

    if not ks:
        raise click.BadParameter("the list is empty.", param_hint="--k")
    with show_busy():
        dataset = read(files, captions=captions)
    if others and not can_ask(dataset):
        message = "the data set has only one conversation and no unanswerable questions."
        raise click.BadParameter(message, param_hint="--unrelated")
    if not dataset.queries and (pair or prompts):
        raise click.BadParameter("no question in the data set has evidence.", param_hint="DATASET")
    chosen: Sequence[SearchMode] = ("keyword", "vector", "hybrid") if mode == "all" else (mode,)
    wanted = {*BASELINES, *chosen, *(pair or ())}
    plan = _Plan([one for one in MODES if one in wanted], ks, budgets, chosen if others else (), pair, prompts)
    results = _measure(dataset, plan, (model, path))
    if as_json:
        show_json(to_json(dataset, results))
    else:
        show_all(dataset, results, Tables(ks, budgets, per_type=per_type, per_sample=per_sample))


class _Plan(NamedTuple):
    """The figures that the options of the command request."""

    modes: Sequence[Mode]
    ks: Sequence[int]
    budgets: Sequence[int]
    unrelated: Sequence[SearchMode]
    """Modes in which to search for unrelated questions; empty: none."""
    pair: tuple[Mode, Mode] | None
    """The two modes to compare; None: no comparison."""
    prompts: Sequence[int]
    """Token budgets with which to build the prompt of each question; empty: no prompts are built."""

    @property
    def needs_vectors(self) -> bool:
        """True if one of the modes needs the local embedding model."""
        return bool({"vector", "hybrid"} & set(self.modes))


def _measure(dataset: Dataset, plan: _Plan, local: tuple[str, str | None]) -> Results:
    """Compute and return all requested figures.

    Args:
        dataset: the conversations and questions.
        plan: the figures to compute.
        local: name and path of the local embedding model.
    """
    import anyio

    from holdfast.evaluation import compare

    async def run() -> Results:
        embedder = _open_embedder(*local) if plan.needs_vectors else None
        if embedder is not None:
            await embedder.embed(["a model that does not work fails before anything is imported"])
        results = await _search(dataset, plan, embedder)
        results.prompts += await _build_prompts(dataset, plan, local)
        return results

    with show_busy():
        results: Results = anyio.run(run)
    if plan.pair:
        results.comparisons += compare(dataset.samples, results.outcomes, *plan.pair, plan.ks)
    return results


async def _search(dataset: Dataset, plan: _Plan, embedder: Embedder | None) -> Results:
    """Search for all questions in each mode. Return the recall of each mode, and the results of unrelated questions."""
    from holdfast.evaluation import Evaluator, Library, count_unrelated, measure_unrelated

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
            results.outcomes |= evaluator.outcomes
            for other in plan.unrelated:
                bar.describe(f"{other}, unrelated")
                results.given += await measure_unrelated(dataset, library, other, on_question=bar.advance)
    finally:
        await library.__aexit__(None, None, None)
    return results


async def _build_prompts(dataset: Dataset, plan: _Plan, local: tuple[str, str | None]) -> list[PromptFigures]:
    """Build a prompt for each question, and return figures about the evidence in these prompts.

    Prompts are built with keyword search if the mode `keyword` was requested, and with the local embedding model if a mode needs vectors.
    """
    from holdfast.evaluation import measure_prompts

    if not plan.prompts:
        return []
    indexes: list[Callable[[], Embedder] | None] = []
    indexes += [None] if "keyword" in plan.modes else []
    indexes += [partial(_open_embedder, *local)] if plan.needs_vectors else []
    found: list[PromptFigures] = []
    with show_progress(dataset.queries * len(plan.prompts) * len(indexes)) as bar:
        bar.describe("prompts")
        for index in indexes:
            found += await measure_prompts(dataset, plan.prompts, open_embedder=index, on_prompt=bar.advance)
    return found


def _open_embedder(name: str, path: str | None) -> Embedder:
    from holdfast.embedders import EmbedderSettings, embedder_of

    return embedder_of(EmbedderSettings(provider="local", model=get_local_model(name), path=path))


# -- results of recall -----------------------------------------------------------

_PARTS = ("messages", "facts", "digest", "recalled")


class Results:
    """The figures that were computed."""

    def __init__(self) -> None:
        self.figures: list[Figures] = []
        self.given: list[UnrelatedFigures] = []
        self.comparisons: list[Comparison] = []
        self.prompts: list[PromptFigures] = []
        self.outcomes: dict[str, list[Outcome]] = {}


class Tables(NamedTuple):
    """The columns and tables to print."""

    ks: Sequence[int]
    budgets: Sequence[int]
    per_type: bool
    per_sample: bool


def to_json(dataset: Dataset, results: Results) -> dict[str, Any]:
    """Return all figures as the JSON object that `--json` prints."""
    import msgspec

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
    """Print all figures as tables."""
    _show_recall(results.figures, tables.ks, tables.budgets)
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
    _show_notes(dataset)


def _show_recall(figures: Sequence[Figures], ks: Sequence[int], budgets: Sequence[int]) -> None:
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


def _show_samples(figures: Sequence[Figures], ks: Sequence[int]) -> None:
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


def _show_types(figures: Sequence[Figures], ks: Sequence[int]) -> None:
    for one in figures:
        click.echo(f"\n{format_line(one.mode)}")
        rows = [
            [name, f"{shares['questions']:,}", *(_format_share(shares[str(k)]) for k in ks)]
            for name, shares in one.types.items()
        ]
        show_table([Column("type"), *_make_columns(["questions", *(f"@{k}" for k in ks)])], rows)


def _show_given(given: Sequence[UnrelatedFigures]) -> None:
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


def _show_comparisons(comparisons: Sequence[Comparison]) -> None:
    first, second = comparisons[0].first, comparisons[0].second
    click.echo(f"\n{second} minus {first}, in points, with the 95 % interval of a paired bootstrap")
    rows = [
        ["all" if one.sample is None else one.sample, f"{one.questions:,}", *map(_format_interval, one.turns.values())]
        for one in comparisons
    ]
    show_table([Column("sample"), *_make_columns(["questions", *(f"@{k}" for k in comparisons[0].turns)])], rows)


def _format_interval(one: Difference) -> str:
    return f"{100 * one.mean:+.1f} ({100 * one.low:+.1f} to {100 * one.high:+.1f})"


def _show_prompts(figures: PromptFigures) -> None:
    click.echo(
        f"\nevidence in the prompt at {figures.budget:,} tokens, index by {figures.mode}: "
        f"{figures.prompt_tokens:,.0f} tokens on average"
    )
    rows = [_make_prompt_row("all", "", figures.all)]
    rows += _make_prompt_rows("kind", figures.kinds)
    rows += _make_prompt_rows("type", figures.types)
    heads = ["questions", "in the\nprompt", *(f"in\n{part}" for part in _PARTS), "another\nquestion's"]
    show_table([Column("by"), Column(""), *_make_columns(heads)], rows)
    if figures.late:
        click.echo(f"{format_count(figures.late, 'prompt')} rebuilt because a search was late")
    if figures.refused:
        click.echo(f"{format_count(figures.refused, 'prompt')} not built: nothing fits the budget")


def _make_prompt_rows(by: str, groups: Mapping[str, PromptShares]) -> list[list[str]]:
    return [_make_prompt_row(by, name, shares) for name, shares in groups.items()]


def _make_prompt_row(by: str, name: str, shares: PromptShares) -> list[str]:
    parts = [_format_share(shares.parts[part]) for part in _PARTS]
    other = "" if shares.other is None else _format_share(shares.other)
    return [by, name, f"{shares.questions:,}", _format_share(shares.evidence), *parts, other]


def _show_notes(dataset: Dataset) -> None:
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

DEFAULT_STRATEGIES = "digest,salience,token_window,head_tail,buffer_window,clear_tool_results"
"""Strategies that need no model. `none` needs none either, but is left out because it sends everything."""
STDOUT = "-"
PER_TABLE = 6
"""Maximum number of strategies in one table, so that the table is at most 100 characters wide."""
LABEL = 18
"""Maximum number of characters of a row's name."""


def _parse_strategies(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> list[Spec]:
    from holdfast.errors import InvalidRequest
    from holdfast.replay import parse_specs

    try:
        found = parse_specs(given)
    except InvalidRequest as exc:
        raise click.BadParameter(sanitize(str(exc).removeprefix("strategy: ")), param=param) from exc
    if not found:
        raise click.BadParameter("the list is empty.", param=param)
    return found


def _parse_budgets(ctx: click.Context, param: click.Parameter, given: str) -> list[int]:
    from holdfast.errors import InvalidRequest
    from holdfast.replay.specs import parse_tokens

    try:
        found = sorted({parse_tokens(word) for word in given.split(",") if word.strip()})
    except InvalidRequest as exc:
        raise click.BadParameter(sanitize(str(exc)), param=param) from exc
    if not found:
        raise click.BadParameter("the list is empty.", param=param)
    return found


def _check_folder(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
    """Return the path of the output file, after checking that its folder exists."""
    if given is None or given == STDOUT:
        return given
    path = Path(given)
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"{sanitize(str(path.parent))}: no such directory.", param=param)
    return given


@evaluate.command("statements")
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
@click.option(
    "--json", "output", metavar="FILE", callback=_check_folder, help="Write all figures to FILE; - for standard output."
)
def statements(
    files: Sequence[Path], specs: Sequence[Spec], budgets: Sequence[int], *, asked: bool, output: str | None
) -> None:
    """Measure which statements are still in the prompts.

    FILE is a conversation with labelled statements as JSON, or a folder of such files; benchmarks/statements/README.md in the
    source describes the format. Each prompt is built as for a real turn, without a model.

    "with topic" is the share of statements of which a value and a topic word are on the same line of the prompt. The system
    prompt and the current user message do not count. Statements that a later one corrects are counted separately.
    """
    import anyio

    from holdfast.evaluation.statements import measure_statements, read_conversations

    conversations = read_conversations(files)
    if output is not None and output != STDOUT:
        _check_output(Path(output).resolve(), files)
    runs = _make_runs(specs, budgets)
    prompts = sum(1 + len(one.statements) * asked for one in conversations) * len(runs)
    with show_progress(prompts) as bar:
        figures = anyio.run(lambda: measure_statements(conversations, runs, asked=asked, on_prompt=bar.advance))
    if output is not None:
        _write(output, conversations, figures)
    if output != STDOUT:
        _show_statements(conversations, figures)


def _check_output(output: Path, files: Sequence[Path]) -> None:
    """Raise `click.BadParameter` if the output would overwrite a conversation."""
    measured = [path.resolve() for path in files]
    if output in measured or (output.exists() and any(path in output.parents for path in measured)):
        raise click.BadParameter(f"{sanitize(str(output))} is one of the files to measure.", param_hint="--json")


def _make_runs(specs: Sequence[Spec], budgets: Sequence[int]) -> list[Run]:
    """Return a run for each spec and budget, without duplicates and sorted by budget.

    A spec with its own budget gets a single run with that budget.
    """
    from holdfast.context.settings import ContextSettings
    from holdfast.evaluation.statements import Run

    runs: dict[tuple[str, int], Run] = {}
    for budget in budgets:
        for spec in specs:
            own = spec.budget or budget
            settings = spec.make_settings(own)
            if spec.has_summaries:  # no model writes summaries here, so the digest is used
                settings = ContextSettings(settings.strategy, {**settings.options, "summarizer_llm": "none"})
            runs.setdefault((spec.label, own), Run(spec.label, own, settings))
    return sorted(runs.values(), key=lambda run: run.budget)


# -- results of statements -------------------------------------------------------


def _write(output: str, conversations: Sequence[Conversation], figures: Sequence[StatementFigures]) -> None:
    result: dict[str, Any] = {
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
    if output == STDOUT:
        show_json(result)
    else:
        Path(output).write_bytes(json_line(result))


def _show_statements(conversations: Sequence[Conversation], figures: Sequence[StatementFigures]) -> None:
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
        if one.refused or one.late:
            lost = f"{one.refused:,} not built, {one.late:,} rebuilt because a search was late"
            click.echo(
                f"{format_line(one.strategy)} at {one.budget:,}: of {format_count(one.prompts, 'prompt')} {lost}"
            )


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
