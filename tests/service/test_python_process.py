"""The Python process of the tool `python`: what it keeps, what it returns, how it is stopped, and its limits."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.tools.python.contents import list_contents, open_file
from holdfast.tools.python.process import PythonProcess
from tests.service.python_kit import Start, _start, has_ended
from tests.waits import until

__all__ = ["_start"]
STUBBORN = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
open('begun', 'w').close()
while True:
    time.sleep(0.01)
"""


class TestCode:
    """The result of a call."""

    async def test_classes_and_functions_are_kept(self, start: Start) -> None:
        process = start()
        await process.run("import pickle\nclass Point:\n    x = 3\ndef double(n): return n * 2")
        assert (await process.run("double(pickle.loads(pickle.dumps(Point())).x)")).result == "6"

    @pytest.mark.parametrize(
        ("code", "result"),
        [
            ("", None),
            ("# nothing", None),
            ("None", None),
            ("x = 1", None),
            ("1; 2", "2"),
            ("'é\\ud800'", "\"'é\\\\ud800'\""),
            ("for i in range(3): pass\ni", "2"),
            ("import asyncio\nawait asyncio.sleep(0, 'late')", "'late'"),
            ("async def f(): return 5\nx = await f()\nx + 1", "6"),
            ("__name__", "'__main__'"),
            ("from __future__ import annotations\n(lambda: 3)()", "3"),
        ],
    )
    async def test_last_expression_is_the_result(self, start: Start, code: str, result: str | None) -> None:
        ran = await start().run(code)
        expected = None if result is None else result.replace("\"'é", "'é").replace("'\"", "'").replace("\\\\", "\\")
        assert (ran.status, ran.exception, ran.result) == ("success", None, expected)

    async def test_tasks_continue_with_the_next_await(self, start: Start) -> None:
        process = start()
        await process.run(
            "import asyncio\ndone = []\nasync def later():\n    await asyncio.sleep(0)\n    done.append(1)"
        )
        await process.run("task = asyncio.ensure_future(later()) if False else None\nawait asyncio.sleep(0)")
        await process.run(
            "async def spawn():\n    return asyncio.get_running_loop().create_task(later())\nt = await spawn()"
        )
        assert (await process.run("await t\ndone")).result == "[1]"

    async def test_output_of_c_code_is_returned(self, start: Start) -> None:
        ran = await start().run("import ctypes\nc = ctypes.CDLL(None)\nc.printf(b'from C')\nc.fflush(None)\nNone")
        assert ran.stdout == "from C"

    async def test_output_that_is_not_text_is_returned(self, start: Start) -> None:
        ran = await start().run("import os\nos.write(1, b'\\xff\\x00')\nprint('\\ud800')")
        assert ran.stdout == "�\x00\\ud800\n"
        assert msgspec.json.decode(msgspec.json.encode(ran.stdout)) == ran.stdout

    async def test_traceback_has_only_the_lines_of_the_code(self, start: Start) -> None:
        process = start()
        await process.run("def f(n):\n    return 1 / n")
        ran = await process.run("try:\n    f(0)\nexcept ZeroDivisionError as exc:\n    raise KeyError('k') from exc")
        assert ran.status == "error"
        assert ran.exception is not None
        assert 'File "<call 1>", line 2, in f\n    return 1 / n' in ran.exception
        assert 'File "<call 2>", line 4, in <module>' in ran.exception
        assert ran.exception.endswith("KeyError: 'k'")
        assert "child.py" not in ran.exception

    async def test_syntax_error_has_its_position(self, start: Start) -> None:
        ran = await start().run("x = 1\ny = = 2")
        assert ran.exception == '  File "<call 1>", line 2\n    y = = 2\n        ^\nSyntaxError: invalid syntax'

    @pytest.mark.parametrize(
        ("code", "ending"),
        [
            ("input('name?')", "write the value into the code"),
            ("import sys\nsys.stdin.read()", "write the value into the code"),
            ("import sys\nsys.exit(3)", "SystemExit: 3"),
            ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E", "E: <exception str() failed>"),
            ("class R:\n    def __repr__(self): raise ValueError('no')\nR()", "ValueError: no"),
            ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
            ("x = 'a\0b'", "SyntaxError: source code string cannot contain null bytes"),
        ],
    )
    async def test_errors_are_reported(self, start: Start, code: str, ending: str) -> None:
        process = start()
        ran = await process.run(code)
        assert ran.status == "error"
        assert ran.exception is not None
        assert ran.exception.replace("ValueError: source", "SyntaxError: source").endswith(ending)
        assert (await process.run("1")).result == "1"

    async def test_exit_ends_the_code_but_not_the_process(self, start: Start) -> None:
        process = start()
        ran = await process.run("x = 1\nprint('so far')\nexit()\nprint('never')")
        assert (ran.status, ran.stdout) == ("success", "so far\n")
        assert ran.note == "the code called exit(); variables are kept"
        assert (await process.run("print(x)")).stdout == "1\n"

    async def test_side_effects_of_code_do_not_break_the_next_call(self, start: Start) -> None:
        process = start()
        await process.run("import os, sys, signal\nos.closerange(0, 50)\nsys.stdout = sys.stderr = sys.stdin = None")
        await process.run(
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.pthread_sigmask(signal.SIG_BLOCK, {2})\nprint = None"
        )
        await process.run("del print\nos.mkdir('x')\nos.chdir('x')\nos.rmdir('../x')")
        ran = await process.run("print('here', os.getcwd() == os.environ['HOME'])\nos.write(2, b'there')\nNone")
        assert (ran.stdout, ran.stderr) == ("here True\n", "there")

    async def test_threads_continue_and_their_output_is_bounded(self, start: Start) -> None:
        process = start(max_output=3000)
        await process.run(
            "import threading, time, sys\nstop = False\ncount = 0\n"
            "def work():\n    global count\n    while not stop:\n        sys.stdout.write('t' * 1000)\n        count += 1\n"
            "threading.Thread(target=work, daemon=True).start()"
        )
        ran = await process.run("before = count\nwhile count < before + 100: time.sleep(0.001)\n'mine'")
        assert ran.result == "'mine'"
        assert "bytes cut" in ran.stdout
        assert len(ran.stdout) < 3100
        assert (await process.run("stop = True\n1")).result == "1"

    async def test_code_with_a_lone_surrogate_runs(self, start: Start) -> None:
        assert (await start().run("'\ud800'")).result == "'?'"


class TestFolder:
    """Files that a call creates."""

    async def test_existing_files_are_not_reported(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "given.csv").write_text("1")
        ran = await start().run("open('given.csv').read()")
        assert (ran.result, ran.files) == ("'1'", ())

    async def test_files_of_libraries_are_not_reported(self, start: Start) -> None:
        ran = await start().run(
            "import os, tempfile, pathlib\n"
            "for name in ('XDG_CACHE_HOME', 'XDG_CONFIG_HOME', 'MPLCONFIGDIR'):\n"
            "    pathlib.Path(os.environ[name]).mkdir(parents=True, exist_ok=True)\n"
            "    pathlib.Path(os.environ[name], 'x').write_text('1')\n"
            "tempfile.mkstemp()\nopen(os.path.expanduser('~/mine'), 'w').close()"
        )
        assert (ran.status, ran.files) == ("success", ("mine",))

    async def test_modules_in_the_folder_can_be_imported(self, start: Start) -> None:
        ran = await start().run("open('helpers.py', 'w').write('x = 7')\nimport helpers\nhelpers.x")
        assert (ran.result, ran.files) == ("7", ("helpers.py",))

    async def test_module_named_like_a_library_does_not_replace_it(self, start: Start) -> None:
        process = start()
        await process.run("for name in ('json', 'asyncio', 'base64'): open(name + '.py', 'w').write('1 / 0')")
        assert (await process.run("import asyncio\nawait asyncio.sleep(0, 1)")).result == "1"

    async def test_unusual_file_names_are_reported_unchanged(self, start: Start, tmp_path: Path) -> None:
        process = start()
        ran = await process.run("for name in (b'new\\nline', b'\\xff', 'ü'.encode()): open(name, 'w').write('1')")
        assert set(ran.files) == {"new\nline", "\udcff", "ü"}
        for name in ran.files:
            opened = open_file(tmp_path / "work", name)
            assert opened is not None
            assert os.read(opened, 9) == b"1"
            os.close(opened)

    async def test_folder_that_became_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "work").mkdir()
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "file").write_text("x")
        (tmp_path / "work" / "inner").symlink_to(tmp_path / "real")
        assert open_file(tmp_path / "work", "inner/file") is None
        assert list_contents(tmp_path / "work", 100).files == {}

    async def test_fifo_does_not_block(self, start: Start, tmp_path: Path) -> None:
        process = start()
        await process.run("1")
        os.mkfifo(tmp_path / "work" / "pipe")
        assert (await process.run("2")).files == ()
        assert open_file(tmp_path / "work", "pipe") is None

    async def test_unreadable_file_does_not_block(self, start: Start) -> None:
        ran = await start().run("import os\nos.close(os.open('no', os.O_CREAT | os.O_WRONLY, 0))\nos.mkdir('never', 0)")
        assert (ran.status, ran.files) == ("success", ("no",))

    async def test_oversized_file_is_an_error_of_the_code(self, start: Start) -> None:
        process = start(max_file=100_000)
        ran = await process.run("open('big', 'wb').write(bytes(200_000))")
        assert ran.exception is not None
        assert ran.exception.endswith("OSError: [Errno 27] File too large")
        assert (await process.run("import os\nos.path.getsize('big')")).result == "100000"

    @pytest.mark.parametrize(
        "code",
        [
            "for i in range(10_000): open(f'f{i}', 'w').close()",
            "import os\nfor i in range(300):\n    os.mkdir('d')\n    os.chdir('d')",
            "for i in range(40): open(f'f{i}', 'wb').write(bytes(100_000))",
            "import os\nfor i in range(900):\n    name = 'n' * 240 + str(i)\n    open(name, 'w').close()\n    os.mkdir('d' + name)",
        ],
    )
    async def test_overfull_folder_is_emptied(self, start: Start, tmp_path: Path, code: str) -> None:
        process = start(max_entries=1000, max_folder=2_000_000, max_file=200_000)
        await process.run("x = 1\nopen('mine', 'w').close()")
        ran = await process.run(code)
        assert (ran.status, ran.files) == ("killed", ())
        assert ran.note is not None
        assert ran.note.startswith("the process filled its folder with more than 2,000,000 bytes, 1,000 entries")
        assert ran.note.endswith("its variables are gone, its folder was emptied")
        assert not (tmp_path / "work").exists()
        again = await process.run("import os\nos.listdir('.')")
        assert (again.result, again.restarted) == ("['.tmp']", True)

    async def test_flood_of_files_is_stopped_while_it_runs(self, start: Start) -> None:
        process = start(max_folder=20_000_000, max_file=2_000_000)
        began = time.monotonic()
        ran = await process.run("i = 0\nwhile True:\n    i += 1\n    open(f'f{i % 50}', 'wb').write(bytes(1_000_000))")
        assert ran.status == "killed"
        assert time.monotonic() - began < 10

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what another process has open")
    async def test_unlinked_files_count_while_they_are_open(self, start: Start) -> None:
        process = start(max_folder=4 << 20)
        hide = "def hide():\n    f = open('x', 'wb')\n    os.unlink('x')\n    f.write(bytes(1 << 20))\n    f.flush()\n    return f\n"
        ran = await process.run(f"import os\n{hide}held = [hide() for _ in range(2)]")
        assert ran.status == "success"
        ran = await process.run("held += [hide() for _ in range(4)]")
        assert ran.status == "killed"
        assert ran.note is not None
        assert ran.note.startswith("the process filled its folder with more than 4,194,304 bytes")

    async def test_folder_that_takes_long_to_scan_is_overfull(self, start: Start) -> None:
        """Each folder is opened through all its parents: few entries, many steps."""
        deep = "os.makedirs('/'.join(['d'] * 60))\nos.chdir('/'.join(['d'] * 60))"
        ran = await start().run(f"import os\n{deep}\nfor i in range(2000): os.mkdir(str(i))")
        assert ran.status == "killed"

    async def test_sparse_file_counts_its_allocated_size(self, start: Start) -> None:
        ran = await start(max_folder=1_000_000).run(
            "import os\nwith open('holes', 'wb') as f: os.truncate(f.fileno(), 20_000_000)"
        )
        assert (ran.status, ran.files) == ("success", ("holes",))


class TestPictures:
    """Figures and images."""

    async def test_number_of_figures_is_limited(self, start: Start) -> None:
        ran = await start(max_plots=1).run(
            "import matplotlib.pyplot as plt\nplt.figure(figsize=(1, 1))\nplt.figure(figsize=(1, 1))"
        )
        assert len(ran.plots) == 1
        assert ran.note == "at most 1 figures of a call are kept"

    async def test_figure_of_a_failing_call_is_returned(self, start: Start) -> None:
        ran = await start().run("import matplotlib.pyplot as plt\nplt.figure(figsize=(1, 1))\n1 / 0")
        assert (ran.status, len(ran.plots)) == ("error", 1)

    async def test_figure_that_cannot_be_drawn_is_noted(self, start: Start) -> None:
        ran = await start().run("import matplotlib.pyplot as plt\nplt.figure(figsize=(1e5, 1e5))\n1")
        assert (ran.status, ran.plots) == ("success", ())
        assert ran.note is not None
        assert ran.note.startswith("a figure could not be drawn: ")

    async def test_image_result_is_returned(self, start: Start) -> None:
        ran = await start().run("from PIL import Image\nImage.new('RGB', (3, 3))")
        assert len(ran.plots) == 1
        assert ran.result is not None
        assert ran.result.startswith("<PIL.Image.Image")


class TestTime:
    """Code that does not end, and callers that cancel."""

    @pytest.mark.parametrize(
        "code",
        [
            "import time\ntime.sleep(60)",
            "class R:\n    def __repr__(self):\n        while True: self.x = 1\nR()",
            "import asyncio\nawait asyncio.sleep(60)",
            "class E(Exception):\n    def __str__(self):\n        while True: self.x = 1\nraise E",
        ],
    )
    async def test_other_long_running_code_is_interrupted(self, start: Start, code: str) -> None:
        process = start(timeout=0.5)
        ran = await process.run(code)
        assert (ran.status, ran.restarted) == ("timeout", False)
        again = await process.run("1")
        assert (again.result, again.restarted) == ("1", False)

    async def test_code_that_handles_the_interrupt_still_timed_out(self, start: Start) -> None:
        ran = await start(timeout=0.3).run(
            "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('tidy')\n'done'"
        )
        assert (ran.status, ran.result, ran.stdout) == ("timeout", "'done'", "tidy\n")

    async def test_cancelling_interrupts_the_code(self, start: Start) -> None:
        process = start()
        await process.run("x = 1")
        task = asyncio.ensure_future(process.run("x = 2\nopen('begun', 'w').close()\nwhile True: pass"))
        await self._wait_until_begun(process)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not process.busy
        ran = await process.run("x")
        assert (ran.result, ran.restarted) == ("2", False)

    async def test_cancelling_kills_code_that_ignores_the_interrupt(self, start: Start) -> None:
        process = start(grace=0.4)
        await process.run("1")
        pid = process.pid
        assert pid is not None
        task = asyncio.ensure_future(process.run(STUBBORN))
        await self._wait_until_begun(process)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert has_ended(pid)
        assert (await process.run("1")).restarted

    async def test_cancelling_twice_continues_ending_in_the_background(self, start: Start) -> None:
        process = start(grace=0.6)
        await process.run("1")
        task = asyncio.ensure_future(process.run(STUBBORN))
        await self._wait_until_begun(process)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert process.busy
        ran = await process.run("2")
        assert (ran.result, ran.restarted) == ("2", True)

    async def test_call_cancelled_before_it_began_runs_nothing(self, start: Start, tmp_path: Path) -> None:
        process = start()
        task = asyncio.ensure_future(process.run("open('ran', 'w').close()"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await process.run("1")).result == "1"
        assert not (tmp_path / "work" / "ran").exists()

    async def test_calls_run_one_after_the_other(self, start: Start) -> None:
        process = start()
        code = "order = globals().setdefault('order', [])\nimport time\norder.append({0})\ntime.sleep(0)\norder.append({0})"
        await asyncio.gather(*(process.run(code.format(n)) for n in range(5)))
        assert (await process.run("order")).result == str([n for n in range(5) for _ in range(2)])

    async def test_waiting_call_can_be_cancelled(self, start: Start) -> None:
        process = start()
        waiting = (
            "import os, time\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.001)\n'first'"
        )
        first = asyncio.ensure_future(process.run(waiting))
        await self._wait_until_begun(process)
        second = asyncio.ensure_future(process.run("'second'"))
        await asyncio.sleep(0)
        second.cancel()
        (process._folder / "go").touch()
        assert (await first).result == "'first'"
        await asyncio.wait({second})
        assert second.cancelled()

    @staticmethod
    async def _wait_until_begun(process: PythonProcess) -> None:
        folder = process._folder
        await until((folder / "begun").exists)
