"""The tool `python` behind a real server with real processes: state, files, misuse, and cleanup."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.testing import Reply, ScriptedUpstream
from holdfast.tools.python.calls import ProcessLimits
from holdfast.tools.python.folders import PREFIX
from holdfast.tools.python.process import detect_sandbox
from holdfast.tools.python.tool import FRESH
from tests.clocks import Clock
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Process, Served, config_text, gateway
from tests.service.fake_python import list_files
from tests.waits import until

pytestmark = pytest.mark.skipif(bool(detect_sandbox().missing), reason=f"no sandbox here: {detect_sandbox().missing}")
DONE = "All done."
OUTSIDE = Path(tempfile.gettempdir()) / "python-was-here"


def model(body: dict[str, Any]) -> Reply | str:
    """Call the tool with the codes that the user's message lists as JSON, all in one message; then end."""
    last = body["messages"][-1]
    if last["role"] != "user":
        return DONE
    return Reply(tool_calls=[("python", {"code": code}) for code in json.loads(last["content"])])


@asynccontextmanager
async def python_gateway(folder: Path, *more: str, **options: Any) -> AsyncIterator[Served]:
    """Run a gateway with the tool; `more` adds keys of its section."""
    section = ", ".join(["enabled: true", *more])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        async with gateway(model, f"python: {{{section}}}", *options.pop("lines", ()), **options) as (served, _):
            yield served


async def run(
    served: Served, *codes: str, session_id: str = "s", headers: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Run one turn whose model calls the tool with each of `codes`; return the results."""
    answer = await served.chat(json.dumps(codes), session_id=session_id, headers=headers or {})
    assert (answer["status"], answer["choices"][0]["message"]["content"]) == (200, DONE), answer
    found = await read_results(served.http, session_id, headers)
    assert len(found) >= len(codes)
    return found[-len(codes) :]


async def read_results(
    http: httpx2.AsyncClient, session_id: str = "s", headers: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return the tool results in a session, in the order of the log."""
    page = (await http.get(f"/v1/sessions/{session_id}/messages?limit=1000", headers=headers)).json()
    return [json.loads(one["content"]) for one in page["data"] if one["role"] == "tool"]


def pids(served: Served) -> dict[str, int]:
    """Return the live processes by session."""
    assert served.hf.tool_registry.kernels is not None
    found: dict[str, Any] = {key[2]: kernel._place for key, kernel in served.hf.tool_registry.kernels._kernels.items()}
    return {name: place[1].pid for name, place in found.items() if place and place[1].pid is not None}


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def wait_until_dead(*pids: int) -> None:
    """Wait until all processes have ended."""
    await until(lambda: not any(is_alive(pid) for pid in pids))


def find_folders(base: Path) -> list[Path]:
    """Return the work folders of all servers below `base`."""
    return [path for root in base.glob(PREFIX + "*") if root.is_dir() for path in root.iterdir()]


# -- basic use -----------------------------------------------------------------


async def test_state_persists_over_calls_and_turns(tmp_path: Path) -> None:
    """Variables, functions and imports stay; the last expression and the output are returned."""
    async with python_gateway(tmp_path) as served:
        first = await run(served, "import math\ndef area(r): return math.pi * r * r", "x = area(2)\nprint('so'); x")
        assert first[0]["status"] == "success"
        assert (first[1]["result"], first[1]["stdout"]) == ("12.566370614359172", "so\n")
        (second,) = await run(served, "round(x + _, 3)")
        assert {key: second[key] for key in ("status", "result")} == {"status": "success", "result": "25.133"}
        assert "note" not in second


async def test_exception_is_a_result(tmp_path: Path) -> None:
    """With the traceback of the code; earlier variables stay."""
    async with python_gateway(tmp_path) as served:
        found, after = await run(served, "x = 5\ndef f(): return 1 / 0\nf()", "x")
        assert found["status"] == "error"
        assert found["exception"].rstrip().endswith("ZeroDivisionError: division by zero")
        assert "in f" in found["exception"]
        assert "holdfast" not in found["exception"]
        assert after["result"] == "5"


async def test_files_and_plots_are_artifacts_over_rest(tmp_path: Path) -> None:
    """With type and content; a figure is closed after it was saved."""
    pytest.importorskip("matplotlib")
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nopen('data.csv', 'w').write('a,b')"
    async with python_gateway(tmp_path) as served:
        first, second, third = await run(
            served, plot, "len(plt.get_fignums())", "plt.plot([3]); open('data.csv', 'a').write('c')"
        )
        assert first["files"] == [{"name": "data.csv", "bytes": 3, "version": 0}]
        assert [(one["artifact"], one["version"]) for one in first["plots"]] == [("plot-1.png", 0)]
        assert second["result"] == "0"
        assert third["plots"][0]["artifact"] == "plot-2.png"
        assert third["files"] == [{"name": "data.csv", "bytes": 4, "version": 1}]
        image = await served.http.get("/v1/sessions/s/artifacts/plot-1.png")
        assert (image.status_code, image.headers["content-type"]) == (200, "image/png")
        assert image.content.startswith(b"\x89PNG")
        assert len(image.content) == first["plots"][0]["bytes"]
        data = await served.http.get("/v1/sessions/s/artifacts/data.csv")
        assert (data.text, data.headers["content-type"].partition(";")[0]) == ("a,bc", "text/csv")
        artifacts = (await served.http.get("/v1/sessions/s/artifacts")).json()["data"]
        assert {one["name"]: one["author"] for one in artifacts} == dict.fromkeys(
            ("data.csv", "plot-1.png", "plot-2.png"), "python"
        )


async def test_numpy_fits_in_the_default_memory(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    async with python_gateway(tmp_path) as served:
        (found,) = await run(served, "import numpy as np\nint(np.arange(1_000_000).sum())")
        assert found["result"] == "499999500000"


# -- misuse --------------------------------------------------------------------

QUICK = ("timeout: 500ms",)


async def test_endless_loop_is_interrupted(tmp_path: Path) -> None:
    """The model gets a timeout result; variables stay."""
    async with python_gateway(tmp_path, *QUICK) as served:
        found, after = await run(served, "x = 7\nwhile True: pass", "x")
        assert found["status"] == "timeout"
        assert "0.5 s" in found["note"]
        assert after["result"] == "7"


async def test_stubborn_loop_is_killed(tmp_path: Path) -> None:
    """A fresh process replaces it, and the model is informed."""
    stubborn = "import time\nx = 7\nwhile True:\n  try:\n    time.sleep(1)\n  except BaseException: pass"
    async with python_gateway(tmp_path, *QUICK) as served:
        found, after = await run(served, stubborn, "'x' in globals()")
        assert found["status"] == "killed"
        assert after["result"] == "False"
        assert "fresh process" in after["note"]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("x = bytearray(1 << 31)", "error"),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", "error"),
        ("import os; os._exit(3)", "killed"),
        ("import ctypes; ctypes.string_at(0)", "killed"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("import os; os.fork()", "error"),
        ("import subprocess; subprocess.run(['ls'])", "error"),
        ("import os\nwhile True: os.fork()", "error"),
        ("import os; os.system('ls')", "success"),
        ("open('/etc/passwd').read()", "error"),
        ("open('/etc/shadow').read()", "error"),
        ("import os; open(f'/proc/{os.getppid()}/environ').read()", "error"),
        (f"open('{OUTSIDE}', 'w')", "error"),
        ("import socket; socket.socket()", "error"),
        ("import urllib.request; urllib.request.urlopen('http://127.0.0.1:1/')", "error"),
        ("input()", "error"),
        ("raise SystemExit(3)", "error"),
        ("def f(:", "error"),
    ],
)
async def test_misuse_is_contained(tmp_path: Path, code: str, status: str) -> None:
    """Each is a result, the turn continues, and the next call works."""
    async with python_gateway(tmp_path, "memory: 512MiB") as served:
        found, after = await run(served, code, "1 + 1")
        assert found["status"] == status, found
        if status == "error":
            assert found["exception"]
        if status == "killed":
            assert "process" in found["note"]
        assert (after["status"], after["result"]) == ("success", "2")
        assert not OUTSIDE.exists()
        assert "root:" not in json.dumps(found)


async def test_flood_of_output_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The beginning and the end are kept, with the size of the omitted part."""
    monkeypatch.setattr("holdfast.tools.python.kernels.ProcessLimits", partial(ProcessLimits, max_output=4096))
    async with python_gateway(tmp_path) as served:
        found, one_line = await run(served, "for at in range(200_000): print(at)", "print('x' * 50_000_000)")
        for result, size in ((found, 1_288_890), (one_line, 50_000_001)):
            assert result["status"] == "success"
            assert len(result["stdout"]) < 5000
            assert f"{size:,}" in result["stdout"] or str(size) in result["stdout"]
        assert found["stdout"].startswith("0\n1\n")
        assert found["stdout"].endswith("199999\n")


async def test_servers_environment_and_files_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Including its open files."""
    monkeypatch.setenv("CANARY_KEY", "sk-canary-0123456789")
    database = tmp_path / "secret.db"
    look = f"import os\n(dict(os.environ), os.path.exists({str(database)!r}), sorted(os.listdir('.')))"
    async with python_gateway(tmp_path / "work", store=f"sqlite:///{database}") as served:
        found, read = await run(served, look, f"open({str(database)!r}, 'rb').read()")
        assert "canary" not in json.dumps(found).lower()
        assert read["status"] == "error"
        assert "PermissionError" in read["exception"]


async def test_links_are_not_saved(tmp_path: Path) -> None:
    """Only regular files of the folder are."""
    links = "import os\nos.symlink('/etc/passwd', 'link')\nos.makedirs('d')\nos.symlink('/etc', 'd/e')\nos.link('link', 'other')"
    async with python_gateway(tmp_path) as served:
        *_, found = await run(served, links, "os.mkfifo('pipe')", "open('ok', 'w').write('x')")
        assert [one["name"] for one in found["files"]] == ["ok"]
        artifacts = (await served.http.get("/v1/sessions/s/artifacts")).json()["data"]
        assert [one["name"] for one in artifacts] == ["ok"]


# -- isolation -----------------------------------------------------------------


LOOK = "'secret' in globals(), [name for name in __import__('os').listdir('.') if name[0] != '.']"


async def test_sessions_are_isolated_from_each_other(tmp_path: Path) -> None:
    """Variables, files, and even the existence of other sessions."""
    async with python_gateway(tmp_path) as served:
        await run(served, "secret = 42\nopen('secret.txt', 'w').write('x')\nimport os; os.getcwd()")
        where = (await read_results(served.http))[-1]
        (other,) = await run(served, LOOK, session_id="other")
        assert other["result"] == "(False, [])"
        theirs = next(folder for folder in find_folders(tmp_path) if (folder / "secret.txt").exists())
        assert str(theirs) in where["result"]
        peek, listing = await run(
            served,
            f"open('{theirs}/secret.txt').read()",
            f"__import__('os').listdir('{theirs.parent}')",
            session_id="other",
        )
        assert "PermissionError" in peek["exception"]
        assert "PermissionError" in listing["exception"]


async def test_tenants_are_isolated_from_each_other(tmp_path: Path) -> None:
    """Sessions of one id, each in its own process."""
    async with python_gateway(tmp_path, clock=Clock()) as served:
        mine = bearer(await create_stored_key(served.hf, name="one", role="write"))
        theirs = bearer(await create_stored_key(served.hf, name="two", role="write", tenant="other"))
        await run(served, "secret = 42; open('a.txt', 'w').write('x')", headers=mine)
        (found,) = await run(served, LOOK, headers=theirs)
        assert found["result"] == "(False, [])"
        assert len(find_folders(tmp_path)) == 2
        artifacts = await served.http.get("/v1/sessions/s/artifacts", headers=theirs)
        assert artifacts.json()["data"] == []


async def test_sessions_run_in_parallel(tmp_path: Path) -> None:
    """Two calls wait for a file that only a third call creates: one after the other they would never end."""
    wait = "import time, os\nwhile not os.path.exists('go'): time.sleep(0.005)\n'went'"
    async with python_gateway(tmp_path, "timeout: 20s") as served:
        for name in ("a", "b"):
            await run(served, "0", session_id=name)
        tasks = [asyncio.create_task(run(served, wait, session_id=name)) for name in ("a", "b")]
        (third,) = await run(served, "3", session_id="c")
        assert third["result"] == "3"
        for folder in find_folders(tmp_path):
            (folder / "go").touch()
        assert [(await task)[0]["result"] for task in tasks] == ["'went'"] * 2


# -- cleanup -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "delete", "expiry", "import", "idle"])
async def test_process_ends_with_its_session(tmp_path: Path, how: str) -> None:
    """Its folder is deleted, and a recreated session has a fresh one."""
    clock = Clock()
    lines = ["short_term: {session_ttl: 2h}"]
    async with python_gateway(tmp_path, lines=lines, store=f"sqlite:///{tmp_path}/s.db", clock=clock) as served:
        await run(served, "x = 1")
        pid = pids(served)["s"]
        assert is_alive(pid)
        if how == "close":
            assert (await served.http.post("/v1/sessions/s/close")).status_code == 200
        elif how == "delete":
            assert (await served.http.delete("/v1/sessions/s")).status_code == 200
        elif how == "import":
            export = (await served.http.get("/v1/sessions/s")).json()
            export["messages"][0]["content"] = "[]"
            assert (await served.http.put("/v1/sessions/s", json=export)).status_code in (200, 201)
        elif how == "idle":
            clock.now += 3_600_000
            assert served.hf.tool_registry.kernels is not None
            await served.hf.tool_registry.kernels.sweep()
        else:
            clock.now += 7_200_000
            await served.hf.sweep()
        await wait_until_dead(pid)
        assert served.hf.tool_registry.kernels is not None
        await served.hf.tool_registry.kernels.wait_until_ended()
        assert find_folders(tmp_path) == []
        (after,) = await run(served, "'x' in globals()")
        assert after["result"] == "False"
        assert after.get("note") == (None if how == "delete" else FRESH)


async def test_exports_do_not_contain_the_process(tmp_path: Path) -> None:
    """Imported elsewhere, the session starts a fresh process, and the model is informed."""
    async with python_gateway(tmp_path / "one") as one, python_gateway(tmp_path / "two") as two:
        await run(one, "x = 1")
        export = (await one.http.get("/v1/sessions/s")).json()
        assert (await two.http.put("/v1/sessions/s", json=export)).status_code in (200, 201)
        (found,) = await run(two, "'x' in globals()")
        assert (found["result"], found["note"]) == ("False", FRESH)


async def test_longest_idle_process_is_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are never more than the limit."""
    monkeypatch.setattr("holdfast.tools.python.kernels.MAX_PROCESSES", 2)
    clock = Clock()
    async with python_gateway(tmp_path, clock=clock) as served:
        for name in ("a", "b", "a", "c"):
            clock.now += 1000
            await run(served, f"x = '{name}'", session_id=name)
        assert sorted(pids(served)) == ["a", "c"]
        assert len(find_folders(tmp_path)) == 2
        clock.now += 1000
        (found,) = await run(served, "'x' in globals()", session_id="b")
        assert (found["result"], found["note"]) == ("False", FRESH)
        assert len(find_folders(tmp_path)) == 2


async def test_disconnected_client_interrupts_the_code(tmp_path: Path) -> None:
    """The call gets a result that says so, and the process keeps its state."""
    loop = "x = 1\nopen('began', 'w').close()\nwhile True: pass"
    async with python_gateway(tmp_path, "timeout: 60s") as served:
        task = asyncio.create_task(served.chat(json.dumps([loop])))
        await until(lambda: any((folder / "began").exists() for folder in find_folders(tmp_path)))
        pid = pids(served)["s"]
        task.cancel()
        await asyncio.wait([task])
        queues = served.hf.engine.locks
        await until(lambda: queues.is_empty)
        assert "cancelled" in (await read_results(served.http))[0]["error"]
        (found,) = await run(served, "x")
        assert (found["result"], pids(served)["s"]) == ("1", pid)


# -- end of the server -----------------------------------------------------------


def children(pid: int) -> list[int]:
    """Return the live child processes of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


async def ask(url: str, *codes: str) -> list[dict[str, Any]]:
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
        body = {"messages": [{"role": "user", "content": json.dumps(codes)}], "session_id": "s"}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        return await read_results(http)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_killed_server_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its processes end by themselves, its folders are deleted at the next start; a clean shutdown leaves nothing."""
    async with ScriptedUpstream(model) as upstream:
        config = tmp_path / "holdfast.yaml"
        work = tmp_path / "work"
        work.mkdir()
        config.write_text(config_text(upstream.url, "python: {enabled: true}"), encoding="utf-8")
        store = f"sqlite:///{tmp_path}/s.db"
        with Process(store, config=config, env={"TMPDIR": str(work)}) as server:
            assert (await ask(server.url, "open('a.txt', 'w').write('x'); x = 1"))[-1]["status"] == "success"
            (pid,) = children(server.process.pid)
            server.kill()
            await wait_until_dead(pid)
        assert len(find_folders(work)) == 1
        with Process(store, config=config, env={"TMPDIR": str(work)}) as server:
            assert find_folders(work) == []
            found = (await ask(server.url, "'x' in globals(), open('a.txt').read()"))[-1]
            assert found["result"] == "(False, 'x')"
            assert found["note"].startswith(FRESH)
            (pid,) = children(server.process.pid)
            assert server.stop(signal.SIGTERM) == 0
            await wait_until_dead(pid)
        assert list_files(work) == []
