"""Define the tool `python`: its description for the model, its calls, and notes about lost variables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from holdfast.errors import InvalidRequest
from holdfast.limits import (
    PYTHON_CALLS_WAITING,
    PYTHON_CODE_BYTES,
    PYTHON_KEEP_SECONDS,
    PYTHON_LOOKED_BACK,
    PYTHON_START_SECONDS,
)
from holdfast.tools.context import Call, ToolContext
from holdfast.tools.functions import tool_from
from holdfast.tools.python.calls import CallResult, ProcessLimits
from holdfast.tools.python.files import RestoredFiles, SavedFiles, restore, save_files
from holdfast.tools.python.kernels import Kernel, Kernels, NoKernel
from holdfast.tools.python.settings import PythonSettings
from holdfast.tools.tool import PYTHON, Tool, Toolset, cut

FRESH: Final = "a fresh process: variables, functions and imports of earlier calls are gone; files of theirs that were kept are artifacts"
RESTORED: Final = "{number} of these files are in the current folder again"
LEFT: Final = "{number} are not, being too many or too large"
ELSEWHERE: Final = (
    "calls since the last one here ran in another process: what they did to variables and files is not to be seen here"
)
_NOT_RUN: Final = ('{"status":"not_run"', '{"error":"wrong arguments', '{"error":"code has more than')
"""Prefixes of a call's result if its code did not run, so that it changed nothing in the process."""
_DESCRIPTION: Final = """\
Run Python code in a process that belongs to this conversation. Variables, functions and imports are kept from call to call. \
The value of the last expression is returned, and what is printed. Files that the code writes to the current folder are kept \
as artifacts (at most {files} a call, {file} each), and so are matplotlib figures that are open at its end. There is no \
network, no other folder to write to, no subprocess and no input(). A call may take {seconds:g} s and {memory} of memory; \
{output} of its output are kept. Calls run one after the other."""


MAX_FILES: Final = 32
"""Maximum number of files and plots of a call that are saved as artifacts of the session."""


class PythonTool:
    """Runs the calls of the tool `python` for all sessions.

    Args:
        kernels: the processes of the sessions.
        most: maximum bytes of a result.
    """

    def __init__(self, kernels: Kernels, most: int) -> None:
        self._kernels = kernels
        self._most = most

    async def python(
        self,
        context: ToolContext,
        code: Annotated[str, Meta(min_length=1, description="Python code, of any number of lines.")],
    ) -> dict[str, Any]:
        """Run code in the session's process and return the result for the model."""
        if len(code.encode("utf-8", "replace")) > PYTHON_CODE_BYTES:
            raise InvalidRequest(f"code has more than {PYTHON_CODE_BYTES:,} bytes: write it in parts")
        call = context.call
        try:
            key = (call.tenant, context.user_id, context.session_id)
            async with self._kernels.acquire(key, call.identity) as kernel:
                return await self._run_in(kernel, context, code)
        except NoKernel as exc:
            return {"status": "not_run", "note": str(exc)}

    async def _run_in(self, kernel: Kernel, context: ToolContext, code: str) -> dict[str, Any]:
        notes = await _prepare_notes(kernel, context)
        kernel.unit = context.call.unit
        ran = await kernel.run(code)
        found = await save_files(
            kernel.folder, ran, context.artifacts, call_id=context.call.id, plots=kernel.plots, most=MAX_FILES
        )
        kernel.plots += len(ran.plots[:MAX_FILES])
        return format_result(ran, found, [*notes, *([ran.note] if ran.note else [])], self._most)


async def _prepare_notes(kernel: Kernel, context: ToolContext) -> list[str]:
    """Return notes about the process for the model. In a new process, first restore the files of earlier processes."""
    call = context.call
    if kernel.begun:
        since = await _has_run_since(call, kernel.unit + 1)
        return [ELSEWHERE] if since else []
    found = RestoredFiles()
    with suppress(TimeoutError):
        async with asyncio.timeout(PYTHON_START_SECONDS):
            await restore(found, kernel.folder, context.artifacts)
    kernel.begun, kernel.plots = True, found.plots
    if not (found.restored or found.left or await _has_run_since(call, 0)):
        return []
    numbers = ((RESTORED, len(found.restored)), (LEFT, found.left))
    return [FRESH, *(words.format(number=number) for words, number in numbers if number)]


async def _has_run_since(call: Call, start: int) -> bool:
    """Return True if other calls of the tool `python` ran, or may have run, before this call.

    The entries from `start` up to the message that contains this call are checked, but only the newest `PYTHON_LOOKED_BACK` of them.
    """
    start = max(start, call.unit - PYTHON_LOOKED_BACK)
    if start >= call.unit:
        return False
    waiting: set[str] = set()
    for entry in await call.entries(start, call.unit):
        if entry.kind == "result":
            if entry.message.tool_call_id in waiting and not entry.message.text.startswith(_NOT_RUN):
                return True
            waiting.discard(entry.message.tool_call_id or "")
        elif waiting:  # no result was stored, so it may have run
            return True
        else:
            waiting = {made.id for made in entry.message.tool_calls if made.name == PYTHON}
    return bool(waiting)


def make_python_tool(kernels: Kernels, most: int) -> Tool:
    """Create the tool `python`.

    Args:
        kernels: the processes of the sessions, and the settings of the tool.
        most: maximum bytes of a result, as `ToolLimits.result`.
    """
    settings = kernels.settings
    tool = tool_from(
        PythonTool(kernels, most).python,
        name=PYTHON,
        description=_format_description(settings),
        timeout=get_max_seconds(settings),
    )
    return msgspec.structs.replace(tool, reads_state=False)


def add_python_tool(
    known: Toolset, settings: PythonSettings | None, clock: Callable[[], int]
) -> tuple[Kernels | None, Toolset]:
    """Create the kernels of the tool `python`, and add the tool to a toolset.

    Args:
        known: the other tools.
        settings: settings of the tool; None: no tool is added, and no kernels are created.
        clock: returns the time in milliseconds since the epoch.

    Returns:
        The kernels or None, and the toolset.

    Raises:
        InvalidRequest: another tool has the same name, or `settings` has the wrong type.
    """
    given: Any = settings
    if given is None:
        return None, known
    if not isinstance(given, PythonSettings):
        raise InvalidRequest(f"python must be PythonSettings, not {type(given).__name__}", param="python")
    kernels = Kernels(given, clock)
    return kernels, Toolset.create(
        [*known.tools.values(), make_python_tool(kernels, known.limits.result)], known.limits
    )


def get_max_seconds(settings: PythonSettings) -> float:
    """Return the time limit, in seconds, that the tool has in the toolset.

    It covers the time of all calls of the session that may run first while this call waits. The limits of a single call end the call much
    earlier.
    """
    one = settings.timeout + ProcessLimits().grace + PYTHON_START_SECONDS + PYTHON_KEEP_SECONDS
    return one * (PYTHON_CALLS_WAITING + 1)


def _format_description(settings: PythonSettings) -> str:
    limits = ProcessLimits()
    return _DESCRIPTION.format(
        files=MAX_FILES,
        file=_format_size(limits.max_file),
        seconds=settings.timeout,
        memory=_format_size(settings.memory),
        output=_format_size(limits.max_output),
    )


def _format_size(size: int) -> str:
    """Format a number of bytes for people, for example as `32 MiB`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"


_TEXTS: Final = ("stdout", "stderr", "result", "exception")
"""Fields with texts that may be long, in the order in which they are cut. Texts that explain errors best are cut last."""
_LISTS: Final = ("files", "plots", "not_kept")
_LEAST: Final = 256
"""Bytes of each text that are always kept."""
_FEWEST: Final = 3
"""Number of items of each list that are always kept."""
_MORE: Final = "more_"


def format_result(ran: CallResult, saved: SavedFiles, notes: list[str], most: int) -> dict[str, Any]:
    """Return the result of a call as an object for the model.

    Args:
        ran: result of the code.
        saved: the saved files and plots of the call.
        notes: notes for the model.
        most: maximum bytes of the object as JSON. Standard output is cut first, the traceback last.
    """
    result = {
        "status": ran.status,
        "result": ran.result,
        "stdout": ran.stdout,
        "stderr": ran.stderr,
        "exception": ran.exception,
        "files": saved.files,
        "plots": saved.plots,
        "not_kept": saved.not_kept,
        "note": "; ".join(notes),
        "seconds": round(ran.seconds, 3),
    }
    return fit_result({key: value for key, value in result.items() if value not in (None, "", [])}, most)


def fit_result(result: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Shorten the texts and lists of a result until its JSON has at most `most` bytes, as far as possible."""
    found = dict(result)
    for name in _TEXTS:
        _shorten(found, name, most, _LEAST)
    for name in _LISTS:
        items = found.get(name, [])
        while len(items) > _FEWEST and _count_json_bytes(found) > most:
            items = items[: max(_FEWEST, len(items) // 2)]
            found |= {name: items, _MORE + name: len(result[name]) - len(items)}
    return found


def _shorten(found: dict[str, Any], name: str, most: int, least: int) -> None:
    """Cut one text until the whole result has at most `most` bytes as JSON, but keep at least `least` bytes of the text.

    The size of a text in JSON cannot be calculated from its length, so this may take several attempts.
    """
    text = found.get(name, "")
    while (over := _count_json_bytes(found) - most) > 0 and len(found.get(name, "").encode()) > least:
        now = found[name].encode()
        room = len(now) - max(over * len(now) // _count_json_bytes(found[name]), 1)
        found[name] = cut(text, max(least, room))


def _count_json_bytes(value: Any) -> int:
    return len(msgspec.json.encode(value))
