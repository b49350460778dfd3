"""The slowest request of one tenant while another tenant attacks a real server.

`python -m benchmarks.fairness SOURCE [ATTACK…]` measures another version, whose `src` folder is SOURCE. It measures the named
attacks, or all of them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.attacks import ATTACKS
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table, format_count, format_duration
from benchmarks.timing import clock, report

AIM: Final = 0.3
PAUSE: Final = 0.02
"""Seconds between two requests of the measured tenant."""
LARGE: Final = 200_000
"""Bytes of the measured tenant's larger bodies: large enough to wait for room in the server's memory for bodies."""
_NOTES = (
    "One `holdfast serve` on SQLite with two tenants. One attacks; the other lists sessions and stores bodies of 200 KB, one at a time.",
    f"Attacks run in a separate process. The aim is a slowest request of at most {AIM:g} s. The first row is this machine without an attack.",
)


async def measure(run: Run) -> list[Table]:
    """Measure each attack on a new server with an empty store."""
    rows = await _measure_attacks(run.folder, seconds=4.0 if run.quick else 12.0, source=None)
    delete_files(run.folder, "fairness*")
    return [Table("fairness", "Another tenant's slowest request during an attack", _COLUMNS, rows, _NOTES)]


_COLUMNS = [
    Column("what", ""),
    Column("small", "slowest GET", format_duration),
    Column("median", "median GET", format_duration),
    Column("large", "slowest 200 KB POST", format_duration),
    Column("peak", "peak MiB of the server", format_count),
    Column("requests", "requests", format_count),
    Column("failed", "failed", format_count),
]


class Server:
    """A server with two tenants.

    Attributes:
        url: its address.
        pid: its process.
        attacker: the key of the attacking tenant.
        victim: request headers of the other tenant.
    """

    def __init__(self, url: str, pid: int, attacker: str, victim: str) -> None:
        self.url = url
        self.pid = pid
        self.attacker = attacker
        self.victim = {"authorization": f"Bearer {victim}"}
        self.http: aiohttp.ClientSession


async def _measure_attacks(
    folder: Path, *, seconds: float, source: Path | None, names: Collection[str] = ("no attack", *ATTACKS)
) -> list[Mapping[str, Figure]]:
    rows: list[Mapping[str, Figure]] = []
    async with _start_attacker("upstream") as upstream:
        for name in names:
            async with _start_server(folder, upstream, source) as server:
                if name in ATTACKS:
                    async with _start_attacker(name, server.url, server.attacker):
                        rows.append(await _measure_attack(server, name, seconds))
                else:
                    rows.append(await _measure_attack(server, name, seconds))
                report(f"fairness: {name}")
    return rows


async def _measure_attack(server: Server, name: str, seconds: float) -> Mapping[str, Figure]:
    watch = _Watch(server)
    await watch.get()  # the first requests open the connections
    await watch.post()
    watch.reset()
    end = clock() + seconds
    while clock() < end:
        await asyncio.gather(watch.get(), watch.post())
        await asyncio.sleep(PAUSE)
    small = sorted(watch.small)
    return {
        "what": name,
        "small": small[-1],
        "median": small[len(small) // 2],
        "large": max(watch.large),
        "peak": _read_peak_memory(server.pid),
        "requests": len(small) + len(watch.large),
        "failed": watch.failed,
    }


def _read_peak_memory(pid: int) -> int:
    """Return the largest resident memory of a process so far in MiB. It works only on Linux."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")) // 1024


class _Watch:
    """Requests of the measured tenant and their times."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.reset()

    def reset(self) -> None:
        self.small: list[float] = []
        self.large: list[float] = []
        self.failed = 0

    async def get(self) -> None:
        await self._time_request("GET", "/v1/sessions?limit=5", self.small)

    async def post(self) -> None:
        await self._time_request("POST", "/v1/sessions", self.large, json={"metadata": {"note": "x" * LARGE}})

    async def _time_request(self, method: str, path: str, into: list[float], **sent: Any) -> None:
        started = clock()
        try:
            headers = self._server.victim
            async with self._server.http.request(method, self._server.url + path, headers=headers, **sent) as response:
                await response.read()
                self.failed += response.status >= 400
        except (aiohttp.ClientError, TimeoutError):
            self.failed += 1
        into.append(clock() - started)


# -- processes -----------------------------------------------------------------


@asynccontextmanager
async def _start_attacker(*arguments: str) -> AsyncIterator[str]:
    """Start a process of `benchmarks.attacks`; yield the first line that it prints."""
    command = (sys.executable, "-m", "benchmarks.attacks", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def _start_server(folder: Path, upstream: str, source: Path | None) -> AsyncIterator[Server]:
    """Start a server on an empty store, with one key for each of two tenants."""
    delete_files(folder, "fairness*")
    store, path = f"sqlite:///{folder}/fairness.db", folder / "fairness.yaml"
    llm = f"{{base_url: '{upstream}/v1', model: gpt-4o, api_key: unused, timeout: {{total: 6s}}}}"
    path.write_text(f"llms: {{default: {llm}}}\n", encoding="utf-8")
    env = {**os.environ, "HOLDFAST_STORE": store, **({"PYTHONPATH": str(source)} if source else {})}
    keys = []
    for tenant in ("attacker", "victim"):
        output = await _run_holdfast(env, "keys", "create", "--tenant", tenant)
        keys.append(next(word for word in output.split() if word.startswith("hf_") and len(word) > 60))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "serve", "--port", "0", "--config", str(path)),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        server = Server(line.split()[-1], process.pid, *keys)
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as server.http:
            yield server
    finally:
        process.kill()
        await process.wait()


async def _run_holdfast(env: Mapping[str, str], *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", *arguments),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    out, _ = await process.communicate()
    return out.decode()


def main() -> None:
    """Measure this version, or the one in the named folder, and print the table."""
    source = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    names = sys.argv[2:] or ["no attack", *ATTACKS]
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(_measure_attacks(Path(folder), seconds=12.0, source=source, names=names))
    print(
        Table("fairness", "Another tenant's slowest request during an attack", _COLUMNS, rows, _NOTES).format_markdown()
    )


if __name__ == "__main__":
    main()
