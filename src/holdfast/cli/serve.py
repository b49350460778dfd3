"""`holdfast serve`, `mcp` and `config`."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command import CONFIG, JSON, STORE, Call, Output, command
from holdfast.cli.errors import FAILED, Failure
from holdfast.cli.terminal import format_line, is_interactive, sanitize, show_json
from holdfast.errors import ConfigError, HoldfastError, MissingExtra

if TYPE_CHECKING:
    from holdfast.config.model import Config
    from holdfast.holdfast import Holdfast


@command(shared=(STORE, CONFIG))
@click.option("--host", metavar="HOST", help="Address to listen on.  [default: 127.0.0.1; HOLDFAST_HOST]")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65_535),
    help="Port; 0 for any free one.  [default: 8377; HOLDFAST_PORT]",
)
@click.option("--model", metavar="NAME", help="Model that answers: an llm of the configuration, or a model name.")
def serve(call: Call, **flags: Any) -> None:
    """Run the server.

    It serves the OpenAI and Anthropic APIs with memory, and the REST API.

    Without an API key in the environment or the configuration, the built-in `offline` model answers.
    """
    from holdfast.server.run import serve as run

    loaded = call.load_settings(**flags)
    try:
        code = run(loaded, again=lambda: call.load_settings(**flags))
    except ConfigError as exc:
        if isinstance(exc.__cause__, OSError):  # the configuration is valid, the address is in use
            raise Failure("\n".join([*exc.problems, "choose another port with --port, or 0 for any free one"])) from exc
        raise
    raise click.exceptions.Exit(code)


# -- mcp -------------------------------------------------------------------------


@command(shared=(STORE, CONFIG))
@click.option(
    "--user", metavar="ID", default="default", show_default=True, help="User whose sessions and memories are served."
)
@click.option("--agent", metavar="NAME", help="Agent that remembers, and whose own memories are recalled too.")
@click.option("--read-only", is_flag=True, help="Serve only the tools that read.")
def mcp(call: Call, *, user: str, agent: str | None, read_only: bool) -> None:
    """Serve memories and sessions to an assistant (MCP).

    An MCP client starts this command and speaks the Model Context Protocol with it over standard input and output. It ends when the client
    closes the input. A running server answers the same protocol over HTTP, at /mcp.
    """
    try:
        from holdfast.mcp_server.protocol import serve_stdio
    except ImportError as exc:
        raise MissingExtra("holdfast mcp", "mcp") from exc
    from holdfast.mcp_server.caller import McpCaller

    async def serve(hf: Holdfast) -> None:
        import anyio

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_complete_index, hf)
            await serve_stdio(McpCaller(hf=hf, user_id=user, agent=agent, can_write=not read_only))
            tasks.cancel_scope.cancel()

    if is_interactive():
        click.echo(
            "This command is for MCP clients: it reads their messages from standard input. Ctrl-C ends it.", err=True
        )
    # A thread that reads standard input cannot be interrupted, so end the process at once. Every acknowledged write is durable.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    call.run(serve, create=True, writes=True, with_agents=True)


async def _complete_index(hf: Holdfast) -> None:
    """Index the messages that other processes wrote but did not index. Clients do not wait for this task."""
    if hf.index is None:
        return
    try:
        await hf.index.walk()
    except HoldfastError as exc:
        click.echo(f"Warning: the index is not complete: {format_line(str(exc))}", err=True)


# -- config ----------------------------------------------------------------------


@click.group
def config() -> None:
    """Check and show the configuration."""


def _choose_file(file: str | None, option: str | None) -> str | None:
    """Return the configuration file that the argument or `--config` names, or None if neither names one."""
    if file and option and file != option:
        raise click.UsageError(f"two files: {file} and --config {option}; give one")
    return file or option


@command(config, shared=(CONFIG, JSON))
@click.argument("file", required=False)
def check(call: Call, *, file: str | None) -> None:
    """Check a configuration and show the result, with secrets hidden.

    The default FILE is the one that `serve` reads; --config is another way to name it. The exit code is 1 if there are errors.
    """
    from holdfast.config.check import check_config

    report = check_config(_choose_file(file, call.config), os.environ, prepare=prepare_server)
    if call.as_json:
        show_json(report.data)
    else:
        click.echo(sanitize(report.text), err=report.exit_code > FAILED)
    raise click.exceptions.Exit(report.exit_code)


def prepare_server(config: Config) -> object:
    """Create the server that `holdfast serve` would run, without opening anything, to find errors."""
    from holdfast.config.build import Clients
    from holdfast.server.run import prepare

    return prepare(config, clients=Clients())


@command(config, shared=(CONFIG, JSON))
@click.argument("file", required=False)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of configuration files instead, for editors.")
def show(call: Call, *, file: str | None, schema: bool) -> Output | None:
    """Show every effective value and its source.

    The source is a line, a variable or the default. Secrets are hidden.

    The default FILE is the one that `serve` reads; --config is another way to name it.
    """
    from holdfast.config.json_schema import build_json_schema
    from holdfast.config.show import show_config

    if schema:
        show_json(build_json_schema())
        return None
    text, data = show_config(_choose_file(file, call.config), os.environ)
    return Output(data, [sanitize(text)])
