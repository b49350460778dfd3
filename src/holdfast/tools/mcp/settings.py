"""How a server of the Model Context Protocol is reached, which of its tools are offered, and how far a call may go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.numbers import check_number

EXTRA: Final = "mcp"
"""The extra that brings the SDK."""
_NAME: Final = re.compile("[A-Za-z0-9_-]{1,64}")


def prefix_of(name: str, prefix: str | None) -> str:
    """What stands before the names of the tools of a server: its `prefix`, else its name and `_`."""
    return f"{name}_" if prefix is None else prefix


class McpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One server: a program that is started (`command`), or an address (`url`).

    Raises:
        InvalidRequest: a setting that cannot be; says which.
    """

    name: str
    """What it is called here: agents name it in their `tools`. 1 to 64 letters, digits, `_` and `-`."""
    command: str | None = None
    """stdio: the program."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    """Of the program, beside a few harmless variables such as PATH; nothing else of this process is handed on."""
    cwd: str | None = None
    """Folder that the program is started in; None: this process's."""
    url: str | None = None
    """Streamable HTTP: the address."""
    headers: Mapping[str, str] = {}
    """Sent with each request to `url`."""
    tools: tuple[str, ...] | None = None
    """Names of those of its tools that are offered, `*` for any characters; None: all."""
    exclude_tools: tuple[str, ...] = ()
    """Names of those that are not, all the same."""
    prefix: str | None = None
    """Before the names of its tools here; None: `name` and `_`."""
    timeout: float = 60.0
    """Seconds that a call may take."""
    start_timeout: float = 30.0
    """Seconds until it has to have told its tools, at the start and when it is connected to again."""
    max_result: int = 64 * 1024
    """Bytes of a result; of a longer one the model is given head and tail."""

    def __post_init__(self) -> None:
        given: Any = self.name
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            message = f"the name of an MCP server has 1 to 64 letters, digits, _ and -; {given!r:.80} is none"
            raise InvalidRequest(message, param="mcp_servers")
        if (self.command is None) == (self.url is None):
            raise InvalidRequest(f"MCP server {self.name!r} needs a command or a url, one of them", param="mcp_servers")
        for name, least in (("timeout", 0.001), ("start_timeout", 0.001), ("max_result", 1024)):
            check_number(getattr(self, name), f"MCP server {self.name!r}: {name}", least, 2**31, param="mcp_servers")

    def __repr__(self) -> str:
        return f"McpSettings({self.name!r})"  # arguments, environment and headers may hold secrets

    @property
    def before(self) -> str:
        """What stands before the names of its tools."""
        return prefix_of(self.name, self.prefix)

    def offers(self, tool: str) -> bool:
        """Whether a tool of that name, as the server has it, is offered."""
        listed = self.tools is None or any(fnmatchcase(tool, pattern) for pattern in self.tools)
        return listed and not any(fnmatchcase(tool, pattern) for pattern in self.exclude_tools)
