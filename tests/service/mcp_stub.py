"""A server of the Model Context Protocol that misbehaves on request: `python mcp_stub.py stdio | http PORT`."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
server = MCPServer("stub")


@server.tool()
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


@server.tool(name="odd name/with.dots")
def odd() -> str:
    """A name that no provider takes."""
    return "odd"


@server.tool(name="odd.name/with dots")
def odder() -> str:
    """Another one that is written the same."""
    return "odder"


@server.tool()
def variables() -> list[str]:
    """Names of the environment's variables."""
    return sorted(os.environ)


@server.tool()
def long(size: int) -> str:
    """A long text."""
    return "x" * size


@server.tool()
def picture(count: int = 1) -> list[Image]:
    """Pictures."""
    return [Image(data=PIXEL, format="png")] * count


@server.tool()
def boom() -> str:
    """Fail."""
    raise ToolError("the boiler is cold")


@server.tool()
async def slow(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)
    return "done"


@server.tool()
def die() -> str:
    """End the server at once."""
    os._exit(3)


@server.tool()
async def learn(ctx: Context[Any]) -> str:
    """Have one more tool."""

    def late() -> str:
        return "late"

    server.add_tool(late)
    await ctx.notify_tools_changed()
    return "learnt"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[2]))
