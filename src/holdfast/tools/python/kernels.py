"""Kernels: which session has which process, and when one ends."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

import anyio.to_thread

from holdfast.domain.session import Session
from holdfast.errors import PythonUnavailable
from holdfast.limits import PYTHON_CALLS_WAITING
from holdfast.repeating import Repeater
from holdfast.tools.python.calls import Limits, Ran
from holdfast.tools.python.folders import WorkFolders, remove
from holdfast.tools.python.process import PythonProcess, supported
from holdfast.tools.python.settings import PythonSettings

Key = tuple[str, str, str]
"""Tenant, user and id of a session."""
_SOONEST: Final = 1_000
_LATEST: Final = 3_600_000
"""Milliseconds between two looks at which processes are idle, at least and at most."""
_log = logging.getLogger("holdfast.tools.python")


def check_platform(settings: PythonSettings) -> None:
    """Refuse what no call could run with.

    Raises:
        PythonUnavailable: code could not be held in here, and that was not allowed; or there is no such interpreter.
    """
    if sys.platform == "win32":
        raise PythonUnavailable("the tool python does not run on Windows")
    missing = supported().missing
    if missing and not settings.unsandboxed:
        raise PythonUnavailable(
            f"the tool python cannot hold code in on this system: {'; '.join(missing)}. python.unsandboxed: true runs it all the same"
        )
    if settings.interpreter is not None and shutil.which(settings.interpreter) is None:
        raise PythonUnavailable(f"python.interpreter: {settings.interpreter} is no program that can be run")


class NoKernel(Exception):
    """A session has no process now; says why, for the model."""


class Process(Protocol):
    """What a kernel needs of a process; see `holdfast.tools.python.process`."""

    async def run(self, code: str) -> Ran:
        """Run code, after what ran before."""
        ...

    async def close(self) -> None:
        """Kill it, and all that it started."""
        ...


class Kernel:
    """The process of a session, and its work folder.

    Attributes:
        identity: the session's; another session of its name has another one.
        begun: whether a call has run in it.
        unit: `seq` of the message whose calls it ran last; -1: none.
        plots: plots that the session has as artifacts.
    """

    def __init__(self, key: Key, identity: str, used_at: int) -> None:
        self.key = key
        self.identity = identity
        self.used_at = used_at
        self.users = 0
        self.ended = False
        self.alone = asyncio.Lock()
        self.begun = False
        self.unit = -1
        self.plots = 0
        self._place: tuple[Path, Process] | None = None

    def check(self) -> None:
        """Raises `NoKernel` where it has ended."""
        if self.ended:
            raise NoKernel("the session ended before this call could run")

    async def made(self, make: Callable[[], Path], process: Callable[[Path], Process]) -> None:
        """Have a work folder, and a process that is started when it is first used. Raises `NoKernel`."""
        if self._place is None:
            try:
                folder = await anyio.to_thread.run_sync(make)
            except OSError as exc:
                _log.error("no work folder can be made", exc_info=exc)
                raise NoKernel("this server cannot make a work folder now") from exc
            self._place = (folder, process(folder))
            if self.ended:  # meanwhile: there was nothing to close
                await self.close()
        self.check()

    @property
    def folder(self) -> Path:
        """Where its code runs."""
        assert self._place is not None, "it was made"
        return self._place[0]

    async def run(self, code: str) -> Ran:
        """Run code in its process. Raises `NoKernel`."""
        self.check()
        assert self._place is not None, "it was made"
        try:
            return await self._place[1].run(code)
        except PythonUnavailable as exc:
            self.check()
            _log.error("a Python process could not be started", exc_info=exc)
            raise NoKernel("no Python process can be started on this server; its log says why") from exc

    async def close(self) -> None:
        """End its process, and remove its folder."""
        if self._place is not None:
            folder, process = self._place
            try:
                await process.close()
            finally:
                await anyio.to_thread.run_sync(remove, folder)


class Kernels:
    """The kernels of all sessions of all tenants in this process.

    One is made when its session first uses it, and ends with its session, when it is idle for too long, or to make room.

    Args:
        settings: how many there may be, and how far each may go.
        clock: milliseconds since the epoch.
        process: makes the process of a work folder; None: `PythonProcess`.
    """

    def __init__(
        self,
        settings: PythonSettings,
        clock: Callable[[], int],
        *,
        process: Callable[[Path], Process] | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._process = process or self._started
        self._folders = WorkFolders(settings.workdir)
        self._kernels: dict[Key, Kernel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._sweeper: Repeater | None = None
        self._open = False

    def __len__(self) -> int:
        return len(self._kernels)

    async def open(self) -> None:
        """Make the place for work folders, and remove those of processes that died.

        Raises:
            InvalidRequest: it cannot be made.
            PythonUnavailable: code could not be held in here, and that was not allowed; or there is no such interpreter.
        """
        check_platform(self.settings)
        await anyio.to_thread.run_sync(self._folders.open)
        self._open = True

    def _started(self, folder: Path) -> Process:
        settings = self.settings
        limits = Limits(
            timeout=settings.timeout,
            memory=settings.memory,
            max_output=settings.max_output,
            max_file=settings.max_file,
        )
        return PythonProcess(folder, limits, interpreter=settings.interpreter, unsandboxed=settings.unsandboxed)

    # -- using one -----------------------------------------------------------

    @asynccontextmanager
    async def using(self, key: Key, identity: str) -> AsyncIterator[Kernel]:
        """The kernel of a session, which nobody else uses while the block runs. Those of one session come in their order.

        Args:
            key: whose.
            identity: the session's: one of another session of that name ends.

        Raises:
            NoKernel: all are busy, too many of the session's calls wait, or the session ended meanwhile.
        """
        kernel = self._of(key, identity)
        if kernel.users > PYTHON_CALLS_WAITING:
            raise NoKernel(f"{kernel.users} calls of this session are running or waiting: call fewer at a time")
        kernel.users += 1
        try:
            async with kernel.alone:
                await self._room()
                kernel.check()
                await kernel.made(self._folders.make, self._process)
                yield kernel
        finally:
            kernel.users -= 1
            kernel.used_at = self._clock()
            self._look_later()

    def _of(self, key: Key, identity: str) -> Kernel:
        """The kernel of a session, there already or new. Raises `NoKernel`."""
        if not self._open:
            raise NoKernel("the server is ending")
        kernel = self._kernels.get(key)
        if kernel is not None and kernel.identity != identity:
            self._end(kernel)
            kernel = None
        if kernel is None:
            if len(self._kernels) >= self.settings.max_sessions:
                self._make_room()
            kernel = self._kernels[key] = Kernel(key, identity, self._clock())
        return kernel

    def _make_room(self) -> None:
        idle = [kernel for kernel in self._kernels.values() if not kernel.users]
        if not idle:
            raise NoKernel(
                f"all {len(self._kernels)} Python processes of this server are busy with other sessions: try again later"
            )
        self._end(min(idle, key=lambda kernel: kernel.used_at))

    async def _room(self) -> None:
        """Wait until processes that were told to end have ended, where they would be too many with one more."""
        while self._closing and len(self._kernels) + len(self._closing) > self.settings.max_sessions:
            await asyncio.wait(self._closing, return_when=asyncio.FIRST_COMPLETED)

    # -- ends ----------------------------------------------------------------

    def over(self, session: Session) -> None:
        """A session has ended, or another one has taken its name: its kernel ends, whatever it is doing."""
        kernel = self._kernels.get((session.tenant, session.user_id, session.id))
        if kernel is not None and kernel.identity == session.identity:
            self._end(kernel)

    def _end(self, kernel: Kernel) -> None:
        """End a kernel, in the background."""
        kernel.ended = True
        del self._kernels[kernel.key]
        task = asyncio.ensure_future(kernel.close())
        self._closing.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a Python process did not end well", exc_info=error)

    def _look_later(self) -> None:
        """See to it that it is looked which kernels are idle, as long as there are any."""
        if self._sweeper is None and self._kernels and self.settings.idle:
            self._sweeper = Repeater(self.sweep)
            self._sweeper.begin(self._pause())

    def _pause(self) -> int:
        """Milliseconds until the next kernel may have been idle for too long."""
        oldest = min(kernel.used_at for kernel in self._kernels.values())
        return min(max(oldest + round(self.settings.idle * 1000) - self._clock(), _SOONEST), _LATEST)

    async def sweep(self) -> int:
        """End the kernels that were idle for too long; milliseconds until the next time, 0 when there are none left."""
        long_ago = self._clock() - round(self.settings.idle * 1000)
        for kernel in [one for one in self._kernels.values() if not one.users and one.used_at <= long_ago]:
            self._end(kernel)
        if self._kernels:
            return self._pause()
        self._sweeper = None
        return 0

    async def idle(self) -> None:
        """Wait until those that were told to end have ended."""
        while self._closing:
            await asyncio.wait(self._closing)

    async def close(self) -> None:
        """End all of them, and remove their folders. Closing twice is fine."""
        self._open = False
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.stop(midway=True)
        for kernel in tuple(self._kernels.values()):
            self._end(kernel)
        await self.idle()
        await anyio.to_thread.run_sync(self._folders.close)
