"""`holdfast mcp`: serve memories and sessions to an assistant, over standard input and output."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import click

from holdfast.cli.command import CONFIG, STORE, Call, command
from holdfast.cli.terminal import format_line, is_interactive
from holdfast.errors import HoldfastError, MissingExtra

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast


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
