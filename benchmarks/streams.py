"""Many streams at once through the gateway, beside the same ones straight from the upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.corpus import make_roster
from benchmarks.gateway import format_configuration, start_gateway, start_upstream
from benchmarks.http import PATH
from benchmarks.peers import BUDGET
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table, format_count, format_duration
from benchmarks.timing import Samples, clock, freeze_heap, report
from holdfast.holdfast import Holdfast

OPEN = (50, 500)
"""Streams that are open at once."""
PIECES, SECONDS = 20, 1.0
"""Of each reply, and how long it takes upstream."""
LENGTHS = (10, 100_000)
"""Entries of the sessions that are gone on with."""
DIRECT = "the upstream itself"
_COLUMNS = [
    Column("what", ""),
    Column("open", "open streams", format_count),
    Column("first_p50", "first piece, p50", format_duration),
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
    good: bool


async def measure(run: Run) -> list[Table]:
    """The upstream, then sessions of both lengths, with as many clients as streams; each client begins again at once."""
    rows: list[dict[str, Figure]] = []
    async with start_upstream(str(PIECES), str(SECONDS)) as upstream:
        text, store = format_configuration(upstream), f"sqlite:///{run.folder}/gateway.db"
        lengths = run.select_lengths(LENGTHS) + ([run.longest] if run.longest < LENGTHS[1] else [])
        await _fill_store(run, store, lengths)
        async with start_gateway(run.folder, text, store) as gateway:
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
    delete_files(run.folder, "gateway*")
    title = f"Open streams: a reply in {PIECES} pieces over {SECONDS:g} s, as many clients as streams"
    longest = max(lengths)
    notes = (
        "Each client has a session of its own and sends its next message when the reply has ended; they begin evenly over a second.",
        f"There are {_count_sessions(longest)} sessions of {longest:,} entries: the figures are theirs, beside the others' streams.",
    )
    return [Table("streams", title, _COLUMNS, rows, notes)]


def _make_row(what: str, count: int, found: list[StreamTimes], base: list[StreamTimes]) -> dict[str, Figure]:
    firsts, wholes = Samples([one.first for one in found]), Samples([one.whole for one in found])
    row: dict[str, Figure] = {
        "what": what,
        "open": count,
        "first_p50": firsts.median,
        "first_p99": firsts.quantile(0.99),
        "whole_p50": wholes.median,
        "errors": sum(not one.good for one in found),
    }
    if found is not base:
        before, all_of = Samples([one.first for one in base]), Samples([one.whole for one in base])
        row["added_first_p50"] = firsts.median - before.median
        row["added_first_p99"] = firsts.quantile(0.99) - before.quantile(0.99)
        row["added_whole_p50"] = wholes.median - all_of.median
        row["added_whole_p99"] = wholes.quantile(0.99) - all_of.quantile(0.99)
    return row


async def _fill_store(run: Run, store: str, lengths: Iterable[int]) -> None:
    """A session a client: the long ones are few, and shared out."""
    async with Holdfast(store, roster=make_roster("digest", BUDGET)) as hf:
        for length in lengths:
            for number in range(_count_sessions(length)):
                await run.sample.store_session(hf, f"n{length}-{number}", length, view=hf.roster.find_responder())


def _count_sessions(length: int) -> int:
    """How many there are of a length."""
    return max(OPEN) if length <= LENGTHS[0] else 4


async def _drive_clients(url: str, length: int, count: int, run: Run) -> list[StreamTimes]:
    """What `count` clients find, a few replies each, begun evenly over the time of one."""
    freeze_heap()
    rounds = 2 if run.quick else 4
    sessions = _count_sessions(length)

    async def client(number: int) -> list[StreamTimes]:
        await asyncio.sleep(SECONDS * number / count)
        mine = number < sessions
        name = f"n{length}-{number}" if mine else f"n{LENGTHS[0]}-{number}"
        found = [await _stream_reply(url, name, f"Question {number}.{at}: where is it now?") for at in range(rounds)]
        return found[1:] if mine else []  # the first one opens connections

    return [one for some in await asyncio.gather(*map(client, range(count))) for one in some]


async def _stream_reply(url: str, session: str, text: str) -> StreamTimes:
    body = {"model": "default", "stream": True, "user": "bench", "session_id": session}
    content = json.dumps({**body, "messages": [{"role": "user", "content": text}]}).encode()
    place = urlsplit(url)
    begun = clock()
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    answer = await reader.readuntil(b"\r\n\r\n")
    await reader.readuntil(b"\n\n")
    first = clock() - begun
    seen = b""
    while b"[DONE]" not in seen:
        piece = await reader.read(65536)
        if not piece:
            break
        seen = seen[-16:] + piece
    done = clock() - begun
    writer.close()
    return StreamTimes(first, done, b" 200 " in answer.split(b"\r\n", 1)[0] and b"[DONE]" in seen)
