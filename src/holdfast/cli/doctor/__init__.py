"""`holdfast doctor`: check the installation and its configuration, and suggest a remedy for each problem.

Each module contains the checks of one subject:
machine   Python, libraries, other distributions, tokenizer, open files, clock, sandbox
config    configuration, listening address, limits, workspaces      store     the database and its file system
index     the search index and its embedder                         upstream  the configured models
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command import Call, command
from holdfast.cli.errors import FAILED
from holdfast.cli.terminal import format_line, show_busy, show_json
from holdfast.errors import ConfigError
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.cli.doctor.finding import Finding

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@command()
@click.option(
    "--server", metavar="URL", help="Show what a running server has learned of its models. HOLDFAST_KEY is its key."
)
def doctor(call: Call, server: str | None) -> None:
    """Check the installation and suggest a remedy for each problem.

    Checks Python, libraries, configuration, tokenizer, store and durability, disk, index, embedder, workspaces, models, limits,
    clock and sandbox. Pending changes of a database's schema are only reported.
    Nothing is changed, except that an empty database on a server gets its tables.
    The exit code is 1 if a check fails. Warnings do not count.
    """
    from holdfast.cli.doctor.upstream import check_server

    found = []
    with show_busy():
        for finding in (
            check_server(server) if server else run_checks({"store": call.store, "config": call.config}, os.environ)
        ):
            found.append(finding)
            if not call.as_json:
                _show(finding)
    levels = Counter(finding.level for finding in found)
    failures, warnings = format_count(levels["fail"], "failure"), format_count(levels["warn"], "warning")
    if call.as_json:
        show_json({"ok": not levels["fail"], "findings": found})
    elif levels["fail"]:
        click.echo(f"{failures}, {warnings}")
    else:
        click.echo(warnings if levels["warn"] else "No problems found.")
    raise click.exceptions.Exit(FAILED if levels["fail"] else 0)


def _show(finding: Finding) -> None:
    level = click.style(f"{finding.level:<4}", fg=_COLORS[finding.level], bold=finding.level != "ok")
    click.echo(f"{level}  {finding.check:<10}  {format_line(finding.message)}")
    if finding.remedy:
        click.echo(f"{'':16}  -> {format_line(finding.remedy)}")


def run_checks(flags: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[Finding]:
    """Run all checks, and yield their findings in order. If the configuration is not valid, run only the checks that need no configuration.

    Args:
        flags: values of the options `store` and `config`.
        env: the environment variables.
    """
    from holdfast.cli.doctor import config as about_config
    from holdfast.cli.doctor import index, machine, store, upstream
    from holdfast.config.build import build_python_settings
    from holdfast.config.loader import load_settings

    yield machine.check_python()
    yield machine.check_distribution()
    yield machine.check_libraries()
    yield from about_config.check_file(flags.get("config"), env)
    yield machine.check_tokenizer()
    yield machine.check_open_files()
    yield machine.check_clock()
    try:
        config = load_settings(flags, env)
    except ConfigError as error:
        yield about_config.report_unusable(error)
        return
    yield about_config.check_host(config)
    yield about_config.check_limits(config)
    yield machine.check_sandbox(build_python_settings(config))
    about_store = list(store.check_store(config.store))
    yield from about_store
    if not any(one.check == "store" and one.level == "fail" for one in about_store):
        yield from index.check_index(config, config.store)
    yield from index.check_embedder(config)
    yield from about_config.check_workspaces(config)
    yield from upstream.check_upstreams(config)
