"""`holdfast replay`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.command import JSON, Call, command
from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.terminal import Column, format_line, sanitize, show_busy, show_json, show_progress, show_table
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.agents import Llm
    from holdfast.replay.player import Comparison, PairedSessions, PlayResult, Result, SessionResult
    from holdfast.replay.specs import Run, Spec
    from holdfast.replay.summaries import SummaryWriter
    from holdfast.wire.transcripts import BadLine, Recording

T = TypeVar("T")
BUDGETS = "1024,4096,16384"
SUMMARIZER = "digest"
STDIN = "-"


def _list_strategies() -> list[str]:
    """Return the names of all strategies. They are imported only here, so that `--help` is fast."""
    from holdfast.context.settings import STRATEGIES

    return list(STRATEGIES)


def _parse_strategies(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> list[Spec]:
    from holdfast.replay.specs import parse_specs

    found = _parse_option(param, lambda: parse_specs(given))
    if not found:
        raise click.BadParameter("the list is empty.", param=param)
    return found


def _complete_strategies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    begun = incomplete.replace("+", ",").rpartition(",")[2]
    before = incomplete[: len(incomplete) - len(begun)]
    return [f"{before}{name}" for name in _list_strategies() if name.startswith(begun)]


def _parse_option(param: click.Parameter, read: Callable[[], T]) -> T:
    """Call `read` and return the result. Report an `InvalidRequest` that `read` raises as an error of the option."""
    try:
        return read()
    except InvalidRequest as exc:
        raise click.BadParameter(sanitize(str(exc).removeprefix("strategy: ")), param=param) from exc


def _parse_budgets(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> list[int]:
    words = _split_words(given, param)
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) < 10 and int(word)):
            raise click.BadParameter(
                f"{sanitize(repr(word))} is not a number of tokens from 1 to 999999999.", param=param
            )
    return list(dict.fromkeys(int(word) for word in words))


def _parse_pair(ctx: click.Context, param: click.Parameter, given: tuple[str, str] | None) -> list[Spec] | None:
    from holdfast.replay.specs import parse_spec

    return _parse_option(param, lambda: [parse_spec(text) for text in given]) if given else None


def _split_words(given: Sequence[str], param: click.Parameter) -> list[str]:
    """Split the comma-separated words of an option that may be repeated. Return them without duplicates."""
    words = [word.strip() for text in given for word in text.split(",")]
    found = list(dict.fromkeys(filter(None, words)))
    if not found:
        raise click.BadParameter("the list is empty.", param=param)
    return found


@command(shared=(JSON,))
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "--strategy",
    "--strategies",
    "specs",
    metavar="S,...",
    multiple=True,
    default=_list_strategies,
    show_default="all",
    callback=_parse_strategies,
    shell_complete=_complete_strategies,
    help="Strategies to replay, as NAME[@BUDGET][:KEY=VALUE,...]. Prefix with clear_tool_results[:KEY=VALUE,...]+ to combine.",
)
@click.option(
    "--budget",
    "--budgets",
    "budgets",
    metavar="N,...",
    multiple=True,
    default=[BUDGETS],
    show_default=True,
    callback=_parse_budgets,
    help="Token budgets of the conversation, without the system prompt.",
)
@click.option(
    "--compare",
    "pair",
    metavar="A B",
    nargs=2,
    callback=_parse_pair,
    help="Compare two strategies session by session; written as for --strategy.",
)
@click.option(
    "--summarizer",
    metavar="NAME",
    default=SUMMARIZER,
    show_default=True,
    help="Summarizer of summary_buffer: digest (no model), or the name of a model.",
)
@click.option(
    "--config",
    metavar="FILE",
    help="Configuration with the summarizer's model.  [default: holdfast.yaml, if it exists]",
)
@click.option("--per-session", is_flag=True, help="Also show each session.")
@click.option("--chain", is_flag=True, help="Join the sessions of each file into one long session.")
@click.option("--skip-bad", is_flag=True, help="Skip lines that are not recordings.")
def replay(
    call: Call,
    *,
    files: Sequence[str],
    specs: Sequence[Spec],
    budgets: Sequence[int],
    pair: Sequence[Spec] | None,
    summarizer: str,
    per_session: bool,
    chain: bool,
    skip_bad: bool,
) -> None:
    """Replay recorded sessions through strategies.

    Shows what each strategy keeps, and its cost. No model answers.

    FILE contains JSON lines: sessions {"id", "messages": [...]}, lists of messages, or single messages with a session_id.
    "-" is standard input.

    Recall is the share of the argument values of recorded tool calls that were still in the prompt. Bound is the share that was
    still in the prompt together with what it belongs to. Cached is the share of the prompt that a provider's prompt cache would
    have served.

    Only summaries call a model, and only if --summarizer names one.
    """
    is_named = click.get_current_context().get_parameter_source("specs") is not click.core.ParameterSource.DEFAULT
    if pair and is_named:
        raise click.UsageError("--compare already names two strategies: leave out --strategy.")
    from holdfast.replay.specs import plan_runs

    runs = plan_runs(pair or specs, budgets)
    with show_busy(), _open_writers(runs.values(), summarizer, call) as writers:
        played = _play_all(_read(files, chain=chain, skip_bad=skip_bad), runs, writers)
    results = [one.result for one in played.values()]
    pairs = list(_compare_all(pair, budgets, played)) if pair else []
    if call.as_json:
        rows = [one.to_row(per_session=per_session) for one in played.values()]
        show_json([_to_json(*one, per_session=per_session) for one in pairs] if pair else rows)
    else:
        if pair:
            _show_comparisons(pairs, per_session=per_session)
        else:
            _show_overview(results)
            for one in played.values() if per_session else ():
                _show_sessions(one)
        _show_summaries(runs, played, writers)
        if not any(result.calls for result in results):
            click.echo("No call was measured: a recording needs an assistant message after another message.", err=True)
    for writer in dict.fromkeys(writers.values()):
        if writer.failed:
            failed = f"Summaries by {format_line(writer.name)} failed; first error: {format_line(writer.failed)}"
            click.echo(failed, err=True)


# -- the recordings ----------------------------------------------------------


def _read(files: Sequence[str], *, chain: bool, skip_bad: bool) -> list[Recording]:
    from holdfast.replay.recordings import chain_sessions, read

    sessions: list[Recording] = []
    skipped: list[BadLine] = []
    for name in files:
        if name == STDIN:
            found = _read_stdin(skipped if skip_bad else None)
        else:
            found = read([Path(name)], skip_bad=skip_bad, on_bad=skipped.append)
        sessions += chain_sessions(found) if chain else found
    if skipped:
        count = f"{len(skipped)} bad line{'s' * (len(skipped) > 1)}"
        click.echo(sanitize(f"Skipped {count}; the first: {skipped[0]}"), err=True)
    if not sessions:
        raise Failure(f"no sessions in {', '.join(files)}")
    return sessions


def _read_stdin(skipped: list[BadLine] | None) -> list[Recording]:
    """Read recordings from standard input.

    Args:
        skipped: list to which lines that are not valid are added. None: the first such line raises `InvalidMessage`.
    """
    from holdfast.wire.transcripts import Recording, read_recordings

    found = []
    for item in read_recordings(click.open_file(STDIN, "rb"), STDIN):
        if isinstance(item, Recording):
            found.append(item)
        elif skipped is None:
            raise InvalidMessage(f"{item} (skip it with --skip-bad)")
        else:
            skipped.append(item)
    return found


# -- replay ------------------------------------------------------------------


def _play_all(
    sessions: Sequence[Recording], runs: dict[Run, Spec], writers: Mapping[str, SummaryWriter]
) -> dict[Run, PlayResult]:
    from holdfast.replay.player import play

    played = {}
    with show_progress(len(sessions) * len(runs)) as bar:
        for (label, budget), spec in runs.items():
            bar.describe(f"{label} {budget}")
            writer = writers.get(spec.label)
            played[label, budget] = play(sessions, spec, budget, on_session=bar.advance, writer=writer)
    return played


Pair = tuple["PlayResult", "PlayResult", "Comparison"]


def _compare_all(pair: Sequence[Spec], budgets: Sequence[int], played: dict[Run, PlayResult]) -> Iterator[Pair]:
    """Yield a comparison of two specs for each budget, or a single comparison if both specs have their own budgets."""
    from holdfast.replay.player import compare

    at = [tuple((spec.label, spec.budget or budget) for spec in pair) for budget in budgets]
    for first, second in dict.fromkeys(at):
        a, b = played[first], played[second]
        yield a, b, compare(a, b)


# -- summaries ---------------------------------------------------------------


@contextmanager
def _open_writers(specs: Collection[Spec], summarizer: str, call: Call) -> Iterator[dict[str, SummaryWriter]]:
    """Open the models that write summaries for the duration of the block, and yield them by label of the spec.

    A spec that names no model uses the model `summarizer`. Specs without summaries are left out.
    """
    from holdfast.replay.specs import NOBODY
    from holdfast.replay.summaries import SummaryWriter

    wanted = {spec.label: spec.summarizer or summarizer for spec in specs if spec.summarizes}
    with ExitStack() as stack:
        made = {
            name: stack.enter_context(SummaryWriter(_find_llm(name, call)))
            for name in dict.fromkeys(wanted.values())
            if name not in NOBODY
        }
        yield {label: made[name] for label, name in wanted.items() if name in made}


def _find_llm(name: str, call: Call) -> Llm:
    """Return the model with a name that `holdfast serve` would use."""
    from holdfast.config.build import build_roster
    from holdfast.models.offline import OfflineModel

    llm = build_roster(call.load_settings()).find_llm(name)
    if isinstance(llm.client, OfflineModel):
        remedy = "set OPENAI_BASE_URL and OPENAI_API_KEY, or `llms` in the file"
        raise Misuse(f"--summarizer {name}: no model is configured; {remedy}")
    return llm


def _show_summaries(
    runs: Mapping[Run, Spec], played: Mapping[Run, PlayResult], writers: Mapping[str, SummaryWriter]
) -> None:
    """Print for each strategy with summaries which model wrote them, if any, and how their cost is counted."""
    from holdfast.domain.activity import SUMMARY_READ, SUMMARY_WRITTEN

    notes = [
        _describe_summaries(played[run].result, writers.get(spec.label))
        for run, spec in runs.items()
        if spec.has_summaries
    ]
    if notes:
        click.echo()
    for note in dict.fromkeys(notes):
        click.echo(f"  {note}")
    if any(spec.label in writers for spec in runs.values() if spec.has_summaries):
        price = f"{SUMMARY_READ:g} per token read and {SUMMARY_WRITTEN:g} per token written"
        click.echo(f"  The cost per call includes the summarizer's tokens: {price}.")


def _describe_summaries(result: Result, writer: SummaryWriter | None) -> str:
    name = format_line(result.strategy)
    if writer is None:
        return f"{name}: no model wrote summaries, so the digest was used (see --summarizer)"
    failed = f", {result.summaries_failed:,} failed" if result.summaries_failed else ""
    made = f"{format_count(result.summaries, 'summary', 'summaries')} by {format_line(writer.name)}{failed}"
    return f"{name} at {result.budget:,}: {made}, {result.summarizer_tokens:,} tokens"


# -- tables ----------------------------------------------------------------------


def _show_overview(results: Sequence[Result]) -> None:
    """Print a table with a row for each strategy and budget, grouped by budget."""
    names = [name for name in _select_columns(_COLUMNS, results) if name not in _SUMMARIES]
    groups = {len(list(group)) for _, group in groupby(results, key=lambda result: result.budget)}
    rows = [_format_cells(result, names) for result in results]
    show_table([_COLUMNS[name][0] for name in names], rows, groups=groups.pop() if len(groups) == 1 else 0)


def _show_sessions(one: PlayResult) -> None:
    """Print a table of one strategy and budget, with a row for each session."""
    sessions = one.list_rows()
    names = _select_columns(_SESSION, sessions)
    click.echo(f"\n{format_line(one.result.strategy)} at {one.result.budget:,}")
    rows = [[session.id, *_format_cells(session, names)] for session in sessions]
    show_table([Column("session"), *(_COLUMNS[name][0] for name in names)], rows)


def _to_json(a: PlayResult, b: PlayResult, comparison: Comparison, *, per_session: bool) -> dict[str, Any]:
    return {
        "a": a.to_row(per_session=per_session),
        "b": b.to_row(per_session=per_session),
        "difference": comparison.difference,
        "paired": comparison.paired,
    }


def _show_comparisons(pairs: Sequence[Pair], *, per_session: bool) -> None:
    """Print for each pair a table with the figures of two strategies and their differences, and on request one of their sessions."""
    for at, (first, second, comparison) in enumerate(pairs):
        if at:
            click.echo()
        both = (comparison.a, comparison.b)
        heads = [f"{_break_label(format_line(one.strategy))}\n{one.budget:,}" for one in both]
        columns = [Column(""), *(Column(head, number=True) for head in (*heads, "difference"))]
        rows = []
        for name in _select_columns(_COLUMNS, both)[2:]:
            column, shown = _COLUMNS[name]
            change = comparison.difference.get(name)
            cells = [shown(getattr(one, name)) for one in both]
            rows.append(
                [column.head.replace("\n", " "), *cells, "" if change is None else _format_change(name, change)]
            )
        show_table(columns, rows)
        click.echo()
        for name, paired in comparison.paired.items():
            click.echo(f"  {name:<6}  {_describe_pair(name, paired)}")
        if per_session:
            _show_compared_sessions(first, second)


def _show_compared_sessions(a: PlayResult, b: PlayResult) -> None:
    """Print a table with a row for each session, which contains the figures of both strategies."""
    first, second = a.list_rows(), b.list_rows()
    names = _select_columns(_PAIRED, [*first, *second])
    heads = [_COLUMNS[name][0].head.partition("\n")[0] for name in names]
    columns = [Column("session"), Column("calls", number=True)]
    columns += [Column(f"{head}\n{which}", number=True) for head in heads for which in ("first", "second")]
    rows = []
    for mine, other in zip(first, second, strict=True):
        cells = chain.from_iterable(zip(_format_cells(mine, names), _format_cells(other, names), strict=True))
        rows.append([mine.id, f"{mine.calls:,}", *cells])
    click.echo()
    show_table(columns, rows)


def _break_label(label: str, width: int = 36) -> str:
    """Break a label into lines of at most `width` characters, if possible after a comma or before a `+`."""
    lines = [""]
    for piece in re.findall(r"\+?[^,+]*,?", label):
        for start in range(0, len(piece), width):
            part = piece[start : start + width]
            lines = [*lines[:-1], lines[-1] + part] if len(lines[-1] + part) <= width else [*lines, part]
    return "\n".join(lines)


def _select_columns(names: Iterable[str], results: Sequence[Any]) -> list[str]:
    """Return the names of the columns to print. Columns about bound recall and summaries are left out if no result has a value."""
    nothing = {"bound": None, **dict.fromkeys(_SUMMARIES, 0)}
    return [
        name for name in names if name not in nothing or any(getattr(one, name) != nothing[name] for one in results)
    ]


def _format_cells(figures: Result | SessionResult, names: Sequence[str]) -> list[str]:
    return [_COLUMNS[name][1](getattr(figures, name)) for name in names]


def _describe_pair(name: str, paired: PairedSessions) -> str:
    if paired.mean_difference is None:
        return "no session has a figure for both"
    key = "cost_per_call" if name == "cost" else name
    sessions = format_count(paired.wins + paired.losses + paired.ties, "session")
    shares = f"better in {paired.wins:,}, worse in {paired.losses:,}, equal in {paired.ties:,} of {sessions}"
    return f"second {shares}; mean difference {_format_change(key, paired.mean_difference)}"


# -- figures -----------------------------------------------------------------


def _format_share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}".replace("100.0%", "100%")


def _format_ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _format_integer(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _format_change(name: str, change: float) -> str:
    """Format the difference of two figures with its sign. Differences of shares are in percentage points. 0 has no sign."""
    if _COLUMNS[name][1] is _format_share:
        formatted, unit = f"{change * 100:+.1f}", " points"
    else:
        formatted, unit = f"{change:+.2f}" if name == "build_ms" else f"{change:+,.0f}", ""
    return (formatted if formatted.strip("+-0.,") else formatted.strip("+-")) + unit


_count = "{:,}".format
# Headings have two lines, so that the table stays within 100 columns.
_COLUMNS: dict[str, tuple[Column, Callable[[Any], str]]] = {
    "strategy": (Column("strategy"), str),
    "budget": (Column("budget", number=True), _count),
    "calls": (Column("calls", number=True), _count),
    "refused": (Column("refused", number=True), _count),
    "tokens_per_call": (Column("tokens\na call", number=True), _format_integer),
    "recall": (Column("recall", number=True), _format_share),
    "bound": (Column("bound", number=True), _format_share),
    "cached": (Column("cached", number=True), _format_share),
    "cost_per_call": (Column("cost\na call", number=True), _format_integer),
    "orphans": (Column("orphans", number=True), _format_share),
    "tasks_lost": (Column("tasks\nlost", number=True), _format_share),
    "build_ms": (Column("build\nms", number=True), _format_ms),
    "summaries": (Column("summaries", number=True), _count),
    "summaries_failed": (Column("summaries\nfailed", number=True), _count),
    "summarizer_tokens": (Column("summarizer\ntokens", number=True), _count),
}
_SUMMARIES = ("summaries", "summaries_failed", "summarizer_tokens")
_SESSION = ("calls", "recall", "bound", "cost_per_call", "refused")
_PAIRED = ("recall", "bound", "cost_per_call", "refused")
