"""`holdfast serve`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.errors import FAILED, Failure
from holdfast.cli.stores import config_option, json_option, store_options
from holdfast.cli.terminal import sanitize, show_json
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.config import ServerSettings


@click.command
@click.option("--host", metavar="HOST", help="Address to listen on.  [default: 127.0.0.1; HOLDFAST_HOST]")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65_535),
    help="Port; 0 for any free one.  [default: 8377; HOLDFAST_PORT]",
)
@click.option("--model", metavar="NAME", help="Model that answers: an llm of the configuration, or a model name.")
@store_options
@click.pass_context
def serve(ctx: click.Context, /, **flags: Any) -> None:
    """Run the server.

    It serves the OpenAI and Anthropic APIs with memory, and the REST API.

    Without an API key in the environment or the configuration, the built-in `offline` model answers.
    """
    from holdfast.config import load_settings
    from holdfast.server.run import serve as run

    settings = load_settings(flags, os.environ)
    try:
        code = run(settings, again=lambda: load_settings(flags, os.environ))
    except ConfigError as exc:
        if isinstance(exc.__cause__, OSError):  # the configuration is valid, the address is in use
            raise Failure("\n".join([*exc.problems, "choose another port with --port, or 0 for any free one"])) from exc
        raise
    ctx.exit(code)


# -- config ----------------------------------------------------------------------


@click.group
def config() -> None:
    """Check and show the configuration."""


def _choose_file(file: str | None, option: str | None) -> str | None:
    """Return the configuration file that the argument or `--config` names, or None if neither names one."""
    if file and option and file != option:
        raise click.UsageError(f"two files: {file} and --config {option}; give one")
    return file or option


@config.command
@click.argument("file", required=False)
@config_option
@json_option
@click.pass_context
def check(ctx: click.Context, file: str | None, config: str | None, *, as_json: bool) -> None:
    """Check a configuration and show the result, with secrets hidden.

    The default FILE is the one that `serve` reads; --config is another way to name it. The exit code is 1 if there are errors.
    """
    from holdfast.config import check_config

    report = check_config(_choose_file(file, config), os.environ, prepare=prepare_server)
    if as_json:
        show_json(report.data)
    else:
        click.echo(sanitize(report.text), err=report.exit_code > FAILED)
    ctx.exit(report.exit_code)


def prepare_server(settings: ServerSettings) -> object:
    """Create the server that `holdfast serve` would run, without opening anything, to find errors."""
    from holdfast.config.build import Clients
    from holdfast.server.run import prepare

    return prepare(settings, clients=Clients())


@config.command
@click.argument("file", required=False)
@config_option
@click.option("--schema", is_flag=True, help="Print the JSON Schema of configuration files instead, for editors.")
@json_option
def show(file: str | None, config: str | None, *, schema: bool, as_json: bool) -> None:
    """Show every effective value and its source.

    The source is a line, a variable or the default. Secrets are hidden.

    The default FILE is the one that `serve` reads; --config is another way to name it.
    """
    from holdfast.config import show_config
    from holdfast.config.json_schema import build_json_schema

    if schema:
        show_json(build_json_schema())
        return

    text, data = show_config(_choose_file(file, config), os.environ)
    if as_json:
        show_json(data)
    else:
        click.echo(sanitize(text))
