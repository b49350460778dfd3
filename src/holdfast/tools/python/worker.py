"""One Python process from its start to its death: frames, signals, and what it wrote. Nothing that it says is believed.

What it runs may have been written by somebody who means ill, so its frames may be forged, too large, too late or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import stat
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from holdfast.errors import PythonUnavailable
from holdfast.limits import MIB, PYTHON_START_SECONDS
from holdfast.tools.python import child, sandbox
from holdfast.tools.python.calls import Limits

_CLOSED_SECONDS: Final = 1.0
"""For a process that has closed its pipes to die by itself."""
_DEATH_SECONDS: Final = 5.0
"""For one that was killed to be seen dead."""
_SPARE_SECONDS: Final = 5.0
"""Of processor time, beyond what a call may take."""
_PART: Final = 1 << 16
_FRAME_BYTES: Final = 24 * MIB
"""A frame, without its texts."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_NOTES: Final = 8
_NOTE_CHARS: Final = 600
_QUOTES: Final = 2000
"""In a list of texts: one of millions takes twenty times its room here."""
_PATHS: Final = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Of the server's environment: without them, some Pythons do not start. Nothing else but `TZ`, keys are in there."""
_ENDINGS: Final = {
    "SIGKILL": "was ended by the system, most likely because the machine's memory was full",
    "SIGSEGV": "crashed (SIGSEGV)",
    "SIGXCPU": "used up its processor time",
}


class Sandboxed(msgspec.Struct, frozen=True):
    """What holds a process in."""

    landlock: int = 0
    """Version of Landlock, which guards files; 0: none."""
    seccomp: bool = False
    """Whether system calls are filtered: network, other processes."""
    limits: bool = False
    """Whether memory, files and processor time are limited."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What it is not kept from, in words; empty: it is held in."""
        said = []
        if not self.limits:
            said.append("memory and files have no limits (no POSIX system)")
        if not self.landlock:
            said.append("files outside the work folder can be read and written (no Landlock)")
        if not self.seccomp:
            said.append("network and other processes can be reached (no seccomp on this system or processor)")
        return tuple(said)


def supported() -> Sandboxed:
    """What this system has to hold a process in."""
    return Sandboxed(**sandbox.probe())


class _Held(msgspec.Struct):
    """The first frame of a process."""

    held: dict[str, Any]


_Text = TypeVar("_Text", str, bytes)


class _Common(msgspec.Struct):
    id: int
    status: Literal["success", "error"]
    interrupted: bool
    result: str | None
    exception: str | None
    stdout: tuple[bytes, Annotated[int, msgspec.Meta(ge=0, lt=2**53)]]
    stderr: tuple[bytes, Annotated[int, msgspec.Meta(ge=0, lt=2**53)]]


class Answer(_Common):
    """What a process says came of a call; it may lie."""

    plots: list[bytes]
    notes: list[str]


class _Said(_Common):
    """The same as it comes: its lists may be of millions."""

    plots: msgspec.Raw
    notes: msgspec.Raw

    def within(self, limits: Limits) -> Answer:
        """No more of it than there may be, and nothing else for a plot than a PNG."""
        plots = [plot for plot in _items(self.plots, bytes) if plot.startswith(_PNG)][: limits.max_plots]
        notes = [note[:_NOTE_CHARS] for note in _items(self.notes, str)[:_NOTES]]
        answer = Answer(**{**msgspec.structs.asdict(self), "plots": plots, "notes": notes})
        for name in ("result", "exception"):
            text = getattr(answer, name)
            if text is not None and len(text) > limits.max_output + _NOTE_CHARS:
                setattr(answer, name, child.cut(text, limits.max_output))
        return answer


class _Broken(Exception):
    """A frame that is none."""


def _items(said: msgspec.Raw, kind: type[_Text]) -> list[_Text]:
    if bytes(said).count(b'"') > _QUOTES:
        raise _Broken
    return msgspec.json.decode(said, type=list[kind])  # type: ignore[valid-type] # mypy sees a value in it


class Worker:
    """A process. `start` makes one.

    Attributes:
        sandboxed: what it said holds it in, before it ran anything.
    """

    def __init__(self, process: asyncio.subprocess.Process, limits: Limits, outputs: tuple[int, int]) -> None:
        self._process = process
        self._limits = limits
        self._outputs = outputs
        self._asked = 0
        self._broken = False
        self._most = math.inf
        self.sandboxed = Sandboxed()

    # -- its start -------------------------------------------------------------

    @classmethod
    async def start(cls, folder: Path, limits: Limits, interpreter: str) -> Worker:
        """Start a process in a folder that is there. Raises `PythonUnavailable`."""
        (stdout, theirs), (stderr, theirs_too) = _output(), _output()
        outputs = (stdout, stderr)
        try:
            process = await _spawned(folder, interpreter, (theirs, theirs_too))
        except BaseException as exc:
            _close(outputs)
            if isinstance(exc, OSError):
                raise PythonUnavailable(f"{interpreter} cannot be started: {exc.strerror or exc}") from exc
            raise
        finally:
            _close((theirs, theirs_too))
        worker = cls(process, limits, outputs)
        try:
            async with asyncio.timeout(PYTHON_START_SECONDS):
                await worker._greeted(folder)
        except BaseException as exc:
            said = worker._said()
            await worker.end()
            if isinstance(exc, TimeoutError | EOFError | OSError | _Broken | msgspec.MsgspecError):
                raise PythonUnavailable(f"{interpreter} did not come up{said}") from exc
            raise
        return worker

    async def _greeted(self, folder: Path) -> None:
        """Tell it what it needs to know, and hear what holds it in."""
        limits = self._limits
        told = {name: getattr(limits, name) for name in ("memory", "max_file", "max_output", "max_plots")}
        await self._send({**told, "folder": str(folder), "parent": os.getpid()})
        held = msgspec.json.decode(await self._receive(), type=_Held).held
        if "failed" in held:
            raise PythonUnavailable(f"it could not be held in: {held['failed']!s:.500}")
        self.sandboxed = msgspec.convert(held, Sandboxed)

    def _said(self) -> str:
        """The end of what it wrote to stderr."""
        data = os.pread(self._outputs[1], 4096, max(0, os.fstat(self._outputs[1]).st_size - 2000))
        text = data.decode("utf-8", "replace").strip()
        return f": {text}" if text else ""

    # -- frames ------------------------------------------------------------------

    async def _send(self, frame: Any) -> None:
        data = msgspec.json.encode(frame)
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(struct.pack(">I", len(data)) + data)
        await self._process.stdin.drain()

    async def _receive(self) -> bytes:
        assert self._process.stdout is not None, "it is a pipe"
        (size,) = struct.unpack(">I", await self._process.stdout.readexactly(4))
        if size > _FRAME_BYTES + 32 * self._limits.max_output:
            raise _Broken
        return await self._process.stdout.readexactly(size)

    async def ask(self, code: str) -> Answer | None:
        """Run code in it; None: it died, or said something that is no answer, and was killed."""
        self._asked += 1
        for output in self._outputs:
            os.ftruncate(output, 0)
        self._limit_time()
        try:
            await self._send({"id": self._asked, "code": code})
            return self._read(await self._receive())
        except (EOFError, OSError):
            await self._closed()
        except (msgspec.MsgspecError, ValueError, RecursionError, _Broken):
            self._broken = True
            self.kill()
        return None

    def _read(self, frame: bytes) -> Answer:
        answer = msgspec.json.decode(frame, type=_Said)
        if answer.id != self._asked:
            raise _Broken
        return answer.within(self._limits)

    async def _closed(self) -> None:
        """Its pipes are closed: it has died, or will not be heard of again."""
        try:
            async with asyncio.timeout(_CLOSED_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._broken = True
            self.kill()

    def _limit_time(self) -> None:
        """Processor time for one call, on all cores: a thread that was left running may use that up, and no more."""
        if sys.platform != "linux":
            return
        import resource

        allowed = (self._limits.timeout + self._limits.grace) * (os.cpu_count() or 1) + _SPARE_SECONDS
        most = self._most = math.ceil(self.used() + allowed)
        with contextlib.suppress(OSError):
            hard = resource.prlimit(self._process.pid, resource.RLIMIT_CPU)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(self._process.pid, resource.RLIMIT_CPU, (most, hard))

    def written(self, at: int, answer: Answer | None) -> str:
        """What was written to stdout (0) or stderr (1), cut; also by one that died."""
        said, seen = (b"", 0) if answer is None else (answer.stdout, answer.stderr)[at]
        text = _joined(self._outputs[at], said, seen, self._limits.max_output)
        if answer is None:  # Python's report of a crash goes down to our own lines
            text = "".join(line for line in text.splitlines(keepends=True) if f'"{child.__file__}"' not in line)
        return text

    # -- its life ------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether it is there."""
        return self._process.returncode is None

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    def used(self) -> float:
        """Seconds of processor time that it has used; 0 where that cannot be told."""
        try:
            return time.clock_gettime((~self._process.pid << 3) | 2)  # Linux's name for the clock of a process
        except (OSError, AttributeError):
            return 0.0

    def overworked(self) -> bool:
        """Whether it has used up its processor time, and does not heed the signal that says so."""
        return self.used() > self._most + 1

    def hidden(self) -> int:
        """Bytes of files that it has open and that have no name any more; 0 where that cannot be told."""
        if not self.alive:
            return 0
        own, sizes = {os.fstat(output).st_ino for output in self._outputs}, {}
        place = Path(f"/proc/{self._process.pid}/fd")
        with contextlib.suppress(OSError):  # it died
            for path in place.iterdir():
                with contextlib.suppress(OSError):  # it was closed
                    found = path.stat()
                    if stat.S_ISREG(found.st_mode) and not found.st_nlink and found.st_ino not in own:
                        sizes[found.st_ino] = max(1, found.st_blocks * 512)
        return sum(sizes.values())

    def threads(self) -> int:
        """Threads that it has; 0 where that cannot be told."""
        try:
            return Path(f"/proc/{self._process.pid}/task").stat().st_nlink - 2
        except OSError:
            return 0

    def interrupt(self) -> None:
        """Interrupt its code."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill it, and what it started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    async def ended(self) -> str:
        """Wait until it has died; how, in words that follow `the process`. Nobody may be asking it."""
        code = await self._dead()
        if self._broken:
            return "sent something that is no answer, and was killed"
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return _ENDINGS.get(name, f"was ended by {name}")
        return "had no memory left to answer" if code == child.NO_MEMORY else f"ended itself with exit code {code}"

    async def _dead(self) -> int:
        """Its exit code. An event loop sees a process off only when its pipes were read to their end, so they are.

        One that is not held in may have given its pipe to another process, which may live on: that is not waited for.
        """
        try:
            async with asyncio.timeout(_DEATH_SECONDS):
                while self._process.stdout is not None and await self._process.stdout.read(_PART):
                    pass
                await self._process.wait()
        except TimeoutError:
            pass
        return -signal.SIGKILL if self._process.returncode is None else self._process.returncode

    async def end(self) -> None:
        """Kill it, wait until it has died, and give back what it held. Nobody may be asking it."""
        self.kill()
        await self._dead()
        _close(self._outputs)
        if self._process.stdin is not None:
            self._process.stdin.close()


def _output() -> tuple[int, int]:
    """A file without a name: for us, and for the process, to whose end it writes.

    Opened twice: of one that is shared it could change the flags, and spoil reading it here.
    """
    ours, path = tempfile.mkstemp()
    try:
        return ours, os.open(path, os.O_WRONLY | os.O_APPEND)
    finally:
        Path(path).unlink()


def _close(outputs: tuple[int, int]) -> None:
    for output in outputs:
        os.close(output)


async def _spawned(folder: Path, interpreter: str, outputs: tuple[int, int]) -> asyncio.subprocess.Process:
    """The process: with our three pipes and one file, in a session of its own."""
    return await asyncio.create_subprocess_exec(
        *(interpreter, "-I", "-B", "-X", "utf8", child.__file__, str(outputs[0])),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=outputs[1],
        pass_fds=(outputs[0],),
        close_fds=True,
        start_new_session=True,
        cwd=folder,
        env=_environment(folder),
    )


def _environment(folder: Path) -> dict[str, str]:
    """What it gets to know: nothing of the server's own."""
    kept = {name: os.environ[name] for name in ("TZ",) if name in os.environ}
    for (
        name
    ) in _PATHS:  # an empty part, as in `:/opt/lib`, would be the work folder: libraries loaded before it is held in
        if parts := [part for part in os.environ.get(name, "").split(":") if part.startswith("/")]:
            kept[name] = ":".join(parts)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    own = {
        "HOME": str(folder),
        "TMPDIR": str(folder / ".tmp"),
        "XDG_CACHE_HOME": str(folder / ".cache"),
        "XDG_CONFIG_HOME": str(folder / ".config"),
        "MPLCONFIGDIR": str(folder / ".config" / "matplotlib"),
        "MPLBACKEND": "Agg",
        "USER": "python",
        "LOGNAME": "python",
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "MALLOC_ARENA_MAX": "2",  # each one takes 64 MiB of the address space
    }
    return {**kept, **threads, **own}


def _joined(output: int, tail: bytes, seen: int, most: int) -> str:
    """What is in a file, and behind it the tail of `seen` more bytes, in about `most` bytes."""
    size = os.fstat(output).st_size
    if size + seen <= most:
        return (os.pread(output, size, 0) + tail).decode("utf-8", "replace")
    head, room = os.pread(output, most * 2 // 3, 0), most // 3
    end = tail[-room:]
    if len(end) < room:
        start = max(len(head), size - (room - len(end)))
        end = os.pread(output, room, start)[: size - start] + end
    marker = child.MARKER.format(max(0, size + seen - len(head) - len(end)), size + seen)
    return head.decode("utf-8", "replace") + marker + end.decode("utf-8", "replace")
