"""Resident memory of a server over many turns and many large bodies, which should stay flat. Draws docs/memory.svg."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from benchmarks.run import Run
from benchmarks.tables import Column, Table, format_count
from benchmarks.timing import report

IMPORTED, IMPORTED_QUICK = 600, 20
"""Sessions that are imported first, to fill SQLite's page caches."""
MESSAGES = 100
"""Messages of an imported session."""
TURNS, TURNS_QUICK = 16_000, 1_000
"""Turns; the first thousands fill the caches of sessions and analysed words."""
TURNS_OF_A_SESSION = 20
BODIES, BODIES_QUICK = 1_000, 100
BODY_BYTES = 1_000_000
"""Bytes of a message; all bodies differ, and each session gets `BODIES_OF_A_SESSION` of them."""
BODIES_OF_A_SESSION = 5
CLIENTS = 4
POINTS = 50
"""Samples per phase."""
PICTURE = Path(__file__).parents[1] / "docs" / "memory.svg"
_COLUMNS = [
    Column("what", ""),
    Column("requests", "requests", format_count),
    *(
        Column(name, f"MB {title}", format_count)
        for name, title in (("first", "after a tenth"), ("half", "halfway"), ("last", "at the end"))
    ),
    Column("peak", "peak MB", format_count),
]
Request = Callable[[int], Awaitable[None]]


async def measure(run: Run) -> list[Table]:
    """Sample the resident memory of a server with an SQLite file and its index while clients use it."""
    imported, turns, bodies = (IMPORTED_QUICK, TURNS_QUICK, BODIES_QUICK) if run.quick else (IMPORTED, TURNS, BODIES)
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--store", f"sqlite:///{run.folder}/memory.db"]
    server = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert server.stdout is not None
    try:
        url = (await server.stdout.readline()).decode().split()[-1]
        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(url, timeout=timeout) as http:
            for number in range(imported):
                await _import_session(http, number)
            phases = {
                "turns": await _sample(server.pid, turns, lambda number: _send_turn(http, number)),
                "large bodies": await _sample(server.pid, bodies, lambda number: _send_body(http, number)),
            }
    finally:
        server.terminate()
        await server.wait()
    if not run.quick:
        PICTURE.write_text(_draw_picture(phases), encoding="utf-8")
    rows: list[dict[str, int | float | str | None]] = [
        {
            "what": name,
            "requests": samples[-1][0],
            "first": samples[len(samples) // 10][1],
            "half": samples[len(samples) // 2][1],
            "last": samples[-1][1],
            "peak": max(size for _, size in samples),
        }
        for name, samples in phases.items()
    ]
    title = "Resident memory of a server on an SQLite file with its index"
    note = (
        f"The store has {imported} imported sessions of {MESSAGES} messages. {CLIENTS} clients take {TURNS_OF_A_SESSION} turns per"
        f" session with the offline model, then send bodies of {BODY_BYTES:,} bytes, {BODIES_OF_A_SESSION} per session."
    )
    return [Table("memory", title, _COLUMNS, rows, (note,))]


async def _sample(pid: int, count: int, request: Request) -> list[tuple[int, float]]:
    """Send `count` requests; return `POINTS` pairs of the number of requests sent and the process's megabytes at that time."""
    numbers, done, samples = iter(range(count)), 0, list[tuple[int, float]]()

    async def client() -> None:
        nonlocal done
        for number in numbers:
            await request(number)
            done += 1
            if done % max(1, count // POINTS) == 0:
                samples.append((done, _read_resident_mb(pid)))

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    report(f"memory: {count} requests, {samples[0][1]:.0f} to {samples[-1][1]:.0f} MB")
    return samples


def _read_resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


async def _send_turn(http: aiohttp.ClientSession, number: int) -> None:
    text = f"Question {number}: where is order {number * 7919} now, and when will it be here?"
    body = {"messages": [{"role": "user", "content": text}], "session_id": f"s{number // TURNS_OF_A_SESSION}"}
    async with http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()


async def _import_session(http: aiohttp.ClientSession, number: int) -> None:
    words = ("Is part {} of order {} there yet?", "Part {} of order {} was seen at the depot this morning.")
    content = [words[at % 2].format(at, number * 7907 + at) for at in range(MESSAGES)]
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(content)]
    async with http.put(f"/v1/sessions/i{number}", json={"messages": messages}) as response:
        assert response.status in (200, 201), await response.text()


async def _send_body(http: aiohttp.ClientSession, number: int) -> None:
    sentence = f"Report {number} says that part {number * 104729} was checked at place {number % 97}. "
    text = (sentence * (BODY_BYTES // len(sentence) + 1))[:BODY_BYTES]
    path = f"/v1/sessions/b{number // BODIES_OF_A_SESSION}"
    async with http.put(path, json={"messages": [{"role": "user", "content": text}]}) as response:
        assert response.status in (200, 201), await response.text()


# -- the picture -------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 420, 220, 60, 40, 90


def _draw_picture(phases: dict[str, list[tuple[int, float]]]) -> str:
    """Return an SVG with one chart per phase, all on the same scale."""
    most = max(size for samples in phases.values() for _, size in samples)
    step = next(step for step in (10, 25, 50, 100, 250, 500, 1000) if most / step <= 8)
    top = step * (int(most / step) + 1)
    charts = [_draw_chart(name, samples, top, step, at) for at, (name, samples) in enumerate(phases.items())]
    width, height = _LEFT + len(charts) * (_WIDTH + _GAP), _TOP + _HEIGHT + 50
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{"".join(charts)}</svg>\n'
    )


def _draw_chart(name: str, samples: list[tuple[int, float]], top: int, step: int, at: int) -> str:
    left, bottom = _LEFT + at * (_WIDTH + _GAP), _TOP + _HEIGHT
    last = samples[-1][0]
    lines = [f'<text x="{left}" y="{_TOP - 16}" font-size="14">resident memory, MB, over {last:,} {name}</text>\n']
    for value in range(0, top + 1, step):
        y = bottom - value / top * _HEIGHT
        lines.append(f'<line x1="{left}" x2="{left + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>\n')
        lines.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{value}</text>\n')
    for part in range(5):
        x, value = left + part / 4 * _WIDTH, last * part // 4
        lines.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{value:,}</text>\n')
    points = " ".join(f"{left + n / last * _WIDTH:.1f},{bottom - size / top * _HEIGHT:.1f}" for n, size in samples)
    lines.append(f'<polyline points="{points}" fill="none" stroke="#1f5fa8" stroke-width="2"/>\n')
    return "".join(lines)
