"""Latency that the gateway adds, and its requests per second, in front of an upstream that replies at once."""

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
from benchmarks.litellm_proxy import SYSTEM as LITELLM
from benchmarks.litellm_proxy import describe_version, start_proxy
from benchmarks.peer_environments import format_missing
from benchmarks.peers import BUDGET
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table, format_count, format_duration, format_ratio
from benchmarks.timing import report
from holdfast.config.build import build_roster
from holdfast.config.loader import load
from holdfast.holdfast import Holdfast
from holdfast.limits import INDEX_DELAY_SECONDS

SHORT, FULL = 10, 300
"""Entries of a session with a very short prompt, and of one whose prompt fills the budget."""
CONNECTIONS = 4
SECONDS = 4.0
"""Duration of each measurement. A session moves its frontier about once in 50 requests here, which takes longer than other
requests. A shorter run of a faster candidate includes such requests while that of a slower one does not, so p99 is not comparable."""
SETTLED = INDEX_DELAY_SECONDS + 1
"""Seconds before each measurement without requests, and then with requests that are not measured. A session is indexed some seconds
after its last turn: by then, what other candidates have left to index is done, and the candidate is at work on its own.
"""
FULL_SESSIONS = 20
"""Sessions of `FULL` entries: few enough to be in the cache after the first requests, and enough to grow slowly."""
STRATEGY = "digest"
WHOLE = "none"
"""Strategy of the gateway that sends the whole log, without recall."""
DIRECT = "upstream alone"
NEW = "a new session for each request"
"""Name of the row in which the gateway has no history to add, like a proxy without memory; it still stores every message."""


async def measure(run: Run) -> list[Table]:
    """Measure latency with one client and requests per second with several, alternating between candidates."""
    tables = [await _measure_table(run, run.folder, "gateway", "on disk", _NOTES)]
    if run.memory_folder is not None and not run.quick:
        where = "in memory, so that commits cost nothing"
        tables.append(await _measure_table(run, run.memory_folder, "gateway_memory", where, ()))
    return tables


async def _measure_table(run: Run, folder: Path, name: str, where: str, notes: tuple[str, ...]) -> Table:
    async with start_upstream() as upstream:
        text = format_configuration(upstream)
        store = f"sqlite:///{folder}/gateway.db"
        counts = await _fill_store(run, text, store, [SHORT, FULL, run.longest])
        whole, of_whole = folder / WHOLE, format_configuration(upstream, f"strategy: {WHOLE}, recall: false")
        whole.mkdir()
        await _fill_store(run, text, f"sqlite:///{whole}/gateway.db", [SHORT, FULL])
        async with (
            start_gateway(folder, text, store) as gateway,
            start_gateway(whole, of_whole, f"sqlite:///{whole}/gateway.db") as whole_gateway,
            start_proxy(folder, upstream) as proxy,
        ):
            targets = _make_targets(upstream, gateway, whole_gateway, proxy, counts)
            rows, drive = await _measure_rows(run, targets)
    delete_files(folder, "gateway*")
    notes = (*notes, _PROXY_NOTE if proxy else format_missing(LITELLM))
    title = f"The gateway in front of an instant upstream, {where}: latency of one client"
    driven = f"Driven by {drive}. Upstream, gateway and driver are separate processes."
    return Table(name, title, _COLUMNS, rows, (driven, *notes))


_COLUMNS = [
    Column("what", ""),
    Column("p50", "p50", format_duration),
    Column("p99", "p99", format_duration),
    Column("added_p50", "added p50", format_duration),
    Column("added_p99", "added p99", format_duration),
    Column("requests_per_second", f"requests/s, {CONNECTIONS} clients", format_count),
    Column("errors", "errors", format_count),
    Column("added_ratio", "added p50 vs. LiteLLM", format_ratio),
    Column("requests_ratio", "requests/s vs. LiteLLM", format_ratio),
]
_NOTES = (
    f"{STRATEGY}, {BUDGET:,} tokens; {WHOLE}: the whole log, without recall. Each request has a session id and one message.",
    f"{SHORT} entries: each request goes to another session. {FULL} entries: the prompt fills the budget. Sessions grow while measured.",
)
_PROXY_NOTE = (
    "LiteLLM's proxy forwards each request unchanged and stores nothing: one worker, no database. Holdfast commits two messages to disk per request. "
    "Neither requires keys. Both log at their default level: one line per request."
)


Target = tuple[str, int, int]
"""URL, session length and number of sessions."""


def _make_targets(
    upstream: str, gateway: str, whole_gateway: str, proxy: str | None, counts: Mapping[int, int]
) -> dict[str, Target]:
    """Return the targets by the names of their rows."""
    targets = {DIRECT: (upstream, 0, 1), NEW: (gateway, 0, sys.maxsize)}
    targets |= {f"{length:,} entries": (gateway, length, counts[length]) for length in counts}
    targets |= {f"{length:,} entries, {WHOLE}": (whole_gateway, length, counts[length]) for length in (SHORT, FULL)}
    if proxy is not None:
        targets[describe_version()] = (proxy, 0, 1)
    return targets


async def _measure_rows(run: Run, targets: Mapping[str, Target]) -> tuple[list[dict[str, Figure]], str]:
    """Return the rows, and the name of the driver."""
    drive, name = choose_driver(run.folder)
    one_client: dict[str, list[Report]] = {name: [] for name in targets}
    all_clients: dict[str, list[Report]] = {name: [] for name in targets}
    start = dict.fromkeys(targets, 0)
    for _ in range(1 if run.quick else 2):
        for what, (url, length, sessions) in targets.items():
            report(f"gateway: {what}")
            await asyncio.sleep(SETTLED)
            measured: tuple[tuple[list[Report], int, float], ...] = (
                ([], 1, SETTLED),
                (one_client[what], 1, SECONDS),
                (all_clients[what], CONNECTIONS, SECONDS),
            )
            for reports, clients, seconds in measured:
                reports.append(await drive(url, length, range(start[what], sessions), clients, seconds))
                start[what] = (start[what] + reports[-1].requests) % max(1, sessions - CONNECTIONS)
    base = one_client[DIRECT]
    rows = [_make_row(what, one_client[what], all_clients[what], base) for what in targets]
    return _add_ratios(rows), name


def _add_ratios(rows: list[dict[str, Figure]]) -> list[dict[str, Figure]]:
    """Add what the rows of the gateway are in comparison with LiteLLM's proxy, if that was measured."""
    *others, last = rows
    if last["what"] != describe_version():
        return rows
    for row in others[1:]:
        for ratio, key in (("added_ratio", "added_p50"), ("requests_ratio", "requests_per_second")):
            row[ratio] = float(row[key] or 0) / float(last[key] or 1)
    return rows


def _make_row(what: str, one_client: list[Report], all_clients: list[Report], base: list[Report]) -> dict[str, Figure]:
    p50, p99 = (median(getattr(one, key) for one in one_client) for key in ("p50", "p99"))
    row: dict[str, Figure] = {
        "what": what,
        "p50": p50,
        "p99": p99,
        "requests_per_second": median(one.requests / one.seconds for one in all_clients),
        "errors": sum(one.errors for one in (*one_client, *all_clients)),
    }
    if one_client is not base:
        row["added_p50"] = p50 - median(one.p50 for one in base)
        row["added_p99"] = p99 - median(one.p99 for one in base)
    return row


# -- the processes -----------------------------------------------------------


def format_configuration(upstream: str, context: str = f"strategy: {STRATEGY}, budget: {BUDGET}") -> str:
    """Return the configuration file of a gateway in front of an upstream, with the settings `context`."""
    llm = f"{{base_url: '{upstream}/v1', model: gpt-4o, api_key: unused, context_window: 2000000}}"
    return f"llms: {{default: {llm}}}\ncontext: {{{context}}}\n"


async def _fill_store(run: Run, text: str, store: str, lengths: list[int]) -> dict[int, int]:
    """Store sessions of each length with their views; return the number of sessions by length."""
    roster = build_roster(load(text, env={}))
    roster.context = make_settings(STRATEGY, BUDGET)
    counts = dict(zip(lengths, (6_000 if run.quick else 12_000, FULL_SESSIONS, CONNECTIONS), strict=False))
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
    """Start `benchmarks.upstream` with its arguments; yield its URL."""
    async with _start_process(None, "-m", "benchmarks.upstream", *arguments) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"


@asynccontextmanager
async def start_gateway(folder: Path, text: str, store: str) -> AsyncIterator[str]:
    """Start `holdfast serve` with this configuration and store; yield its URL."""
    file = folder / "gateway.yaml"
    file.write_text(text, encoding="utf-8")
    arguments = ("serve", "--port", "0", "--store", store, "--config", str(file))
    with (folder / "gateway.log").open("wb") as log:  # opened before anything is measured
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
