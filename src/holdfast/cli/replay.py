"""`holdfast replay`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.frame import Failure
from holdfast.cli.stores import json_option
from holdfast.cli.terminal import Column, plain, progress, show_json, show_table
from holdfast.errors import InvalidMessage, InvalidRequest

if TYPE_CHECKING:
    from holdfast.replay import Result
    from holdfast.wire.transcripts import BadLine, Recording

STRATEGIES = "none,buffer_window,head_tail,token_window,digest"
BUDGETS = "1024,4096,16384"
STDIN = "-"


def _strategies(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> list[str]:
    """Names of strategies that this version has."""
    from holdfast.context.policies import policy
    from holdfast.context.settings import parse

    names = _listed(given, param)
    for name in names:
        try:
            policy(parse({"strategy": name}, where=""))
        except InvalidRequest as exc:
            raise click.BadParameter(plain(str(exc).removeprefix("strategy: ")), param=param) from exc
    return names


def _complete_strategies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    before, comma, begun = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in STRATEGIES.split(",") if name.startswith(begun)]


def _budgets(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> list[int]:
    """Numbers of tokens."""
    words = _listed(given, param)
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) < 10 and int(word)):
            raise click.BadParameter(f"{plain(repr(word))} is no number of tokens, from 1 to 999999999.", param=param)
    return list(dict.fromkeys(int(word) for word in words))


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
    "names",
    metavar="S,...",
    multiple=True,
    default=[STRATEGIES],
    show_default=True,
    callback=_strategies,
    shell_complete=_complete_strategies,
    help="Strategies to compare.",
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
@click.option("--chain", is_flag=True, help="Join the sessions of each file into one long one.")
@click.option("--skip-bad", is_flag=True, help="Go on behind lines that are no recording.")
@json_option
def replay(
    files: Sequence[str],
    names: Sequence[str],
    budgets: Sequence[int],
    *,
    chain: bool,
    skip_bad: bool,
    as_json: bool,
) -> None:
    """Play recorded sessions through strategies, without a model, and compare.

    FILE holds JSON lines: sessions {"id", "messages": [...]}, lists of messages, or single messages with the session_id they
    belong to. "-" is the standard input.

    recall is the share of the values in the recorded tool calls that were still in the prompt, bound the share that still
    stood with what they belong to; cached is the share of the prompt that a provider's cache would have had.
    """
    sessions = _read(files, chain=chain, skip_bad=skip_bad)
    results = _played(sessions, names, budgets)
    if as_json:
        show_json(results)
        return
    _show(results, group=len(names))
    if not results[0].calls:
        click.echo("There is no call to judge: a recording needs an assistant message after another message.", err=True)


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


# -- the results -------------------------------------------------------------


def _played(sessions: Sequence[Recording], names: Sequence[str], budgets: Sequence[int]) -> list[Result]:
    from holdfast.replay import play

    results = []
    with progress(len(sessions) * len(names) * len(budgets)) as bar:
        for budget in budgets:
            for name in names:
                bar.about(f"{name} {budget}")
                results.append(play(sessions, name, budget, on_session=bar.step))
    return results


def _show(results: Sequence[Result], *, group: int) -> None:
    """The table, a group of rows for each budget."""
    columns = dict(_COLUMNS)
    if all(result.bound is None for result in results):
        del columns["bound"]
    rows = [[columns[name][1](getattr(result, name)) for name in columns] for result in results]
    show_table([column for column, _ in columns.values()], rows, groups=group)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}".replace("100.0%", "100%")


def _milliseconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


_count, _whole = "{:,}".format, "{:,.0f}".format
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
}
