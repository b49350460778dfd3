"""`holdfast replay`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import figures
from holdfast.cli.frame import Failure
from holdfast.cli.stores import json_option
from holdfast.cli.terminal import plain, progress, show_json
from holdfast.errors import InvalidMessage, InvalidRequest

if TYPE_CHECKING:
    from holdfast.replay import Comparison, Played, Spec
    from holdfast.wire.transcripts import BadLine, Recording

STRATEGIES = "none,buffer_window,head_tail,token_window,digest"
BUDGETS = "1024,4096,16384"
SUFFIXES = (".svg", ".png")
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


def _compared(ctx: click.Context, param: click.Parameter, given: tuple[str, str] | None) -> list[Spec] | None:
    """Two strategies as they are to be played."""
    from holdfast.replay import spec_of

    try:
        return [spec_of(text) for text in given] if given else None
    except InvalidRequest as exc:
        raise click.BadParameter(plain(str(exc).removeprefix("strategy: ")), param=param) from exc


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
    "names",
    metavar="S,...",
    multiple=True,
    default=[STRATEGIES],
    show_default=True,
    callback=_strategies,
    shell_complete=_complete_strategies,
    help="Strategies to play.",
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
    help="Two strategies side by side, session by session; each STRATEGY[@BUDGET][:KEY=VALUE,...].",
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
    names: Sequence[str],
    budgets: Sequence[int],
    *,
    pair: Sequence[Spec] | None,
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
    """
    from holdfast.replay import Spec

    if pair and ctx.get_parameter_source("names") is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--compare names its two strategies itself: leave --strategy out.")
    if plot:
        from holdfast.replay import plotting

        plotting.require()
    runs = _runs(pair or [Spec(name) for name in names], budgets)
    sessions = _read(files, chain=chain, skip_bad=skip_bad)
    played = _played(sessions, runs)
    if plot:
        _draw(list(played.values()), plot)
    if pair:
        _show_compared(list(_comparisons(pair, budgets, played)), as_json=as_json, per_session=per_session)
    else:
        _show(list(played.values()), group=len(names), as_json=as_json, per_session=per_session)
    if not as_json and not any(one.result.calls for one in played.values()):
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


# -- playing -----------------------------------------------------------------

Run = tuple[str, int]
"""A spec's label, and the budget it is played at."""


def _runs(specs: Sequence[Spec], budgets: Sequence[int]) -> dict[Run, Spec]:
    """What is to be played, each once: budget by budget; a spec with a budget of its own is played at that one."""
    pairs = [(spec, spec.budget or budget) for budget in budgets for spec in specs]
    return {(spec.label, budget): spec for spec, budget in pairs}


def _played(sessions: Sequence[Recording], runs: dict[Run, Spec]) -> dict[Run, Played]:
    from holdfast.replay import play_each

    played = {}
    with progress(len(sessions) * len(runs)) as bar:
        for (label, budget), spec in runs.items():
            bar.about(f"{label} {budget}")
            played[label, budget] = play_each(sessions, spec, budget, on_session=bar.step)
    return played


Pair = tuple["Played", "Played", "Comparison"]


def _comparisons(pair: Sequence[Spec], budgets: Sequence[int], played: dict[Run, Played]) -> Iterator[Pair]:
    """One comparison for each budget; one in all where both have their own."""
    from holdfast.replay import compare

    at = [tuple((spec.label, spec.budget or budget) for spec in pair) for budget in budgets]
    for first, second in dict.fromkeys(at):
        a, b = played[first], played[second]
        yield a, b, compare(a, b)


# -- the results -------------------------------------------------------------


def _show(played: Sequence[Played], *, group: int, as_json: bool, per_session: bool) -> None:
    if as_json:
        show_json([_row(one, per_session=per_session) for one in played])
        return
    figures.overview([one.result for one in played], group=group)
    if per_session:
        figures.per_session(played)


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
        figures.comparison(told)
        if per_session:
            figures.sessions_compared(a, b)


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
