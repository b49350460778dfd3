"""The Python process of the tool `python`: what it keeps, what it returns, how it is stopped, and its limits."""

from __future__ import annotations

import asyncio
import time

import pytest

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


class TestFolder:
    """Files that a call creates."""

    @pytest.mark.parametrize(
        "fill",
        [
            "i = 0\nwhile True:\n    i += 1\n    open(f'f{i % 50}', 'wb').write(bytes(1_000_000))",
            "for at in range(101): open(f'{at}', 'w').close()",
            "import os\nos.makedirs('d/' * 66)",
        ],
    )
    async def test_flood_of_files_is_stopped_while_it_runs(self, start: Start, fill: str) -> None:
        """The folder is emptied then, but not when a later process dies of something else."""
        process = start(max_folder=20_000_000, max_file=2_000_000, max_entries=100)
        began = time.monotonic()
        ran = await process.run(fill)
        assert (ran.status, ran.files) == ("killed", ())
        assert (ran.note or "").endswith("and was killed: its variables are gone, its folder was emptied")
        assert time.monotonic() - began < 10
        ran = await process.run("import os\nopen('keep', 'w').close()\nos._exit(3)")
        assert (ran.status, ran.files) == ("killed", ("keep",))
        assert (ran.note or "").endswith(
            "the process ended itself with exit code 3: its variables are gone, files in its folder are kept"
        )
        assert (await process.run("import os\nos.path.exists('keep')")).result == "True"


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

    @staticmethod
    async def _wait_until_begun(process: PythonProcess) -> None:
        folder = process._folder
        await until((folder / "begun").exists)
