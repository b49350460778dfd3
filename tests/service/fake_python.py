"""A replacement for the Python process that understands a few words of code and waits for gates instead of time."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import msgspec

from holdfast.holdfast import Holdfast
from holdfast.tools.python.calls import CallResult


class FakeProcess:
    """Understands `write NAME TEXT`, `late NAME TEXT`, `plot`, `hold NAME`, `ls`; any other code counts its calls."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.number = next(stage.numbers)
        self.folder = folder
        self.closed = False
        self.calls = 0
        self._stage = stage
        self._killed = asyncio.Event()

    async def run(self, code: str) -> CallResult:
        assert not self.closed, "whoever was closed runs nothing"
        assert not self._stage.running[self.folder], "one at a time"
        self.calls += 1
        word, _, rest = code.partition(" ")
        self._stage.running[self.folder].append(code)
        self._stage.ran.append(code)
        try:
            return await self._run_word(word, rest)
        finally:
            self._stage.running[self.folder].clear()

    async def _run_word(self, word: str, rest: str) -> CallResult:
        if word == "hold":
            gate = asyncio.ensure_future(self._stage.gate(rest).wait())
            killed = asyncio.ensure_future(self._killed.wait())
            try:
                await asyncio.wait({gate, killed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                gate.cancel()
                killed.cancel()
            if self.closed:
                return CallResult(status="killed")
        if word == "late":
            await self._stage.gate("late").wait()
            word = "write"
        if word == "write":
            name, _, text = rest.partition(" ")
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text, encoding="utf-8")
            return CallResult(status="success", files=(name,))
        if word == "plot":
            return CallResult(status="success", plots=(b"\x89PNG\r\n\x1a\n",) * int(rest or 1))
        if word == "files":
            return CallResult(status="success", files=tuple(rest.split()))
        if word == "ls":
            found = sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())
            return CallResult(status="success", result=" ".join(found))
        return CallResult(status="success", result=str(self.calls))

    async def close(self) -> None:
        self.closed = True
        self._killed.set()
        if self._stage.slow is not None:
            await self._stage.slow.wait()


class Stage:
    """The processes of a test.

    Attributes:
        processes: All processes so far.
        ran: All code that ran, in order.
        running: Code that is running, by work folder.
        slow: Processes end when this is set; None means at once.
    """

    def __init__(self) -> None:
        self.processes: list[FakeProcess] = []
        self.ran: list[str] = []
        self.running: dict[Path, list[str]] = {}
        self.slow: asyncio.Event | None = None
        self.numbers = itertools.count()
        self._gates: dict[str, asyncio.Event] = {}

    def __call__(self, folder: Path) -> FakeProcess:
        self.running[folder] = []
        made = FakeProcess(self, folder)
        self.processes.append(made)
        return made

    def gate(self, name: str) -> asyncio.Event:
        """Return the gate that `hold NAME` waits for."""
        return self._gates.setdefault(name, asyncio.Event())

    @property
    def alive(self) -> int:
        """The processes that were not told to end."""
        return sum(not process.closed for process in self.processes)

    def take(self, hf: Holdfast) -> None:
        """Make a Holdfast's kernels use these processes."""
        assert hf.tool_registry.kernels is not None, "python= was given"
        hf.tool_registry.kernels._process = self


def result(text: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(text)
    return found


def list_files(folder: Path) -> list[Path]:
    return list(folder.iterdir())
