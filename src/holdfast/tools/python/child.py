"""Run the code of a session, inside the session's Python process: receive code, run it in one namespace, and send the result.

    python -I child.py STDOUT

This program receives frames on descriptor 0, and sends its answers on descriptor 1. At its start, it moves both to high numbers, so that code
does not write to them by accident. The code's standard output goes to a file, which is descriptor STDOUT. Its standard error goes to
another file, which is descriptor 2. A frame is a length (4 bytes, big-endian) followed by JSON. The code can change any object of this
program, so the server does not trust the answers.

This file uses only the standard library. Its interpreter may be another Python, 3.9 or later, in which Holdfast is not installed.
"""

from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import io
import json
import linecache
import os
import signal
import struct
import sys
import traceback
import types
from typing import Any

_LOWEST_DESCRIPTOR = 200
"""Lowest number of the descriptors that this program uses itself."""
_PNG_BYTES = 16 << 20
"""Maximum bytes of all plots of a call together."""
_RESERVE = 4 << 20
"""Bytes that are reserved during a call. They are released when memory is full, so that there is enough memory to report it."""
_SOURCES = 200
"""Number of the newest calls whose code is kept for tracebacks."""
_SLICE = 1 << 20
_COROUTINE = 0x80
NO_MEMORY = 71
"""Exit code of a process that has too little memory to send its result."""
MARKER = "\n[… {:,} of {:,} bytes cut …]\n"


def cut(text: str, most: int) -> str:
    """Shorten `text` to about `most` bytes: two thirds from its start, a marker, and one third from its end."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    head, tail = data[: most * 2 // 3], data[len(data) - most // 3 :]
    missing = MARKER.format(len(data) - len(head) - len(tail), len(data))
    return head.decode("utf-8", "ignore") + missing + tail.decode("utf-8", "ignore")


# -- standard streams --------------------------------------------------------------


class _Bytes(io.RawIOBase):
    """The attribute `buffer` of `sys.stdout` and `sys.stderr`, for code that writes bytes."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for at in range(0, len(view), _SLICE):
            self._output.put(bytes(view[at : at + _SLICE]))
        return len(view)

    def close(self) -> None:
        """Do nothing: the stream stays open."""


class Output(io.TextIOBase):
    """The code's `sys.stdout` or `sys.stderr`.

    The first bytes of a call's output are written to a file, which outlives this process. Of the bytes after them, only the last ones are kept,
    in memory.
    """

    def __init__(self, number: int, saved: int, most: int) -> None:
        self._number = number
        self._saved = saved
        self._head = most * 2 // 3
        self._room = most // 3 + 4
        self.buffer = _Bytes(self)
        self.begin()

    def begin(self) -> None:
        """Forget the output of the previous call, before a new call."""
        self._left = self._head
        self._tail = bytearray()
        self._seen = 0

    def put(self, data: bytes) -> None:
        """Add bytes to the output. Bytes from several threads may be mixed, but memory use stays limited."""
        if self._left > 0:
            head, data = data[: self._left], data[self._left :]
            self._left -= len(head)
            with contextlib.suppress(OSError):  # the file has reached its maximum size
                os.write(self._saved, head)
        self._seen += len(data)
        self._tail += data
        if len(self._tail) > 2 * self._room:
            del self._tail[: -self._room]

    def describe(self) -> list[Any]:
        """Describe the part of the output that is not in the file.

        Returns:
            The last bytes of this part in base64, which may begin inside a character, and the number of all bytes in this part.
        """
        return [base64.b64encode(self._tail[-self._room :]).decode(), self._seen]

    encoding = "utf-8"
    errors = "backslashreplace"

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        for at in range(0, len(text), _SLICE):
            self.put(text[at : at + _SLICE].encode("utf-8", "backslashreplace"))
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def reconfigure(self, **_: Any) -> None:
        """Do nothing, so that the encoding stays UTF-8."""

    def close(self) -> None:
        """Do nothing: the stream stays open."""


class NoInput(io.TextIOBase):
    """The code's `sys.stdin`. There is no input, so reading raises `EOFError`."""

    def readable(self) -> bool:
        return True

    def read(self, size: Any = -1) -> str:
        raise EOFError("there is no input: input() does not work here, so write the value into the code")

    readline = read  # type: ignore[assignment] # same behaviour for both

    def fileno(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: the stream stays open."""


# -- code ---------------------------------------------------------------------------


class Interpreter:
    """Runs code in one namespace.

    Args:
        most: maximum bytes of each text in a result.
        plots: maximum number of figures in a result.
        memory: maximum bytes of memory of the process, for the note about full memory.
    """

    def __init__(self, most: int, plots: int, memory: int) -> None:
        self._most = most
        self._memory = memory
        self._plots = plots
        self._loop: Any = None
        self._reserve: Any = None
        self.interrupted = False
        self.running = False
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        self._names = module.__dict__
        self._names["__builtins__"] = builtins

    def interrupt(self, *_: Any) -> None:
        """Interrupt the running code on SIGINT. Between calls, the signal has no effect."""
        if self.running:
            self.interrupted = True
            raise KeyboardInterrupt

    def run(self, number: int, code: str) -> dict[str, Any]:
        """Run the code of call `number`, and return the result as a JSON object."""
        result: dict[str, Any] = {
            "id": number,
            "status": "error",
            "result": None,
            "exception": None,
            "plots": [],
            "notes": [],
        }
        self.interrupted = False
        with contextlib.suppress(MemoryError):
            self._reserve = bytearray(_RESERVE)
        try:
            try:
                self.running = True
                self._evaluate_into(f"<call {number}>", code, result)
            finally:
                self.running = False
        except BaseException as exc:  # noqa: BLE001 - raised while an earlier exception was being formatted
            self.running = False
            result["status"] = "error"
            result["exception"] = type(exc).__name__
        self._reserve = None
        result["interrupted"] = self.interrupted
        return result

    def _evaluate_into(self, name: str, code: str, result: dict[str, Any]) -> None:
        try:
            value = self._run_code(name, code)
            if value is not None:
                self._names["_"] = value
                image = getattr(sys.modules.get("PIL.Image"), "Image", None)
                if isinstance(image, type) and isinstance(value, image):
                    picture: Any = value
                    self._add_plot(picture.save, result)
                result["result"] = cut(repr(value), self._most)
            result["status"] = "success"
        except SystemExit as exc:
            if exc.code in (None, 0):
                result["status"] = "success"
                result["notes"].append("the code called exit(); variables are kept")
            else:
                result["exception"] = cut(f"SystemExit: {exc.code}", self._most)
        except BaseException as exc:  # noqa: BLE001 - any exception of the code is part of its result
            if isinstance(exc, MemoryError):
                self._reserve = None
                result["notes"].append(
                    f"this process may use {self._memory:,} bytes: delete variables, or work in smaller parts"
                )
            result["exception"] = cut(_format_traceback(exc), self._most)
        self._add_figures(result)

    def _run_code(self, name: str, code: str) -> Any:
        """Run code. Return the value of the last expression, or None if the last statement is not an expression."""
        lines = code.splitlines(keepends=True)
        linecache.cache[name] = (len(code), None, lines, name)
        kept = [one for one in linecache.cache if one.startswith("<call ")]
        for old in kept[:-_SOURCES]:
            del linecache.cache[old]
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._evaluate(tree, name, "exec")
        return self._evaluate(ast.Expression(last.value), name, "eval") if isinstance(last, ast.Expr) else None

    def _evaluate(self, tree: Any, name: str, mode: str) -> Any:
        # Without `dont_inherit`, the code would be compiled with this file's `from __future__`.
        compiled = compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        value = eval(compiled, self._names)  # noqa: S307 - running code is the purpose of this file
        return self._run_coroutine(value) if compiled.co_flags & _COROUTINE else value

    def _run_coroutine(self, coroutine: Any) -> Any:
        """Run a top-level `await`. The event loop is kept, so that its tasks can continue in later calls."""
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        try:
            return self._loop.run_until_complete(coroutine)
        except BaseException:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            raise

    # -- figures and images --------------------------------------------------

    def _add_figures(self, result: dict[str, Any]) -> None:
        """If matplotlib was imported, add its open figures to the result and close them."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        try:
            for number in pyplot.get_fignums():
                self._add_plot(pyplot.figure(number).savefig, result)
        except Exception as exc:  # noqa: BLE001 - the code may have changed matplotlib in any way
            result["notes"].append(cut(f"a figure could not be drawn: {type(exc).__name__}: {exc}", 500))
        finally:
            with contextlib.suppress(Exception):
                pyplot.close("all")

    def _add_plot(self, save: Any, result: dict[str, Any]) -> None:
        plots, notes = result["plots"], result["notes"]
        if len(plots) >= self._plots:
            too_many = f"at most {self._plots} figures of a call are kept"
            notes += [] if too_many in notes else [too_many]
            return
        written = io.BytesIO()
        save(written, format="png")
        data = base64.b64encode(written.getvalue()).decode()
        if sum(map(len, plots)) + len(data) > _PNG_BYTES * 4 // 3:
            too_large = f"a figure was too large: all figures of a call may have {_PNG_BYTES:,} bytes together"
            notes += [] if too_large in notes else [too_large]
            return
        plots.append(data)


def _format_traceback(exc: BaseException) -> str:
    """Format an exception as Python does, but leave out the frames of this program and all frames before the first frame of the code."""
    try:
        formatted = traceback.TracebackException(type(exc), exc, exc.__traceback__)
        frames = list(formatted.stack)
        first = next((at for at, frame in enumerate(frames) if frame.filename.startswith("<call ")), len(frames))
        formatted.stack = traceback.StackSummary.from_list(frames[first:])
        waiting = [formatted]
        while waiting:
            one = waiting.pop()
            one.stack = traceback.StackSummary.from_list([frame for frame in one.stack if frame.filename != __file__])
            inner = (one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ()))
            waiting += [other for other in inner if other is not None]
        return "".join(formatted.format()).rstrip("\n")
    except Exception:  # noqa: BLE001 - formatting a custom exception may raise
        return type(exc).__name__


# -- frames ---------------------------------------------------------------------------


class Channel:
    """Sends frames to the server and receives frames from it."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def receive(self) -> Any:
        """Wait for the next frame and return its content. Raise `EOFError` if the server has closed the pipe."""
        _reset_flags(self._incoming)
        (size,) = struct.unpack(">I", self._read_exactly(4))
        return json.loads(self._read_exactly(size))

    def send(self, frame: Any) -> None:
        """Send a frame."""
        data = json.dumps(frame).encode()
        view = memoryview(struct.pack(">I", len(data)) + data)
        _reset_flags(self._outgoing)
        while view:
            view = view[os.write(self._outgoing, view) :]

    def _read_exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self._incoming, min(size, _SLICE))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _reset_flags(number: int) -> None:
    """Reset the flags of a descriptor. If the user's code made it non-blocking, the next read or write of a frame would end this process."""
    import fcntl

    fcntl.fcntl(number, fcntl.F_SETFL, 0)


def _move_up(number: int) -> int:
    """Duplicate a descriptor to a number of at least `_LOWEST_DESCRIPTOR`, and return that number."""
    import fcntl  # not available on Windows, where the server imports this file too

    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _LOWEST_DESCRIPTOR)


class StandardStreams:
    """Standard streams of the code: descriptors 0, 1 and 2, and the Python streams on them."""

    def __init__(self, folder: str, stdout: int, most: int) -> None:
        self._folder = folder
        null = os.open(os.devnull, os.O_RDWR)
        self._saved = [_move_up(null), _move_up(stdout), _move_up(2)]
        os.close(null)
        os.close(stdout)
        self.outputs = (Output(1, self._saved[1], most), Output(2, self._saved[2], most))
        self.reset()

    def reset(self) -> None:
        """Restore the streams and the working directory, which earlier code may have closed, replaced or removed."""
        for number, saved in enumerate(self._saved):
            os.dup2(saved, number)
        for output in self.outputs:
            output.begin()
        streams: Any = (NoInput(), *self.outputs)
        sys.stdin, sys.stdout, sys.stderr = streams
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = streams  # type: ignore[misc] # replaced permanently
        try:
            os.getcwd()  # noqa: PTH109 - pathlib is slow to import
        except OSError:  # the directory was removed
            with contextlib.suppress(OSError):
                os.chdir(self._folder)


def _apply_sandbox(channel: Channel, settings: dict[str, Any]) -> None:
    """Apply the sandbox to this process, and report the restrictions to the server. The server ends the process if the sandbox fails."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib is slow to import
    import sandbox  # type: ignore[import-not-found] # a file in the same directory, which is not in a package here

    del sys.path[0], sys.modules["sandbox"], sys.modules["seccomp"]
    try:
        restrictions = sandbox.confine(settings["folder"], settings, settings["parent"])
    except Exception as exc:  # noqa: BLE001 - whatever went wrong, code must not run without the sandbox
        restrictions = {"failed": f"{type(exc).__name__}: {exc}"}
    channel.send({"id": 0, "restrictions": restrictions})


def _prepare(settings: dict[str, Any]) -> None:
    os.umask(0o077)
    os.chdir(settings["folder"])
    sys.argv = [""]
    import faulthandler
    import warnings

    faulthandler.enable(2, all_threads=False)
    warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")


def main() -> None:
    """Answer frames until the server closes the pipe."""
    if sys.version_info < (3, 9):  # noqa: UP036 - it is another Python than the one that Holdfast asks for
        raise RuntimeError(f"this is Python {sys.version_info[0]}.{sys.version_info[1]}: 3.9 or later is needed")
    stdout = int(sys.argv[1])
    kept = {0, 1, 2, stdout}
    place = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"  # noqa: PTH112 - pathlib is slow to import
    for name in os.listdir(place):  # noqa: PTH208 - the same
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the descriptor used for listing
                os.close(int(name))
    channel = Channel(_move_up(0), _move_up(1))
    os.close(0)
    os.close(1)
    settings = channel.receive()
    streams = StandardStreams(settings["folder"], stdout, settings["max_output"])
    _prepare(settings)
    _apply_sandbox(channel, settings)
    sys.path.append(
        settings["folder"]
    )  # last, and after the sandbox is applied: a file in the work folder must not replace a module that this file needs
    interpreter = Interpreter(settings["max_output"], settings["max_plots"], settings["memory"])
    while True:
        signal.signal(signal.SIGINT, interpreter.interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        request = channel.receive()
        streams.reset()
        answer = interpreter.run(request["id"], request["code"])
        try:
            answer.update(stdout=streams.outputs[0].describe(), stderr=streams.outputs[1].describe())
            channel.send(answer)
        except MemoryError:
            os._exit(NO_MEMORY)


if __name__ == "__main__":
    try:
        main()
    except (EOFError, OSError):  # the server has closed its end
        os._exit(0)
    except BaseException:  # noqa: BLE001 - it could not start, or code has broken this file's objects
        with contextlib.suppress(BaseException):
            os.write(2, traceback.format_exc().encode("utf-8", "replace"))
        os._exit(70)
