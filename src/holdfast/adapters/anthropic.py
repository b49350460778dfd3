"""Anthropic's memory tool (`memory_20250818`) for programs that call Claude with the SDK. Holdfast stores the tool's files as records.

tool = HoldfastMemoryTool(hf, user_id="ada")
runner = client.beta.messages.tool_runner(model=…, max_tokens=1024, messages=[…], tools=[tool])
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError

import holdfast
from holdfast.errors import Conflict, UsageError

__all__ = ["HoldfastMemoryTool", "HoldfastSyncMemoryTool"]

FILES: Final = "memory_files"
"""Namespace of the records."""


class HoldfastMemoryTool(BetaAsyncAbstractMemoryTool):
    """The memory tool for `AsyncAnthropic`. The answers are those of the SDK's own tool.

    Args:
        hf: an open `Holdfast`, or a `holdfast.Portal()` that several event loops share.
        user_id: the user who owns the files. Deleting the user deletes the files. None: all users of the tenant share the files.
        agent: name of the agent that has the files to itself; None: all agents of the owner share the files.
    """

    def __init__(
        self, hf: holdfast.Holdfast | holdfast.Portal, *, user_id: str | None = None, agent: str | None = None
    ) -> None:
        super().__init__()
        self._hf = hf
        self._user_id = user_id
        self._agent = agent

    async def _run(self, command: Callable[[holdfast.MemoryFiles], Awaitable[str]]) -> str:
        async def work(hf: holdfast.Holdfast) -> str:
            labels = (FILES,) if self._agent is None else (FILES, self._agent)
            return await command(holdfast.MemoryFiles(hf.records(labels, user_id=self._user_id)))

        try:
            if isinstance(self._hf, holdfast.Portal):
                return await self._hf.run(work, self._hf.hf)
            return await work(self._hf)
        except (UsageError, Conflict) as exc:
            raise ToolError(str(exc)) from exc

    async def view(self, command: Any) -> str:
        """Show a file with line numbers, or the list of a folder."""
        return await self._run(lambda files: files.view(command.path, command.view_range))

    async def create(self, command: Any) -> str:
        """Create a file."""
        return await self._run(lambda files: files.create(command.path, command.file_text))

    async def str_replace(self, command: Any) -> str:
        """Replace a text that occurs once in a file."""
        return await self._run(lambda files: files.str_replace(command.path, command.old_str, command.new_str))

    async def insert(self, command: Any) -> str:
        """Insert a text after a line of a file."""
        return await self._run(lambda files: files.insert(command.path, command.insert_line, command.insert_text))

    async def delete(self, command: Any) -> str:
        """Delete a file or a folder."""
        return await self._run(lambda files: files.delete(command.path))

    async def rename(self, command: Any) -> str:
        """Rename or move a file or a folder."""
        return await self._run(lambda files: files.rename(command.old_path, command.new_path))

    async def clear_all_memory(self) -> str:
        """Delete all files."""
        return await self._run(lambda files: files.clear())


class HoldfastSyncMemoryTool(BetaAbstractMemoryTool):
    """The memory tool for `Anthropic`, without `await`. The answers are those of the SDK's own tool.

    Args:
        portal: an open portal.
        user_id, agent: as for `HoldfastMemoryTool`.
    """

    def __init__(self, portal: holdfast.Portal, *, user_id: str | None = None, agent: str | None = None) -> None:
        super().__init__()
        self._portal = portal
        self._tool = HoldfastMemoryTool(portal, user_id=user_id, agent=agent)

    def view(self, command: Any) -> str:
        """Show a file with line numbers, or the list of a folder."""
        return self._portal.call(self._tool.view, command)

    def create(self, command: Any) -> str:
        """Create a file."""
        return self._portal.call(self._tool.create, command)

    def str_replace(self, command: Any) -> str:
        """Replace a text that occurs once in a file."""
        return self._portal.call(self._tool.str_replace, command)

    def insert(self, command: Any) -> str:
        """Insert a text after a line of a file."""
        return self._portal.call(self._tool.insert, command)

    def delete(self, command: Any) -> str:
        """Delete a file or a folder."""
        return self._portal.call(self._tool.delete, command)

    def rename(self, command: Any) -> str:
        """Rename or move a file or a folder."""
        return self._portal.call(self._tool.rename, command)

    def clear_all_memory(self) -> str:
        """Delete all files."""
        return self._portal.call(self._tool.clear_all_memory)
