"""The Python process of one session: started when first used, held to its limits, started anew after a death, ended for good."""

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
from holdfast.tools.python.calls import Limits, Ran
from holdfast.tools.python.contents import DEPTH, Contents, look
from holdfast.tools.python.folders import remove
from holdfast.tools.python.worker import Answer, Sandboxed, Worker, supported

__all__ = ["Limits", "PythonProcess", "Ran", "Sandboxed", "supported"]

_BUSY_SECONDS: Final = 0.25
_IDLE_SECONDS: Final = 2.0
"""Between two looks at whether a process passes its limits, with and without a call."""
_REST: Final = 10
"""Times as long as a look took until the next one: a folder that is hard to look at does not keep the server from its work."""


def _program(name: str) -> str:
    """The whole path of a program: part of one would be looked for in the work folder, where code may have put another."""
    return os.path.abspath(shutil.which(name) or name)  # noqa: PTH100 - not resolved: a link may lie in a virtual environment


class PythonProcess:
    """A Python of its own that keeps its variables from call to call.

    It dies with the thread whose event loop started it, however that ends.

    Args:
        folder: its work folder, made if it is not there. Nothing else can be written to.
        limits: how far it may go.
        interpreter: path of the Python, 3.9 or later; None: the one that this runs in.
        unsandboxed: run also where the system cannot keep it from network and other files; see `supported`.
    """

    def __init__(
        self,
        folder: Path,
        limits: Limits | None = None,
        *,
        interpreter: str | None = None,
        unsandboxed: bool = False,
    ) -> None:
        self._folder = folder.absolute()
        self._limits = limits or Limits()
        self._interpreter = _program(interpreter or sys.executable)
        self._unsandboxed = unsandboxed
        self._turn = asyncio.Lock()
        self._worker: Worker | None = None
        self._watching: asyncio.Task[None] | None = None
        self._call: asyncio.Task[Ran] | None = None
        self._stop: asyncio.Future[None] | None = None
        self._contents = Contents()
        self._passed = ""
        self._full = False
        self._lost = ""
        self._closed = False

    @property
    def alive(self) -> bool:
        """Whether there is a process."""
        return self._worker is not None and self._worker.alive

    @property
    def busy(self) -> bool:
        """Whether code is running, or being interrupted."""
        return self._call is not None and not self._call.done()

    @property
    def pid(self) -> int | None:
        """Its id; None: none is running."""
        return self._worker.pid if self._worker is not None and self._worker.alive else None

    # -- calls -----------------------------------------------------------------

    async def run(self, code: str) -> Ran:
        """Run `code` and say what came of it. One at a time: a second call waits for the first.

        Cancelled, it interrupts the code and waits for that; what does not end within `grace` is killed, also when nobody waits.

        Raises:
            InvalidRequest: the code is too long.
            PythonUnavailable: the process cannot be started, or not be held in, or was closed.
        """
        code = code.encode("utf-8", "replace").decode()
        if len(code.encode()) > PYTHON_CODE_BYTES:
            raise InvalidRequest(f"the code is longer than {PYTHON_CODE_BYTES:,} bytes", param="code")
        async with self._turn:
            await self._settled()
            self._stop = asyncio.get_running_loop().create_future()
            self._call = asyncio.ensure_future(self._run(code))
            self._call.add_done_callback(lambda call: call.cancelled() or call.exception())
            try:
                return await asyncio.shield(self._call)
            except asyncio.CancelledError:
                if not self._stop.done():
                    self._stop.set_result(None)
                await self._settled()
                raise

    async def _settled(self) -> None:
        """Wait until the call that runs has ended, whoever asked for it."""
        if self._call is not None and not self._call.done():
            await asyncio.wait({self._call})

    async def _run(self, code: str) -> Ran:
        began, lost = time.monotonic(), await self._ready()
        worker, stop = self._worker, self._stop
        if worker is None or stop is None or stop.done() or self._closed:
            raise PythonUnavailable("its Python process was closed, or nobody waits for it any more")
        asked = asyncio.ensure_future(worker.ask(code))
        how = await self._awaited(asked, worker, stop)
        answer = None if asked.cancelled() else asked.result()
        ran = await self._told(worker, answer, how)
        note = "; ".join(part for part in (lost, ran.note) if part)
        seconds = time.monotonic() - began
        return msgspec.structs.replace(ran, seconds=seconds, restarted=bool(lost), note=note or None)

    async def _awaited(
        self, asked: asyncio.Future[Answer | None], worker: Worker, stop: asyncio.Future[None]
    ) -> Literal["", "timeout", "cancelled"]:
        """Wait for an answer as long as it may take, interrupt and kill then; what was done about it."""
        await self._looking_after(worker, {asked, stop}, self._limits.timeout)
        if asked.done():
            return ""
        for _ in range(2):  # twice: one that comes before the code has begun is not heard
            worker.interrupt()
            await self._looking_after(worker, {asked}, self._limits.grace / 2)
            if asked.done():
                break
        else:
            worker.kill()
            await asyncio.wait({asked}, timeout=self._limits.grace)  # it reads to the end of the pipe
            asked.cancel()
            await asyncio.wait({asked})
        return "cancelled" if stop.done() else "timeout"

    async def _looking_after(self, worker: Worker, waited: set[asyncio.Future[Any]], seconds: float) -> None:
        """Wait until one of these is done, for at most so long, and see to it that no limit is passed meanwhile."""
        end, pause = time.monotonic() + seconds, _BUSY_SECONDS
        while (left := end - time.monotonic()) > 0:
            done, _ = await asyncio.wait(waited, timeout=min(left, pause), return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            began = time.monotonic()
            await self._look(worker)
            pause = max(_BUSY_SECONDS, _REST * (time.monotonic() - began))

    async def _told(self, worker: Worker, answer: Answer | None, how: str) -> Ran:
        if answer is None:
            await worker.ended()
        found, stdout, stderr = await anyio.to_thread.run_sync(self._gathered, worker, answer)
        if not self._passed:
            self._pass(worker, found)
        files, self._contents = found.changed_since(self._contents), found
        if answer is not None and not self._passed and worker.alive:
            return self._answered(answer, how, Ran(status=answer.status, stdout=stdout, stderr=stderr, files=files))
        if how == "timeout" and not self._passed:
            self._passed = f"ran longer than {self._limits.timeout:g} s, did not end when interrupted, and was killed"
        why, full = await self._buried(worker)
        return Ran(
            status="killed", stdout=stdout, stderr=stderr, files=() if full else files, note=f"the process {why}"
        )

    def _answered(self, answer: Answer, how: str, ran: Ran) -> Ran:
        status, notes = ran.status, list(answer.notes)
        if how == "timeout" and answer.interrupted:
            status = "timeout"
            notes.insert(0, f"interrupted after {self._limits.timeout:g} s; variables are kept")
        note, plots = "; ".join(notes) or None, tuple(answer.plots)
        return msgspec.structs.replace(
            ran, status=status, result=answer.result, exception=answer.exception, plots=plots, note=note
        )

    def _gathered(self, worker: Worker, answer: Answer | None) -> tuple[Contents, str, str]:
        found = look(self._folder, self._limits.max_entries)
        return found, worker.written(0, answer), worker.written(1, answer)

    # -- starts and ends ---------------------------------------------------------

    async def _ready(self) -> str:
        """Have a process; what became of the one before, for the model, or nothing."""
        if self._closed:
            raise PythonUnavailable("its Python process was closed")
        if self._worker is not None and not self._worker.alive:
            await self._buried(self._worker)
        if self._worker is None:
            self._check()
            self._contents = await anyio.to_thread.run_sync(self._furnished)
            worker = self._worker = await Worker.start(self._folder, self._limits, self._interpreter)
            self._watching = asyncio.ensure_future(self._watch(worker))
        lost, self._lost = self._lost, ""
        return lost

    def _check(self) -> None:
        missing = supported().missing
        if sys.platform == "win32" or (missing and not self._unsandboxed):
            raise PythonUnavailable(
                f"this system cannot hold Python in: {'; '.join(missing) or 'it is Windows'}. "
                "`python.unsandboxed: true` runs it all the same, where there are such processes"
            )

    def _furnished(self) -> Contents:
        for inner in (self._folder, self._folder / ".tmp"):
            with contextlib.suppress(FileExistsError):
                inner.mkdir(mode=0o700, parents=True)
        return look(self._folder, self._limits.max_entries)

    async def _buried(self, worker: Worker) -> tuple[str, bool]:
        """See a process off that died or has to: why, in words that follow `the process`, and whether its folder was emptied."""
        worker.kill()
        why = self._passed or await worker.ended()
        await self._gone(worker)
        full = self._full
        if full:
            await anyio.to_thread.run_sync(remove, self._folder)
        kept = "its folder was emptied" if full else "files in its folder are kept"
        why = f"{why}: its variables are gone, {kept}"
        self._passed, self._full, self._lost = "", False, f"this is a fresh process: the one before {why}"
        return why, full

    async def _gone(self, worker: Worker) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._worker = self._watching = None
        await worker.end()

    async def close(self) -> None:
        """Kill it, and all that it started. The folder stays as it is."""
        self._closed = True
        if self._worker is not None:
            self._worker.kill()
        await self._settled()
        if self._worker is not None:
            await self._gone(self._worker)

    # -- limits that nobody else holds ---------------------------------------------

    async def _watch(self, worker: Worker) -> None:
        """Look after a process between calls, when it did something then."""
        used = worker.used()
        while worker.alive:
            await asyncio.sleep(_IDLE_SECONDS)
            if not self.busy and worker.used() != used:
                await self._look(worker)
            used = worker.used()

    async def _look(self, worker: Worker) -> None:
        found = await anyio.to_thread.run_sync(look, self._folder, self._limits.max_entries)
        if worker.alive and self._pass(worker, found):
            worker.kill()

    def _pass(self, worker: Worker, found: Contents) -> bool:
        """Whether a process passes a limit; remember which."""
        limits = self._limits
        if worker.threads() > limits.max_threads:
            self._passed = f"had more than {limits.max_threads} threads, and was killed"
        elif worker.overworked():
            self._passed = "used up its processor time"
        elif found.too_many or found.size + worker.hidden() > limits.max_folder:
            self._full = True
            self._passed = (
                f"filled its folder with more than {limits.max_folder:,} bytes, {limits.max_entries:,} entries "
                f"or {DEPTH} folders in each other, and was killed"
            )
        return bool(self._passed)
