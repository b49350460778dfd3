"""Latency that the gateway adds to Chat Completions, Messages and Responses, measured alternately."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from benchmarks.gateway import format_configuration, start_gateway, start_upstream
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table, format_count, format_duration
from benchmarks.timing import Samples, clock, report

CHUNKS = 200
"""Chunks of a streamed reply. The upstream sends them at once, so the table shows the work per chunk."""
SESSIONS = 100
DIRECT = "upstream alone"
_RESPONSE_ID = re.compile(rb'"id": ?"(resp_[^"]+)"')
RESPONSES = "Responses"
BY_ID = "Responses with previous_response_id"
PATHS: Mapping[str, str] = {
    "Chat Completions": "/v1/chat/completions",
    "Messages": "/v1/messages",
    RESPONSES: "/v1/responses",
    BY_ID: "/v1/responses",
}


async def measure(run: Run) -> list[Table]:
    """Measure one client that alternates between the APIs of the gateway and the upstream."""
    count = 400 if run.quick else 2_000
    rows: list[dict[str, Figure]] = []
    async with start_upstream(str(CHUNKS), "0.0") as upstream:
        store = f"sqlite:///{run.folder}/apis.db"
        async with start_gateway(run.folder, format_configuration(upstream), store) as gateway:
            for stream in (False, True):
                rows += await _measure_rows(upstream, gateway, count, stream=stream)
    delete_files(run.folder, "apis*")
    delete_files(run.folder, "gateway*")
    title = "The APIs in front of an instant upstream, latency of one client"
    note = f"Requests cycle through {SESSIONS} sessions and alternate between the APIs. A streamed reply has {CHUNKS} chunks."
    return [Table("apis", title, _COLUMNS, rows, (note, "Driven by coroutines in a separate process."))]


_COLUMNS = [
    Column("what", ""),
    Column("p50", "p50", format_duration),
    Column("p99", "p99", format_duration),
    Column("added_p50", "added p50", format_duration),
    Column("added_p99", "added p99", format_duration),
    Column("requests", "requests", format_count),
]


async def _measure_rows(upstream: str, gateway: str, count: int, *, stream: bool) -> list[dict[str, Figure]]:
    kind = "streamed" if stream else "not streamed"
    report(f"apis: {kind}")
    targets = {DIRECT: (upstream, PATHS["Chat Completions"]), **{name: (gateway, path) for name, path in PATHS.items()}}
    clients = {name: await _Client.connect(name, url, path) for name, (url, path) in targets.items()}
    times: dict[str, list[float]] = {name: [] for name in targets}
    for at in range(-SESSIONS, count):  # the first requests create the sessions
        for name, client in list(clients.items())[:: 1 if at % 2 else -1]:  # so that no API always comes last
            started = clock()
            await client.ask(
                f"{list(PATHS).index(name) if name in PATHS else ''}-{stream}-{at % SESSIONS}", at, stream=stream
            )
            if at >= 0:
                times[name].append(clock() - started)
    for client in clients.values():
        client.close()
    samples = {name: Samples(seconds) for name, seconds in times.items()}
    return [_make_row(f"{name}, {kind}", one, samples[DIRECT], base=name == DIRECT) for name, one in samples.items()]


def _make_row(what: str, samples: Samples, direct: Samples, *, base: bool) -> dict[str, Figure]:
    p50, p99 = samples.median, samples.quantile(0.99)
    row: dict[str, Figure] = {"what": what, "p50": p50, "p99": p99, "requests": len(samples.seconds)}
    return row if base else {**row, "added_p50": p50 - direct.median, "added_p99": p99 - direct.quantile(0.99)}


class _Client:
    """One connection that sends requests and reads each response completely."""

    def __init__(self, name: str, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._name = name
        self._path = path
        self._reader = reader
        self._writer = writer
        self._last: dict[str, str] = {}
        """Id of the last response of each session, for `BY_ID`."""

    @classmethod
    async def connect(cls, name: str, url: str, path: str) -> _Client:
        return cls(name, path, *await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port))

    def close(self) -> None:
        self._writer.close()

    async def ask(self, session: str, number: int, *, stream: bool) -> None:
        body = json.dumps(self._make_fields(session, number, stream=stream)).encode()
        head = f"POST {self._path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert b" 200 " in answer.split(b"\r\n", 1)[0], answer
        lengths = [line for line in answer.split(b"\r\n") if line.startswith(b"content-length:")]
        content = b""
        if lengths:
            content = await self._reader.readexactly(int(lengths[0].partition(b":")[2]))
        else:
            while size := int(await self._reader.readline(), 16):
                piece = await self._reader.readexactly(size + 2)
                content = content or piece
            await self._reader.readexactly(2)
        if self._name == BY_ID and (found := _RESPONSE_ID.search(content)):
            self._last[session] = found[1].decode()

    def _make_fields(self, session: str, number: int, *, stream: bool) -> dict[str, Any]:
        text = f"Question {number}: where is my order now?"
        fields: dict[str, Any] = {"model": "default", "stream": stream}
        if self._name not in (RESPONSES, BY_ID):
            message = {"role": "user", "content": text}
            return {**fields, "max_tokens": 1000, "session_id": session, "messages": [message]}
        fields |= {"max_output_tokens": 1000, "input": text}
        last = self._last.get(session)
        return {**fields, **({"session_id": session} if last is None else {"previous_response_id": last})}
