"""Run the Python process of one session: start it at the first call, enforce its limits, and restart it if it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final, Literal

import anyio.to_thread
import msgspec

from holdfast.errors import InvalidRequest, PythonUnavailable
from holdfast.limits import PYTHON_CODE_BYTES
from holdfast.tools.python.calls import CallResult, ProcessLimits
from holdfast.tools.python.contents import DEPTH, Contents, list_contents
from holdfast.tools.python.folders import remove
from holdfast.tools.python.worker import Answer, Sandbox, Worker, detect_sandbox

__all__ = ["CallResult", "ProcessLimits", "PythonProcess", "Sandbox", "detect_sandbox"]

_BUSY_SECONDS: Final = 0.25
"""Seconds between two checks of the limits during a call."""
_IDLE_SECONDS: Final = 2.0
"""Seconds between two checks of the limits while no call is running."""
_PAUSE_FACTOR: Final = 10
"""During a call, the pause between two checks is at least this many times as long as the last check took. So checks of a slow folder do not
slow down the server."""


def _find_program(name: str) -> str:
    """Return the absolute path of a program.

    A relative path would be resolved in the work folder, where code may have stored another program.
    """
    return os.path.abspath(shutil.which(name) or name)  # noqa: PTH100 - not resolved: a link may point into a virtual environment


class PythonProcess:
    """A separate Python process that keeps its variables from call to call.

    If the thread that started the process ends, for whatever reason, the process ends too.

    Args:
        folder: work folder, created if missing. Code can write only there.
        limits: limits of the process; None: the default limits.
        interpreter: path of a Python 3.9 or later; None: the interpreter of this process.
        unsandboxed: run code even if the system cannot keep it from the network and from other files; see `detect_sandbox`.
    """

    def __init__(
        self,
        folder: Path,
        limits: ProcessLimits | None = None,
        *,
        interpreter: str | None = None,
        unsandboxed: bool = False,
    ) -> None:
        self._folder = folder.absolute()
        self._limits = limits or ProcessLimits()
        self._interpreter = _find_program(interpreter or sys.executable)
        self._unsandboxed = unsandboxed
        self._turn = asyncio.Lock()
        self._worker: Worker | None = None
        self._watching: asyncio.Task[None] | None = None
        self._call: asyncio.Task[CallResult] | None = None
        self._stop: asyncio.Future[None] | None = None
        self._contents = Contents()
        self._exceeded = ""
        self._full = False
        self._lost = ""
        self._closed = False

    @property
    def alive(self) -> bool:
        """True if the process is running."""
        return self._worker is not None and self._worker.alive

    @property
    def busy(self) -> bool:
        """True if code is running or being interrupted."""
        return self._call is not None and not self._call.done()

    @property
    def pid(self) -> int | None:
        """Id of the process, or None if no process is running."""
        return self._worker.pid if self._worker is not None and self._worker.alive else None

    # -- calls -----------------------------------------------------------------

    async def run(self, code: str) -> CallResult:
        """Run `code` and return the result. Calls run one at a time: a second call waits for the first.

        If the caller is cancelled, the code is interrupted, and the call waits until the code has ended. If the code does not end within
        `ProcessLimits.grace` seconds, the process is killed, even if the caller no longer waits.

        Raises:
            InvalidRequest: the code is too long.
            PythonUnavailable: the process cannot be started or sandboxed, or was closed.
        """
        code = code.encode("utf-8", "replace").decode()
        if len(code.encode()) > PYTHON_CODE_BYTES:
            raise InvalidRequest(f"the code is longer than {PYTHON_CODE_BYTES:,} bytes: send it in parts", param="code")
        async with self._turn:
            await self._wait_for_call()
            self._stop = asyncio.get_running_loop().create_future()
            self._call = asyncio.ensure_future(self._run(code))
            self._call.add_done_callback(lambda call: call.cancelled() or call.exception())
            try:
                return await asyncio.shield(self._call)
            except asyncio.CancelledError:
                if not self._stop.done():
                    self._stop.set_result(None)
                await self._wait_for_call()
                raise

    async def _wait_for_call(self) -> None:
        """Wait until the running call has ended, even if it is the call of another task."""
        if self._call is not None and not self._call.done():
            await asyncio.wait({self._call})

    async def _run(self, code: str) -> CallResult:
        began, lost = time.monotonic(), await self._ensure_started()
        worker, stop = self._worker, self._stop
        if worker is None or stop is None or stop.done() or self._closed:
            raise PythonUnavailable("its Python process was closed, or the call was cancelled")
        answering = asyncio.ensure_future(worker.ask(code))
        action = await self._wait_for_answer(answering, worker, stop)
        answer = None if answering.cancelled() else answering.result()
        ran = await self._make_result(worker, answer, action)
        note = "; ".join(part for part in (lost, ran.note) if part)
        seconds = time.monotonic() - began
        return msgspec.structs.replace(ran, seconds=seconds, restarted=bool(lost), note=note or None)

    async def _wait_for_answer(
        self, answering: asyncio.Future[Answer | None], worker: Worker, stop: asyncio.Future[None]
    ) -> Literal["", "timeout", "cancelled"]:
        """Wait for the answer. At the time limit, or if the caller is cancelled, interrupt the code, and finally kill the process.

        Returns:
            The reason for the interrupt, or an empty string if the code ended by itself.
        """
        await self._wait_within_limits(worker, {answering, stop}, self._limits.timeout)
        if answering.done():
            return ""
        for _ in range(2):  # twice: an interrupt that arrives before the code has begun has no effect
            worker.interrupt()
            await self._wait_within_limits(worker, {answering}, self._limits.grace / 2)
            if answering.done():
                break
        else:
            worker.kill()
            await asyncio.wait({answering}, timeout=self._limits.grace)  # it reads to the end of the pipe
            answering.cancel()
            await asyncio.wait({answering})
        return "cancelled" if stop.done() else "timeout"

    async def _wait_within_limits(self, worker: Worker, waited: set[asyncio.Future[Any]], seconds: float) -> None:
        """Wait until one of the futures is done, or `seconds` have passed. Meanwhile, enforce the limits of the process."""
        end, pause = time.monotonic() + seconds, _BUSY_SECONDS
        while (left := end - time.monotonic()) > 0:
            done, _ = await asyncio.wait(waited, timeout=min(left, pause), return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            began = time.monotonic()
            await self._enforce_limits(worker)
            pause = max(_BUSY_SECONDS, _PAUSE_FACTOR * (time.monotonic() - began))

    async def _make_result(self, worker: Worker, answer: Answer | None, action: str) -> CallResult:
        if answer is None:
            await worker.wait_until_dead()
        found, stdout, stderr = await anyio.to_thread.run_sync(self._collect, worker, answer)
        if not self._exceeded:
            self._check_limits(worker, found)
        files, self._contents = found.list_changed(self._contents), found
        if answer is not None and not self._exceeded and worker.alive:
            return self._add_answer(
                answer, action, CallResult(status=answer.status, stdout=stdout, stderr=stderr, files=files)
            )
        if action == "timeout" and not self._exceeded:
            self._exceeded = f"ran longer than {self._limits.timeout:g} s, did not end when interrupted, and was killed"
        why, full = await self._clean_up(worker)
        return CallResult(
            status="killed", stdout=stdout, stderr=stderr, files=() if full else files, note=f"the process {why}"
        )

    def _add_answer(self, answer: Answer, action: str, ran: CallResult) -> CallResult:
        status, notes = ran.status, list(answer.notes)
        if action == "timeout" and answer.interrupted:
            status = "timeout"
            notes.insert(0, f"interrupted after {self._limits.timeout:g} s; variables are kept")
        note, plots = "; ".join(notes) or None, tuple(answer.plots)
        return msgspec.structs.replace(
            ran, status=status, result=answer.result, exception=answer.exception, plots=plots, note=note
        )

    def _collect(self, worker: Worker, answer: Answer | None) -> tuple[Contents, str, str]:
        found = list_contents(self._folder, self._limits.max_entries)
        return found, worker.read_output(0, answer), worker.read_output(1, answer)

    # -- starting and ending -----------------------------------------------------

    async def _ensure_started(self) -> str:
        """Start a process if none is running. Return a note for the model about the end of the last process, or an empty string."""
        if self._closed:
            raise PythonUnavailable("its Python process was closed")
        if self._worker is not None and not self._worker.alive:
            await self._clean_up(self._worker)
        if self._worker is None:
            missing = detect_sandbox().missing
            if sys.platform == "win32" or (missing and not self._unsandboxed):
                raise PythonUnavailable(
                    f"this system cannot sandbox Python: {'; '.join(missing) or 'it is Windows'}. "
                    "Set `python.unsandboxed: true` to run it without a sandbox (not on Windows)"
                )
            self._contents = await anyio.to_thread.run_sync(self._prepare_folder)
            worker = self._worker = await Worker.start(self._folder, self._limits, self._interpreter)
            self._watching = asyncio.ensure_future(self._watch(worker))
        lost, self._lost = self._lost, ""
        return lost

    def _prepare_folder(self) -> Contents:
        for inner in (self._folder, self._folder / ".tmp"):
            with contextlib.suppress(FileExistsError):
                inner.mkdir(mode=0o700, parents=True)
        return list_contents(self._folder, self._limits.max_entries)

    async def _clean_up(self, worker: Worker) -> tuple[str, bool]:
        """Clean up after a process that died or must be killed.

        Returns:
            Two values. The first is the reason why the process ended, as words that continue a sentence after `the process`. The second is
            True if the work folder was emptied.
        """
        worker.kill()
        why = self._exceeded or await worker.wait_until_dead()
        await self._end_worker(worker)
        full = self._full
        if full:
            await anyio.to_thread.run_sync(remove, self._folder)
        kept = "its folder was emptied" if full else "files in its folder are kept"
        why = f"{why}: its variables are gone, {kept}"
        self._exceeded, self._full, self._lost = "", False, f"this is a fresh process: the one before {why}"
        return why, full

    async def _end_worker(self, worker: Worker) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._worker = self._watching = None
        await worker.end()

    async def close(self) -> None:
        """Kill the process and everything that it started. The work folder is left unchanged."""
        self._closed = True
        if self._worker is not None:
            self._worker.kill()
        await self._wait_for_call()
        if self._worker is not None:
            await self._end_worker(self._worker)

    # -- limits that the operating system does not enforce ---------------------------

    async def _watch(self, worker: Worker) -> None:
        """Enforce the limits between calls. A check is skipped if the process has used no processor time since the last one."""
        used = worker.get_cpu_seconds()
        while worker.alive:
            await asyncio.sleep(_IDLE_SECONDS)
            if not self.busy and worker.get_cpu_seconds() != used:
                await self._enforce_limits(worker)
            used = worker.get_cpu_seconds()

    async def _enforce_limits(self, worker: Worker) -> None:
        found = await anyio.to_thread.run_sync(list_contents, self._folder, self._limits.max_entries)
        if worker.alive and self._check_limits(worker, found):
            worker.kill()

    def _check_limits(self, worker: Worker, found: Contents) -> bool:
        """Return True if the process exceeds a limit, and record which limit that is."""
        limits = self._limits
        if worker.count_threads() > limits.max_threads:
            self._exceeded = f"had more than {limits.max_threads} threads, and was killed"
        elif worker.is_out_of_time():
            self._exceeded = "used up its processor time"
        elif found.too_many or found.size + worker.count_deleted_bytes() > limits.max_folder:
            self._full = True
            self._exceeded = (
                f"filled its folder with more than {limits.max_folder:,} bytes, {limits.max_entries:,} entries "
                f"or {DEPTH} nested folders, and was killed"
            )
        return bool(self._exceeded)
