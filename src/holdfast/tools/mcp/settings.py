"""How a server of the Model Context Protocol is reached, which of its tools are offered, and how far a call may go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from holdfast.errors import InvalidRequest
from holdfast.numbers import check_number
from holdfast.settings import Mistake, OptionalSecret, Settings, Size, Text, Timeout, Url, check_headers, check_url

EXTRA: Final = "mcp"
"""The extra that brings the SDK."""
_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]*")
_NAME: Final = re.compile("[A-Za-z0-9_-]{1,64}")


def prefix_of(name: str, prefix: str | None) -> str:
    """What stands before the names of the tools of a server: its `prefix`, else its name and `_`."""
    return f"{name}_" if prefix is None else prefix


class McpServer(Settings, frozen=True, kw_only=True):
    """A server of the Model Context Protocol, whose tools run here: a program (`command`), or an address (`url`)."""

    command: Text | None = None
    """stdio: the program that is started."""
    args: tuple[OptionalSecret, ...] = ()
    """Of the program. They are not shown: an address with a password may be among them."""
    env: Mapping[str, OptionalSecret] = {}
    """Of the program, beside a few harmless variables; nothing else of this process's environment is handed on."""
    cwd: Text | None = None
    """Where the program runs; unset: where this one does."""
    url: Url | None = None
    """Streamable HTTP."""
    headers: Mapping[str, OptionalSecret] = {}
    """Sent with every request to `url`."""
    tools: tuple[Text, ...] | None = None
    """Those of its tools that are offered; unset: all. `*` stands for any characters."""
    exclude_tools: tuple[Text, ...] = ()
    """Those that are not."""
    prefix: str | None = None
    """Before the names of its tools; unset: the server's name here and `_`; empty: none."""
    timeout: Timeout = 60.0
    """Seconds that a call may take."""
    start_timeout: Timeout = 30.0
    """Seconds until it has to have answered at its start."""
    max_result: Size = 64 * 1024
    """Bytes of a result; of a longer one the model is given head and tail."""

    def find_mistakes(self) -> list[Mistake]:
        needed, other = ("command", ("args", "env", "cwd")) if self.url else ("url", ("headers",))
        if self.command is None and self.url is None:
            found = [("command", "missing; a server has a `command` or a `url`")]
        elif self.command is not None and self.url is not None:
            found = [("command", "`url` says it already; remove one of the two")]
        else:
            found = [(key, f"only with `{needed}`") for key in other if getattr(self, key)]
        if not _PREFIX.fullmatch(self.prefix or ""):
            found.append(("prefix", "expected letters, digits, `_` and `-`"))
        return found + check_url("url", self.url) + check_headers(self.headers)


class McpSettings(McpServer, frozen=True, kw_only=True):
    """One server with its name: a program that is started (`command`), or an address (`url`).

    Raises:
        InvalidRequest: a value is wrong.
    """

    name: str
    """What it is called here: agents name it in their `tools`. 1 to 64 letters, digits, `_` and `-`."""

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
