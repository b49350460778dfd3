"""`make bench`: the parts that are named, or all; tables on the terminal, Markdown, JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import (
    apis,
    calls,
    facts,
    fairness,
    footprint,
    gateway,
    many,
    matching,
    memory,
    python,
    replay,
    search,
    servers,
    sessions,
    statement_peers,
    stored,
    streams,
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
    "replay": replay.measure,
    "statements": statement_peers.measure,
    "gateway": gateway.measure,
    "apis": apis.measure,
    "streams": streams.measure,
    "matching": matching.measure,
    "search": search.measure,
    "stored": stored.measure,
    "servers": servers.measure,
    "many": many.measure,
    "memory": memory.measure,
    "footprint": footprint.measure,
    "python": python.measure,
    "fairness": fairness.measure,
}


PREFIX = "holdfast-bench-"
MEMORY = "/dev/shm"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print each part's tables as soon as they are there."""
    given = _arguments(argv)
    _allow_files()
    tables: list[Table] = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX, dir=given.folder))
        run = Run(Path(folder), quick=given.quick)
        run.memory = stack.enter_context(_in_memory())
        for name in given.parts or PARTS:
            freeze_heap()
            started = clock()
            made = asyncio.run(PARTS[name](run))
            report(f"{name} took {clock() - started:.0f} s")
            for table in made:
                print(f"\n{table.format_markdown() if given.markdown else table.format_text()}", flush=True)
            tables += made
    if given.json:
        text = json.dumps({"environment": environment(), "tables": [table.to_json() for table in tables]}, indent=2)
        Path(given.json).write_text(text + "\n", encoding="utf-8")
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="shorter, and up to 10,000 entries only")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument("--json", metavar="FILE", help="write the raw figures to FILE")
    parser.add_argument("--folder", help="where databases are made; it should be on a disk  [default: a temporary one]")
    return parser.parse_args(argv)


def environment() -> dict[str, Any]:
    """What the figures depend on, and nothing that names the machine."""
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
def _in_memory() -> Iterator[Path | None]:
    """A folder on the memory file system that Linux has."""
    if not Path(MEMORY).is_dir():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=MEMORY) as folder:
        yield Path(folder)


def _allow_files() -> None:
    """As many open files as may be: a peer opens several a session and thread."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main())
