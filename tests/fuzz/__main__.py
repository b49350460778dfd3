"""The longer run: `python -m tests.fuzz [TARGET …] [--seconds N] [--seed N] [--atheris]`.

Without targets all of them, one after the other. With `--atheris` (pip install atheris) libFuzzer leads, one target only.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time

from tests.fuzz.guided import fuzz
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Fuzz; 1 when something was found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Fuzz the readers of other people's bytes."
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all unless given")
    parser.add_argument("--seconds", type=float, default=60, help="for each target [60]")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="the same one finds the same")
    parser.add_argument("--atheris", action="store_true", help="let libFuzzer lead, if atheris is installed")
    options = parser.parse_args()
    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    names = options.targets or list(TARGETS)
    if options.atheris:
        return _atheris(names[0], options.seconds)
    for name in names:
        print(f"{name}, seed {options.seed}")
        try:
            fuzz(TARGETS[name], seed=options.seed, seconds=options.seconds, report=print)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it was found
            print(f"{name}: {type(exc).__name__}: {exc}")
            print("\n".join(getattr(exc, "__notes__", ())))
            return 1
    return 0


def _atheris(name: str, seconds: float) -> int:
    try:
        atheris = importlib.import_module("atheris")
    except ImportError:
        print("atheris is not installed; without --atheris the fuzzing is guided by Python's own tracing")
        return 2
    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={int(seconds)}"], TARGETS[name].check)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
