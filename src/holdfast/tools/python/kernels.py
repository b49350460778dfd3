"""Keep the Python processes (kernels) of sessions, and decide when to end each of them."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

import anyio.to_thread

from holdfast.background import Repeater
from holdfast.domain.session import Session
from holdfast.errors import PythonUnavailable
from holdfast.limits import PYTHON_CALLS_WAITING
from holdfast.tools.python.calls import CallResult, ProcessLimits
from holdfast.tools.python.folders import WorkFolders, remove
from holdfast.tools.python.process import PythonProcess, detect_sandbox
from holdfast.tools.python.settings import PythonSettings

SessionKey = tuple[str, str, str]
"""Tenant, user id and session id."""
MAX_PROCESSES: Final = 16
"""Maximum number of sessions with a process. If another session needs one, the process that has been idle longest is ended."""
IDLE_MS: Final = 3_600_000
"""Milliseconds without a call after which a session's process is ended and its variables are lost."""
_SOONEST: Final = 1_000
_LATEST: Final = 3_600_000
"""Minimum and maximum milliseconds between two checks for idle kernels."""
_log = logging.getLogger("holdfast.tools.python")


def check_platform(settings: PythonSettings) -> None:
    """Check that the tool can run on this system.

    Raises:
        PythonUnavailable: the system is Windows, the interpreter does not exist, or code cannot be sandboxed and `unsandboxed` is not
            set.
    """
    if sys.platform == "win32":
        raise PythonUnavailable("the tool python does not run on Windows")
    missing = detect_sandbox().missing
    if missing and not settings.unsandboxed:
        raise PythonUnavailable(
            f"the tool python cannot sandbox code on this system: {'; '.join(missing)}. Set python.unsandboxed: true to run it anyway"
        )
    if settings.interpreter is not None and shutil.which(settings.interpreter) is None:
        raise PythonUnavailable(f"python.interpreter: {settings.interpreter} is not an executable program")


class NoKernel(Exception):
    """Raised if a session cannot get a process now. The message is written for the model and says why."""


class KernelProcess(Protocol):
    """Interface of a kernel's process. `PythonProcess` implements it."""

    async def run(self, code: str) -> CallResult:
        """Wait until earlier code has finished, then run `code`."""
        ...

    async def close(self) -> None:
        """Kill the process and everything that it started."""
        ...


class Kernel:
    """The Python process of a session, and its work folder.

    Attributes:
        identity: `Session.identity` of the session. A later session with the same id has a different identity.
        begun: True if the process was prepared for its first call.
        unit: `seq` of the message whose calls ran last; -1: no call has run.
        plots: number of plots that the session has as artifacts.
    """

    def __init__(self, key: SessionKey, identity: str, used_at: int) -> None:
        self.key = key
        self.identity = identity
        self.used_at = used_at
        self.users = 0
        self.ended = False
        self.lock = asyncio.Lock()
        self.begun = False
        self.unit = -1
        self.plots = 0
        self._place: tuple[Path, KernelProcess] | None = None

    def check(self) -> None:
        """Raise `NoKernel` if the kernel was ended, for example because its session ended."""
        if self.ended:
            raise NoKernel("the session ended before this call could run")

    async def prepare(self, make: Callable[[], Path], process: Callable[[Path], KernelProcess]) -> None:
        """Create the work folder and the process object, unless they exist. The process itself starts at its first call.

        Raises:
            NoKernel: the work folder cannot be created, or the kernel was ended.
        """
        if self._place is None:
            try:
                folder = await anyio.to_thread.run_sync(make)
            except OSError as exc:
                _log.error("a work folder cannot be created", exc_info=exc)
                raise NoKernel("this server cannot create a work folder now") from exc
            self._place = (folder, process(folder))
            if self.ended:  # it ended in the meantime, when there was nothing to close
                await self.close()
        self.check()

    @property
    def folder(self) -> Path:
        """Work folder of the process."""
        assert self._place is not None, "prepare() was called"
        return self._place[0]

    async def run(self, code: str) -> CallResult:
        """Run code in the process.

        Raises:
            NoKernel: the process cannot be started, or the kernel was ended.
        """
        self.check()
        assert self._place is not None, "prepare() was called"
        try:
            return await self._place[1].run(code)
        except PythonUnavailable as exc:
            self.check()
            _log.error("a Python process could not be started", exc_info=exc)
            raise NoKernel("this server cannot start a Python process; its log has the reason") from exc

    async def close(self) -> None:
        """End the process and remove its work folder."""
        if self._place is not None:
            folder, process = self._place
            try:
                await process.close()
            finally:
                await anyio.to_thread.run_sync(remove, folder)


class Kernels:
    """The kernels of all sessions of all tenants in this server process.

    A kernel is created when its session first needs it. A kernel is ended in three cases: its session ends, the kernel has been idle too long,
    or another session needs a kernel and the maximum number is reached.

    Args:
        settings: maximum number of kernels, and limits of each.
        clock: returns the time in milliseconds since the epoch.
        process: creates the process for a work folder; None: creates a `PythonProcess`.
    """

    def __init__(
        self,
        settings: PythonSettings,
        clock: Callable[[], int],
        *,
        process: Callable[[Path], KernelProcess] | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._process = process or self._create_process
        self._folders = WorkFolders(Path(tempfile.gettempdir()))
        self._kernels: dict[SessionKey, Kernel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._sweeper: Repeater | None = None
        self._open = False

    def __len__(self) -> int:
        return len(self._kernels)

    async def open(self) -> None:
        """Create the directory for work folders, and remove the directories of server processes that died.

        Raises:
            InvalidRequest: the directory cannot be created.
            PythonUnavailable: the system is Windows, the interpreter does not exist, or code cannot be sandboxed and `unsandboxed` is
                not set.
        """
        check_platform(self.settings)
        await anyio.to_thread.run_sync(self._folders.open)
        self._open = True

    def _create_process(self, folder: Path) -> KernelProcess:
        settings = self.settings
        limits = ProcessLimits(timeout=settings.timeout, memory=settings.memory)
        return PythonProcess(folder, limits, interpreter=settings.interpreter, unsandboxed=settings.unsandboxed)

    # -- using a kernel -----------------------------------------------------

    @asynccontextmanager
    async def acquire(self, key: SessionKey, identity: str) -> AsyncIterator[Kernel]:
        """Yield the kernel of a session for exclusive use. Callers for the same kernel are served in order.

        Args:
            key: key of the session.
            identity: `Session.identity` of the session. If there is a kernel of an earlier session with the same id, it is ended.

        Raises:
            NoKernel: all kernels are busy, too many calls of the session are waiting, or the session ended in the meantime.
        """
        kernel = self._get_kernel(key, identity)
        if kernel.users > PYTHON_CALLS_WAITING:
            raise NoKernel(f"{kernel.users} calls of this session are running or waiting: call fewer at a time")
        kernel.users += 1
        try:
            async with kernel.lock:
                while self._closing and len(self._kernels) + len(self._closing) > MAX_PROCESSES:
                    await asyncio.wait(self._closing, return_when=asyncio.FIRST_COMPLETED)
                kernel.check()
                await kernel.prepare(self._folders.make, self._process)
                yield kernel
        finally:
            kernel.users -= 1
            kernel.used_at = self._clock()
            if self._sweeper is None and self._kernels:
                self._sweeper = Repeater(self.sweep)
                self._sweeper.begin(self._get_pause())

    def _get_kernel(self, key: SessionKey, identity: str) -> Kernel:
        """Return the kernel of a session. If the session has no kernel, create one.

        Raises:
            NoKernel: the server is shutting down, or the maximum number of kernels is reached and none of them is idle.
        """
        if not self._open:
            raise NoKernel("the server is shutting down")
        kernel = self._kernels.get(key)
        if kernel is not None and kernel.identity != identity:
            self._end(kernel)
            kernel = None
        if kernel is None:
            if len(self._kernels) >= MAX_PROCESSES:
                idle = [kernel for kernel in self._kernels.values() if not kernel.users]
                if not idle:
                    raise NoKernel(
                        f"all {len(self._kernels)} Python processes of this server are busy with other sessions: try again later"
                    )
                self._end(min(idle, key=lambda kernel: kernel.used_at))
            kernel = self._kernels[key] = Kernel(key, identity, self._clock())
        return kernel

    # -- ending -------------------------------------------------------------

    def end_session(self, session: Session) -> None:
        """End the kernel of a session that has ended or was replaced, even if it is busy."""
        kernel = self._kernels.get((session.tenant, session.user_id, session.id))
        if kernel is not None and kernel.identity == session.identity:
            self._end(kernel)

    def _end(self, kernel: Kernel) -> None:
        """Remove a kernel from use at once, and end its process in the background."""
        kernel.ended = True
        del self._kernels[kernel.key]
        task = asyncio.ensure_future(kernel.close())
        self._closing.add(task)
        task.add_done_callback(self._finish_closing)

    def _finish_closing(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a Python process did not end well", exc_info=error)

    def _get_pause(self) -> int:
        """Return the milliseconds until the next check for idle kernels."""
        oldest = min(kernel.used_at for kernel in self._kernels.values())
        return min(max(oldest + IDLE_MS - self._clock(), _SOONEST), _LATEST)

    async def sweep(self) -> int:
        """End the kernels that have been idle too long. Return the milliseconds until the next check, or 0 if no kernel remains."""
        long_ago = self._clock() - IDLE_MS
        for kernel in [one for one in self._kernels.values() if not one.users and one.used_at <= long_ago]:
            self._end(kernel)
        if self._kernels:
            return self._get_pause()
        self._sweeper = None
        return 0

    async def wait_until_ended(self) -> None:
        """Wait until the processes of all ended kernels have been killed and their work folders removed."""
        while self._closing:
            await asyncio.wait(self._closing)

    async def close(self) -> None:
        """End all kernels and remove their folders. May be called twice."""
        self._open = False
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.stop(midway=True)
        for kernel in tuple(self._kernels.values()):
            self._end(kernel)
        await self.wait_until_ended()
        await anyio.to_thread.run_sync(self._folders.close)
