"""The gateway's added latency and its requests a second, before an upstream that answers at once."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import BinaryIO

from benchmarks.corpus import make_settings
from benchmarks.http import Report, choose_driver
from benchmarks.peers import BUDGET
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table, format_count, format_duration
from benchmarks.timing import report
from holdfast import config
from holdfast.config.build import build_roster
from holdfast.holdfast import Holdfast

SHORT, FULL = 10, 300
"""Entries of a session that hardly has a prompt, and of one whose prompt fills the budget."""
CONNECTIONS = 4
STRATEGY = "digest"
DIRECT = "the upstream itself"


async def measure(run: Run) -> list[Table]:
    """One client at a time for the latency, several for the requests a second; candidates in turn."""
    tables = [await _measure_table(run, run.folder, "gateway", "on the disk", _NOTES)]
    if run.memory is not None and not run.quick:
        where = "where a commit costs nothing: the software alone"
        tables.append(await _measure_table(run, run.memory, "gateway_memory", where, ()))
    return tables


async def _measure_table(run: Run, folder: Path, name: str, where: str, notes: tuple[str, ...]) -> Table:
    async with start_upstream() as upstream:
        text = format_configuration(upstream)
        store = f"sqlite:///{folder}/gateway.db"
        counts = await _fill_store(run, text, store, [SHORT, FULL, run.longest])
        async with start_gateway(folder, text, store) as gateway:
            rows, drive = await _measure_rows(run, upstream, gateway, counts)
    delete_files(folder, "gateway*")
    title = f"The gateway before an instant upstream, latency of one client; {where}"
    driven = f"Driven by {drive}. Upstream, gateway and driver are processes of their own."
    return Table(name, title, _COLUMNS, rows, (driven, *notes))


_COLUMNS = [
    Column("what", ""),
    Column("p50", "p50", format_duration),
    Column("p99", "p99", format_duration),
    Column("added_p50", "added p50", format_duration),
    Column("added_p99", "added p99", format_duration),
    Column("requests_per_second", f"requests/s, {CONNECTIONS} clients", format_count),
    Column("errors", "errors", format_count),
]
_NOTES = (
    f"{STRATEGY}, {BUDGET:,} tokens. The body has the session's id and one message; the gateway sends the working set on.",
    f"Of {SHORT} entries: each request to another session. Of {FULL}: a prompt that fills its budget. The rest grow.",
)


async def _measure_rows(
    run: Run, upstream: str, gateway: str, counts: Mapping[int, int]
) -> tuple[list[dict[str, Figure]], str]:
    """The figures, and what drove."""
    drive, name = choose_driver(run.folder)
    targets = {DIRECT: (upstream, 0, 1), **{f"{n:,} entries": (gateway, n, counts[n]) for n in counts}}
    alone: dict[str, list[Report]] = {name: [] for name in targets}
    many: dict[str, list[Report]] = {name: [] for name in targets}
    start = dict.fromkeys(targets, 0)
    for what, (url, length, sessions) in targets.items():
        await drive(url, length, range(min(sessions, CONNECTIONS)), 1, 0.5)  # what only a first request costs
        report(f"gateway: {what}")
    for _ in range(1 if run.quick else 2):
        for what, (url, length, sessions) in targets.items():
            for found, clients in ((alone[what], 1), (many[what], CONNECTIONS)):
                numbers = range(start[what], sessions)
                found.append(await drive(url, length, numbers, clients, 1.0))
                start[what] = (start[what] + found[-1].requests) % max(1, sessions - CONNECTIONS)
    base = alone[DIRECT]
    return [_make_row(what, alone[what], many[what], base) for what in targets], name


def _make_row(what: str, alone: list[Report], many: list[Report], base: list[Report]) -> dict[str, Figure]:
    p50, p99 = (median(getattr(report, key) for report in alone) for key in ("p50", "p99"))
    row: dict[str, Figure] = {
        "what": what,
        "p50": p50,
        "p99": p99,
        "requests_per_second": median(report.requests / report.seconds for report in many),
        "errors": sum(report.errors for report in (*alone, *many)),
    }
    if alone is not base:
        row["added_p50"] = p50 - median(report.p50 for report in base)
        row["added_p99"] = p99 - median(report.p99 for report in base)
    return row


# -- the processes -----------------------------------------------------------


def format_configuration(upstream: str) -> str:
    """A file for a server before that upstream."""
    llm = f"{{base_url: '{upstream}/v1', model: gpt-4o, api_key: unused, context_window: 2000000}}"
    return f"llms: {{default: {llm}}}\ncontext: {{strategy: {STRATEGY}, budget: {BUDGET}}}\n"


async def _fill_store(run: Run, text: str, store: str, lengths: list[int]) -> dict[int, int]:
    """Make sessions of each length, with their views; how many there are of each."""
    roster = build_roster(config.load(text, env={}))
    roster.context = make_settings(STRATEGY, BUDGET)
    counts = dict(zip(lengths, (1_500 if run.quick else 5_000, CONNECTIONS, CONNECTIONS), strict=True))
    async with Holdfast(store, roster=roster) as hf:
        for length, count in counts.items():
            report(f"gateway: {count:,} sessions of {length:,}")
            for first in range(0, count, 50):
                names = [f"n{length}-{number}" for number in range(first, min(first + 50, count))]
                view = hf.roster.find_responder() if length > SHORT else None
                await asyncio.gather(*(run.sample.store_session(hf, name, length, view=view) for name in names))
    return counts


@asynccontextmanager
async def start_upstream(*arguments: str) -> AsyncIterator[str]:
    """An upstream's URL; see `benchmarks.upstream` for the arguments."""
    async with _start_process(None, "-m", "benchmarks.upstream", *arguments) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"


@asynccontextmanager
async def start_gateway(folder: Path, text: str, store: str) -> AsyncIterator[str]:
    """`holdfast serve`, as anybody runs it."""
    file = folder / "gateway.yaml"
    file.write_text(text, encoding="utf-8")
    arguments = ("serve", "--port", "0", "--store", store, "--config", str(file))
    with (folder / "gateway.log").open("wb") as log:  # opened once, before anything is measured
        async with _start_process(log, "-m", "holdfast", *arguments) as process:
            assert process.stdout is not None
            first = (await process.stdout.readline()).decode()
            yield first.split()[-1]


@asynccontextmanager
async def _start_process(log: BinaryIO | None, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "HOLDFAST_"))}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=pipe, stderr=log, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()
