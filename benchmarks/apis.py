"""The gateway's doors side by side: the same words by Chat Completions and by Anthropic's Messages, in turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from benchmarks.gateway import format_configuration, start_gateway, start_upstream
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table, format_count, format_duration
from benchmarks.timing import Samples, clock, report

PIECES = 200
"""Of a streamed reply, all at once: what is measured is the work for each."""
SESSIONS = 100
DIRECT = "the upstream itself"
PATHS: Mapping[str, str] = {"Chat Completions": "/v1/chat/completions", "Messages": "/v1/messages"}


async def measure(run: Run) -> list[Table]:
    """One client, which goes through another door with each request, and to the upstream itself in between."""
    count = 400 if run.quick else 2_000
    rows: list[dict[str, Figure]] = []
    async with start_upstream(str(PIECES), "0.0") as upstream:
        store = f"sqlite:///{run.folder}/doors.db"
        async with start_gateway(run.folder, format_configuration(upstream), store) as gateway:
            for stream in (False, True):
                rows += await _measure_rows(upstream, gateway, count, stream=stream)
    delete_files(run.folder, "doors*")
    delete_files(run.folder, "gateway*")
    title = "The two doors before an instant upstream, latency of one client"
    note = f"Each request to another of {SESSIONS} sessions, the doors in turns. A streamed reply has {PIECES} pieces."
    return [Table("doors", title, _COLUMNS, rows, (note, "Driven by coroutines, in a process of their own."))]


_COLUMNS = [
    Column("what", ""),
    Column("p50", "p50", format_duration),
    Column("p99", "p99", format_duration),
    Column("added_p50", "added p50", format_duration),
    Column("added_p99", "added p99", format_duration),
    Column("requests", "requests", format_count),
]


async def _measure_rows(upstream: str, gateway: str, count: int, *, stream: bool) -> list[dict[str, Figure]]:
    kind = "streamed" if stream else "whole"
    report(f"doors: {kind}")
    targets = {DIRECT: (upstream, PATHS["Chat Completions"]), **{name: (gateway, path) for name, path in PATHS.items()}}
    clients = {name: await _Client.connect(url, path) for name, (url, path) in targets.items()}
    times: dict[str, list[float]] = {name: [] for name in targets}
    for at in range(-SESSIONS, count):  # the first ones make the sessions
        for name, client in list(clients.items())[:: 1 if at % 2 else -1]:  # neither always comes behind the other
            begun = clock()
            await client.ask(f"{name[:4]}-{kind}-{at % SESSIONS}", at, stream=stream)
            if at >= 0:
                times[name].append(clock() - begun)
    for client in clients.values():
        client.close()
    found = {name: Samples(given) for name, given in times.items()}
    return [_make_row(f"{name}, {kind}", one, found[DIRECT], base=name == DIRECT) for name, one in found.items()]


def _make_row(what: str, samples: Samples, direct: Samples, *, base: bool) -> dict[str, Figure]:
    p50, p99 = samples.median, samples.quantile(0.99)
    row: dict[str, Figure] = {"what": what, "p50": p50, "p99": p99, "requests": len(samples.seconds)}
    return row if base else {**row, "added_p50": p50 - direct.median, "added_p99": p99 - direct.quantile(0.99)}


class _Client:
    """One connection, which asks and reads the answer to its end."""

    def __init__(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._path = path
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, url: str, path: str) -> _Client:
        return cls(path, *await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port))

    def close(self) -> None:
        self._writer.close()

    async def ask(self, session: str, number: int, *, stream: bool) -> None:
        message = {"role": "user", "content": f"Question {number}: where is my order now?"}
        fields = {
            "model": "default",
            "max_tokens": 1000,
            "session_id": session,
            "messages": [message],
            "stream": stream,
        }
        body = json.dumps(fields).encode()
        head = f"POST {self._path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert b" 200 " in answer.split(b"\r\n", 1)[0], answer
        lengths = [line for line in answer.split(b"\r\n") if line.startswith(b"content-length:")]
        if lengths:
            await self._reader.readexactly(int(lengths[0].partition(b":")[2]))
            return
        while size := int(await self._reader.readline(), 16):
            await self._reader.readexactly(size + 2)
        await self._reader.readexactly(2)
