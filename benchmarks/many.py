"""Very many sessions: pages of the session list and of the inspector, and an expiry sweep of a tenth of the sessions during turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import httpx2

from benchmarks.corpus import make_roster, make_text
from benchmarks.databases import DATABASES, open_database
from benchmarks.peers import BUDGET
from benchmarks.run import Run, delete_files
from benchmarks.sessions import ENTRIES, Candidate, Load
from benchmarks.tables import Column, Figure, Table, format_count, format_duration, format_ratio
from benchmarks.timing import clock, freeze_heap, report
from benchmarks.turn import ANSWER
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.server.app import make_app
from holdfast.stores.sessions import NewSession

LISTED = 10_000
SWEPT = 100_000
PAGE = 20
AT_ONCE = 64
"""Sessions that are created concurrently."""
TASKS = 20
"""Tasks that take turns during a sweep."""
DAY = 86_400_000
_LIST_COLUMNS = [
    Column("what", ""),
    Column("sessions", "sessions", format_count),
    Column("first", "first page", format_duration),
    Column("middle", "middle page", format_duration),
    Column("last", "last page", format_duration),
    Column("of_user", "first page of one user", format_duration),
]
_PAGE_COLUMNS = [
    Column("what", ""),
    Column("sessions", "sessions", format_count),
    Column("overview", "overview", format_duration),
    Column("month", "30 days", format_duration),
    Column("first", "sessions", format_duration),
    Column("of_user", "of one user", format_duration),
    Column("sorted", "sorted by tokens", format_duration),
]
INSPECTOR_PAGES: Final = {
    "overview": "/inspect/overview",
    "month": "/inspect/overview?range=month",
    "first": "/inspect/sessions",
    "of_user": "/inspect/sessions?user_id=u7",
    "sorted": "/inspect/sessions?sort=tokens",
}
_SWEEP_COLUMNS = [
    Column("what", ""),
    Column("sessions", "sessions", format_count),
    Column("ended", "ended", format_count),
    Column("seconds", "sweep", format_duration),
    Column("p99_before", "turn p99 before", format_duration),
    Column("p99_during", "turn p99 during", format_duration),
    Column("ratio", "ratio", format_ratio),
]


async def measure(run: Run) -> list[Table]:
    """Measure lists on every database, and sweeps and pages of the inspector on SQLite and PostgreSQL."""
    lists, sweeps, pages = [], [], []
    for name in DATABASES:
        async with open_database(name, run.folder) as url:
            if url is not None:
                report(f"many: {name}")
                lists.append({"what": name, **await _measure_lists(url, run)})
        delete_files(run.folder, "servers.db*")
    for name in ("SQLite file", "PostgreSQL"):
        async with open_database(name, run.folder) as url:
            if url is not None:
                report(f"many: sweep on {name}")
                sweeps.append({"what": name, **await _measure_sweep(url, run)})
        delete_files(run.folder, "servers.db*")
    for name in ("SQLite file", "PostgreSQL"):
        async with open_database(name, run.folder) as url:
            if url is not None:
                report(f"many: pages of the inspector on {name}")
                pages.append({"what": name, **await _measure_pages(url, run)})
        delete_files(run.folder, "servers.db*")
    title = f"A page of {PAGE} sessions from a list of many, with {ENTRIES} messages each"
    notes = (f"{TASKS} tasks take one turn after another before and during the sweep. There is no index.",)
    return [
        Table("many_lists", title, _LIST_COLUMNS, lists),
        Table("many_pages", "Time of the server for a page of the inspector (median)", _PAGE_COLUMNS, pages),
        Table("many_sweeps", "An expiry sweep that ends a tenth of all sessions", _SWEEP_COLUMNS, sweeps, notes),
    ]


async def run_each(count: int, make: Callable[[int], Awaitable[object]]) -> None:
    """Call `make` for each number below `count`, `AT_ONCE` calls at a time."""
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await make(number)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


# -- lists -------------------------------------------------------------------


async def _measure_lists(url: str, run: Run) -> dict[str, Figure]:
    count = LISTED // 10 if run.quick else LISTED
    new = run.sample.new[:ENTRIES]
    async with Holdfast(url, roster=make_roster("token_window", BUDGET), max_sessions=0, index=None) as hf:
        now = hf.clock()

        async def make(number: int) -> None:
            session = NewSession(id=f"s{number:06}", user_id=f"u{number % 100}", timestamp=now + number)
            await hf.store.replace(session, new)

        await run_each(count, make)

        async def page(after: int | None, user_id: str | None = None) -> float:
            at = None if after is None else SessionRef(f"u{after % 100}", f"s{after:06}")
            times = []
            for _ in range(20):
                started = clock()
                listing = await hf.store.list(limit=PAGE, after=at, user_id=user_id)
                times.append(clock() - started)
                assert len(listing.sessions) == PAGE
            return sorted(times)[len(times) // 2]

        freeze_heap()
        return {
            "sessions": count,
            "first": await page(None),
            "middle": await page(count // 2),
            "last": await page(PAGE),
            "of_user": await page(None, user_id="u7") if count >= 100 * PAGE else None,
        }


# -- pages of the inspector --------------------------------------------------


async def _measure_pages(url: str, run: Run) -> dict[str, Figure]:
    count = SWEPT // 20 if run.quick else SWEPT
    async with Holdfast(url, roster=make_roster("token_window", BUDGET), max_sessions=0, index=None) as hf:
        now = hf.clock()

        async def make(number: int) -> None:
            session = NewSession(id=f"s{number:06}", user_id=f"u{number % 100}", timestamp=now + number)
            await hf.store.replace(session, run.sample.new[:4])

        await run_each(count, make)
        freeze_heap()
        return {"sessions": count, **await time_pages(hf)}


async def time_pages(hf: Holdfast) -> dict[str, Figure]:
    """Return the median time of each page of `INSPECTOR_PAGES`, without network."""
    transport = httpx2.ASGITransport(make_app(hf, close=False), client=("127.0.0.1", 5))
    medians: dict[str, Figure] = {}
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for name, path in INSPECTOR_PAGES.items():
            times = []
            for _ in range(20):
                started = clock()
                answer = await http.get(path, headers={"accept": "text/html"})
                times.append(clock() - started)
                answer.raise_for_status()
            medians[name] = sorted(times)[len(times) // 2]
    return medians


# -- a sweep -----------------------------------------------------------------


async def _measure_sweep(url: str, run: Run) -> dict[str, Figure]:
    count = SWEPT // 20 if run.quick else SWEPT
    now = time.time_ns() // 1_000_000
    settings: dict[str, Any] = {"max_sessions": 0, "session_ttl": "24h", "index": None}
    async with Holdfast(url, roster=make_roster("token_window", BUDGET), **settings) as hf:

        async def make(number: int) -> None:
            is_expired = number % 10 == 0
            session = NewSession(id=f"s{number:06}", user_id="u", timestamp=now - (2 * DAY if is_expired else 0))
            await hf.store.create(session)

        await run_each(count, make)
        handles = [await hf.session(f"busy{at}", user_id="u") for at in range(TASKS)]

        async def turn(at: int, text: str) -> None:
            async with handles[at].turn(f"{make_text(at)} {text}") as opened:
                opened.add(ANSWER)

        freeze_heap()
        before, during = Load(TASKS, TASKS), Load(TASKS, TASKS)
        await before.run(Candidate(turn), 1.0 if run.quick else 4.0)
        sweep, started = asyncio.create_task(_time_sweep(hf)), clock()
        while not sweep.done():
            await during.run(Candidate(turn), 0.5)
        seconds = await sweep
        report(f"(sweep took {clock() - started:.1f} s)")
        left = await hf.store.idle(now=hf.clock(), ttl=DAY, limit=1)
        return {
            "sessions": count,
            "ended": count // 10 if not left else 0,
            "seconds": seconds,
            "p99_before": _compute_p99(before.times),
            "p99_during": _compute_p99(during.times),
            "ratio": _compute_p99(during.times) / _compute_p99(before.times),
        }


async def _time_sweep(hf: Holdfast) -> float:
    started = clock()
    await hf.sweep()
    return clock() - started


def _compute_p99(times: Sequence[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]
