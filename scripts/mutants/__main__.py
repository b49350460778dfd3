"""Run mutation testing: `python -m scripts.mutants [options] [target …]`, or `make mutants`."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from scripts.mutants.bench import Bench, Verdict
from scripts.mutants.faults import Fault, Replacement, Source
from scripts.mutants.targets import ROOT, TARGETS, Target

OUTCOMES = ("killed", "late", "survived", "uncovered")
EXAMPLES = 10
"""Examples of each property test."""
OWN_SETTINGS = "_hypothesis_internal_use_settings"
SERVERS_NAMES = ("postgres", "mysql", "mariadb", "redis")


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.mutants", description="Put faults into functions and check that tests fail."
    )
    names = [target.name for target in TARGETS]
    parser.add_argument(
        "targets", nargs="*", metavar="target", help=f"one of {', '.join(names)} (default: all but the last)"
    )
    parser.add_argument(
        "--sample", type=int, default=150, help="number of faults per target, drawn at random (default 150); 0: all"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the random draw (default 1)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="number of processes (default: one per core)"
    )
    parser.add_argument(
        "--limit", type=float, default=10.0, help="seconds of tests that run for each fault (default 10)"
    )
    parser.add_argument(
        "--least", type=float, default=85.0, help="percentage of each target's faults that must be killed (default 85)"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="FILE[:LINE]", help="all faults of these files or lines, and no others"
    )
    given = parser.parse_args(argv)
    if unknown := {*given.targets} - {*names}:
        parser.error(f"unknown target: {', '.join(sorted(unknown))}; known targets: {', '.join(names)}")
    given.targets = [target for target in TARGETS if target.name in (given.targets or names[:-1])]
    return given


class MutationRun:
    """A pytest plugin that tests the faults instead of running the tests."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self.has_passed = False

    def pytest_collection(self) -> None:
        """Make Hypothesis use the same examples each time, keep no database and not shrink failures."""
        import hypothesis  # only after pytest has loaded it

        hypothesis.settings.register_profile(
            "mutants",
            hypothesis.settings.get_profile("default"),
            derandomize=True,
            database=None,
            max_examples=EXAMPLES,
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Limit the examples of property tests that set their own number."""
        import hypothesis

        for function in {item.function for item in items if isinstance(item, pytest.Function)}:
            own = getattr(function, OWN_SETTINGS, None)
            if own is not None and own.max_examples > EXAMPLES:
                setattr(function, OWN_SETTINGS, hypothesis.settings(own, max_examples=EXAMPLES))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Test the faults of each target."""
        if session.testsfailed:
            raise session.Interrupted("tests cannot be collected")
        self.has_passed = all([*(self._measure_target(target, session.items) for target in self._given.targets)])
        return True

    def _measure_target(self, target: Target, items: Iterable[pytest.Item]) -> bool:
        """Test the faults of a target; return True if enough of them were killed."""
        files = {ROOT / file for file in target.find_tests()}
        chosen = [item for item in items if item.path in files and (target.servers or not _needs_server(item))]
        sources = [Source(file) for file in target.find_sources()]
        faults = self._draw_faults([(source, fault) for source in sources for fault in source.faults])
        shown = {fault: source.format_diff(fault) for source, fault, _ in faults}
        started = time.monotonic()
        print(f"{target.name}: {len(faults)} faults, {len(chosen)} tests", flush=True)
        bench = Bench(chosen, sources, jobs=self._given.jobs)
        print(f"  {len(bench.ran)} tests run it ({time.monotonic() - started:.0f} s)", flush=True)
        verdicts = []
        for verdict in bench.judge_faults(
            [(fault, replacement) for _, fault, replacement in faults], limit=self._given.limit
        ):
            verdicts.append(verdict)
            if verdict.outcome in {"survived", "uncovered"}:
                print(
                    f"{len(verdicts)}. {_format_place(verdict.fault)}: {verdict.outcome}, {verdict.tests} tests\n{shown[verdict.fault]}",
                    flush=True,
                )
        rate = _print_results(target, verdicts)
        print(f"  {time.monotonic() - started:.0f} s", flush=True)
        return rate >= float(self._given.least)

    def _draw_faults(self, faults: list[tuple[Source, Fault]]) -> list[tuple[Source, Fault, Replacement]]:
        """Draw faults at random by the seed, without those that change nothing."""
        only = self._given.only
        if only:
            faults = [(source, fault) for source, fault in faults if any(_is_at(fault, place) for place in only)]
        wanted = len(faults) if only or not self._given.sample else self._given.sample
        random.Random(self._given.seed).shuffle(faults)  # noqa: S311  # a sample, not a secret
        drawn = list[tuple[Source, Fault, Replacement]]()
        for source, fault in faults:
            if len(drawn) == wanted:
                break
            if replacement := source.compile_fault(fault):
                drawn.append((source, fault, replacement))
        return drawn


def _format_place(fault: Fault) -> str:
    return f"{Path(fault.key.file).relative_to(ROOT)}:{fault.line}"


def _is_at(fault: Fault, place: str) -> bool:
    return _format_place(fault).endswith(place) or _format_place(fault).rpartition(":")[0].endswith(place)


def _needs_server(item: pytest.Item) -> bool:
    """Return True if a parameter or fixture of the test is named after a database server."""
    names = {*getattr(item, "fixturenames", ())}
    return bool({"server", "server_url"} & names) or any(
        word in name for name in [*names, item.name.partition("[")[2]] for word in SERVERS_NAMES
    )


def _print_results(target: Target, verdicts: Sequence[Verdict]) -> float:
    """Print a table of the files; return the percentage of all faults that were killed."""
    by_file = defaultdict[str, Counter[str]](Counter)
    for verdict in verdicts:
        by_file[Path(verdict.fault.key.file).name][verdict.outcome] += 1
    total = sum(by_file.values(), Counter[str]())
    print(f"{'file':24} {'faults':>7}" + "".join(f" {outcome:>9}" for outcome in OUTCOMES) + "  killed of all")
    for file, counts in [*sorted(by_file.items()), (target.name, total)]:
        numbers = "".join(f" {counts[outcome]:9}" for outcome in OUTCOMES)
        print(f"{file:24} {counts.total():7}{numbers} {_compute_rate(counts):12.1f} %")
    return _compute_rate(total)


def _compute_rate(counts: Counter[str]) -> float:
    return 100 * (counts["killed"] + counts["late"]) / max(counts.total(), 1)


def main(argv: Sequence[str]) -> int:
    """Run mutation testing; return 1 if too few faults were killed."""
    given = parse_arguments(argv)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    files = sorted({file for target in given.targets for file in target.find_tests()})
    measuring = MutationRun(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that child processes end too
    options = ["-q", "--capture=no", "-p", "no:cacheprovider", "-m", "not slow", f"--rootdir={ROOT}"]
    code = pytest.main([*options, *(str(ROOT / file) for file in files)], plugins=[measuring])
    return int(code) or int(not measuring.has_passed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
