"""`holdfast doctor`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.frame import FAILED
from holdfast.cli.stores import json_option, place_options
from holdfast.cli.terminal import counted, line, show_json

if TYPE_CHECKING:
    from holdfast.cli.checkup.finding import Finding

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command
@place_options
@json_option
@click.pass_context
def doctor(ctx: click.Context, store: str | None, config: str | None, *, as_json: bool) -> None:
    """Check what Holdfast stands on, and say what to do about each finding.

    Python and libraries, configuration, tokenizer, store and its durability, disk, index, embedder, workspaces, models, limits,
    clock, sandbox. Nothing is changed, except that a database of an older schema is brought up to date, as every use of it does.
    Ends with 1 when something is broken; warnings are none.
    """
    from holdfast.cli.checkup import findings

    found = []
    for finding in findings({"store": store, "config": config}, os.environ):
        found.append(finding)
        if not as_json:
            _show(finding)
    broken = any(finding.level == "fail" for finding in found)
    if as_json:
        show_json({"ok": not broken, "findings": found})
    else:
        click.echo(_summary(found))
    ctx.exit(FAILED if broken else 0)


def _show(finding: Finding) -> None:
    level = click.style(f"{finding.level:<4}", fg=_COLORS[finding.level], bold=finding.level != "ok")
    click.echo(f"{level}  {finding.check:<10}  {line(finding.message)}")
    if finding.remedy:
        click.echo(f"{'':16}  -> {line(finding.remedy)}")


def _summary(found: Sequence[Finding]) -> str:
    levels = Counter(finding.level for finding in found)
    if levels["fail"]:
        return f"{counted(levels['fail'], 'thing')} broken, {counted(levels['warn'], 'warning')}"
    return counted(levels["warn"], "warning") if levels["warn"] else "All is well."
