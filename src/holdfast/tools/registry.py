"""Collect all tools of a Holdfast: functions of the program, built-in tools, and tools of MCP servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.secrets.guard import Guard
from holdfast.tools.artifacts import add_artifact_tools
from holdfast.tools.functions import make_toolset
from holdfast.tools.mcp.servers import McpServers
from holdfast.tools.mcp.settings import McpSettings
from holdfast.tools.memory import add_memory_tool
from holdfast.tools.python.settings import PythonSettings
from holdfast.tools.python.tool import add_python_tool
from holdfast.tools.search import add_search_tool
from holdfast.tools.text_editor import add_text_editor
from holdfast.tools.tool import Tool, ToolLimits, Toolset
from holdfast.tools.workspace import add_workspace_tools
from holdfast.workspace import Workspaces


class ToolRegistry:
    """The tools of a Holdfast, which opens and closes them.

    Attributes:
        kernels: processes of the tool `python`; None: the tool is disabled.
        mcp: connections to MCP servers.

    Args:
        known: the tools of the program so far, with their limits.
        changed: called at once with all tools, and again whenever they change.
        tools: functions or tools that replace the tools in `known`; None: the tools in `known` are kept.
        limits: limits of the tools of a turn. None: the limits of `known`, or the default limits if `tools` is given.
        python: settings of the tool `python`; None: the tool is disabled.
        mcp_servers: MCP servers. Agents get the tools of a server if they name them.
        clock: returns the time in milliseconds since the epoch.
        guard: masks secrets in artifacts that a model saves; None: nothing is masked.
        artifact_tools: True: all agents without a list of tools get the artifact tools; False: only agents that name them.
        workspaces: workspaces of agents. Agents get the workspace tools if they name them. None: there are no such tools.

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
        known = add_text_editor(known, guard)
        known = add_workspace_tools(known, workspaces)
        known = add_search_tool(known)
        known = add_memory_tool(known)
        self.mcp = McpServers(mcp_servers, known, changed)
        changed(known)

    async def open(self) -> None:
        """Prepare the tool `python`, and connect to the MCP servers. A server that cannot be reached is tried again later.

        Raises:
            InvalidRequest: the directory for work folders of the tool `python` cannot be created.
            PythonUnavailable: the tool `python` cannot run code in a sandbox here, or its interpreter does not exist.
            MissingExtra: there are MCP servers, but the SDK is not installed.
        """
        if self.kernels is not None:
            await self.kernels.open()
        try:
            await self.mcp.open()
        except BaseException:
            await self.close()
            raise

    def limit(self, limits: ToolLimits) -> None:
        """Replace the limits of all tools, from the next turn on."""
        self.mcp.limit(limits)

    async def close(self) -> None:
        """End the Python processes, and disconnect from the MCP servers."""
        await self.mcp.close()
        if self.kernels is not None:
            await self.kernels.close()
