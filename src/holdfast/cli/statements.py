"""`holdfast eval statements`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.terminal import Column, counted, json_line, line, plain, progress, show_json, show_table

if TYPE_CHECKING:
    from holdfast.evaluation.statements import Conversation, Figures, Run, Shares
    from holdfast.replay import Spec

DEFAULT_STRATEGIES = "digest,salience,token_window,head_tail,buffer_window,clear_tool_results"
"""Those that need no model, but for `none`, which sends everything."""
STDOUT = "-"
PER_TABLE = 6
"""Most strategies next to each other in a table of 100 columns."""
LABEL = 18
"""Most characters of a group's name."""


def _parse_strategies(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> list[Spec]:
    from holdfast.errors import InvalidRequest
    from holdfast.replay import specs_of

    try:
        found = specs_of(given)
    except InvalidRequest as exc:
        raise click.BadParameter(plain(str(exc).removeprefix("strategy: ")), param=param) from exc
    if not found:
        raise click.BadParameter("nothing is named.", param=param)
    return found


def _parse_budgets(ctx: click.Context, param: click.Parameter, given: str) -> list[int]:
    from holdfast.errors import InvalidRequest
    from holdfast.replay.specs import tokens

    try:
        found = sorted({tokens(word) for word in given.split(",") if word.strip()})
    except InvalidRequest as exc:
        raise click.BadParameter(plain(str(exc)), param=param) from exc
    if not found:
        raise click.BadParameter("nothing is named.", param=param)
    return found


def _check_folder(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
    """Check that a file for JSON can be made."""
    if given is None or given == STDOUT:
        return given
    path = Path(given)
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"{plain(str(path.parent))}: there is no such directory.", param=param)
    return given


@click.command("statements")
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
    help="Tokens the conversation may use, the system prompt not counted.",
)
@click.option("--asked", is_flag=True, help="Also ask each statement's question: a prompt for each; takes minutes.")
@click.option(
    "--json", "output", metavar="FILE", callback=_check_folder, help="Write all figures to FILE; `-`: print them."
)
def statements(
    files: Sequence[Path], specs: Sequence[Spec], budgets: Sequence[int], *, asked: bool, output: str | None
) -> None:
    """See which statements of a conversation are still in its prompts.

    FILE is a conversation with labelled statements as JSON, or a folder of such files; benchmarks/statements/README.md of the source
    has the form. Each prompt is that of a real turn, without a model.

    "with topic" is the share of statements of which a value and a topic word are in one line of the prompt, outside the
    system prompt and the current user message; statements that a later one corrects are counted apart.
    """
    import anyio

    from holdfast.evaluation.statements import measure_statements, read_conversations

    conversations = read_conversations(files)
    if output is not None and output != STDOUT:
        _check_output(Path(output).resolve(), files)
    runs = _make_runs(specs, budgets)
    prompts = sum(1 + len(one.statements) * asked for one in conversations) * len(runs)
    with progress(prompts) as bar:
        figures = anyio.run(lambda: measure_statements(conversations, runs, asked=asked, on_prompt=bar.step))
    if output is not None:
        _write(output, conversations, figures)
    if output != STDOUT:
        _show(conversations, figures)


def _check_output(output: Path, files: Sequence[Path]) -> None:
    """Refuse to write JSON over a conversation. Raises `click.BadParameter`."""
    measured = [path.resolve() for path in files]
    if output in measured or (output.exists() and any(path in output.parents for path in measured)):
        raise click.BadParameter(f"{plain(str(output))} is one of the files to measure.", param_hint="--json")


def _make_runs(specs: Sequence[Spec], budgets: Sequence[int]) -> list[Run]:
    """Return what is measured, each once, by budget; a strategy with a budget of its own is measured at that one."""
    from holdfast.context.settings import ContextSettings
    from holdfast.evaluation.statements import Run

    runs: dict[tuple[str, int], Run] = {}
    for budget in budgets:
        for spec in specs:
            own = spec.budget or budget
            settings = spec.settings(own)
            if spec.has_summaries:  # nobody writes summaries: the digest stands in
                settings = ContextSettings(settings.strategy, {**settings.options, "summarizer_llm": "none"})
            runs.setdefault((spec.label, own), Run(spec.label, own, settings))
    return sorted(runs.values(), key=lambda run: run.budget)


# -- the results ---------------------------------------------------------------


def _write(output: str, conversations: Sequence[Conversation], figures: Sequence[Figures]) -> None:
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


def _show(conversations: Sequence[Conversation], figures: Sequence[Figures]) -> None:
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
    about = f"{counted(total, 'statement')} of {counted(len(conversations), 'conversation')}"
    click.echo(f"\n{about}, and {old:,} that a later one corrects")
    for one in figures:
        if one.refused or one.late:
            lost = f"{one.refused:,} refused, {one.late:,} built again because a search was late"
            click.echo(f"{line(one.strategy)} at {one.budget:,}: of {counted(one.prompts, 'prompt')} {lost}")


def _show_overview(figures: Sequence[Figures], *, asked: bool) -> None:
    heads = ["budget", "with\ntopic", "cue", "no cue", "present", "stale"]
    heads += ["asked", "asked\nstale"] if asked else []
    heads += ["facts per\n100 tokens", "prompt\ntokens"]
    rows = []
    for one in figures:
        cues = [one.cues[name].with_topic if name in one.cues else None for name in ("cue", "no cue")]
        cells = [_format_share(share) for share in (one.all.with_topic, *cues, one.all.present, one.stale)]
        cells += [_format_share(one.all.asked), _format_share(one.asked_stale)] if asked else []
        precision = "-" if one.per_100_tokens is None else f"{one.per_100_tokens:.2f}"
        tokens = "-" if one.prompt_tokens is None else f"{one.prompt_tokens:,.0f}"
        rows.append([one.strategy, f"{one.budget:,}", *cells, precision, tokens])
    budgets = [one.budget for one in figures]
    sizes = {budgets.count(budget) for budget in budgets}
    show_table([Column("strategy"), *_make_columns(heads)], rows, groups=sizes.pop() if len(sizes) == 1 else 0)


def _show_groups(title: str, figures: Sequence[Figures], share: Callable[[Shares], float | None]) -> None:
    """Print a row for each depth, wording, kind and conversation, with a column for each strategy."""
    click.echo(f"\n{title}")
    rows: list[list[str]] = []
    for prefix, field in (("", "cues"), ("quarter ", "quarters"), ("", "kinds"), ("in ", "conversations")):
        groups: Sequence[Mapping[str, Shares]] = [getattr(one, field) for one in figures]
        rows += [
            [
                line(f"{prefix}{name}", LABEL),
                f"{groups[0][name].statements:,}",
                *(_format_share(share(group[name])) for group in groups),
            ]
            for name in groups[0]
        ]
    rows.append(["all", f"{figures[0].all.statements:,}", *(_format_share(share(one.all)) for one in figures)])
    heads = ["", "of", *(_break_label(one.strategy) for one in figures)]
    show_table([Column(heads[0]), *_make_columns(heads[1:])], rows)


def _break_label(label: str, width: int = 11) -> str:
    """Return a label in lines of at most so many characters, broken after a mark where there is one."""
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
