"""`holdfast replay`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.stores import json_option
from holdfast.cli.terminal import Column, counted, line, plain, progress, show_json, show_table
from holdfast.errors import InvalidMessage, InvalidRequest

if TYPE_CHECKING:
    from holdfast.agents import Llm
    from holdfast.replay import Comparison, Paired, Played, Result, SessionResult, Spec, SummaryWriter
    from holdfast.wire.transcripts import BadLine, Recording

T = TypeVar("T")
BUDGETS = "1024,4096,16384"
SUMMARIZER = "digest"
SUFFIXES = (".svg", ".png")
STDIN = "-"


def _every_strategy() -> list[str]:
    """Their names; looked up when they are wanted, so that help stays quick."""
    from holdfast.context.settings import STRATEGIES

    return list(STRATEGIES)


def _strategies(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> list[Spec]:
    """Strategies as they are to be played."""
    from holdfast.replay import specs_of

    found = _told(param, lambda: specs_of(given))
    if not found:
        raise click.BadParameter("nothing is named.", param=param)
    return found


def _complete_strategies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    begun = incomplete.replace("+", ",").rpartition(",")[2]
    before = incomplete[: len(incomplete) - len(begun)]
    return [f"{before}{name}" for name in _every_strategy() if name.startswith(begun)]


def _told(param: click.Parameter, read: Callable[[], T]) -> T:
    """What `read` makes of an option; what is wrong with it is told as the option's."""
    try:
        return read()
    except InvalidRequest as exc:
        raise click.BadParameter(plain(str(exc).removeprefix("strategy: ")), param=param) from exc


def _budgets(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> list[int]:
    """Numbers of tokens."""
    words = _listed(given, param)
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) < 10 and int(word)):
            raise click.BadParameter(f"{plain(repr(word))} is no number of tokens, from 1 to 999999999.", param=param)
    return list(dict.fromkeys(int(word) for word in words))


def _compared(ctx: click.Context, param: click.Parameter, given: tuple[str, str] | None) -> list[Spec] | None:
    """Two strategies as they are to be played."""
    from holdfast.replay import spec_of

    return _told(param, lambda: [spec_of(text) for text in given]) if given else None


def _picture(ctx: click.Context, param: click.Parameter, given: str | None) -> Path | None:
    """Where a picture can be written; its suffix says which kind."""
    if given is None:
        return None
    path = Path(given)
    if path.suffix.lower() not in SUFFIXES:
        raise click.BadParameter(
            f"{plain(given)}: a picture is named {' or '.join(f'*{s}' for s in SUFFIXES)}.", param=param
        )
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"{plain(str(path.parent))}: there is no such directory.", param=param)
    return path


def _listed(given: Sequence[str], param: click.Parameter) -> list[str]:
    """Words separated by commas, each once; the option may be given several times as well."""
    words = [word.strip() for text in given for word in text.split(",")]
    found = list(dict.fromkeys(filter(None, words)))
    if not found:
        raise click.BadParameter("nothing is named.", param=param)
    return found


@click.command
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "--strategy",
    "specs",
    metavar="S,...",
    multiple=True,
    default=_every_strategy,
    show_default="every one",
    callback=_strategies,
    shell_complete=_complete_strategies,
    help="Strategies to play; each STRATEGY[@BUDGET][:KEY=VALUE,...], or clear_tool_results[:KEY=VALUE,...]+ before one.",
)
@click.option(
    "--budget",
    "budgets",
    metavar="N,...",
    multiple=True,
    default=[BUDGETS],
    show_default=True,
    callback=_budgets,
    help="Tokens the conversation may use, the system prompt not counted.",
)
@click.option(
    "--compare",
    "pair",
    metavar="A B",
    nargs=2,
    callback=_compared,
    help="Two strategies side by side, session by session; written as for --strategy.",
)
@click.option(
    "--summarizer",
    metavar="NAME",
    default=SUMMARIZER,
    show_default=True,
    help="Who writes the summaries of summary_buffer: digest, without a model; scripted, a stand-in; or a model.",
)
@click.option(
    "--config", metavar="FILE", help="Where --summarizer is looked up.  [default: holdfast.yaml, if it is there]"
)
@click.option("--per-session", is_flag=True, help="Show each session as well.")
@click.option(
    "--plot",
    metavar="FILE",
    callback=_picture,
    help="Draw recall and cost against the budget into FILE.svg or FILE.png; needs the extra `plot`.",
)
@click.option("--chain", is_flag=True, help="Join the sessions of each file into one long one.")
@click.option("--skip-bad", is_flag=True, help="Go on behind lines that are no recording.")
@json_option
@click.pass_context
def replay(
    ctx: click.Context,
    files: Sequence[str],
    specs: Sequence[Spec],
    budgets: Sequence[int],
    *,
    pair: Sequence[Spec] | None,
    summarizer: str,
    config: str | None,
    plot: Path | None,
    per_session: bool,
    chain: bool,
    skip_bad: bool,
    as_json: bool,
) -> None:
    """Play recorded sessions through strategies, without a model, and compare.

    FILE holds JSON lines: sessions {"id", "messages": [...]}, lists of messages, or single messages with the session_id they
    belong to. "-" is the standard input.

    recall is the share of the values in the recorded tool calls that were still in the prompt, bound the share that still
    stood with what they belong to; cached is the share of the prompt that a provider's cache would have had.

    A model is called for nothing but summaries, and only where --summarizer names one.
    """
    if pair and ctx.get_parameter_source("specs") is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--compare names its two strategies itself: leave --strategy out.")
    if plot:
        from holdfast.replay import plotting

        plotting.require()
    runs = _runs(pair or specs, budgets)
    with _writers(runs.values(), summarizer, config) as writers:
        played = _played(_read(files, chain=chain, skip_bad=skip_bad), runs, writers)
    if plot:
        _draw(list(played.values()), plot)
    if pair:
        _show_compared(list(_comparisons(pair, budgets, played)), as_json=as_json, per_session=per_session)
    else:
        _show(list(played.values()), as_json=as_json, per_session=per_session)
    if not as_json:
        show_summaries(_summarized(runs, played, writers))
        if not any(one.result.calls for one in played.values()):
            click.echo(
                "There is no call to judge: a recording needs an assistant message after another message.", err=True
            )
    _tell_failures(writers.values())


# -- the recordings ----------------------------------------------------------


def _read(files: Sequence[str], *, chain: bool, skip_bad: bool) -> list[Recording]:
    from holdfast.replay import chained, read

    sessions: list[Recording] = []
    skipped: list[BadLine] = []
    for name in files:
        if name == STDIN:
            found = _from_stdin(skipped if skip_bad else None)
        else:
            found = read([Path(name)], skip_bad=skip_bad, on_bad=skipped.append)
        sessions += chained(found) if chain else found
    if skipped:
        count = f"{len(skipped)} bad line{'s' * (len(skipped) > 1)}"
        click.echo(plain(f"Skipped {count}; the first: {skipped[0]}"), err=True)
    if not sessions:
        raise Failure(f"no sessions in {', '.join(files)}")
    return sessions


def _from_stdin(skipped: list[BadLine] | None) -> list[Recording]:
    """The recordings on the standard input; without a list for bad lines the first one raises."""
    from holdfast.wire.transcripts import Recording, recordings

    found = []
    for item in recordings(click.open_file(STDIN, "rb"), STDIN):
        if isinstance(item, Recording):
            found.append(item)
        elif skipped is None:
            raise InvalidMessage(f"{item} (--skip-bad goes on behind it)")
        else:
            skipped.append(item)
    return found


# -- playing -----------------------------------------------------------------

Run = tuple[str, int]
"""A spec's label, and the budget it is played at."""


def _runs(specs: Sequence[Spec], budgets: Sequence[int]) -> dict[Run, Spec]:
    """What is to be played, each once, budget by budget; a spec with a budget of its own is played at that one."""
    pairs = [(spec, spec.budget or budget) for budget in budgets for spec in specs]
    runs = {(spec.label, budget): spec for spec, budget in pairs}
    order = list(dict.fromkeys(budget for _, budget in runs))
    return dict(sorted(runs.items(), key=lambda run: order.index(run[0][1])))


def _played(
    sessions: Sequence[Recording], runs: dict[Run, Spec], writers: Mapping[str, SummaryWriter]
) -> dict[Run, Played]:
    from holdfast.replay import play

    played = {}
    with progress(len(sessions) * len(runs)) as bar:
        for (label, budget), spec in runs.items():
            bar.about(f"{label} {budget}")
            writer = writers.get(spec.label)
            played[label, budget] = play(sessions, spec, budget, on_session=bar.step, writer=writer)
    return played


Pair = tuple["Played", "Played", "Comparison"]


def _comparisons(pair: Sequence[Spec], budgets: Sequence[int], played: dict[Run, Played]) -> Iterator[Pair]:
    """One comparison for each budget; one in all where both have their own."""
    from holdfast.replay import compare

    at = [tuple((spec.label, spec.budget or budget) for spec in pair) for budget in budgets]
    for first, second in dict.fromkeys(at):
        a, b = played[first], played[second]
        yield a, b, compare(a, b)


# -- who writes summaries ----------------------------------------------------


@contextmanager
def _writers(specs: Collection[Spec], summarizer: str, config: str | None) -> Iterator[dict[str, SummaryWriter]]:
    """By label, who writes the summaries of a spec: whom it names itself, else `summarizer`; each asked for once."""
    from holdfast.replay import NOBODY, SummaryWriter

    wanted = {spec.label: spec.summarizer or summarizer for spec in specs if spec.summarizes}
    with ExitStack() as stack:
        made = {
            name: stack.enter_context(SummaryWriter(_llm(name, config)))
            for name in dict.fromkeys(wanted.values())
            if name not in NOBODY
        }
        yield {label: made[name] for label, name in wanted.items() if name in made}


def _llm(name: str, config: str | None) -> Llm:
    """The stand-in, or the model that `holdfast serve` would take for that name."""
    from holdfast.replay import SCRIPTED, stand_in

    if name == SCRIPTED:
        return stand_in()
    from holdfast.config import load_settings
    from holdfast.config.build import build_roster
    from holdfast.models import OfflineModel

    llm = build_roster(load_settings({"config": config}, os.environ).config).llm(name)
    if isinstance(llm.client, OfflineModel):
        raise Misuse(
            f"--summarizer {name}: there is no model; set OPENAI_BASE_URL and OPENAI_API_KEY, or `llms` in a file"
        )
    return llm


def _summarized(
    runs: dict[Run, Spec], played: dict[Run, Played], writers: Mapping[str, SummaryWriter]
) -> Iterator[tuple[Result, str | None]]:
    """Results of strategies with summaries, and who wrote them."""
    for run, spec in runs.items():
        if spec.has_summaries:
            writer = writers.get(spec.label)
            yield played[run].result, writer.name if writer else None


def _tell_failures(writers: Iterable[SummaryWriter]) -> None:
    for writer in dict.fromkeys(writers):
        if writer.failed:
            click.echo(f"Summaries by {line(writer.name)} failed; the first: {line(writer.failed)}", err=True)


# -- the results -------------------------------------------------------------


def _show(played: Sequence[Played], *, as_json: bool, per_session: bool) -> None:
    if as_json:
        show_json([_row(one, per_session=per_session) for one in played])
        return
    show_overview([one.result for one in played])
    if per_session:
        show_sessions(played)


def _show_compared(pairs: Sequence[Pair], *, as_json: bool, per_session: bool) -> None:
    if as_json:
        rows = [
            {
                "a": _row(a, per_session=per_session),
                "b": _row(b, per_session=per_session),
                "difference": told.difference,
                "paired": told.paired,
            }
            for a, b, told in pairs
        ]
        show_json(rows)
        return
    for at, (a, b, told) in enumerate(pairs):
        if at:
            click.echo()
        show_comparison(told)
        if per_session:
            show_compared_sessions(a, b)


def _row(played: Played, *, per_session: bool) -> dict[str, Any]:
    """A result for JSON, with its sessions if they are wanted."""
    import msgspec

    row = msgspec.structs.asdict(played.result)
    return {**row, "sessions": played.rows()} if per_session else row


def _draw(played: Sequence[Played], path: Path) -> None:
    from holdfast.replay import plotting

    data = plotting.picture([one.result for one in played], path.suffix.lower().removeprefix("."))
    path.write_bytes(data)
    click.echo(f"The picture is in {plain(str(path))}.", err=True)


# -- tables ----------------------------------------------------------------------


def show_overview(results: Sequence[Result]) -> None:
    """A row for each strategy and budget, rows of one budget together."""
    names = [name for name in _with_figures(_COLUMNS, results) if name not in _SUMMARIES]
    rows = [[_COLUMNS[name][1](getattr(result, name)) for name in names] for result in results]
    groups = {len(list(group)) for _, group in groupby(results, key=lambda result: result.budget)}
    show_table([_COLUMNS[name][0] for name in names], rows, groups=groups.pop() if len(groups) == 1 else 0)


def show_summaries(told: Iterable[tuple[Result, str | None]]) -> None:
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


def show_sessions(played: Sequence[Played]) -> None:
    """A table of sessions for each strategy and budget."""
    for one in played:
        sessions = one.rows()
        names = _with_figures(_SESSION, sessions)
        click.echo(f"\n{line(one.result.strategy)} at {one.result.budget:,}")
        rows = [[session.id, *_cells(session, names)] for session in sessions]
        show_table([Column("session"), *(_COLUMNS[name][0] for name in names)], rows)


def show_comparison(told: Comparison) -> None:
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


def show_compared_sessions(a: Played, b: Played) -> None:
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
