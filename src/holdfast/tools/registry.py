"""Registry of all tools: functions of the program, built-in tools, and tools of MCP servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.secrets import Guard
from holdfast.tools.artifacts import add_artifact_tools
from holdfast.tools.functions import make_toolset
from holdfast.tools.mcp.servers import McpServers
from holdfast.tools.mcp.settings import McpSettings
from holdfast.tools.memory import add_memory_tool
from holdfast.tools.python.settings import PythonSettings
from holdfast.tools.python.tool import add_python_tool
from holdfast.tools.search import add_search_tool
from holdfast.tools.tool import Tool, ToolLimits, Toolset
from holdfast.tools.workspace import add_workspace_tools
from holdfast.workspace import Workspaces


class ToolRegistry:
    """The tools of a Holdfast, opened and closed with it.

    Attributes:
        kernels: processes of the tool `python`; None without that tool.
        mcp: servers of the Model Context Protocol.

    Args:
        known: existing tools.
        changed: called with all tools now, and again when they change.
        tools: functions or tools that replace the known ones; None keeps them.
        limits: limits of the tools of a turn; None keeps those of `known`.
        python: settings of the tool `python`; None disables it.
        mcp_servers: servers whose tools agents may name.
        clock: milliseconds since the epoch.
        guard: masks secrets in artifacts that a model saves.
        artifact_tools: give artifact tools to all agents without a list of tools; otherwise only to agents that name them.
        workspaces: workspaces of agents, whose tools agents may name; None for none.

    Raises:
        InvalidRequest: a tool is not valid, or two have the same name.
    """

    def __init__(
        self,
        known: Toolset,
        changed: Callable[[Toolset], None],
        *,
        tools: Iterable[Callable[..., Any] | Tool] | None,
        limits: ToolLimits | None,
        python: PythonSettings | None,
        mcp_servers: Iterable[McpSettings],
        clock: Callable[[], int],
        guard: Guard | None = None,
        artifact_tools: bool = False,
        workspaces: Workspaces | None = None,
    ) -> None:
        if tools is not None or limits is not None:
            known = make_toolset(known.tools.values() if tools is None else tools, limits)
        self.kernels, known = add_python_tool(known, python, clock)
        known = add_artifact_tools(known, guard, everybody=artifact_tools)
        known = add_workspace_tools(known, workspaces)
        known = add_search_tool(known)
        known = add_memory_tool(known)
        self.mcp = McpServers(mcp_servers, known, changed)
        changed(known)

    async def open(self) -> None:
        """Start processes and connections. MCP servers that cannot be reached are retried later.

        Raises:
            PythonUnavailable: the process of the tool `python` cannot be started or sandboxed.
            MissingExtra: there are MCP servers, and the SDK is not installed.
        """
        if self.kernels is not None:
            await self.kernels.open()
        try:
            await self.mcp.open()
        except BaseException:
            await self.close()
            raise

    def limit(self, limits: ToolLimits) -> None:
        """Apply limits to later turns."""
        self.mcp.limit(limits)

    async def close(self) -> None:
        """Stop processes and connections."""
        await self.mcp.close()
        if self.kernels is not None:
            await self.kernels.close()
