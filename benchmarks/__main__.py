"""Run parts of the benchmark, or measure the quality of search and of prompts.

    python -m benchmarks turn gateway           compare speed and more with peers; without a name, all parts
    python -m benchmarks recall DATASET …       how much of the evidence for questions is found
    python -m benchmarks evidence DATASET …     whether the prompt of a question holds the evidence of its answer
    python -m benchmarks core DATASET …         evidence and price of the prompts of the core's prototype
    python -m benchmarks statements FILE …      which labelled statements stay in the prompt; without a file, compared with peers

The parts need the environment of `make bench`. The other commands run in any environment with Holdfast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> int:
    """Run the command or the parts that the arguments name; return the exit code."""
    if argv[:1] == ["core"]:
        from benchmarks.core.measure import main as measure_core

        return measure_core(argv[1:])
    if _is_evaluation(argv):
        from benchmarks.evaluation.commands import commands

        commands.main(argv, prog_name="python -m benchmarks")
    from benchmarks.parts import run_parts  # imports the peers

    return run_parts(argv)


def _is_evaluation(argv: Sequence[str]) -> bool:
    match argv:
        case ["recall" | "evidence", *_]:
            return True
        case ["statements", *rest]:
            return "--help" in rest or any(Path(one).exists() for one in rest)
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
