"""Holdfast compared with memory systems: the same conversation, with a scripted model that answers at once.

Each system runs in a process and an environment of its own (`scripts/peers`). Systems that are not installed are named.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from benchmarks.corpus import make_text
from benchmarks.limited_histories import measure_limits
from benchmarks.peer_environments import find_program, format_missing, read_version
from benchmarks.run import Run
from benchmarks.systems.turns import EDGE
from benchmarks.tables import Column, Figure, Table, format_count, format_decimal, format_duration
from benchmarks.timing import report

ROOT = Path(__file__).parents[1]
TURNS, QUICK_TURNS = 200, 40
SECONDS = 900.0
"""Longest time of one system; one that takes longer is reported and left out."""


class Candidate(NamedTuple):
    """A system: the name of its row, its program, its environment (None: the benchmark's), its distribution and arguments."""

    name: str
    program: str
    environment: str | None
    distribution: str
    arguments: tuple[str, ...] = ()


CANDIDATES = (
    Candidate("Holdfast, digest", "holdfast_library", None, "holdfast-memory"),
    Candidate("Holdfast, digest, with a search per turn", "holdfast_library", None, "holdfast-memory", ("search",)),
    Candidate("OpenAI Agents, SQLiteSession", "openai_agents", None, "openai-agents"),
    Candidate("Google ADK, DatabaseSessionService", "adk", None, "google-adk"),
    Candidate("LangGraph, AsyncSqliteSaver", "langgraph_graph", "langgraph", "langgraph"),
    Candidate("LangGraph, AsyncSqliteSaver, DeltaChannel", "langgraph_graph", "langgraph", "langgraph", ("delta",)),
    Candidate("mem0, infer=True", "mem0_memory", "mem0", "mem0ai"),
    Candidate("mem0, infer=False", "mem0_memory", "mem0", "mem0ai", ("raw",)),
    Candidate("Graphiti (engine of Zep)", "graphiti_graph", "graphiti", "graphiti-core"),
)


async def measure(run: Run) -> list[Table]:
    """Play the conversation with each system that is installed."""
    count = QUICK_TURNS if run.quick else TURNS
    turns = [(make_text(2 * at), make_text(2 * at + 1)) for at in range(count)]
    (file := run.folder / "compared.json").write_text(json.dumps(turns), encoding="utf-8")
    rows: list[dict[str, Figure]] = []
    notes = list(_NOTES)
    for candidate in CANDIDATES:
        python = find_program(candidate.environment) if candidate.environment else Path(sys.executable)
        if python is None:
            notes.append(format_missing(str(candidate.environment)))
            continue
        report(f"compared: {candidate.name}")
        try:
            rows.append(await _measure_candidate(run, candidate, python, file))
        except (RuntimeError, TimeoutError) as exc:
            notes.append(f"{candidate.name} was not measured: {type(exc).__name__}: {exc}")
    title = f"One conversation of {count} turns in each system, with a scripted model that answers at once"
    return [
        Table("compared", title, _make_columns(count), rows, list(dict.fromkeys(notes))),
        await measure_limits(run.folder, quick=run.quick),
    ]


_NOTES = (
    "A turn stores the user's message, reads what the model is to see, and stores the answer. mem0 and Graphiti search, then add both.",
    "Model calls are those of the memory itself, without the call that answers the user. The times do not include a real model's seconds.",
    "Readable: messages of the conversation that the system's API returns word for word at the end.",
)


def _make_columns(count: int) -> list[Column]:
    edge = min(EDGE, count // 2)
    return [
        Column("what", ""),
        Column("version", "version"),
        Column("first", f"turn, first {edge}", format_duration),
        Column("last", f"turn, last {edge}", format_duration),
        Column("calls", "model calls per turn", format_decimal),
        Column("tokens", "tokens to models per turn", format_count),
        Column("vectors", "vectors per turn", format_decimal),
        Column("readable", f"readable of {2 * count}", format_count),
        Column("kilobytes", "kB on disk", format_count),
    ]


async def _measure_candidate(run: Run, candidate: Candidate, python: Path, file: Path) -> dict[str, Figure]:
    model = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.scripted_model", cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert model.stdout is not None
        url = f"http://127.0.0.1:{int(await model.stdout.readline())}"
        with tempfile.TemporaryDirectory(dir=run.folder) as folder:
            figures = await _play(candidate, python, file, url, folder)
        counts = await _fetch_counts(url)
    finally:
        model.terminate()
        await model.wait()
    turns = figures["messages"] / 2
    version = (
        read_version(candidate.environment, candidate.distribution)
        if candidate.environment
        else _own_version(candidate)
    )
    return {
        "what": candidate.name,
        "version": version,
        "first": figures["first"],
        "last": figures["last"],
        "calls": len(counts["tokens"]) / turns,
        "tokens": sum(counts["tokens"]) / turns,
        "vectors": counts["vectors"] / turns,
        "readable": figures["readable"],
        "kilobytes": figures["bytes"] / 1_000,
    }


def _own_version(candidate: Candidate) -> str:
    from importlib.metadata import version

    return version(candidate.distribution)


async def _play(candidate: Candidate, python: Path, file: Path, url: str, folder: str) -> Mapping[str, Any]:
    """Run the program of a system; return the figures that it prints last."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "HOLDFAST_"))}
    if candidate.environment:
        environment["PYTHONPATH"] = str(ROOT)
    environment["OPENAI_API_KEY"] = "unused"
    program = ("-m", f"benchmarks.systems.{candidate.program}", str(file), url, folder, *candidate.arguments)
    log = Path(folder).with_suffix(".log")
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            str(python), *program, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=errors
        )
        try:
            async with asyncio.timeout(SECONDS):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit status {process.returncode}")
    figures: Mapping[str, Any] = json.loads(output.decode().splitlines()[-1])
    return figures


async def _fetch_counts(url: str) -> Mapping[str, Any]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/counts") as response:
        counts: Mapping[str, Any] = await response.json()
        return counts
