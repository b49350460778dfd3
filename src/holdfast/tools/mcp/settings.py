"""Settings of MCP servers: how to reach them, which tools to offer, and limits of calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from holdfast.errors import InvalidRequest
from holdfast.numbers import check_number
from holdfast.settings import Mistake, OptionalSecret, Settings, Size, Text, Timeout, Url, check_headers, check_url

EXTRA: Final = "mcp"
"""The extra that installs the SDK."""
_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]*")
_NAME: Final = re.compile("[A-Za-z0-9_-]{1,64}")


def get_tool_prefix(name: str, prefix: str | None) -> str:
    """Return the prefix of a server's tool names: its `prefix`, or else its name and `_`."""
    return f"{name}_" if prefix is None else prefix


class McpServer(Settings, frozen=True, kw_only=True):
    """An MCP server whose tools are called by Holdfast: a program (`command`) or an address (`url`)."""

    command: Text | None = None
    """Program to start (stdio)."""
    args: tuple[OptionalSecret, ...] = ()
    """Arguments of the program. They are not shown, because they may contain an address with a password."""
    env: Mapping[str, OptionalSecret] = {}
    """Environment of the program, in addition to a few harmless variables; nothing else of this process's environment is passed on."""
    cwd: Text | None = None
    """Directory in which the program runs; unset: the directory of this process."""
    url: Url | None = None
    """Address (streamable HTTP)."""
    headers: Mapping[str, OptionalSecret] = {}
    """Headers of every request to `url`."""
    tools: tuple[Text, ...] | None = None
    """Tools to offer; unset: all. `*` matches any characters."""
    exclude_tools: tuple[Text, ...] = ()
    """Tools not to offer."""
    prefix: str | None = None
    """Prefix of its tool names; unset: the server's name here and `_`; empty: none."""
    timeout: Timeout = 60.0
    """Maximum seconds of a call."""
    start_timeout: Timeout = 30.0
    """Seconds within which it must answer after it is started."""
    max_result: Size = 64 * 1024
    """Maximum bytes of a result; of a longer one the model gets the head and the tail."""

    def find_mistakes(self) -> list[Mistake]:
        needed, other = ("command", ("args", "env", "cwd")) if self.url else ("url", ("headers",))
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
    """An MCP server with its name: a program (`command`) or an address (`url`).

    Raises:
        InvalidRequest: a value is not valid.
    """

    name: str
    """Name of the server, which agents use in their `tools`. 1 to 64 letters, digits, `_` and `-`."""

    def __post_init__(self) -> None:
        given: Any = self.name
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            message = f"the name of an MCP server has 1 to 64 letters, digits, _ and -, not {given!r:.80}"
            raise InvalidRequest(message, param="mcp_servers")
        if (self.command is None) == (self.url is None):
            raise InvalidRequest(f"MCP server {self.name!r} needs either a command or a url", param="mcp_servers")
        for name, least in (("timeout", 0.001), ("start_timeout", 0.001), ("max_result", 1024)):
            check_number(getattr(self, name), f"MCP server {self.name!r}: {name}", least, 2**31, param="mcp_servers")

    def __repr__(self) -> str:
        return f"McpSettings({self.name!r})"  # arguments, environment and headers may hold secrets

    @property
    def tool_prefix(self) -> str:
        """Prefix of the names of its tools."""
        return get_tool_prefix(self.name, self.prefix)

    def is_offered(self, tool: str) -> bool:
        """Return True if a tool, by its name on the server, is offered."""
        listed = self.tools is None or any(fnmatchcase(tool, pattern) for pattern in self.tools)
        return listed and not any(fnmatchcase(tool, pattern) for pattern in self.exclude_tools)
