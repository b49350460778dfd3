"""The git program: where it is, whether it is new enough, and how it is run so that nothing of this machine reaches it.

Its environment is made from nothing: no `GIT_*` of the process, no configuration of system or user, no prompt, no pager, no
editor. Nothing goes through a shell.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.errors import GitMissing, WorkspaceUnavailable
from holdfast.limits import GIT_SECONDS, MIB

LEAST: Final = (2, 25)
"""The oldest git that is used."""
_INSTALL: Final = (
    f"install git {LEAST[0]}.{LEAST[1]} or later (Debian, Ubuntu: apt install git; macOS: brew install git)"
)
_WORDS_BYTES: Final = 16 * 1024
"""What is read of its error output."""
_WORDS_CHARS: Final = 600
_DRAINED_BYTES: Final = 64 * MIB
"""Output that is counted before the program is ended."""
_CHUNK: Final = 64 * 1024
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "LC_ALL": "C",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_EDITOR": "false",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_TERMINAL_PROMPT": "0",
}


class Ran(NamedTuple):
    """What became of a run."""

    code: int
    out: bytes
    """As much of it as was asked for."""
    missing: int
    """Bytes of the output behind that; where there are very many, at least so many."""
    words: str
    """The first lines of its error output, as one."""


class Git:
    """The git program of this machine, looked for when it is first needed.

    Args:
        seconds: longest time that a run may take.
    """

    def __init__(self, *, seconds: float = GIT_SECONDS) -> None:
        self.seconds = seconds
        self._checked: str | None = None
        self._version = ""

    async def version(self) -> str:
        """Which one it is, and where. Raises as `run` does."""
        program = await self._program()
        return f"git {self._version}, {program}"

    async def run(
        self,
        *arguments: str,
        environment: Mapping[str, str],
        folder: Path,
        stdin: Path | None = None,
        most: int = MIB,
    ) -> Ran:
        """Run it.

        Args:
            arguments: behind `git`.
            environment: beside what every run has; `GIT_DIR` for example.
            folder: where it runs.
            stdin: a file that it reads; None: it reads nothing.
            most: bytes of its output that are kept.

        Raises:
            GitMissing: it is not there, or too old.
            WorkspaceUnavailable: it took too long, or could not be started.
        """
        program = await self._program()
        return await self._run(program, arguments, environment=environment, folder=folder, stdin=stdin, most=most)

    async def _program(self) -> str:
        """Where it is. Looked up each time, which is cheap: it may be installed while this process runs."""
        found = _found()
        if found != self._checked:
            ran = await self._run(found, ("version",), environment={}, folder=Path("/"), stdin=None, most=_CHUNK)
            version = re.search(rb"(\d+)\.(\d+)", ran.out)
            if ran.code or version is None:
                raise GitMissing(f"{found} does not say which version of git it is: {_INSTALL}")
            if (int(version[1]), int(version[2])) < LEAST:
                raise GitMissing(f"{found} is git {version[0].decode()}: {_INSTALL}")
            self._checked, self._version = found, version[0].decode()
        return found

    async def _run(
        self,
        program: str,
        arguments: tuple[str, ...],
        *,
        environment: Mapping[str, str],
        folder: Path,
        stdin: Path | None,
        most: int,
    ) -> Ran:
        try:
            with contextlib.ExitStack() as files:
                given = asyncio.subprocess.DEVNULL if stdin is None else files.enter_context(stdin.open("rb")).fileno()
                process = await asyncio.create_subprocess_exec(
                    program,
                    *arguments,
                    stdin=given,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    cwd=folder,
                    env={"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT, **environment},
                    start_new_session=True,
                )
        except OSError as exc:
            raise WorkspaceUnavailable(f"git could not be started: {exc.strerror or type(exc).__name__}") from exc
        try:
            async with asyncio.timeout(self.seconds):
                return await _outcome(process, most)
        except TimeoutError as exc:
            raise WorkspaceUnavailable(f"git {arguments[0]} took more than {self.seconds:g} s, and was ended") from exc
        finally:
            await _ended(process)


def _found() -> str:
    """Where the program is. Raises `GitMissing`."""
    found = shutil.which("git")
    if found is None:
        raise GitMissing(f"workspaces need the git program, and there is none on the PATH: {_INSTALL}")
    return str(Path(found).absolute())  # not resolved: some installations look at their own name


async def _outcome(process: asyncio.subprocess.Process, most: int) -> Ran:
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.TaskGroup() as readers:
        complaints = readers.create_task(_read(process.stderr, _WORDS_BYTES))
        out, missing = await _read(process.stdout, most)
        if missing >= _DRAINED_BYTES:
            await _ended(process)  # it would wait for a reader, and never come to the end of its errors
    words, _ = complaints.result()
    lines = words.decode(errors="replace").split("\n")
    told = "; ".join(" ".join(line.split()) for line in lines if line.strip())
    return Ran(await process.wait(), out, missing, told[:_WORDS_CHARS])


async def _read(stream: asyncio.StreamReader, most: int) -> tuple[bytes, int]:
    """The first bytes of a stream, and how many came behind them."""
    kept, missing = bytearray(), 0
    while missing < _DRAINED_BYTES and (chunk := await stream.read(_CHUNK)):
        room = most - len(kept)
        kept += chunk[:room]
        missing += max(0, len(chunk) - room)
    return bytes(kept), missing


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End a process that still runs, and those that it has started."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.shield(process.wait())
