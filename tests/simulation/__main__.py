"""The longer run: `python -m tests.simulation [--seconds N] [--seed N] [--url DATABASE]`, or `make simulate`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import suppress

from tests.simulation.run import report, simulate
from tests.simulation.world import MEMORY


def main() -> int:
    """Run fresh seeds, or one seed; 1 if something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="The gateway under misfortune.")
    parser.add_argument("--seconds", type=float, default=60, help="[60]")
    parser.add_argument("--seed", type=int, help="run only this seed, and print its shortened trace")
    parser.add_argument("--steps", type=int, default=8, help="steps of each client [8]")
    parser.add_argument("--url", default=MEMORY, help="of a database; its tenants are the seeds [in memory]")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of strings is part of a seed's run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    if options.seed is not None:
        print(report(options.seed, steps=options.steps))
        return 0
    first, until = time.time_ns() // 1_000_000 % 10**9, time.monotonic() + options.seconds
    seed, turns, failed = first, 0, list[int]()
    with suppress(KeyboardInterrupt):
        while time.monotonic() < until:
            outcome = simulate(seed, steps=options.steps, url=options.url)
            turns += outcome.turns
            if outcome.violation:
                failed.append(seed)
                print(f"seed {seed}: {outcome.violation[:1000]}", flush=True)
            seed += 1
    print(f"seeds {first} to {seed - 1}: {turns} turns, {len(failed)} violations")
    if failed:
        print(f"--seed {failed[0]} --steps {options.steps} shows the shortened trace of the first one")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
