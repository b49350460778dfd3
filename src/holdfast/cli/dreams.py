"""`holdfast memories dream`, `diary`: sweep over memories now, or see what a sweep would do; and what those that were decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli.frame import Misuse
from holdfast.cli.owners import doubt, named, owner_of_flags, place, whose
from holdfast.cli.stores import work
from holdfast.cli.terminal import line, moment, show_json

if TYPE_CHECKING:
    from holdfast.consolidation.sweeps import Dreamt
    from holdfast.holdfast import Holdfast

_SHOWN: Final = 80
"""Characters of a memory in a line."""
_WORDS: Final = {
    "promoted": "promoted",
    "held": "held for review",
    "over": "good enough, for the next sweep",
    "gated": "not promoted",
    "already": "promoted before",
}


@click.command
@click.option("--all", "everybody", is_flag=True, help="Everybody's for whom something was remembered.")
@click.option("--dry-run", is_flag=True, help="Only say what would be; nothing is written.")
@whose
@place
def dream(
    *, everybody: bool, dry_run: bool, store: str | None, config: str | None, as_json: bool, **asked: Any
) -> None:
    """Sweep over memories now: those that were recalled often, well and differently are promoted."""
    if everybody and (asked["user"] is not None or asked["agent"] is not None or asked["app"]):
        raise Misuse("--all is everybody's: leave out --user, --agent and --app")

    async def done(hf: Holdfast) -> list[Dreamt]:
        owners = [one async for one, _ in hf.dreams.owners()] if everybody else [owner_of_flags(asked)]
        return [await hf.dreams.dream(owner, dry_run=dry_run) for owner in owners]

    found = work(done, store=store, config=config, ends=True, still=True, models=True)
    if as_json:
        told = [_json(one) for one in found]
        show_json(told if everybody else told[0])
        return
    for one in found:
        if everybody:
            click.echo(f"{one.owner.kind} {line(one.owner.id)}".rstrip() + ":")
        _show(_json(one), dry_run=dry_run)
    if not any(one.report["candidates"] for one in found):
        doubt(asked["agent"], config)


@click.command
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 100), default=5, show_default=True, help="Most sweeps, the newest."
)
@whose
@place
def diary(*, limit: int, store: str | None, config: str | None, as_json: bool, **asked: Any) -> None:
    """Show what sweeps decided, newest first, and why."""
    found = work(lambda hf: hf.dreams.diary(owner_of_flags(asked), limit), store=store, config=config, still=True)
    if as_json:
        show_json(found)
        return
    if not found:
        click.echo(
            f"There was no sweep over memories of {named(owner_of_flags(asked))} that wrote something.", err=True
        )
        doubt(asked["agent"], config)
    for at, one in enumerate(found):
        if at:
            click.echo()
        click.echo(moment(one["at"]))
        _show(one)


def _json(one: Dreamt) -> dict[str, Any]:
    from holdfast.consolidation.sweeps import shown

    return {"written": one.written, "promotions": one.promotions, **shown(one.report, one.memories)}


def _show(report: Mapping[str, Any], *, dry_run: bool = False) -> None:
    candidates: Sequence[Mapping[str, Any]] = report["candidates"]
    if not candidates:
        click.echo("Nothing was recalled.")
    for verdict, words in _WORDS.items():
        number = report["verdicts"].get(verdict, 0)
        if number:
            click.echo(f"{number} {'would be ' if dry_run and verdict == 'promoted' else ''}{words}")
        for one in candidates:
            if one["verdict"] == verdict and verdict != "already":
                _show_candidate(one)
    for theme in report["themes"]:
        click.echo(f"theme: {line(', '.join(theme['terms']))} ({theme['size']})")
    for one in report["proposals"]:
        _show_proposal(one)
    model = report["model"] or {}
    if model.get("status") == "failed":
        click.echo(f"model: failed ({line(model['code'])}); no merges are proposed")


def _show_proposal(one: Mapping[str, Any]) -> None:
    said = "(forgotten)" if one["content"] is None else line(one["content"], _SHOWN)
    click.echo(f"proposed: {one['memory_id']}  {said}")
    waits = f"; `holdfast memories review {one['memory_id']} accept`, or reject" * (one["status"] == "quarantined")
    click.echo(f"        in place of {', '.join(one['merges'])}{waits}")


def _show_candidate(one: Mapping[str, Any]) -> None:
    from holdfast.consolidation.diary import figures_of

    said = "(forgotten)" if one["content"] is None else line(one["content"], _SHOWN)
    click.echo(f"  {one['score']:.2f}  {one['memory_id']}  {said}")
    click.echo("        " + "; ".join([figures_of(one), *one["gates"]]))
