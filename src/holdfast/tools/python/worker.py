"""Run one Python process from its start to its end: exchange frames, send signals, and collect output.

The answers of the process are not trusted. Its code may be malicious, so frames may be forged, too large, late or missing.
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
from holdfast.tools.python.calls import ProcessLimits

_CLOSED_SECONDS: Final = 1.0
"""Seconds to wait until a process that has closed its pipes ends by itself."""
_DEATH_SECONDS: Final = 5.0
"""Maximum seconds to wait for the end of a process that was killed or is ending."""
_SPARE_SECONDS: Final = 5.0
"""Seconds of processor time that a call gets in addition to its time limit."""
_PART: Final = 1 << 16
_FRAME_BYTES: Final = 24 * MIB
"""Maximum bytes of a frame, in addition to the space for its texts."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_NOTES: Final = 8
_NOTE_CHARS: Final = 600
_QUOTES: Final = 2000
"""Maximum number of quotation marks in a JSON list. Decoding a list with millions of texts would take twenty times its size in memory."""
_PASSED_ON: Final = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Environment variables that are passed on to the process, because some Pythons do not start without them. The only other one is `TZ`,
because the server's environment contains secret keys.
"""
_REASONS: Final = {
    "SIGKILL": "was ended by the system, most likely because the machine's memory was full",
    "SIGSEGV": "crashed (SIGSEGV)",
    "SIGXCPU": "used up its processor time",
}


class Sandbox(msgspec.Struct, frozen=True):
    """Restrictions that apply to a process."""

    landlock: int = 0
    """Version of Landlock, which restricts access to files; 0: not available."""
    seccomp: bool = False
    """True if system calls are filtered, which blocks the network and other processes."""
    limits: bool = False
    """True if memory, files and processor time are limited."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Descriptions of the restrictions that are missing; empty if the sandbox is complete."""
        missing = []
        if not self.limits:
            missing.append("memory and files have no limits (no POSIX system)")
        if not self.landlock:
            missing.append("files outside the work folder can be read and written (no Landlock)")
        if not self.seccomp:
            missing.append("network and other processes can be reached (no seccomp on this system or processor)")
        return tuple(missing)


def detect_sandbox() -> Sandbox:
    """Return the restrictions that this system supports."""
    return Sandbox(**sandbox.probe())


class _Hello(msgspec.Struct):
    """The first frame that a process sends."""

    restrictions: dict[str, Any]


_Text = TypeVar("_Text", str, bytes)


class _AnswerFields(msgspec.Struct):
    id: int
    status: Literal["success", "error"]
    interrupted: bool
    result: str | None
    exception: str | None
    stdout: tuple[bytes, Annotated[int, msgspec.Meta(ge=0, lt=2**53)]]
    stderr: tuple[bytes, Annotated[int, msgspec.Meta(ge=0, lt=2**53)]]


class Answer(_AnswerFields):
    """The answer of the process to a call. Its content may be forged."""

    plots: list[bytes]
    notes: list[str]


class _RawAnswer(_AnswerFields):
    """An answer as received. Its lists are not decoded yet, because they may have millions of items."""

    plots: msgspec.Raw
    notes: msgspec.Raw

    def to_answer(self, limits: ProcessLimits) -> Answer:
        """Return the answer, shortened to the limits. Plots that are not PNG images are dropped."""
        plots = [plot for plot in _decode_list(self.plots, bytes) if plot.startswith(_PNG)][: limits.max_plots]
        notes = [note[:_NOTE_CHARS] for note in _decode_list(self.notes, str)[:_NOTES]]
        answer = Answer(**{**msgspec.structs.asdict(self), "plots": plots, "notes": notes})
        for name in ("result", "exception"):
            text = getattr(answer, name)
            if text is not None and len(text) > limits.max_output + _NOTE_CHARS:
                setattr(answer, name, child.cut(text, limits.max_output))
        return answer


class _InvalidFrame(Exception):
    """Raised if a frame of the process is not valid."""


def _decode_list(frame: msgspec.Raw, kind: type[_Text]) -> list[_Text]:
    if bytes(frame).count(b'"') > _QUOTES:
        raise _InvalidFrame
    return msgspec.json.decode(frame, type=list[kind])  # type: ignore[valid-type] # mypy takes `kind` for a value


class Worker:
    """A running Python process of the operating system. `start` creates it.

    Attributes:
        sandbox: restrictions that the process reported before it ran any code.
    """

    def __init__(self, process: asyncio.subprocess.Process, limits: ProcessLimits, outputs: tuple[int, int]) -> None:
        self._process = process
        self._limits = limits
        self._outputs = outputs
        self._calls = 0
        self._is_broken = False
        self._most = math.inf
        self.sandbox = Sandbox()

    # -- starting -----------------------------------------------------------

    @classmethod
    async def start(cls, folder: Path, limits: ProcessLimits, interpreter: str) -> Worker:
        """Start a process in an existing work folder. Raise `PythonUnavailable` if it does not start or cannot be sandboxed."""
        (stdout, theirs), (stderr, theirs_too) = _create_output(), _create_output()
        outputs = (stdout, stderr)
        try:
            process = await _spawn(folder, interpreter, (theirs, theirs_too))
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
                await worker._greet(folder)
        except BaseException as exc:
            errors = worker._quote_errors()
            await worker.end()
            if isinstance(exc, TimeoutError | EOFError | OSError | _InvalidFrame | msgspec.MsgspecError):
                raise PythonUnavailable(f"{interpreter} did not start{errors}") from exc
            raise
        return worker

    async def _greet(self, folder: Path) -> None:
        """Send the settings to the process, and receive the restrictions that it has applied."""
        limits = self._limits
        settings = {name: getattr(limits, name) for name in ("memory", "max_file", "max_output", "max_plots")}
        await self._send({**settings, "folder": str(folder), "parent": os.getpid()})
        restrictions = msgspec.json.decode(await self._receive(), type=_Hello).restrictions
        if "failed" in restrictions:
            raise PythonUnavailable(f"it could not be sandboxed: {restrictions['failed']!s:.500}")
        self.sandbox = msgspec.convert(restrictions, Sandbox)

    def _quote_errors(self) -> str:
        """Return the last part of the process's standard error, for an error message."""
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
            raise _InvalidFrame
        return await self._process.stdout.readexactly(size)

    async def ask(self, code: str) -> Answer | None:
        """Run code and return the answer. Return None if the process died, or was killed because its answer is not valid."""
        self._calls += 1
        for output in self._outputs:
            os.ftruncate(output, 0)
        self._limit_time()
        try:
            await self._send({"id": self._calls, "code": code})
            return self._read(await self._receive())
        except (EOFError, OSError):
            try:
                async with asyncio.timeout(_CLOSED_SECONDS):
                    await self._process.wait()
            except TimeoutError:
                self._is_broken = True
                self.kill()
        except (msgspec.MsgspecError, ValueError, RecursionError, _InvalidFrame):
            self._is_broken = True
            self.kill()
        return None

    def _read(self, frame: bytes) -> Answer:
        answer = msgspec.json.decode(frame, type=_RawAnswer)
        if answer.id != self._calls:
            raise _InvalidFrame
        return answer.to_answer(self._limits)

    def _limit_time(self) -> None:
        """Limit the processor time of the process until the next call, summed over all cores.

        A thread that keeps running after the call can use up this time, but no more.
        """
        if sys.platform != "linux":
            return
        import resource

        allowed = (self._limits.timeout + self._limits.grace) * (os.cpu_count() or 1) + _SPARE_SECONDS
        most = self._most = math.ceil(self.get_cpu_seconds() + allowed)
        with contextlib.suppress(OSError):
            hard = resource.prlimit(self._process.pid, resource.RLIMIT_CPU)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(self._process.pid, resource.RLIMIT_CPU, (most, hard))

    def read_output(self, at: int, answer: Answer | None) -> str:
        """Return the text that was written to stdout (`at` is 0) or stderr (`at` is 1), shortened.

        This works even after the process has died.
        """
        tail, seen = (b"", 0) if answer is None else (answer.stdout, answer.stderr)[at]
        text = _join_output(self._outputs[at], tail, seen, self._limits.max_output)
        if answer is None:  # Python's crash report includes our own frames
            text = "".join(line for line in text.splitlines(keepends=True) if f'"{child.__file__}"' not in line)
        return text

    # -- state and end -----------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """True if the process is running."""
        return self._process.returncode is None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def get_cpu_seconds(self) -> float:
        """Return the processor time that the process has used, in seconds, or 0 if it is unknown."""
        try:
            return time.clock_gettime((~self._process.pid << 3) | 2)  # Linux's name for the clock of a process
        except (OSError, AttributeError):
            return 0.0

    def is_out_of_time(self) -> bool:
        """Return True if the process has used more processor time than allowed. It then has ignored the signal that the system sends."""
        return self.get_cpu_seconds() > self._most + 1

    def count_deleted_bytes(self) -> int:
        """Return the bytes on disk of deleted files that the process still has open, or 0 if they are unknown."""
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

    def count_threads(self) -> int:
        """Return the number of the process's threads, or 0 if it is unknown."""
        try:
            return Path(f"/proc/{self._process.pid}/task").stat().st_nlink - 2
        except OSError:
            return 0

    def interrupt(self) -> None:
        """Interrupt the running code by SIGINT."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the process and its children."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    async def wait_until_dead(self) -> str:
        """Wait until the process has died. Return the reason, as words that continue a sentence after `the process`.

        No call may be running.
        """
        code = await self._wait_for_exit()
        if self._is_broken:
            return "sent something that is no answer, and was killed"
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return _REASONS.get(name, f"was ended by {name}")
        return "had no memory left to answer" if code == child.NO_MEMORY else f"ended itself with exit code {code}"

    async def _wait_for_exit(self) -> int:
        """Wait for the end of the process, and return its exit code.

        The pipes are read to their end, because an event loop reports the end of a process only after that. Without a sandbox, a child
        process may keep a pipe open, so the wait is limited. If it takes too long, the result is the exit code of a killed process.
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
        """Kill the process, wait until it has died, and release its resources. No call may be running."""
        self.kill()
        await self._wait_for_exit()
        _close(self._outputs)
        if self._process.stdin is not None:
            self._process.stdin.close()


def _create_output() -> tuple[int, int]:
    """Create a file without a name for output. Return a descriptor for this process, which reads, and one for the other, which appends.

    The file is opened twice, because the other process could change the flags of a shared descriptor and disturb the reader.
    """
    ours, path = tempfile.mkstemp()
    try:
        return ours, os.open(path, os.O_WRONLY | os.O_APPEND)
    finally:
        Path(path).unlink()


def _close(outputs: tuple[int, int]) -> None:
    for output in outputs:
        os.close(output)


async def _spawn(folder: Path, interpreter: str, outputs: tuple[int, int]) -> asyncio.subprocess.Process:
    """Start the process with two pipes and two output files, in an operating system session of its own."""
    return await asyncio.create_subprocess_exec(
        *(interpreter, "-I", "-B", "-X", "utf8", child.__file__, str(outputs[0])),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=outputs[1],
        pass_fds=(outputs[0],),
        close_fds=True,
        start_new_session=True,
        cwd=folder,
        env=_make_environment(folder),
    )


def _make_environment(folder: Path) -> dict[str, str]:
    """Return the environment of the process, without the server's own variables."""
    kept = {name: os.environ[name] for name in ("TZ",) if name in os.environ}
    for name in _PASSED_ON:  # an empty part, as in `:/opt/lib`, would be the work folder, whose libraries would be loaded before the sandbox is set up
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
        "MALLOC_ARENA_MAX": "2",  # each arena takes 64 MiB of the address space
    }
    return {**kept, **threads, **own}


def _join_output(output: int, tail: bytes, seen: int, most: int) -> str:
    """Return the output of a call as text, shortened to about `most` bytes.

    Args:
        output: descriptor of the file with the first bytes.
        tail: the last bytes of the output that is not in the file.
        seen: number of all bytes that are not in the file.
        most: maximum number of bytes, without the marker for missing bytes.
    """
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
