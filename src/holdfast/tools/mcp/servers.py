"""All servers of the Model Context Protocol that a Holdfast knows, and the tools that they make."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.domain.messages import UNWRITABLE
from holdfast.errors import InvalidRequest, ToolFailed
from holdfast.limits import MCP_DESCRIPTION_CHARS, MCP_SCHEMA_BYTES
from holdfast.stores.checks import check_kind
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp.connection import Connection
from holdfast.tools.mcp.naming import told_name
from holdfast.tools.mcp.results import told
from holdfast.tools.mcp.settings import McpSettings
from holdfast.tools.tool import Tool, ToolLimits, Toolset

if TYPE_CHECKING:
    from mcp_types import Tool as Offered

_log = logging.getLogger("holdfast.mcp")
_REFUSED: Final = frozenset({"allOf", "anyOf", "enum", "not", "oneOf"})
"""What providers refuse beside the type of a tool's arguments, and with it the whole call; the server looks at these itself."""


class McpServers:
    """Servers, connected while it is open.

    Args:
        settings: of each.
        own: the tools that there are beside theirs.
        changed: given the toolset when there are others.

    Raises:
        InvalidRequest: two servers have one name.
    """

    def __init__(self, settings: Iterable[McpSettings], own: Toolset, changed: Callable[[Toolset], None]) -> None:
        self._own = own
        self._tell = changed
        self._connections: dict[str, Connection] = {}
        for one in settings:
            check_kind(one, "mcp_servers", McpSettings, "a list of McpSettings")
            if one.name in self._connections:
                raise InvalidRequest(f"two MCP servers are called {one.name!r}", param="mcp_servers")
            self._connections[one.name] = Connection(one, self._changed)

    async def open(self) -> None:
        """Connect to all of them side by side. One that cannot be reached is tried again later, and by calls.

        Raises:
            MissingExtra: the SDK is not installed.
        """
        try:
            await asyncio.gather(*(connection.open() for connection in self._connections.values()))
        except BaseException:
            await self.close()
            raise
        self._changed()

    async def close(self) -> None:
        """Let go of all of them."""
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    def limit(self, limits: ToolLimits) -> None:
        """Have all tools go as far as these from now on."""
        self._own = msgspec.structs.replace(self._own, limits=limits)
        self._changed()

    @property
    def errors(self) -> dict[str, str | None]:
        """Why a server is away, by its name; None: it is there."""
        return {name: connection.error for name, connection in self._connections.items()}

    def _changed(self) -> None:
        """Tell the tools that there are now. Those of Holdfast's own go before a server's of the same name."""
        tools, groups = dict(self._own.tools), dict(self._own.groups)
        for name, connection in self._connections.items():
            made = []
            for offered in connection.offered:
                if (tool := _tool(connection, offered, tools)) is not None:
                    tools[tool.name] = tool
                    made.append(tool.name)
            groups[name] = tuple(made)
        away = tuple(one.settings.before for one in self._connections.values() if not one.told)
        self._tell(msgspec.structs.replace(self._own, tools=tools, groups=groups, away=away))


def _tool(connection: Connection, offered: Offered, taken: Collection[str]) -> Tool | None:
    """A server's tool as one of ours; None, and a word in the log, for one that no provider would take."""
    settings = connection.settings
    name = told_name(settings.before, offered.name, taken)
    said = {key: value for key, value in offered.input_schema.items() if key not in _REFUSED}
    schema = {"type": "object", "properties": {}, **said}
    if name in taken or not _fits(schema):
        fields = {"server": settings.name, "tool": offered.name[:200]}
        _log.warning(
            "a tool of an MCP server is left out: its schema is too large or its name taken", extra={"fields": fields}
        )
        return None
    return Tool(
        name=name,
        call=_calling(connection, offered.name, name),
        description=(offered.description or "")[:MCP_DESCRIPTION_CHARS],
        parameters=schema,
        timeout=settings.timeout + settings.start_timeout,
        max_result=settings.max_result,
        reads_state=False,
        named=True,
    )


def _fits(schema: Any) -> bool:
    try:
        return len(msgspec.json.encode(schema)) <= MCP_SCHEMA_BYTES
    except UNWRITABLE:
        return False


def _calling(connection: Connection, theirs: str, ours: str) -> Callable[[ToolContext, dict[str, Any]], Awaitable[str]]:
    async def call(context: ToolContext, arguments: dict[str, Any]) -> str:
        result = await connection.call(theirs, arguments)
        blocks = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
        text = await told(blocks, result.structured_content, context, ours)
        if result.is_error:
            raise ToolFailed(text)
        return text

    return call
