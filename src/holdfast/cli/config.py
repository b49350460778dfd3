"""`holdfast config check`, `show` and `schema`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from holdfast.cli.frame import FAILED
from holdfast.cli.stores import json_option
from holdfast.cli.terminal import plain, show_json

if TYPE_CHECKING:
    from holdfast.config import ServerSettings


@click.group
def config() -> None:
    """Look at the configuration."""


@config.command
@click.argument("file", required=False)
@json_option
@click.pass_context
def check(ctx: click.Context, file: str | None, *, as_json: bool) -> None:
    """Check a configuration and show how it is understood, secrets hidden.

    FILE is the one that `serve` would read, unless given. Ends with 1 when it has mistakes.
    """
    from holdfast.config import check_config

    report = check_config(file, os.environ, prepare=prepared)
    if as_json:
        show_json(report.data)
    else:
        click.echo(plain(report.text), err=report.exit_code > FAILED)
    ctx.exit(report.exit_code)


def prepared(settings: ServerSettings) -> object:
    """Build what `serve` would run, and leave it closed."""
    from holdfast.config.build import Clients
    from holdfast.server.run import prepare

    return prepare(settings, clients=Clients())


@config.command
@click.argument("file", required=False)
@json_option
def show(file: str | None, *, as_json: bool) -> None:
    """Show every value that holds, and where it comes from: line, variable, preset or default. Secrets are hidden.

    FILE is the one that `serve` would read, unless given.
    """
    from holdfast.config import show_config

    text, data = show_config(file, os.environ)
    if as_json:
        show_json(data)
    else:
        click.echo(plain(text))


@config.command
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors that check files as they are written."""
    from holdfast.config.reference import build_json_schema

    show_json(build_json_schema())
