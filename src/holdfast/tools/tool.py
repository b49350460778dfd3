"""Tools, the tools that a turn has, and running the calls of one assistant message side by side: the model can read every outcome."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.domain.messages import UNWRITABLE, Message, Part, ToolCall
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import ERROR_CHARS, TOOL_GRACE_SECONDS
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


MARKER: Final = "\n[… {missing:,} of {size:,} bytes of this result cut …]\n"
CANCELLED: Final = "cancelled: whoever asked had gone before the tool ended; it may have done its work or not"
NOT_RUN: Final = "not run: whoever asked had gone"
_log = logging.getLogger("holdfast.tools")


class Outcome(msgspec.Struct, frozen=True):
    """What became of a call."""

    call: ToolCall
    content: str | tuple[Part, ...]
    """For the model."""
    failed: bool = False
    delta: Mapping[str, Any] = {}
    """What the tool wrote to the session's state; nothing where it failed."""
    noted: Mapping[str, Any] = {}
    """Of the metadata that the result is to have, likewise."""

    @property
    def message(self) -> Message:
        """The result as a log has it."""
        return Message(role="tool", content=self.content, tool_call_id=self.call.id)


def failure(call: ToolCall, why: str) -> Outcome:
    """A call that came to nothing, in words for the model."""
    said = why.encode("utf-8", "replace").decode()
    return Outcome(call, msgspec.json.encode({"error": said[:ERROR_CHARS]}).decode(), failed=True)


async def run(tools: Toolset, call: ToolCall, context: ToolContext) -> Outcome:
    """Run one call to its end, or to its time limit. Never raises for what the tool or the model did wrong.

    Cancelled, it cancels the tool and waits a moment for it. A thread cannot be stopped, and is left behind.

    Raises:
        BaseException: one that is no `Exception` came out of the tool.
    """
    tool = tools.tools.get(call.name)
    if tool is None:
        return failure(call, f"there is no tool {call.name!r:.80}; there are: {', '.join(tools.tools)}")
    try:
        arguments = _arguments(call)
    except InvalidRequest as exc:
        return failure(call, str(exc))
    limit = tools.limits.timeout if tool.timeout is None else tool.timeout
    work = asyncio.ensure_future(_awaited(tool, context, arguments))
    try:
        await asyncio.wait({work}, timeout=limit)
    except asyncio.CancelledError:
        await _stopped(work, grace=TOOL_GRACE_SECONDS)
        raise
    finally:
        delta = context.state.sealed()
    if not work.done():
        await _stopped(work)
        return failure(
            call, f"the tool took longer than {limit:g} s, and was given up; it may have done its work or not"
        )
    outcome = _outcome(tools, tool, call, work, delta)
    return outcome if outcome.failed else msgspec.structs.replace(outcome, noted=context.noted)


async def _awaited(tool: Tool, context: ToolContext, arguments: dict[str, Any]) -> Any:
    try:
        return await tool.call(context, arguments)
    except SystemExit as exc:  # of a command line's parser, say: the model's arguments must not end the process
        raise RuntimeError(f"the tool wanted to end the process, with {exc.code!r}") from None


async def _stopped(work: asyncio.Task[Any], *, grace: float = 0) -> None:
    """Cancel `work`, and wait so many seconds for it; what it says later is not heard."""
    work.cancel()
    work.add_done_callback(lambda done: done.cancelled() or done.exception())
    if grace:
        await asyncio.wait({work}, timeout=grace)


def _outcome(tools: Toolset, tool: Tool, call: ToolCall, work: asyncio.Task[Any], delta: Mapping[str, Any]) -> Outcome:
    if work.cancelled():
        return failure(call, "the tool cancelled itself")
    error = work.exception()
    if isinstance(error, Exception):
        _note(call, error)
        return failure(call, _words(error))
    if error is not None:
        raise error
    try:
        content = _content(work.result(), tools.limits.result if tool.max_result is None else tool.max_result)
    except UNWRITABLE as exc:
        _note(call, exc)
        return failure(call, f"the tool's result is no text, and cannot be written as JSON: {type(exc).__name__}")
    return Outcome(call, content, delta=delta)


# -- arguments -------------------------------------------------------------------


def _arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments as an object; nothing at all is an empty one. Raises `InvalidRequest`."""
    if not call.arguments.strip():
        return {}
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"wrong arguments: they are no JSON: {exc}") from exc
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"wrong arguments: expected a JSON object, got {type(arguments).__name__}")
    return arguments


# -- results ---------------------------------------------------------------------


def _content(result: Any, most: int) -> str | tuple[Part, ...]:
    """A result for the model: in words, in at most `most` bytes; or the parts that a tool has made of it itself."""
    if isinstance(result, tuple) and result and all(isinstance(part, Part) for part in result):
        return result
    return cut(_text(result), most)


def _text(result: Any) -> str:
    """A result in words: a text as it is, anything else as JSON. Raises what encoding raises."""
    if isinstance(result, str):
        return result.encode("utf-8", "replace").decode()
    return msgspec.json.encode(result, enc_hook=_other).decode()


def _other(value: Any) -> Any:
    """What msgspec does not know: models of pydantic and of the SDKs."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(type(value).__name__)


def cut(text: str, most: int) -> str:
    """`text` in at most `most` bytes: of a longer one the head (two thirds) and the tail, with a marker between them."""
    data = text.encode()
    if len(data) <= most:
        return text
    room = most - len(MARKER.format(missing=len(data), size=len(data)).encode())
    head, tail = data[: room * 2 // 3], data[len(data) - (room - room * 2 // 3) :]
    kept = head.decode(errors="ignore"), tail.decode(errors="ignore")
    missing = len(data) - sum(len(part.encode()) for part in kept)
    return kept[0] + MARKER.format(missing=missing, size=len(data)) + kept[1]


def _words(error: Exception) -> str:
    """An error without its traceback; one of Holdfast's own, and of arguments, says enough by itself."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - a tool's own error may break while it tells what happened
        said = ""
    if isinstance(error, HoldfastError) and said:
        return error.public_message
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _note(call: ToolCall, error: Exception) -> None:
    """For whoever runs the server: which error, and where; what it says may quote a secret."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    _log.warning("a tool failed", extra={"fields": {"tool": call.name, "error": type(error).__name__, "place": place}})
