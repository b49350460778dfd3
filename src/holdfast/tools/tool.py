"""Define tools and the toolset of a turn, and run tool calls. Every outcome, even a failure, can be sent to the model."""

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
"""Lowest allowed limit for a result, in bytes. A shortened result contains the marker and a few words."""
PYTHON: Final = "python"
"""Name of a built-in tool that is off by default. Agents may name it even if it is off."""


def _check_minimum(value: Any, name: str, least: float) -> None:
    if isinstance(least, int):
        check_whole(value, name, least, param="tools")
    else:
        check_number(value, name, least, MOST, param="tools", kind="number of seconds")


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the tools of a turn.

    Raises:
        InvalidRequest: a limit is not valid.
    """

    rounds: int = 25
    """Maximum number of model calls per turn with tools that run here. After them, the model must answer without tools. 0: no tools run here."""
    result: int = 64 * 1024
    """Maximum bytes of a result. If a result is longer, the model gets its beginning and its end."""
    timeout: float = 60.0
    """Time limit of a call, in seconds."""

    def __post_init__(self) -> None:
        for name, least in (("rounds", 0), ("result", _LEAST_RESULT), ("timeout", 0.001)):
            _check_minimum(getattr(self, name), name, least)


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that runs in this process when the model calls it. `tool_from` creates a tool from a function.

    Raises:
        InvalidRequest: a field is not valid.
    """

    name: str
    """Name that the model uses: 1 to 64 letters, digits, `_` and `-`."""
    call: Callable[[ToolContext, dict[str, Any]], Awaitable[Any]]
    """Function that is called with the context and the arguments, a JSON object. The model gets a returned string unchanged, and any
    other value as JSON. An exception is reported to the model as an error."""
    description: str = ""
    """Description for the model."""
    parameters: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of the arguments."""
    timeout: float | None = None
    """Time limit of a call in seconds; None: `ToolLimits.timeout`."""
    max_result: int | None = None
    """Maximum bytes of a result; None: `ToolLimits.result`."""
    reads_state: bool = True
    """True if `user:` and `app:` keys of the state are read before the tool runs. If False, the tool cannot access these keys."""
    named: bool = False
    """True: only agents that name the tool get it. False: all agents without a list of tools get it, and requests without an agent."""
    native: Mapping[str, Any] | None = None
    """Definition for Anthropic's models, which know the tool by its type; None: they get a function, like other models."""
    serves: frozenset[str] = frozenset()
    """Types of Anthropic's own tools. If a request declares a tool of such a type, this tool runs its calls."""
    aliases: frozenset[str] = frozenset()
    """Other names by which models may call the tool."""
    in_order: bool = False
    """True: the tool's calls in one message run one after the other, as the model wrote them. False: all at the same time."""
    instruction: str = ""
    """System message for models that get the tool as a function, because they were not trained to use it; empty: none."""

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            message = f"{self.name!r:.80} is not a valid tool name: use 1 to 64 letters, digits, _ and -"
            raise InvalidRequest(message, param="tools")
        if not callable(self.call):
            raise InvalidRequest(f"tool {self.name!r} cannot be called: it is {self.call!r:.80}", param="tools")
        for name, least in (("timeout", 0.001), ("max_result", _LEAST_RESULT)):
            if getattr(self, name) is not None:
                _check_minimum(getattr(self, name), f"tool {self.name!r}: {name}", least)

    @property
    def definition(self) -> dict[str, Any]:
        """The tool in the format of Chat Completions."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class Toolset(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that run in this process for one agent. A toolset without tools is false."""

    tools: Mapping[str, Tool] = {}
    """Tools by name, in the order in which the model sees them."""
    limits: ToolLimits = ToolLimits()
    groups: Mapping[str, tuple[str, ...]] = {}
    """Names of the tools in each group, by name of the group. The tools of an MCP server are a group."""
    unlisted: tuple[str, ...] = ()
    """Prefixes of tool names, for MCP servers that have not listed their tools yet."""
    missing: tuple[str, ...] = ()
    """Names in the agent's list for which there is no tool."""

    def __bool__(self) -> bool:
        return bool(self.tools)

    @classmethod
    def create(cls, tools: Iterable[Tool], limits: ToolLimits | None = None) -> Toolset:
        """Create a toolset. Raise `InvalidRequest` if two tools have the same name."""
        named: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in named:
                raise InvalidRequest(f"two tools are named {tool.name!r}: rename one", param="tools")
            named[tool.name] = tool
        return cls(tools=named, limits=limits or ToolLimits())

    def select(self, names: Sequence[str] | None, also: Sequence[str] = ()) -> Toolset:
        """Return the tools of an agent.

        Args:
            names: the agent's list, with names of tools or groups. None: the agent has no list, and gets all tools that need not be named.
            also: names of additional tools. Names of tools that do not exist are ignored.
        """
        if names is None:
            named = {name for name, tool in self.tools.items() if tool.named} - {*also}
            common = {name: tool for name, tool in self.tools.items() if name not in named and self.limits.rounds}
            return self if len(common) == len(self.tools) else Toolset(tools=common, limits=self.limits)
        each = [one for name in names for one in self.groups.get(name, (name,))]
        each += [name for name in also if name in self.tools]
        found = {name: self.tools[name] for name in each if name in self.tools and self.limits.rounds}
        missing = tuple(name for name in each if name not in {*self.tools, PYTHON} and not self._is_expected(name))
        return Toolset(tools=found, limits=self.limits, groups=self.groups, missing=missing)

    def add(self, tool: Tool) -> Toolset:
        """Return a toolset with one more tool. It replaces a tool of an MCP server that has the same name.

        If `limits.rounds` is 0, no tools run in this process, so the tool is not added.

        Raises:
            InvalidRequest: a tool of the program has the same name.
        """
        if not self.limits.rounds:
            return self
        if tool.name in self.tools and not any(tool.name in names for names in self.groups.values()):
            message = f"two tools are named {tool.name!r}, one of them built in: rename yours"
            raise InvalidRequest(message, param="tools")
        return msgspec.structs.replace(self, tools={**self.tools, tool.name: tool})

    def _is_expected(self, name: str) -> bool:
        return any(name.startswith(prefix) for prefix in self.unlisted)

    def check(self, body: Mapping[str, Any]) -> None:
        """Reject a request that cannot be combined with these tools. Called before anything is written.

        The format of the request's own `tools` was checked earlier.

        Raises:
            InvalidRequest: the agent names a tool that does not exist, the request has a tool with the name of one of these tools,
                or the request asks for several choices (`n`).
        """
        if self.missing:
            available = ", ".join(self.tools) or "none"
            message = f"the agent's tools {', '.join(self.missing)} do not exist; available: {available}"
            raise InvalidRequest(message, param="agent")
        if not self.tools:
            return
        for at, tool in enumerate(body.get("tools") or ()):
            if self.find(name := get_tool_name(tool)) is not None and not self.is_served(tool):
                message = f"tools[{at}] has the name {name!r} of a tool that runs here: rename it"
                raise InvalidRequest(message, param=f"tools[{at}]")
        if (body.get("n") or 1) != 1:
            raise InvalidRequest("n must be 1 if tools run here: only one reply can be continued", param="n")

    def is_served(self, declared: Mapping[str, Any]) -> bool:
        """Return True if a request's tool is one of Anthropic's own, and one of these tools runs its calls."""
        tool = self.find(get_tool_name(declared))
        return tool is not None and declared.get("type") in tool.serves

    def find(self, name: str | None) -> Tool | None:
        """Return the tool that a model calls by a name; None if there is none."""
        if name is None or name in self.tools:
            return self.tools.get(name or "")
        return next((tool for tool in self.tools.values() if name in tool.aliases), None)

    def add_to_request(self, body: Mapping[str, Any], *, native: bool = False) -> Mapping[str, Any]:
        """Return the request with these tools added before its own tools. A tool of the request that has the name of one of these tools is dropped.

        Args:
            body: fields of the request.
            native: True if the model is Anthropic's. A tool that it knows by its type is then declared by this type, as in the request if
                the request declares it.
        """
        if not self.tools:
            return body
        given = body.get("tools") or ()
        own = [tool for tool in given if get_tool_name(tool) not in self.tools and not self.is_served(tool)]
        served = [tool for tool in given if native and self.is_served(tool)]
        declared = {found.name: tool for tool in served if (found := self.find(get_tool_name(tool)))}
        added = [declared.get(name) or (native and tool.native) or tool.definition for name, tool in self.tools.items()]
        return {**body, "tools": [*added, *own]}


def get_tool_name(tool: Mapping[str, Any]) -> str | None:
    """Return the name of a tool in a request, or None if it is a provider's own tool.

    Anthropic's format has the name at the top level.
    """
    fields = tool.get("custom" if tool.get("type") == "custom" else "function", tool)
    name = fields.get("name") if isinstance(fields, Mapping) else None
    return name if isinstance(name, str) else None


def relax_choice(choice: Any) -> Any:
    """Return the `tool_choice` for later model calls of the turn. If `choice` forces a tool call, the result lets the model choose."""
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        return {**choice, "allowed_tools": {**allowed, "mode": "auto"}} if isinstance(allowed, Mapping) else choice
    return choice if choice in (None, "auto", "none") else "auto"


MARKER: Final = "\n[… {missing:,} of {size:,} bytes of this result cut …]\n"
CANCELLED: Final = (
    "cancelled: the caller cancelled the turn before the tool ended; it may or may not have done its work"
)
NOT_RUN: Final = "not run: the caller cancelled the turn"
_log = logging.getLogger("holdfast.tools")


class ToolRefusal(Exception):
    """Raised by a built-in tool that refuses a call. The text is the result for the model, unchanged, and is marked as an error."""


class CallOutcome(msgspec.Struct, frozen=True):
    """The outcome of a tool call."""

    call: ToolCall
    content: str | tuple[Part, ...]
    """Content for the model."""
    failed: bool = False
    delta: Mapping[str, Any] = {}
    """State changes of the tool; empty if the tool failed."""
    noted: Mapping[str, Any] = {}
    """Metadata that the result gets in the log; empty if the tool failed."""
    refused: bool = False
    """True if the tool refused the call. Anthropic's models get the result with `is_error`."""

    @property
    def message(self) -> Message:
        """The result as a message for the log."""
        extra = {"is_error": True} if self.refused else {}
        return Message(role="tool", content=self.content, tool_call_id=self.call.id, extra=extra)


def make_failure(call: ToolCall, why: str) -> CallOutcome:
    """Create the outcome of a failed call, with an error for the model."""
    text = why.encode("utf-8", "replace").decode()
    return CallOutcome(call, msgspec.json.encode({"error": text[:ERROR_CHARS]}).decode(), failed=True)


async def run(tools: Toolset, call: ToolCall, context: ToolContext) -> CallOutcome:
    """Run one tool call and return its outcome.

    Errors of the tool, invalid arguments from the model, and reaching the time limit are outcomes too; they are not raised.

    If the caller is cancelled, the tool is cancelled too, and gets `TOOL_GRACE_SECONDS` to end. A function in a thread cannot be
    stopped, so it continues.

    Raises:
        BaseException: the tool raised an exception that is not an `Exception`.
    """
    tool = tools.find(call.name)
    if tool is None:
        return make_failure(call, f"there is no tool {call.name!r:.80}; there are: {', '.join(tools.tools)}")
    try:
        arguments = _parse_arguments(call)
    except InvalidRequest as exc:
        return make_failure(call, str(exc))
    limit = tools.limits.timeout if tool.timeout is None else tool.timeout
    work = asyncio.ensure_future(_call_tool(tool, context, arguments))
    try:
        await asyncio.wait({work}, timeout=limit)
    except asyncio.CancelledError:
        await _stop(work, grace=TOOL_GRACE_SECONDS)
        raise
    finally:
        delta = context.state.seal()
    if not work.done():
        await _stop(work)
        return make_failure(
            call, f"the tool took longer than {limit:g} s, and was cancelled; it may or may not have done its work"
        )
    outcome = _make_outcome(tools, tool, call, work, delta)
    return outcome if outcome.failed else msgspec.structs.replace(outcome, noted=context.noted)


async def _call_tool(tool: Tool, context: ToolContext, arguments: dict[str, Any]) -> Any:
    try:
        return await tool.call(context, arguments)
    except SystemExit as exc:  # for example from argparse: the model's arguments must not end the process
        raise RuntimeError(f"the tool tried to end the process, with {exc.code!r}") from None


async def _stop(work: asyncio.Task[Any], *, grace: float = 0) -> None:
    """Cancel `work` and wait up to `grace` seconds until it ends. If it ends later, its result is ignored."""
    work.cancel()
    work.add_done_callback(lambda done: done.cancelled() or done.exception())
    if grace:
        await asyncio.wait({work}, timeout=grace)


def _make_outcome(
    tools: Toolset, tool: Tool, call: ToolCall, work: asyncio.Task[Any], delta: Mapping[str, Any]
) -> CallOutcome:
    if work.cancelled():
        return make_failure(call, "the tool cancelled itself")
    error, most = work.exception(), tools.limits.result if tool.max_result is None else tool.max_result
    if isinstance(error, ToolRefusal):
        return CallOutcome(call, cut(_to_text(str(error)), most), failed=True, refused=True)
    if isinstance(error, Exception):
        _log_failure(call, error)
        return make_failure(call, _format_error(error))
    if error is not None:
        raise error
    try:
        content = _limit_content(work.result(), most)
    except UNWRITABLE as exc:
        _log_failure(call, exc)
        return make_failure(call, f"the tool's result is not text and cannot be written as JSON: {type(exc).__name__}")
    return CallOutcome(call, content, delta=delta)


# -- arguments -------------------------------------------------------------------


def _parse_arguments(call: ToolCall) -> dict[str, Any]:
    """Parse the arguments of a call. Empty text and null become an empty object.

    Raises:
        InvalidRequest: the arguments are not a JSON object.
    """
    if not call.arguments.strip():
        return {}
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"wrong arguments: not valid JSON: {exc}") from exc
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"wrong arguments: expected a JSON object, got {type(arguments).__name__}")
    return arguments


# -- results ---------------------------------------------------------------------


def _limit_content(result: Any, most: int) -> str | tuple[Part, ...]:
    """Return a tool's result in the form for the model: message parts unchanged, anything else as a text of at most `most` bytes."""
    if isinstance(result, tuple) and result and all(isinstance(part, Part) for part in result):
        return result
    return cut(_to_text(result), most)


def _to_text(result: Any) -> str:
    """Return a string unchanged, and other values as JSON. Exceptions of the JSON encoder are not caught."""
    if isinstance(result, str):
        return result.encode("utf-8", "replace").decode()
    return msgspec.json.encode(result, enc_hook=_encode_other).decode()


def _encode_other(value: Any) -> Any:
    """Return the JSON data of a pydantic model, which msgspec cannot encode. Objects of many SDKs are pydantic models.

    Raises:
        TypeError: the object has another type.
    """
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(type(value).__name__)


def cut(text: str, most: int) -> str:
    """Shorten `text` to at most `most` bytes: two thirds from its start, a marker, and the rest from its end."""
    data = text.encode()
    if len(data) <= most:
        return text
    room = most - len(MARKER.format(missing=len(data), size=len(data)).encode())
    head, tail = data[: room * 2 // 3], data[len(data) - (room - room * 2 // 3) :]
    kept = head.decode(errors="ignore"), tail.decode(errors="ignore")
    missing = len(data) - sum(len(part.encode()) for part in kept)
    return kept[0] + MARKER.format(missing=missing, size=len(data)) + kept[1]


def _format_error(error: Exception) -> str:
    """Format an error for the model, without traceback. For Holdfast's own errors, the type is left out."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a custom exception may fail to format itself
        message = ""
    if isinstance(error, HoldfastError) and message:
        return error.public_message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _log_failure(call: ToolCall, error: Exception) -> None:
    """Log the type of an error and the line that raised it. The error's text is not logged because it may quote a secret."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    _log.warning("a tool failed", extra={"fields": {"tool": call.name, "error": type(error).__name__, "place": place}})
