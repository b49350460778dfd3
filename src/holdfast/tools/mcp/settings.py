"""Define the settings of MCP servers: how to reach them, and which tools to offer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from holdfast.errors import InvalidRequest
from holdfast.numbers import check_number
from holdfast.sections import Mistake, OptionalSecret, Settings, Text, Timeout, Url, check_headers, check_url

START_SECONDS: Final = 120.0
"""Time within which a server must answer after it is started."""
EXTRA: Final = "mcp"
"""Name of the extra that installs the SDK."""
_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]*")
_NAME: Final = re.compile("[A-Za-z0-9_-]{1,64}")


def get_tool_prefix(name: str, prefix: str | None) -> str:
    """Return the prefix of a server's tool names: the setting `prefix` if it is set, otherwise the server's name and `_`."""
    return f"{name}_" if prefix is None else prefix


class McpServer(Settings, frozen=True, kw_only=True):
    """An MCP server whose tools Holdfast calls. Set either `command`, to start it as a program, or `url`, to connect to it."""

    command: Text | None = None
    """Program to start. Holdfast talks to it through its standard input and output (stdio)."""
    args: tuple[OptionalSecret, ...] = ()
    """Arguments of the program. They are never displayed, because they may contain an address with a password."""
    env: Mapping[str, OptionalSecret] = {}
    """Environment variables of the program, in addition to a few harmless ones. No other variables of this process are passed on."""
    url: Url | None = None
    """Address of the server (streamable HTTP)."""
    headers: Mapping[str, OptionalSecret] = {}
    """HTTP headers of every request to `url`."""
    tools: tuple[Text, ...] | None = None
    """Names of the tools to offer; unset: all tools. `*` matches any characters."""
    prefix: str | None = None
    """Prefix of the server's tool names. Unset: the name of the server in the configuration, and `_`. Empty: no prefix."""
    timeout: Timeout = 60.0
    """Time limit of a call, in seconds."""

    def find_mistakes(self) -> list[Mistake]:
        needed, other = ("command", ("args", "env")) if self.url else ("url", ("headers",))
        if self.command is None and self.url is None:
            found = [("command", "missing; set `command` or `url`")]
        elif self.command is not None and self.url is not None:
            found = [("command", "set together with `url`; remove one of the two")]
        else:
            found = [(key, f"only with `{needed}`") for key in other if getattr(self, key)]
        if not _PREFIX.fullmatch(self.prefix or ""):
            found.append(("prefix", "expected only letters, digits, `_` and `-`"))
        return found + check_url("url", self.url) + check_headers(self.headers)


class McpSettings(McpServer, frozen=True, kw_only=True):
    """An MCP server and its name. Set either `command`, to start it as a program, or `url`, to connect to it.

    Raises:
        InvalidRequest: a value is not valid.
    """

    name: str
    """Name of the server: 1 to 64 letters, digits, `_` and `-`. An agent gets the server's tools if its `tools` contain this name."""

    def __post_init__(self) -> None:
        given: Any = self.name
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            message = f"the name of an MCP server has 1 to 64 letters, digits, _ and -, not {given!r:.80}"
            raise InvalidRequest(message, param="mcp_servers")
        if (self.command is None) == (self.url is None):
            raise InvalidRequest(f"MCP server {self.name!r} needs either a command or a url", param="mcp_servers")
        check_number(self.timeout, f"MCP server {self.name!r}: timeout", 0.001, 2**31, param="mcp_servers")

    def __repr__(self) -> str:
        return f"McpSettings({self.name!r})"  # arguments, environment and headers may hold secrets

    @property
    def tool_prefix(self) -> str:
        """Prefix of the server's tool names."""
        return get_tool_prefix(self.name, self.prefix)

    def is_offered(self, tool: str) -> bool:
        """Return True if a tool is offered. `tool` is its name on the server."""
        return self.tools is None or any(fnmatchcase(tool, pattern) for pattern in self.tools)
