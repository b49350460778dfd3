"""Many concurrent streams through the gateway, compared with the same streams directly from the upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.corpus import make_roster
from benchmarks.gateway import format_configuration, start_gateway, start_upstream
from benchmarks.http import PATH
from benchmarks.litellm_proxy import describe_version, start_proxy
from benchmarks.peers import BUDGET
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table, format_count, format_duration
from benchmarks.timing import Samples, clock, freeze_heap, report
from holdfast.holdfast import Holdfast

OPEN = (50, 500)
"""Numbers of concurrent streams."""
CHUNKS, SECONDS = 20, 1.0
"""Chunks of each reply, and the seconds that the upstream takes for it."""
LENGTHS = (10, 100_000)
"""Entries of the sessions that are continued."""
DIRECT = "upstream alone"
_COLUMNS = [
    Column("what", ""),
    Column("open", "open streams", format_count),
    Column("first_p50", "first chunk, p50", format_duration),
    Column("first_p99", "p99", format_duration),
    Column("added_first_p50", "added p50", format_duration),
    Column("added_first_p99", "added p99", format_duration),
    Column("whole_p50", "whole reply, p50", format_duration),
    Column("added_whole_p50", "added p50", format_duration),
    Column("added_whole_p99", "added p99", format_duration),
    Column("errors", "errors", format_count),
]


class StreamTimes(NamedTuple):
    """One reply; times in seconds."""

    first: float
    whole: float
    is_complete: bool


async def measure(run: Run) -> list[Table]:
    """Measure the upstream and sessions of both lengths; each client sends its next message as soon as its reply ends."""
    rows: list[dict[str, Figure]] = []
    async with start_upstream(str(CHUNKS), str(SECONDS)) as upstream:
        text, store = format_configuration(upstream), f"sqlite:///{run.folder}/gateway.db"
        lengths = run.select_lengths(LENGTHS) + ([run.longest] if run.longest < LENGTHS[1] else [])
        await _fill_store(run, store, lengths)
        async with start_gateway(run.folder, text, store) as gateway, start_proxy(run.folder, upstream) as proxy:
            for count in OPEN:
                direct = await _drive_clients(upstream, 0, count, run)
                rows.append(_make_row(DIRECT, count, direct, direct))
                for length in lengths:
                    report(f"streams: {count} of {length:,} entries")
                    rows.append(
                        _make_row(
                            f"{length:,} entries", count, await _drive_clients(gateway, length, count, run), direct
                        )
                    )
                if proxy is not None:
                    replies = await _drive_clients(proxy, LENGTHS[0], count, run)
                    rows.append(_make_row(describe_version(), count, replies, direct))
    delete_files(run.folder, "gateway*")
    title = f"Open streams: replies of {CHUNKS} chunks over {SECONDS:g} s, one client per stream"
    longest = max(lengths)
    notes = (
        "Each client has its own session and sends its next message when the reply has ended. Clients start evenly over a second.",
        f"Only {_count_sessions(longest)} sessions have {longest:,} entries. Their row shows their own times, while the other streams run.",
    )
    return [Table("streams", title, _COLUMNS, rows, notes)]


def _make_row(what: str, count: int, replies: list[StreamTimes], base: list[StreamTimes]) -> dict[str, Figure]:
    firsts, wholes = Samples([one.first for one in replies]), Samples([one.whole for one in replies])
    row: dict[str, Figure] = {
        "what": what,
        "open": count,
        "first_p50": firsts.median,
        "first_p99": firsts.quantile(0.99),
        "whole_p50": wholes.median,
        "errors": sum(not one.is_complete for one in replies),
    }
    if replies is not base:
        before, all_of = Samples([one.first for one in base]), Samples([one.whole for one in base])
        row["added_first_p50"] = firsts.median - before.median
        row["added_first_p99"] = firsts.quantile(0.99) - before.quantile(0.99)
        row["added_whole_p50"] = wholes.median - all_of.median
        row["added_whole_p99"] = wholes.quantile(0.99) - all_of.quantile(0.99)
    return row


async def _fill_store(run: Run, store: str, lengths: Iterable[int]) -> None:
    """Store a session for each client; only a few of them are long."""
    async with Holdfast(store, roster=make_roster("digest", BUDGET)) as hf:
        for length in lengths:
            for number in range(_count_sessions(length)):
                await run.sample.store_session(hf, f"n{length}-{number}", length, view=hf.roster.find_responder())


def _count_sessions(length: int) -> int:
    """Return the number of sessions of a length."""
    return max(OPEN) if length <= LENGTHS[0] else 4


async def _drive_clients(url: str, length: int, count: int, run: Run) -> list[StreamTimes]:
    """Run `count` clients, started evenly over the time of one reply; return the times of a few replies each."""
    freeze_heap()
    rounds = 2 if run.quick else 4
    sessions = _count_sessions(length)

    async def client(number: int) -> list[StreamTimes]:
        await asyncio.sleep(SECONDS * number / count)
        mine = number < sessions
        name = f"n{length}-{number}" if mine else f"n{LENGTHS[0]}-{number}"
        replies = [await _stream_reply(url, name, f"Question {number}.{at}: where is it now?") for at in range(rounds)]
        return replies[1:] if mine else []  # the first reply includes opening the connection

    return [one for some in await asyncio.gather(*map(client, range(count))) for one in some]


async def _stream_reply(url: str, session: str, text: str) -> StreamTimes:
    body = {"model": "default", "stream": True, "user": "bench", "session_id": session}
    content = json.dumps({**body, "messages": [{"role": "user", "content": text}]}).encode()
    address = urlsplit(url)
    started = clock()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    answer = await reader.readuntil(b"\r\n\r\n")
    await reader.readuntil(b"\n\n")
    first = clock() - started
    seen = b""
    while b"[DONE]" not in seen:
        data = await reader.read(65536)
        if not data:
            break
        seen = seen[-16:] + data
    whole = clock() - started
    writer.close()
    return StreamTimes(first, whole, b" 200 " in answer.split(b"\r\n", 1)[0] and b"[DONE]" in seen)
