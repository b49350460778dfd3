"""What a tool is, and the tools that a turn has."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.numbers import MOST, check_number, check_whole
from holdfast.tools.context import ToolContext

_NAME: Final = re.compile("[a-zA-Z0-9_-]{1,64}")
_LEAST_RESULT: Final = 1024
"""Bytes: a result that is cut has its marker in it, and a few words of its own."""
PYTHON: Final = "python"
"""A built-in tool that is off unless it is turned on: an agent may name it either way."""
ELSEWHERE: Final = frozenset({"text_editor"})
"""Tools that the systems have built in whose configurations load here, and this one has not: an agent may name them, and does
without where no program gives it one of that name."""


def _check_least(value: Any, name: str, least: float) -> None:
    if isinstance(least, int):
        check_whole(value, name, least, param="tools")
    else:
        check_number(value, name, least, MOST, param="tools", kind="number of seconds")


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How far the tools of a turn may go.

    Raises:
        InvalidRequest: a limit that cannot be one.
    """

    rounds: int = 25
    """Calls of the model whose tools run here, after which it has to answer without them; 0: no tool runs here."""
    result: int = 64 * 1024
    """Bytes of a result; of a longer one the model is given head and tail."""
    timeout: float = 60.0
    """Seconds that a call may take."""

    def __post_init__(self) -> None:
        for name, least in (("rounds", 0), ("result", _LEAST_RESULT), ("timeout", 0.001)):
            _check_least(getattr(self, name), name, least)


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the model may call, and that runs here. `tool_from` makes one from a function.

    Raises:
        InvalidRequest: a field that cannot be one.
    """

    name: str
    """Letters, digits, `_` and `-`, at most 64."""
    call: Callable[[ToolContext, dict[str, Any]], Awaitable[Any]]
    """Given the session and the arguments, a JSON object. What it returns is told to the model: a text as it is, else as JSON.
    What it raises is told as an error."""
    description: str = ""
    """For the model."""
    parameters: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of the arguments."""
    timeout: float | None = None
    """Seconds that a call may take; None: as `ToolLimits` says."""
    max_result: int | None = None
    """Bytes of a result; None: as `ToolLimits` says."""
    reads_state: bool = True
    """Whether it may look at `user:` and `app:` keys of its context's state; else they are not read for it."""
    named: bool = False
    """Whether only agents have it that name it; else all whose tools are not listed have it, and whoever speaks to no agent."""

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            message = (
                f"the name of a tool has 1 to 64 letters, digits, _ and -; {self.name!r:.80} is none: name it otherwise"
            )
            raise InvalidRequest(message, param="tools")
        if not callable(self.call):
            raise InvalidRequest(f"tool {self.name!r} cannot be called: it is {self.call!r:.80}", param="tools")
        for name, least in (("timeout", 0.001), ("max_result", _LEAST_RESULT)):
            if getattr(self, name) is not None:
                _check_least(getattr(self, name), f"tool {self.name!r}: {name}", least)

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as Chat Completions has it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class Toolset(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that run here for an agent; false when there are none."""

    tools: Mapping[str, Tool] = {}
    """By name, in the order in which the model is told of them."""
    limits: ToolLimits = ToolLimits()
    groups: Mapping[str, tuple[str, ...]] = {}
    """Names of tools by a name that stands for all of them: an MCP server's."""
    away: tuple[str, ...] = ()
    """What the names of tools begin with that may come yet: those of servers that have told none so far."""
    missing: tuple[str, ...] = ()
    """Names that the agent has in its list, and no tool has."""

    def __bool__(self) -> bool:
        return bool(self.tools)

    @classmethod
    def made(cls, tools: Iterable[Tool], limits: ToolLimits | None = None) -> Toolset:
        """The set of these tools. Raises `InvalidRequest` where two have one name."""
        named: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in named:
                raise InvalidRequest(f"two tools are called {tool.name!r}: name one otherwise", param="tools")
            named[tool.name] = tool
        return cls(tools=named, limits=limits or ToolLimits())

    def of(self, names: Sequence[str] | None, also: Sequence[str] = ()) -> Toolset:
        """Those of an agent.

        Args:
            names: of tools, or of groups of them; None: all that need not be named.
            also: of tools that it has besides, where they are there.
        """
        if names is None:
            named = {name for name, tool in self.tools.items() if tool.named} - {*also}
            common = {name: tool for name, tool in self.tools.items() if name not in named and self.limits.rounds}
            return self if len(common) == len(self.tools) else Toolset(tools=common, limits=self.limits)
        each = [one for name in names for one in self.groups.get(name, (name,))]
        each += [name for name in also if name in self.tools]
        found = {name: self.tools[name] for name in each if name in self.tools and self.limits.rounds}
        missing = tuple(
            name for name in each if name not in {*self.tools, *ELSEWHERE, PYTHON} and not self._to_come(name)
        )
        return Toolset(tools=found, limits=self.limits, groups=self.groups, missing=missing)

    def plus(self, tool: Tool) -> Toolset:
        """These and one more, where tools run here at all; one of a server that is called like it gives way.

        Raises:
            InvalidRequest: one of the program's own is called like it.
        """
        if not self.limits.rounds:
            return self
        if tool.name in self.tools and not any(tool.name in names for names in self.groups.values()):
            message = f"two tools are called {tool.name!r}, one of them built in: name yours otherwise"
            raise InvalidRequest(message, param="tools")
        return msgspec.structs.replace(self, tools={**self.tools, tool.name: tool})

    def _to_come(self, name: str) -> bool:
        return any(name.startswith(prefix) for prefix in self.away)

    def check(self, body: Mapping[str, Any]) -> None:
        """Refuse a request that these tools cannot serve, before anything is written. Its `tools` have been looked at.

        Raises:
            InvalidRequest: a tool of the request has the name of one of these, several choices are asked for, or the agent
                names a tool that is not there.
        """
        if self.missing:
            message = f"the agent has tools that are not there: {', '.join(self.missing)}; there are: {self._names()}"
            raise InvalidRequest(message, param="agent")
        if not self.tools:
            return
        for at, tool in enumerate(body.get("tools") or ()):
            if (name := name_of(tool)) in self.tools:
                message = f"tools[{at}] is called {name!r}, and so is a tool that runs here: name it otherwise"
                raise InvalidRequest(message, param=f"tools[{at}]")
        if (body.get("n") or 1) != 1:
            raise InvalidRequest("n must be 1 where tools run here: only one reply can go on", param="n")

    def offered(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """A request with these tools before its own; those of its own that have one of their names are left out."""
        if not self.tools:
            return body
        own = [tool for tool in body.get("tools") or () if name_of(tool) not in self.tools]
        return {**body, "tools": [*(tool.definition for tool in self.tools.values()), *own]}

    def _names(self) -> str:
        return ", ".join(self.tools) or "none"


def name_of(tool: Mapping[str, Any]) -> str | None:
    """What a tool of a request is called; None where it has no name: a provider's own tools. Anthropic's have it outside."""
    told = tool.get("custom" if tool.get("type") == "custom" else "function", tool)
    name = told.get("name") if isinstance(told, Mapping) else None
    return name if isinstance(name, str) else None


def relaxed(choice: Any) -> Any:
    """A request's `tool_choice` for the calls behind the first one: what was forced is the model's own choice now."""
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        return {**choice, "allowed_tools": {**allowed, "mode": "auto"}} if isinstance(allowed, Mapping) else choice
    return choice if choice in (None, "auto", "none") else "auto"
