"""The sandbox of the Python process: every known way out, tried by hostile code."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uvloop

from holdfast.errors import PythonUnavailable
from holdfast.tools.python import process as process_module
from holdfast.tools.python import seccomp
from holdfast.tools.python.calls import ProcessLimits
from holdfast.tools.python.process import PythonProcess, Sandbox, detect_sandbox
from tests.service.python_kit import Start, _start, is_there, sandboxed

__all__ = ["_start"]
HERE = 0 if os.uname().machine == "x86_64" else 1
TRY = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what):
    try:
        return what()
    except Exception as exc:
        return type(exc).__name__ + (' ' + str(exc.errno) if isinstance(exc, OSError) else '')
def call(number, *args):
    found = libc.syscall(*(ctypes.c_long(one) for one in (number, *args)))
    return found if found >= 0 else -ctypes.get_errno()
"""
DENIED = {"'PermissionError 1'", "'PermissionError 13'"}


async def run_attempt(start: Start, code: str, **limits: Any) -> str:
    """Run an attempt and return its result as `repr`."""
    ran = await start(**limits).run(f"{TRY}\n{code}")
    assert ran.status == "success", ran
    assert ran.result is not None
    return ran.result


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def read_kernel_status(pid: int | None) -> tuple[dict[str, str], list[str]]:
    """Return the status and the limits that the kernel reports for a process."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in status if ":\t" in line), limits


@sandboxed
class TestReading:
    """Reading files of others."""

    @pytest.mark.parametrize(
        "path",
        [
            "/etc/passwd",
            "/etc/shadow",
            "/etc/hosts",
            "/proc/1/environ",
            "/proc/self/environ",
            "/proc/self/maps",
            "/proc/self/mem",
            "/proc/self/root/etc/passwd",
            "/proc/{parent}/environ",
            "/proc/{parent}/cmdline",
            "/proc/{parent}/maps",
            "/proc/{parent}/mem",
            "/proc/{parent}/fd/0",
            "/proc/{parent}/cwd/pyproject.toml",
            "/dev/mem",
            "/dev/kmsg",
            "/dev/tty",
            "{home}/.bashrc",
            "{test}",
            "../holdfast.db",
            "../other/file",
        ],
    )
    async def test_cannot_be_read(self, start: Start, tmp_path: Path, path: str) -> None:
        (tmp_path / "holdfast.db").write_text("the server's own")
        other = start("other")
        await other.run("open('file', 'w').write('secret')")
        path = path.format(parent=os.getpid(), home=Path.home(), test=__file__)
        found = await run_attempt(start, f"attempt(lambda: open({path!r}, 'rb').read())")
        assert found in DENIED | {"'FileNotFoundError 2'", "'OSError 6'"}
        if os.path.exists(path):  # noqa: ASYNC240, PTH110 - short
            assert found in DENIED | {"'OSError 6'"}

    @pytest.mark.parametrize(
        "path", ["/", "..", "/etc", "/home", "/root", "/tmp", "/proc", "/usr", "/var", "/dev", "../other"]
    )
    async def test_other_folders_cannot_be_listed(self, start: Start, tmp_path: Path, path: str) -> None:
        (tmp_path / "other").mkdir()
        assert await run_attempt(start, f"attempt(lambda: os.listdir({path!r}))") in DENIED

    async def test_links_do_not_help(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("x")
        code = (
            "os.symlink('../secret', 's')\nos.symlink('..', 'd')\n"
            "[attempt(lambda: open('s').read()), attempt(lambda: open('d/secret').read()), attempt(lambda: os.link('../secret', 'l'))]"
        )
        assert await run_attempt(start, code) == "['PermissionError 13', 'PermissionError 13', 'OSError 18']"

    async def test_environment_has_nothing_of_the_servers(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
        monkeypatch.setenv("PYTHONPATH", "/canary")
        monkeypatch.setenv("PYTHONSTARTUP", "/canary")
        found = await run_attempt(
            start, "[sorted(os.environ), 'canary' in str(dict(os.environ)) + str(sys.path) + str(sys.argv)]"
        )
        assert found.endswith("False]")
        assert "KEY" not in found

    @pytest.mark.parametrize(
        ("theirs", "its"), [(":/opt/lib", "/opt/lib"), ("lib:/opt/lib:.", "/opt/lib"), (":", None)]
    )
    async def test_libraries_are_never_loaded_from_the_folder(
        self, start: Start, monkeypatch: pytest.MonkeyPatch, theirs: str, its: str | None
    ) -> None:
        monkeypatch.setenv("LD_LIBRARY_PATH", theirs)
        assert await run_attempt(start, "str(os.environ.get('LD_LIBRARY_PATH'))") == repr(str(its))

    async def test_open_files_are_not_inherited(self, start: Start, tmp_path: Path) -> None:
        with (tmp_path / "secret").open("w") as file:
            os.set_inheritable(file.fileno(), True)
            high = fcntl.fcntl(file.fileno(), fcntl.F_DUPFD, 90)
            os.set_inheritable(high, True)
            try:
                assert await run_attempt(start, OPEN) == "[0, 1, 2, 200, 201, 202, 203, 204]"
            finally:
                os.close(high)

    def test_open_files_are_not_inherited_under_uvloop(self, tmp_path: Path) -> None:
        async def work() -> str | None:
            process = PythonProcess(tmp_path / "w", ProcessLimits())
            try:
                return (await process.run(OPEN)).result
            finally:
                await process.close()

        with (tmp_path / "secret").open("w") as file, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            os.set_inheritable(file.fileno(), True)
            assert runner.run(work()) == "[0, 1, 2, 200, 201, 202, 203, 204]"

    async def test_files_next_to_the_library_of_a_virtual_environment_are_hidden(
        self, start: Start, tmp_path: Path
    ) -> None:
        made = tmp_path / "project"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True, timeout=60)  # noqa: ASYNC221 - short
        (made / ".env").write_text("KEY=1")
        process = start(interpreter=str(made / "bin" / "python"))
        ran = await process.run(f"{TRY}\nimport json\n[sys.prefix, attempt(lambda: open(sys.prefix + '/.env').read())]")
        assert ran.result == f"[{str(made)!r}, 'PermissionError 13']"


OPEN = """
import os
def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
[fd for fd in range(256) if is_open(fd)]
"""


@sandboxed
class TestWriting:
    """Writing files of others, and of the system."""

    @pytest.mark.parametrize(
        "attempt",
        [
            "open('../new', 'w')",
            "open('../theirs', 'a')",
            "open('../theirs', 'r+')",
            "os.open('../theirs', os.O_RDONLY | os.O_TRUNC)",
            "os.truncate('../theirs', 0)",
            "os.mkdir('../new')",
            "os.remove('../theirs')",
            "os.rename('../theirs', 'mine')",
            "os.rename('mine', '../new')",
            "os.replace('mine', '../theirs')",
            "os.symlink('x', '../new')",
            "os.link('mine', '../new')",
            "os.mkfifo('../new')",
            "os.mkfifo('fifo')",
            "os.mknod('device', 0o600 | 0o20000, os.makedev(1, 1))",
            "os.rmdir(os.environ['HOME'])",
            "os.rename(os.environ['HOME'], '../moved')",
            "os.setxattr('../theirs', 'user.x', b'1')",
            "open('/tmp/holdfast-canary', 'w')",
            "open('/dev/shm/holdfast-canary', 'w')",
            "open('/usr/lib/holdfast-canary', 'w')",
            "open('/proc/self/oom_score_adj', 'w')",
            "open('/proc/{parent}/oom_score_adj', 'w')",
            "open(os.__file__, 'a')",
        ],
    )
    async def test_cannot_be_changed(self, start: Start, tmp_path: Path, attempt: str) -> None:
        (tmp_path / "theirs").write_text("theirs")
        attempt = attempt.format(parent=os.getpid())
        found = await run_attempt(start, f"open('mine', 'w').close()\nattempt(lambda: {attempt})")
        assert found in DENIED | {"'OSError 18'", "'OSError 95'", "'OSError 16'"}
        assert (tmp_path / "theirs").read_text() == "theirs"
        assert sorted(names(tmp_path)) == ["theirs", "work"]

    async def test_modes_and_times_of_other_files_cannot_be_changed(self, start: Start, tmp_path: Path) -> None:
        theirs = tmp_path / "theirs"
        theirs.write_text("theirs")
        before = theirs.stat()
        await run_attempt(
            start,
            "os.chmod('../theirs', 0)\nos.utime('../theirs', (1, 1))\nos.chown('../theirs', 1, 1)\nos.chmod(os.__file__, 0)\n1",
        )
        after = theirs.stat()
        assert (after.st_mode, after.st_uid, after.st_mtime_ns) == (before.st_mode, before.st_uid, before.st_mtime_ns)

    async def test_attributes_of_other_files_cannot_be_changed(self, start: Start) -> None:
        """Of a file opened for reading: FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_ENABLE_VERITY."""
        code = "import fcntl\nfile = os.open(os.__file__, os.O_RDONLY)\n"
        numbers = "(0x40086602, 0x401c5820, 0x40806685)"
        found = await run_attempt(
            start, f"{code}[attempt(lambda: fcntl.ioctl(file, n, bytes(128))) for n in {numbers}]"
        )
        assert found == str(["PermissionError 1"] * 3)

    @pytest.mark.parametrize("flags", ["os.O_NONBLOCK", "os.O_DIRECT | os.O_NONBLOCK", "os.O_ASYNC"])
    async def test_changing_the_flags_of_all_descriptors_breaks_nothing(self, start: Start, flags: str) -> None:
        """The descriptors for calls and answers are set to block again."""
        process = start()
        ran = await process.run(
            f"kept, large = 5, 'x' * 300_000\nimport fcntl, os\nfor n in range(256):\n    try: fcntl.fcntl(n, fcntl.F_SETFL, {flags})\n    except OSError: pass\nlarge"
        )
        assert ran.status == "success", ran.note
        ran = await process.run("kept")
        assert (ran.status, ran.result, ran.restarted) == ("success", "5", False)

    async def test_server_reads_output_with_its_own_flags(self, start: Start) -> None:
        process = start()
        ran = await process.run(
            "import fcntl, os\nfor n in range(256):\n    try: fcntl.fcntl(n, fcntl.F_SETFL, os.O_DIRECT | os.O_NONBLOCK)\n    except OSError: pass"
        )
        assert ran.status == "success", ran.note
        assert process._worker is not None
        for output in process._worker._outputs:
            assert not fcntl.fcntl(output, fcntl.F_GETFL) & (os.O_DIRECT | os.O_NONBLOCK)

    async def test_folder_is_kept_when_the_code_removes_everything(self, start: Start, tmp_path: Path) -> None:
        process = start()
        await process.run(
            "import shutil, os\nopen('x', 'w').close()\nshutil.rmtree(os.environ['HOME'], ignore_errors=True)"
        )
        assert (tmp_path / "work").is_dir()
        assert (await process.run("open('y', 'w').close()")).files == ("y",)


@sandboxed
class TestNetwork:
    """No network access."""

    async def test_local_server_cannot_be_reached(self, start: Start) -> None:
        reached = []
        server = await asyncio.start_server(lambda reader, writer: reached.append(writer), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        code = (
            f"import urllib.request\n[attempt(lambda: socket.create_connection(('127.0.0.1', {port}), 2)), "
            f"attempt(lambda: urllib.request.urlopen('http://127.0.0.1:{port}', timeout=2))]"
        )
        assert await run_attempt(start, code) == "['PermissionError 1', 'URLError None']"
        server.close()
        await server.wait_closed()
        assert reached == []

    @pytest.mark.parametrize(
        "attempt",
        [
            "socket.socket()",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "socket.socket(socket.AF_INET6)",
            "socket.socket(socket.AF_UNIX)",
            "socket.socket(16, socket.SOCK_RAW)",
            "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
            "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
            "socket.socketpair()[0].connect('\\0abstract')",
            "socket.socketpair()[0].bind('mine')",
            "socket.socketpair()[0].listen()",
        ],
    )
    async def test_sockets_cannot_be_created(self, start: Start, attempt: str) -> None:
        assert await run_attempt(start, f"attempt(lambda: {attempt})") == "'PermissionError 1'"


@sandboxed
class TestProcesses:
    """No new processes, and no access to others."""

    @pytest.mark.parametrize(
        "attempt",
        [
            "os.fork()",
            "os.forkpty()",
            "os.posix_spawn('/bin/true', ['true'], {{}})",
            "__import__('subprocess').run(['true'])",
            "__import__('multiprocessing').get_context('fork').Process(target=print).start()",
            "__import__('multiprocessing').get_context('spawn').Process(target=print).start()",
            "os.execv('/bin/true', ['true'])",
            "os.execv(sys.executable, ['python'])",
            "os.kill(os.getppid(), 0)",
            "os.kill(-1, 0)",
            "os.kill(0, 0)",
            "os.killpg({group}, 0)",
            "os.pidfd_open(os.getppid())",
            "__import__('resource').prlimit(os.getppid(), 7, (3, 3))",
            "os.sched_setaffinity(os.getppid(), {{0}})",
            "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
            "os.setuid(1)",
            "os.setgid(1)",
            "__import__('fcntl').fcntl(1, 8, os.getppid())",
        ],
    )
    async def test_cannot_be_had(self, start: Start, attempt: str) -> None:
        assert await run_attempt(start, f"attempt(lambda: {attempt.format(group=os.getpgrp())})") in DENIED

    async def test_fork_bomb_raises_an_error(self, start: Start) -> None:
        ran = await start().run("import os\nwhile True: os.fork()")
        assert ran.exception is not None
        assert ran.exception.endswith("PermissionError: [Errno 1] Operation not permitted")

    async def test_shell_cannot_be_started(self, start: Start) -> None:
        found = await run_attempt(start, "os.system('touch made')")
        assert found != "0"
        assert await run_attempt(start, "os.listdir('.')") == "['.tmp']"

    async def test_process_may_signal_itself(self, start: Start) -> None:
        assert (
            await run_attempt(
                start,
                "import signal\nhit = []\nsignal.signal(12, lambda *_: hit.append(1))\nos.kill(os.getpid(), 12)\nhit",
            )
            == "[1]"
        )

    async def test_parent_cannot_be_killed(self, start: Start) -> None:
        await run_attempt(start, "import signal\n[attempt(lambda: os.kill(os.getppid(), n)) for n in (9, 15, 19)]")
        assert is_there(os.getpid())

    async def test_denied_system_calls_are_refused(self, start: Start) -> None:
        numbers = {name: both[HERE] for name, both in seccomp.DENIED.items() if both[HERE] >= 0}
        code = f"{{name: call(number, 0, 0, 0, 0, 0, 0) for name, number in {numbers}.items()}}"
        assert eval(await run_attempt(start, code)) == dict.fromkeys(numbers, -errno.EPERM)

    @pytest.mark.parametrize(
        ("call", "answer"),
        [
            ("call(435, 0, 0)", -errno.ENOSYS),
            ("call(437, 0, 0, 0, 0)", -errno.ENOSYS),
            ("call(452)", -errno.ENOSYS),
            ("call(9999)", -errno.ENOSYS),
            ("call(436, 1000, 1000, 2)", -errno.EPERM),
            ("call(436, 1000, 1000, 0)", 0),
            (f"call({seccomp.CLONE[HERE]}, 0x10b00, 0, 0, 0, 0)", -errno.EPERM),  # a thread with its own open files
            (f"call({seccomp.PRCTL[HERE]}, 4, 0, 0, 0, 0)", -errno.EPERM),
            (f"call({seccomp.NOTHING['sync'][HERE]})", 0),
            ("attempt(lambda: os.listxattr('/etc/shadow'))", f"'OSError {errno.EOPNOTSUPP}'"),
            ("attempt(lambda: os.getxattr(os.__file__, 'user.any'))", f"'OSError {errno.EOPNOTSUPP}'"),
            (f"call({seccomp.CLONE[HERE]}, 17, 0, 0, 0, 0)", -errno.EPERM),
            (f"call({seccomp.CLONE[HERE]}, 0x10000000, 0, 0, 0, 0)", -errno.EPERM),
            (f"call({seccomp.PRCTL[HERE]}, 1, 0)", -errno.EPERM),
            (f"call({seccomp.PRLIMIT[HERE]}, 0, 7, 1, 0)", -errno.EPERM),
            (f"call({seccomp.PRLIMIT[HERE]}, 0, 7, 1 << 40, 0)", -errno.EPERM),
            (f"call({seccomp.FCNTL[HERE]}, 1, 10, 9)", -errno.EPERM),
            (f"call({seccomp.IOCTL[HERE]}, 1, 0x8901, 0)", -errno.EPERM),
            (f"call({seccomp.OWN_SIGNALS['tgkill'][HERE]}, os.getppid(), os.getppid(), 0)", -errno.EPERM),
        ],
    )
    async def test_other_system_calls_are_refused_by_their_arguments(
        self, start: Start, call: str, answer: object
    ) -> None:
        assert await run_attempt(start, call) == str(answer)

    async def test_kernel_status_confirms_the_sandbox(self, start: Start) -> None:
        process = start(memory=700 << 20)
        await process.run("1")
        status, limits = read_kernel_status(process.pid)
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
        found = {line[:26].strip(): line[26:].split()[:2] for line in limits[1:]}
        assert found["Max address space"] == [str(700 << 20)] * 2
        assert found["Max core file size"] == ["0", "0"]
        assert found["Max open files"] == ["256", "256"]
        assert int(found["Max cpu time"][0]) < 1000


@sandboxed
class TestWhatWorks:
    """What legitimate code needs."""

    @pytest.mark.parametrize(
        "code",
        [
            "import sqlite3\nd = sqlite3.connect('x.db')\nd.execute('create table t (a)')\nd.commit()",
            "import shutil\nopen('a', 'w').write('1')\nshutil.copy('a', 'b')\nshutil.copy2('a', 'c')\nshutil.move('c', 'd')\nassert open('d').read() == '1'",
            "import zipfile\nz = zipfile.ZipFile('z.zip', 'w')\nz.writestr('in/a', '1')\nz.close()\nzipfile.ZipFile('z.zip').extractall('out')",
            "import tarfile\nopen('a', 'w').close()\nt = tarfile.open('t.tgz', 'w:gz')\nt.add('a')\nt.close()\ntarfile.open('t.tgz').extractall('o', filter='data')",
            "import tempfile\nwith tempfile.TemporaryDirectory() as d: open(d + '/x', 'w').close()",
            "import os\nwith open('f', 'r+' if os.path.exists('f') else 'w+') as f: f.write('abc'); f.truncate(1)\nos.truncate('f', 0)",
            "import concurrent.futures as c\nassert list(c.ThreadPoolExecutor(4).map(abs, [-1, 2])) == [1, 2]",
            "import asyncio\nassert await asyncio.gather(asyncio.to_thread(abs, -1), asyncio.sleep(0, 2)) == [1, 2]",
            "import datetime, time\ndatetime.datetime.now().astimezone()\ntime.tzset()",
            "import ssl, hashlib, uuid, secrets, random\nuuid.uuid4(), secrets.token_hex()\nhashlib.sha256(b'x').hexdigest()",
            "import decimal, fractions, statistics, csv, json, re, xml.etree.ElementTree, http.client, logging, unittest",
            "import numpy.random, numpy.linalg, numpy.fft\nnumpy.save('a.npy', numpy.linalg.inv(numpy.eye(3)))\nnumpy.load('a.npy', mmap_mode='r')",
            "import getpass\ngetpass.getuser()",
            "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').close()\nos.rename('a/b/c', 'c')",
            "import warnings, sys\nwarnings.warn('look')\nprint('x', flush=True)\nsys.stdout.flush()",
        ],
    )
    async def test_works(self, start: Start, code: str) -> None:
        ran = await start().run(code)
        assert (ran.status, ran.exception) == ("success", None)


class TestWhere:
    """Systems with and without sandbox support."""

    def test_available_features_are_detected(self) -> None:
        found = detect_sandbox()
        assert found.limits == (os.name == "posix")
        assert Sandbox(landlock=3, seccomp=True, limits=True).missing == ()

    def test_missing_features_are_named(self) -> None:
        said = Sandbox(limits=True).missing
        assert [line.partition(" (")[0] for line in said] == [
            "files outside the work folder can be read and written",
            "network and other processes can be reached",
        ]
        assert len(Sandbox().missing) == 3

    @pytest.mark.parametrize(
        "held", [Sandbox(limits=True), Sandbox(landlock=7, limits=True), Sandbox(seccomp=True, limits=True)]
    )
    async def test_process_does_not_start_if_a_feature_is_missing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, held: Sandbox
    ) -> None:
        monkeypatch.setattr(process_module, "detect_sandbox", lambda: held)
        with pytest.raises(
            PythonUnavailable, match=r"this system cannot sandbox Python: .*`python\.unsandboxed: true`"
        ):
            await PythonProcess(tmp_path / "w").run("1")
        assert not (tmp_path / "w").exists()
        process = PythonProcess(tmp_path / "w", unsandboxed=True)
        assert (await process.run("1")).result == "1"
        await process.close()

    @sandboxed
    async def test_process_reports_its_sandbox(self, start: Start) -> None:
        process = start()
        await process.run("1")
        assert process._worker is not None
        assert process._worker.sandbox == detect_sandbox()

    @pytest.mark.parametrize("machine", [0, 1])
    def test_system_call_numbers_are_unique(self, machine: int) -> None:
        groups = (seccomp.DENIED, seccomp.UNKNOWN, seccomp.NOTHING, seccomp.UNSUPPORTED, seccomp.OWN_SIGNALS)
        numbers = [both[machine] for group in groups for both in group.values() if both[machine] >= 0]
        numbers += [both[machine] for both in (seccomp.CLONE, seccomp.SOCKETPAIR, seccomp.PRLIMIT, seccomp.FCNTL)]
        numbers += [both[machine] for both in (seccomp.IOCTL, seccomp.OPENAT, seccomp.PRCTL, seccomp.AFFINITY)]
        assert len(numbers) == len(set(numbers))
        assert len(seccomp.build_filter(("x86_64", "aarch64")[machine], 1)) < 8 * 4096
