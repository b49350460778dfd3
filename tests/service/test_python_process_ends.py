"""Failures of the Python process of the tool `python`: deaths, failed starts, exceeded limits, and forged answers."""

from __future__ import annotations

import asyncio
import base64
import re
import sys
import tempfile
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import PythonUnavailable
from holdfast.tools.python import child, worker
from holdfast.tools.python import process as process_module
from holdfast.tools.python.calls import ProcessLimits
from holdfast.tools.python.process import PythonProcess
from tests.service.python_kit import MISSING, Start, _start, has_ended, sandboxed
from tests.waits import until

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

    async def test_death_between_calls_is_reported_with_the_next_call(self, start: Start) -> None:
        process = start()
        await process.run("import threading, os\nthreading.Timer(0.05, os._exit, (4,)).start()")
        await until(lambda: not process.alive)
        ran = await process.run("2")
        assert (ran.result, ran.restarted) == ("2", True)
        assert ran.note is not None
        assert "exit code 4" in ran.note

    async def test_closing_kills_the_running_call(self, start: Start, tmp_path: Path) -> None:
        process = start()
        await process.run("open('mine', 'w').close()")
        pid = process.pid
        assert pid is not None
        task = asyncio.ensure_future(process.run("open('begun', 'w').close()\nwhile True: pass"))
        await until((tmp_path / "work" / "begun").exists)
        await process.close()
        assert has_ended(pid)
        assert (await task).status == "killed"
        assert (tmp_path / "work" / "mine").exists()
        with pytest.raises(PythonUnavailable, match="closed"):
            await process.run("1")
        await process.close()

    async def test_closing_a_process_that_never_ran_is_fine(self, start: Start, tmp_path: Path) -> None:
        process = start()
        await process.close()
        assert not (tmp_path / "work").exists()

    async def test_missing_folder_is_created_again(self, start: Start, tmp_path: Path) -> None:
        process = start()
        await process.run("import os\nos._exit(0)")
        (tmp_path / "work" / ".tmp").rmdir()
        (tmp_path / "work").rmdir()
        assert (await process.run("open('x', 'w').close()")).files == ("x",)


class TestStart:
    """Which Python runs, and how."""

    async def test_missing_interpreter_is_reported(self, start: Start) -> None:
        with pytest.raises(PythonUnavailable, match="/no/python cannot be started: No such file or directory"):
            await start(interpreter="/no/python").run("1")

    async def test_too_old_interpreter_is_reported(self, start: Start, tmp_path: Path) -> None:
        old = tmp_path / "old"
        old.write_text("#!/bin/sh\necho this is Python 2.7: 3.9 or later is needed >&2\n")
        old.chmod(0o700)
        with pytest.raises(PythonUnavailable, match=r"did not start: this is Python 2\.7: 3\.9 or later is needed"):
            await start(interpreter=str(old)).run("1")

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

    async def test_program_that_is_not_python_is_reported(self, start: Start) -> None:
        with pytest.raises(PythonUnavailable, match="did not start"):
            await start(interpreter="/bin/cat").run("1")

    async def test_another_interpreter_can_be_configured(self, start: Start) -> None:
        other = sys.base_prefix + "/bin/python3"
        ran = await start(interpreter=other).run("import sys\nsys.prefix == sys.base_prefix")
        assert ran.result == "True"

    def test_process_works_under_uvloop(self, tmp_path: Path) -> None:
        async def work() -> list[str | None]:
            process = PythonProcess(tmp_path / "w", ProcessLimits(timeout=0.5), unsandboxed=bool(MISSING))
            codes = ("x = 1\nprint('é')", "while True: pass", "x", "import os\nos._exit(1)", "2")
            told = [(await process.run(code)) for code in codes]
            pid = process.pid
            await process.close()
            assert pid is not None
            assert has_ended(pid)
            return [f"{ran.status} {ran.stdout}{ran.result}" for ran in told]

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            assert runner.run(work()) == ["success é\nNone", "timeout None", "success 1", "killed None", "success 2"]


async def wait_for_cpu_limit(process: PythonProcess) -> None:
    """Wait until a process is ended for its processor time and check that the next call reports it."""
    await until(lambda: not process.alive)
    ran = await process.run("1")
    assert ran.note is not None
    assert ran.note.startswith("this is a fresh process: the one before used up its processor time")


class TestMuch:
    """Endless output and memory."""

    async def test_cut_bytes_are_counted(self, start: Start) -> None:
        ran = await start(max_output=3000).run("print('a' * 10_000, end='')")
        assert ran.stdout == "a" * 2000 + "\n[… 7,000 of 10,000 bytes cut …]\n" + "a" * 1000

    async def test_output_that_just_fits_is_complete(self, start: Start) -> None:
        ran = await start(max_output=3000).run("import sys\nfor i in range(3000): sys.stdout.write(str(i % 10))\nNone")
        assert ran.stdout == "0123456789" * 300

    async def test_result_and_exception_are_cut(self, start: Start) -> None:
        process = start(max_output=3000)
        ran = await process.run("'r' * 10_000_000")
        assert ran.result is not None
        assert len(ran.result) < 3100
        ran = await process.run("raise ValueError('e' * 10_000_000)")
        assert ran.exception is not None
        assert len(ran.exception) < 3100
        assert ran.exception.startswith("Traceback")

    async def test_output_beyond_the_file_limit_ends_the_code(self, start: Start) -> None:
        ran = await start().run("import os\nwhile True: os.write(2, b'z' * 1_000_000)")
        assert ran.exception is not None
        assert ran.exception.endswith("File too large")

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

    async def test_thread_limit_is_enforced(self, start: Start) -> None:
        process = start(max_threads=20, timeout=30.0)
        ran = await process.run(
            "import threading, time\ndef wait():\n    time.sleep(60)\nfor i in range(40): threading.Thread(target=wait, daemon=True).start()\ntime.sleep(20)"
        )
        assert (ran.status, ran.seconds < 15) == ("killed", True)
        assert ran.note is not None
        assert ran.note.startswith("the process had more than 20 threads, and was killed")

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process's processor time")
    async def test_busy_thread_uses_up_the_processor_time(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "_SPARE_SECONDS", 0.0)
        process = start(timeout=0.1, grace=0.1)
        spin = "def spin():\n    while True: pass\n"
        await process.run(f"import threading\n{spin}threading.Thread(target=spin, daemon=True).start()")
        await wait_for_cpu_limit(process)

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process's processor time")
    async def test_process_that_ignores_the_cpu_signal_is_killed(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "_SPARE_SECONDS", 0.0)
        monkeypatch.setattr(process_module, "_IDLE_SECONDS", 0.05)
        process = start(timeout=0.1, grace=0.1)
        spin = "signal.signal(signal.SIGXCPU, signal.SIG_IGN)\ndef spin():\n    while True: pass\n"
        await process.run(f"import signal, threading\n{spin}threading.Thread(target=spin, daemon=True).start()")
        await wait_for_cpu_limit(process)

    async def test_thread_bomb_is_stopped(self, start: Start) -> None:
        process = start()
        ran = await process.run(
            "import threading, time\ndef wait():\n    time.sleep(60)\nwhile True: threading.Thread(target=wait, daemon=True).start()"
        )
        assert ran.status in {"error", "killed"}
        assert (await process.run("1")).result == "1"


class TestCutting:
    """Head, marker and tail of the output."""

    @given(st.text(max_size=400), st.integers(30, 300))
    def test_cut_text_is_head_tail_and_the_count_of_the_rest(self, text: str, most: int) -> None:
        said, size = child.cut(text, most), len(text.encode("utf-8", "backslashreplace"))
        self._check(text.encode("utf-8", "backslashreplace").decode(), said, size, most)

    @given(st.text("aé\n😀", max_size=400), st.lists(st.integers(0, 60), max_size=8), st.integers(30, 300))
    def test_output_written_in_pieces_is_cut_equally(self, text: str, pieces: list[int], most: int) -> None:
        with tempfile.TemporaryFile() as file:
            output = child.Output(1, file.fileno(), most)
            for size in (*pieces, len(text)):
                output.write(text[:size])
            written = "".join(text[:size] for size in (*pieces, len(text)))
            tail, seen = output.describe()
            said = worker._join_output(file.fileno(), base64.b64decode(tail), seen, most)
        self._check(written, said, len(written.encode()), most)

    @staticmethod
    def _check(text: str, said: str, size: int, most: int) -> None:
        if size <= most:
            assert said == text
            return
        head, marker, tail = re.split(r"\n\[… ([\d,]+ of [\d,]+) bytes cut …\]\n", said)
        missing, told = (int(number.replace(",", "")) for number in marker.split(" of "))
        assert told == size
        assert text.startswith(head.rstrip("�"))
        assert text.endswith(tail.lstrip("�"))
        assert missing + most - 1 <= size <= missing + most + 1


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

    @pytest.mark.parametrize(
        "code",
        [
            "send(b'\\xff\\xff\\xff\\xff')",
            "send(b'\\0\\0\\0\\0')",
            "send(struct.pack('>I', 5) + b'hello')",
            "send(answer(id=99))",
            "send(answer(status='fine'))",
            "send(answer(plots=['?']))",
            "send(answer(stdout=['', -1]))",
            "send(answer(result=5))",
            "send(answer(notes=None))",
            "send(struct.pack('>I', 20_000_000) + b'[' * 20_000_000)",
            "send(answer(notes=['a'] * 2_000_000))",
            "send(answer(plots=['AAAA'] * 2_000_000))",
        ],
    )
    async def test_invalid_answer_ends_the_process(self, start: Start, code: str) -> None:
        process = await self._forge(start, code)
        assert self.ran.status == "killed"
        assert not process.alive
        assert (await process.run("1")).result == "1"

    async def test_incomplete_answer_times_out(self, start: Start) -> None:
        process = start(timeout=0.5, grace=0.4)
        await process.run(self.FORGED.replace("ID", "2"))
        ran = await process.run("send(struct.pack('>I', 9000) + b'x')")
        assert ran.status == "killed"
        assert (await process.run("1")).result == "1"

    async def test_oversized_fields_of_an_answer_are_cut(self, start: Start) -> None:
        code = (
            "import base64\npng = base64.b64encode(b'\\x89PNG\\r\\n\\x1a\\n').decode()\n"
            "send(answer(result='r' * 9_000_000, notes=['n' * 10_000] * 100, plots=[png] * 100 + ['AAAA'], stdout=[base64.b64encode(b's' * 9_000_000).decode(), 2**50]))"
        )
        await self._forge(start, code)
        assert self.ran.result is not None
        assert self.ran.note is not None
        assert len(self.ran.result) < 70_000
        assert len(self.ran.note) < 6000
        assert len(self.ran.stdout) < 70_000
        assert len(self.ran.plots) == 16

    async def test_process_that_closes_its_pipes_is_killed(self, start: Start) -> None:
        process = await self._forge(start, "import time\nos.closerange(200, 256)\nwhile True: time.sleep(1)")
        assert self.ran.status == "killed"
        assert (await process.run("1")).result == "1"

    async def test_output_between_calls_does_not_fill_memory(self, start: Start) -> None:
        talking = "while not os.path.exists('quiet'): time.sleep(0.001)\n    for _ in range(1000): send(b'x' * 60_000)"
        code = f"import threading, time\ndef talk():\n    {talking}\nthreading.Thread(target=talk, daemon=True).start()"
        process = await self._forge(start, code)
        assert self.ran.status == "success"
        assert process._worker is not None
        heard = process._worker._process.stdout
        (process._folder / "quiet").touch()
        await until(lambda: len(heard._buffer) > 120_000)  # type: ignore[union-attr] # asyncio's own
        assert len(heard._buffer) < 1_000_000  # type: ignore[union-attr] # asyncio's own
        assert (await process.run("1")).status == "killed"
        assert (await process.run("1")).result == "1"
