"""The longer run: `python -m tests.chaos [--seconds N] [--clients N] [--seed N]`, or `make chaos`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.run import Chaos
from tests.stores.servers import leave, server

MOST = 270
"""Seconds; with its beginning and end a run stays under five minutes."""


def main() -> int:
    """Run; 1 when something was lost, doubled, out of order or crossed, 2 when there is no PostgreSQL."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Two servers, one PostgreSQL, misfortune."
    )
    parser.add_argument("--seconds", type=float, default=180, help=f"at most {MOST} [180]")
    parser.add_argument("--clients", type=int, default=100, help="[100]")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of what is decided by chance")
    options = parser.parse_args()
    postgres = server("postgres")
    try:
        if postgres.problem:
            print(postgres.problem)
            return 2
        print(f"seed {options.seed}")
        url = postgres.place()
        try:
            with tempfile.TemporaryDirectory() as folder:
                chaos = Chaos(url, Path(folder), clients=options.clients, seed=options.seed, report=print)
                print(asyncio.run(chaos.run(min(options.seconds, MOST))))
        except AssertionError as exc:
            print(f"{type(exc).__name__}: {exc}")
            return 1
        finally:
            postgres.drop(url)
    finally:
        leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
