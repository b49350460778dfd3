"""Failures of the Python process of the tool `python`: deaths, failed starts, exceeded limits, and forged answers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.tools.python.process import PythonProcess
from tests.service.python_kit import Start, _start, sandboxed

__all__ = ["_start"]


class TestDeath:
    """Processes that die, and what remains."""

    @pytest.mark.parametrize(
        ("code", "why"),
        [
            ("import os\nos._exit(3)", "the process ended itself with exit code 3"),
            ("import ctypes\nctypes.string_at(0)", "the process crashed (SIGSEGV)"),
            (
                "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nimport time\ntime.sleep(9)",
                "the process was ended by SIGTERM",
            ),
            ("import os\nos.abort()", "the process was ended by SIGABRT"),
        ],
    )
    async def test_death_is_reported_and_a_new_process_started(self, start: Start, code: str, why: str) -> None:
        process = start()
        await process.run("x = 1")
        ran = await process.run(f"print('before')\nopen('left', 'w').close()\n{code}")
        assert (ran.status, ran.stdout, ran.files, ran.result) == ("killed", "before\n", ("left",), None)
        assert ran.note == f"{why}: its variables are gone, files in its folder are kept"
        assert "child.py" not in ran.stderr
        assert not process.alive
        assert process.pid is None
        again = await process.run("'x' in globals()")
        assert (again.result, again.restarted) == ("False", True)
        assert (
            again.note
            == f"this is a fresh process: {why.replace('the process', 'the one before', 1)}: its variables are gone, files in its folder are kept"
        )
        assert (await process.run("1")).note is None


class TestStart:
    """Which Python runs, and how."""

    async def test_interpreter_is_not_looked_up_in_the_work_folder(
        self, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "python").symlink_to(sys.executable)
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "python").write_text("#!/bin/sh\ntouch escaped")
        (tmp_path / "work" / "python").chmod(0o700)
        process = start(interpreter="./python")
        assert (await process.run("import sys\nsys.executable")).result == repr(str(tmp_path / "python"))


class TestMuch:
    """Endless output and memory."""

    @pytest.mark.parametrize(
        "code",
        [
            "bytearray(1 << 40)",
            "l = []\nwhile True: l.append(bytearray(1 << 20))",
            "l = []\nwhile True: l.append(object())",
        ],
    )
    async def test_memory_limit_is_enforced(self, start: Start, code: str) -> None:
        process = start(memory=300 << 20)
        ran = await process.run(code)
        if ran.status == "error":
            assert ran.exception is not None
            assert ran.exception.endswith("MemoryError")
            assert ran.note == "this process may use 314,572,800 bytes: delete variables, or work in smaller parts"
        else:
            assert (ran.status, ran.note is not None) == ("killed", True)
        assert (await process.run("l = None\n1")).result == "1"

    async def test_thread_bomb_is_stopped(self, start: Start) -> None:
        process = start()
        ran = await process.run(
            "import threading, time\ndef wait():\n    time.sleep(60)\nwhile True: threading.Thread(target=wait, daemon=True).start()"
        )
        assert ran.status in {"error", "killed"}
        assert (await process.run("1")).result == "1"


@sandboxed
class TestLies:
    """A process that sends forged answers."""

    FORGED = """
import os, json, struct
def answer(**over):
    told = {"id": ID, "status": "success", "interrupted": False, "result": "forged", "exception": None, "plots": [],
            "notes": [], "stdout": ["", 0], "stderr": ["", 0], **over}
    data = json.dumps(told).encode()
    return struct.pack(">I", len(data)) + data
def send(data):
    os.write(OUT, data)
OUT = 201  # as the process numbers its own pipes
"""

    async def _forge(self, start: Start, code: str, number: int = 2) -> PythonProcess:
        process = start(timeout=5.0)
        await process.run(self.FORGED.replace("ID", str(number)))
        self.ran = await process.run(code)
        return process

    async def test_forged_answer_is_accepted_once_and_the_real_one_is_an_error(self, start: Start) -> None:
        process = await self._forge(start, "send(answer())")
        assert self.ran.result == "forged"
        ran = await process.run("'honest'")
        assert ran.status == "killed"
        assert ran.note is not None
        assert ran.note.startswith("the process sent something that is no answer, and was killed")
        assert (await process.run("'honest'")).result == "'honest'"
