"""`holdfast doctor`: each check gives findings, and a finding that is not well says what to do.

machine   Python, libraries, other distributions, the tokenizer, open files, the clock, the sandbox
config    the file, where the server listens, workspaces      store     the database and what it lies on
index     what search looks things up in, and its embedder   upstream  the models that are configured
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.errors import FAILED
from holdfast.cli.stores import json_option, place_options
from holdfast.cli.terminal import counted, line, show_json
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.cli.doctor.finding import Finding

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


def findings(flags: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[Finding]:
    """Everything that can be checked, in order; without a configuration that holds, what needs none.

    Args:
        flags: `store` and `config`, as for the other commands.
        env: the environment.
    """
    from holdfast.cli.doctor import config, index, machine, store, upstream
    from holdfast.config import load_settings
    from holdfast.config.build import build_python_settings

    yield machine.python()
    yield machine.check_distribution()
    yield machine.libraries()
    yield from config.file(flags.get("config"), env)
    yield machine.tokenizer()
    yield machine.open_files()
    yield machine.clock()
    try:
        settings = load_settings(flags, env)
    except ConfigError as error:
        yield config.unusable(error)
        return
    yield config.host(settings)
    yield config.limits(settings)
    yield machine.sandbox(build_python_settings(settings.config))
    about_store = list(store.findings(settings.store))
    yield from about_store
    if not any(one.check == "store" and one.level == "fail" for one in about_store):
        yield from index.findings(settings.config, settings.store)
    yield from index.embedder_findings(settings.config)
    yield from config.workspace_findings(settings.config)
    yield from upstream.findings(settings.config)
