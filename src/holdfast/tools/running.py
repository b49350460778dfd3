"""The calls of one assistant message, run side by side: whatever becomes of them is something that the model can read."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.domain.messages import UNWRITABLE, Message, Part, ToolCall
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import ERROR_CHARS, TOOL_GRACE_SECONDS
from holdfast.tools.context import ToolContext
from holdfast.tools.tool import Tool, Toolset

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
