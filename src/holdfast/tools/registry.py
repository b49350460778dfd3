"""Every tool that runs here when a model calls it: functions of the program, built-in tools, those of MCP servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.secrets import Guard
from holdfast.tools.artifacts import with_artifacts
from holdfast.tools.functions import toolset
from holdfast.tools.mcp.servers import McpServers
from holdfast.tools.mcp.settings import McpSettings
from holdfast.tools.memory import with_memory
from holdfast.tools.python.settings import PythonSettings
from holdfast.tools.python.tool import with_python
from holdfast.tools.search import with_search
from holdfast.tools.tool import Tool, ToolLimits, Toolset
from holdfast.tools.workspace import with_workspaces
from holdfast.workspace import Workspaces


class Workshop:
    """The tools of a Holdfast, opened and closed with it.

    Attributes:
        kernels: the processes of the tool `python`; None: there is no such tool.
        mcp: servers of the Model Context Protocol.

    Args:
        known: tools that there are already.
        changed: given all tools, and given them again when there are others.
        tools: functions or tools in place of those that are known; None: these stay.
        limits: how far the tools of a turn may go; None: as they say already.
        python: how far the tool `python` may go; None: there is none.
        mcp_servers: servers whose tools agents may name.
        clock: milliseconds since the epoch.
        guard: what happens to secrets in artifacts that a model saves.
        artifact_tools: whether all have the tools for artifacts whose tools are not listed; else agents that name them.
        workspaces: those of agents, whose tools agents may name; None: there are none.

    Raises:
        InvalidRequest: one of them cannot be, or two have one name.
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
            known = toolset(known.tools.values() if tools is None else tools, limits)
        self.kernels, known = with_python(known, python, clock)
        known = with_artifacts(known, guard, everybody=artifact_tools)
        known = with_workspaces(known, workspaces)
        known = with_search(known)
        known = with_memory(known)
        self.mcp = McpServers(mcp_servers, known, changed)
        changed(known)

    async def open(self) -> None:
        """Start what has to run before a tool can be called; an MCP server that cannot be reached is tried again later.

        Raises:
            PythonUnavailable: the process of the tool `python` cannot be started, or not be held in.
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
        """Have the tools of later turns go as far as these."""
        self.mcp.limit(limits)

    async def close(self) -> None:
        """End what was started."""
        await self.mcp.close()
        if self.kernels is not None:
            await self.kernels.close()
