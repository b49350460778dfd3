"""The Python of a session, from the inside: reads code, runs it in one namespace, tells what came of it.

    python -I child.py STDOUT

It is given frames on descriptor 0 and answers on 1, and moves both away at once, to where code does not write by accident.
Descriptor STDOUT is a file for what the code writes, 2 another one. A frame is a length (4 bytes, the highest first) and JSON.
What runs here may do to this file's objects what it likes: whoever reads the answers believes none of them.

It runs in another Python, 3.9 or later, which has no Holdfast: the standard library only.
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

_ABOVE = 200
"""Our own descriptors are from here on."""
_PNG_BYTES = 16 << 20
"""All plots of a call together."""
_RESERVE = 4 << 20
"""Bytes that are given up when memory is full, to say so."""
_SOURCES = 200
"""Calls whose code is kept for tracebacks."""
_SLICE = 1 << 20
_COROUTINE = 0x80
NO_MEMORY = 71
"""Exit code of a process that could not even say what came of a call."""
MARKER = "\n[… {:,} of {:,} bytes cut …]\n"


def cut(text: str, most: int) -> str:
    """`text` in about `most` bytes: of a longer one the head (two thirds) and the tail, with a marker between them."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    head, tail = data[: most * 2 // 3], data[len(data) - most // 3 :]
    missing = MARKER.format(len(data) - len(head) - len(tail), len(data))
    return head.decode("utf-8", "ignore") + missing + tail.decode("utf-8", "ignore")


# -- what the code reads and writes ------------------------------------------------


class _Bytes(io.RawIOBase):
    """`sys.stdout.buffer`."""

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
        """It stays open."""


class Output(io.TextIOBase):
    """`sys.stdout` or `sys.stderr`: the head goes into a file, which outlives this process; of the rest the tail is kept here."""

    def __init__(self, number: int, saved: int, most: int) -> None:
        self._number = number
        self._saved = saved
        self._head = most * 2 // 3
        self._room = most // 3 + 4
        self.buffer = _Bytes(self)
        self.begin()

    def begin(self) -> None:
        """Nothing was written yet."""
        self._left = self._head
        self._tail = bytearray()
        self._seen = 0

    def put(self, data: bytes) -> None:
        """Keep, or forget, some bytes. Threads may mix what they write; nothing grows by it."""
        if self._left > 0:
            head, data = data[: self._left], data[self._left :]
            self._left -= len(head)
            with contextlib.suppress(OSError):  # the file is as large as a file may be
                os.write(self._saved, head)
        self._seen += len(data)
        self._tail += data
        if len(self._tail) > 2 * self._room:
            del self._tail[: -self._room]

    def told(self) -> list[Any]:
        """What is not in the file: the tail of it in Base64, since it may begin within a character, and how many bytes it was."""
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
        """It is UTF-8, and stays so."""

    def close(self) -> None:
        """It stays open."""


class NoInput(io.TextIOBase):
    """`sys.stdin`: there is nobody."""

    def readable(self) -> bool:
        return True

    def read(self, size: Any = -1) -> str:
        raise EOFError("there is no input: nobody can type here, so write the value into the code")

    readline = read  # type: ignore[assignment] # the same for both

    def fileno(self) -> int:
        return 0

    def close(self) -> None:
        """It stays open."""


# -- code ---------------------------------------------------------------------------


class Interpreter:
    """One namespace, and what is done with it.

    Args:
        most: bytes of each text that are told.
        plots: figures that are told.
        memory: bytes that it may have, to be told of.
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
        """SIGINT came: code is stopped; between two calls nothing is."""
        if self.running:
            self.interrupted = True
            raise KeyboardInterrupt

    def run(self, number: int, code: str) -> dict[str, Any]:
        """Run code; what came of it."""
        told: dict[str, Any] = {
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
                self._told(f"<call {number}>", code, told)
            finally:
                self.running = False
        except BaseException as exc:  # noqa: BLE001 - it came while an earlier one was told
            self.running = False
            told["status"] = "error"
            told["exception"] = type(exc).__name__
        self._reserve = None
        told["interrupted"] = self.interrupted
        return told

    def _told(self, name: str, code: str, told: dict[str, Any]) -> None:
        try:
            value = self._value(name, code)
            if value is not None:
                self._names["_"] = value
                self._image(value, told)
                told["result"] = cut(repr(value), self._most)
            told["status"] = "success"
        except SystemExit as exc:
            self._exited(exc, told)
        except BaseException as exc:  # noqa: BLE001 - whatever the code raises is its result
            if isinstance(exc, MemoryError):
                self._reserve = None
                told["notes"].append(
                    f"this process may use {self._memory:,} bytes: delete variables, or work in smaller parts"
                )
            told["exception"] = cut(_traceback(exc), self._most)
        self._figures(told)

    def _exited(self, exc: SystemExit, told: dict[str, Any]) -> None:
        if exc.code in (None, 0):
            told["status"] = "success"
            told["notes"].append("the code ended itself by an exit; variables are kept")
        else:
            told["exception"] = cut(f"SystemExit: {exc.code}", self._most)

    def _value(self, name: str, code: str) -> Any:
        """The value of the last expression; None: the last statement is none."""
        lines = code.splitlines(keepends=True)
        linecache.cache[name] = (len(code), None, lines, name)
        kept = [one for one in linecache.cache if one.startswith("<call ")]
        for old in kept[:-_SOURCES]:
            del linecache.cache[old]
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._evaluated(tree, name, "exec")
        return self._evaluated(ast.Expression(last.value), name, "eval") if isinstance(last, ast.Expr) else None

    def _evaluated(self, tree: Any, name: str, mode: str) -> Any:
        # This file's own `from __future__` is not the code's.
        compiled = compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        value = eval(compiled, self._names)  # noqa: S307 - it is what all this is for
        return self._awaited(value) if compiled.co_flags & _COROUTINE else value

    def _awaited(self, coroutine: Any) -> Any:
        """Run a top-level `await` to its end; the loop is kept for the next, so that tasks can go on there."""
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

    # -- pictures ------------------------------------------------------------

    def _figures(self, told: dict[str, Any]) -> None:
        """The open figures of matplotlib, if it was imported; they are closed."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        try:
            for number in pyplot.get_fignums():
                self._kept(pyplot.figure(number).savefig, told)
        except Exception as exc:  # noqa: BLE001 - the code may have done anything to it
            told["notes"].append(cut(f"a figure could not be drawn: {type(exc).__name__}: {exc}", 500))
        finally:
            with contextlib.suppress(Exception):
                pyplot.close("all")

    def _image(self, value: Any, told: dict[str, Any]) -> None:
        """An image of PIL, if that was imported."""
        image = getattr(sys.modules.get("PIL.Image"), "Image", None)
        if isinstance(image, type) and isinstance(value, image):
            picture: Any = value
            self._kept(picture.save, told)

    def _kept(self, save: Any, told: dict[str, Any]) -> None:
        plots, notes = told["plots"], told["notes"]
        if len(plots) >= self._plots:
            too_many = f"no more than {self._plots} figures of a call are kept"
            notes += [] if too_many in notes else [too_many]
            return
        written = io.BytesIO()
        save(written, format="png")
        data = base64.b64encode(written.getvalue()).decode()
        if sum(map(len, plots)) + len(data) > _PNG_BYTES * 4 // 3:
            too_large = f"a figure was too large: those of a call may have {_PNG_BYTES:,} bytes together"
            notes += [] if too_large in notes else [too_large]
            return
        plots.append(data)


def _traceback(exc: BaseException) -> str:
    """What Python would say, beginning with the code's own lines."""
    try:
        told = traceback.TracebackException(type(exc), exc, exc.__traceback__)
        frames = list(told.stack)
        first = next((at for at, frame in enumerate(frames) if frame.filename.startswith("<call ")), len(frames))
        told.stack = traceback.StackSummary.from_list(frames[first:])
        waiting = [told]
        while waiting:
            one = waiting.pop()
            one.stack = traceback.StackSummary.from_list([frame for frame in one.stack if frame.filename != __file__])
            inner = (one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ()))
            waiting += [other for other in inner if other is not None]
        return "".join(told.format()).rstrip("\n")
    except Exception:  # noqa: BLE001 - an error of the code's own may break when it is asked what it says
        return type(exc).__name__


# -- frames ---------------------------------------------------------------------------


class Channel:
    """Frames from and to the other side. Raises `EOFError` when there is none."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def receive(self) -> Any:
        """The next frame."""
        _reset_flags(self._incoming)
        (size,) = struct.unpack(">I", self._exactly(4))
        return json.loads(self._exactly(size))

    def send(self, frame: Any) -> None:
        """Send one."""
        data = json.dumps(frame).encode()
        view = memoryview(struct.pack(">I", len(data)) + data)
        _reset_flags(self._outgoing)
        while view:
            view = view[os.write(self._outgoing, view) :]

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self._incoming, min(size, _SLICE))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _reset_flags(number: int) -> None:
    """Undo what code did to the flags of our descriptors: one that does not block would end this process at its next frame."""
    import fcntl

    fcntl.fcntl(number, fcntl.F_SETFL, 0)


def _away(number: int) -> int:
    """The same descriptor far up."""
    import fcntl  # not there on Windows, where the other side of this file is imported too

    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _ABOVE)


def _close_others(kept: set[int]) -> None:
    """Close what was inherited by accident: not every event loop takes care of that."""
    place = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"  # noqa: PTH112 - pathlib is slow to import
    for name in os.listdir(place):  # noqa: PTH208 - the same
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # what was listed with
                os.close(int(name))


class StandardStreams:
    """What code finds when it begins: descriptors 0, 1 and 2, and the streams on them."""

    def __init__(self, folder: str, stdout: int, most: int) -> None:
        self._folder = folder
        null = os.open(os.devnull, os.O_RDWR)
        self._saved = [_away(null), _away(stdout), _away(2)]
        os.close(null)
        os.close(stdout)
        self.outputs = (Output(1, self._saved[1], most), Output(2, self._saved[2], most))
        self.tidy()

    def tidy(self) -> None:
        """Put back what the code before may have closed, replaced or left."""
        for number, saved in enumerate(self._saved):
            os.dup2(saved, number)
        for output in self.outputs:
            output.begin()
        streams: Any = (NoInput(), *self.outputs)
        sys.stdin, sys.stdout, sys.stderr = streams
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = streams  # type: ignore[misc] # ours, for good
        try:
            os.getcwd()  # noqa: PTH109 - pathlib is slow to import
        except OSError:  # it was removed
            with contextlib.suppress(OSError):
                os.chdir(self._folder)


def _confined(channel: Channel, told: dict[str, Any]) -> None:
    """Hold this process in as the first frame says, and say how far that went. Exits where it must not run so."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib is slow to import
    import sandbox  # type: ignore[import-not-found] # beside this file, which is no module of a package here

    del sys.path[0], sys.modules["sandbox"], sys.modules["seccomp"]
    try:
        held = sandbox.confine(told["folder"], told, told["parent"])
    except Exception as exc:  # noqa: BLE001 - any: what does not hold must not run
        held = {"failed": f"{type(exc).__name__}: {exc}"}
    channel.send({"id": 0, "held": held})


def _prepared(told: dict[str, Any]) -> None:
    os.umask(0o077)
    os.chdir(told["folder"])
    sys.argv = [""]
    import faulthandler
    import warnings

    faulthandler.enable(2, all_threads=False)
    warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")


def main() -> None:
    """Answer frames until there are no more."""
    if sys.version_info < (3, 9):  # noqa: UP036 - it is another Python than the one that Holdfast asks for
        raise RuntimeError(f"this is Python {sys.version_info[0]}.{sys.version_info[1]}: 3.9 or later is needed")
    stdout = int(sys.argv[1])
    _close_others({0, 1, 2, stdout})
    channel = Channel(_away(0), _away(1))
    os.close(0)
    os.close(1)
    told = channel.receive()
    streams = StandardStreams(told["folder"], stdout, told["max_output"])
    _prepared(told)
    _confined(channel, told)
    sys.path.append(told["folder"])  # last, and held in: a file there takes the place of no module that this file needs
    interpreter = Interpreter(told["max_output"], told["max_plots"], told["memory"])
    while True:
        signal.signal(signal.SIGINT, interpreter.interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        request = channel.receive()
        streams.tidy()
        answer = interpreter.run(request["id"], request["code"])
        try:
            answer.update(stdout=streams.outputs[0].told(), stderr=streams.outputs[1].told())
            channel.send(answer)
        except MemoryError:
            os._exit(NO_MEMORY)


if __name__ == "__main__":
    try:
        main()
    except (EOFError, OSError):  # the other side is gone
        os._exit(0)
    except BaseException:  # noqa: BLE001 - it could not start; or whatever the code did to this file's objects
        with contextlib.suppress(BaseException):
            os.write(2, traceback.format_exc().encode("utf-8", "replace"))
        os._exit(70)
