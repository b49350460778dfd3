"""Run an old and a new server on one database: `python -m tests.upgrade --store postgres [--seconds N] [--rate N]`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.stores.servers import leave, server
from tests.upgrade.releases import MISSING, find_old
from tests.upgrade.rolling import Rolling


def main() -> int:
    """Run; return 1 if something was lost, and 2 if a release or a database server is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.upgrade", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres", "mysql"), default="postgres", help="[postgres]")
    parser.add_argument("--seconds", type=float, default=120, help="with both servers [120]")
    parser.add_argument("--rate", type=float, help="requests per second [as many as possible]")
    parser.add_argument("--clients", type=int, default=6, help="[6]")
    options = parser.parse_args()
    old = find_old()
    if old is None:
        print(MISSING)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder, place = Path(name), None
        try:
            if options.store == "sqlite":
                url = f"sqlite:///{folder / 'rolling.db'}"
            else:
                place = server(options.store)
                if place.problem:
                    print(place.problem)
                    return 2
                url = place.place()
            return _run(
                Rolling(url, folder, old, talkers=options.clients, report=_report), options.seconds, options.rate
            )
        finally:
            if place is not None and not place.problem:
                place.drop(url)
            leave()


def _report(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


def _run(rolling: Rolling, seconds: float, rate: float | None) -> int:
    try:
        _report(asyncio.run(rolling.run(seconds, rate=rate)))
    except AssertionError as exc:
        _report(f"{type(exc).__name__}: {exc}")
        return 1
    finally:
        for name, log in rolling.logs.items():
            lines = [line for line in log.splitlines() if '"level": "info"' not in line]
            _report(f"log of {name}: {len(lines)} warnings and errors")
            for line in lines[-30:]:
                print("   ", line[:400])
    return 0


if __name__ == "__main__":
    sys.exit(main())
