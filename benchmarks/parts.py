"""Run the named parts of the benchmark, or all of them, and print their tables."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import sqlite3
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import (
    apis,
    appends,
    calls,
    compared,
    facts,
    footprint,
    gateway,
    many,
    matching,
    memory,
    millions,
    python,
    replay,
    search,
    servers,
    sessions,
    statement_peers,
    stored,
    streams,
    trips,
    turn,
    window,
)
from benchmarks.run import Run
from benchmarks.tables import Table
from benchmarks.timing import clock, freeze_heap, report

PARTS: Mapping[str, Callable[[Run], Coroutine[Any, Any, list[Table]]]] = {
    "calls": calls.measure,
    "window": window.measure,
    "facts": facts.measure,
    "turn": turn.measure,
    "sessions": sessions.measure,
    "appends": appends.measure,
    "replay": replay.measure,
    "statements": statement_peers.measure,
    "gateway": gateway.measure,
    "apis": apis.measure,
    "streams": streams.measure,
    "matching": matching.measure,
    "search": search.measure,
    "stored": stored.measure,
    "servers": servers.measure,
    "trips": trips.measure,
    "many": many.measure,
    "millions": millions.measure,
    "memory": memory.measure,
    "footprint": footprint.measure,
    "python": python.measure,
    "compared": compared.measure,
}

PREFIX = "holdfast-bench-"
MEMORY_FOLDER = "/dev/shm"
"""The memory file system of Linux."""


def run_parts(argv: Sequence[str]) -> int:
    """Measure the chosen parts and print the tables of each as soon as it is done."""
    options = _parse_arguments(argv)
    _raise_file_limit()
    tables: list[Table] = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX, dir=options.folder))
        run = Run(Path(folder), quick=options.quick)
        run.memory_folder = stack.enter_context(_make_memory_folder())
        for name in options.parts or PARTS:
            freeze_heap()
            started = clock()
            part_tables = asyncio.run(PARTS[name](run))
            report(f"{name} took {clock() - started:.0f} s")
            for table in part_tables:
                print(f"\n{table.format_markdown() if options.markdown else table.format_text()}", flush=True)
            tables += part_tables
    if options.json:
        text = json.dumps(
            {"environment": describe_environment(), "tables": [table.to_json() for table in tables]}, indent=2
        )
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 0


def _parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks",
        description=f"{__doc__} The commands recall, evidence and statements have a --help of their own.",
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    parser.add_argument(
        "--quick", action="store_true", help="measure for a shorter time, on sessions of up to 10,000 entries"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--json", metavar="FILE", help="write the raw figures to FILE")
    parser.add_argument(
        "--folder", help="folder for databases, which should be on a disk (default: a temporary folder)"
    )
    return parser.parse_args(argv)


def describe_environment() -> dict[str, Any]:
    """Return the versions and hardware that the figures depend on; nothing in it identifies the machine."""
    peers = ("apsw", "langchain-core", "openai-agents", "tiktoken")
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "sqlite3": sqlite3.sqlite_version,
        "holdfast": version("holdfast-memory"),
        **{name: version(name) for name in peers},
    }


@contextmanager
def _make_memory_folder() -> Iterator[Path | None]:
    """Yield a temporary folder on the memory file system, or None if the system has none."""
    if not Path(MEMORY_FOLDER).is_dir():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=MEMORY_FOLDER) as folder:
        yield Path(folder)


def _raise_file_limit() -> None:
    """Allow as many open files as the system permits: one peer opens several per session and thread."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
