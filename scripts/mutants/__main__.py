"""`make mutants`: `python -m scripts.mutants [options] [target …]`."""

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
from scripts.mutants.faults import Fault, Faulty, Source
from scripts.mutants.targets import ROOT, TARGETS, Target

OUTCOMES = ("killed", "late", "survived", "uncovered")
EXAMPLES = 10
"""Of each property."""
OWN_SETTINGS = "_hypothesis_internal_use_settings"
SERVERS_NAMES = ("postgres", "mysql", "mariadb", "redis")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.mutants", description="Put faults into functions; tests are to fail."
    )
    names = [target.name for target in TARGETS]
    parser.add_argument(
        "targets", nargs="*", metavar="target", help=f"of {', '.join(names)}; all but the last unless given"
    )
    parser.add_argument("--sample", type=int, default=150, help="faults of each target, drawn at random (150); 0: all")
    parser.add_argument("--seed", type=int, default=1, help="which are drawn (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once (one a core)")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of tests a fault is shown to (10)")
    parser.add_argument("--least", type=float, default=85.0, help="percent of each target that must be killed (85)")
    parser.add_argument(
        "--only", nargs="+", metavar="FILE[:LINE]", help="faults of these alone, by the end of their place; all of them"
    )
    given = parser.parse_args(argv)
    if unknown := {*given.targets} - {*names}:
        parser.error(f"no target: {', '.join(sorted(unknown))}")
    given.targets = [target for target in TARGETS if target.name in (given.targets or names[:-1])]
    return given


class Measuring:
    """A plugin of pytest that measures instead of running the tests."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self.good = False

    def pytest_collection(self) -> None:
        """Hypothesis makes the same examples each time, remembers nothing, and takes no time for making failures smaller."""
        import hypothesis  # not before pytest has it

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
        """Properties that ask for more examples have no more either."""
        import hypothesis

        for function in {item.function for item in items if isinstance(item, pytest.Function)}:
            own = getattr(function, OWN_SETTINGS, None)
            if own is not None and own.max_examples > EXAMPLES:
                setattr(function, OWN_SETTINGS, hypothesis.settings(own, max_examples=EXAMPLES))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure each target."""
        if session.testsfailed:
            raise session.Interrupted("tests cannot be collected")
        self.good = all([*(self._measured(target, session.items) for target in self._given.targets)])
        return True

    def _measured(self, target: Target, items: Iterable[pytest.Item]) -> bool:
        """Whether enough of the target's faults were seen."""
        files = {ROOT / file for file in target.test_files()}
        chosen = [item for item in items if item.path in files and (target.servers or not _on_server(item))]
        sources = [Source(file) for file in target.sources()]
        faults = self._drawn([(source, fault) for source in sources for fault in source.faults])
        shown = {fault: source.shown(fault) for source, fault, _ in faults}
        started = time.monotonic()
        print(f"{target.name}: {len(faults)} faults, {len(chosen)} tests", flush=True)
        bench = Bench(chosen, sources, jobs=self._given.jobs)
        print(f"  {len(bench.ran)} tests run it ({time.monotonic() - started:.0f} s)", flush=True)
        verdicts = []
        for verdict in bench.verdicts([(fault, faulty) for _, fault, faulty in faults], limit=self._given.limit):
            verdicts.append(verdict)
            if verdict.outcome in {"survived", "uncovered"}:
                print(
                    f"{len(verdicts)}. {_place(verdict.fault)}: {verdict.outcome}, {verdict.tests} tests\n{shown[verdict.fault]}",
                    flush=True,
                )
        rate = _told(target, verdicts)
        print(f"  {time.monotonic() - started:.0f} s", flush=True)
        return rate >= float(self._given.least)

    def _drawn(self, faults: list[tuple[Source, Fault]]) -> list[tuple[Source, Fault, Faulty]]:
        """Some of the faults, by the seed; those that change nothing are passed over."""
        only = self._given.only
        if only:
            faults = [(source, fault) for source, fault in faults if any(_is_at(fault, place) for place in only)]
        wanted = len(faults) if only or not self._given.sample else self._given.sample
        random.Random(self._given.seed).shuffle(faults)  # noqa: S311  # a sample, no secret
        drawn = list[tuple[Source, Fault, Faulty]]()
        for source, fault in faults:
            if len(drawn) == wanted:
                break
            if faulty := source.faulty(fault):
                drawn.append((source, fault, faulty))
        return drawn


def _place(fault: Fault) -> str:
    return f"{Path(fault.key.file).relative_to(ROOT)}:{fault.line}"


def _is_at(fault: Fault, place: str) -> bool:
    return _place(fault).endswith(place) or _place(fault).rpartition(":")[0].endswith(place)


def _on_server(item: pytest.Item) -> bool:
    """Whether a test needs a database server: its parameter, or a fixture of its, is named after one."""
    names = {*getattr(item, "fixturenames", ())}
    return bool({"server", "server_url"} & names) or any(
        word in name for name in [*names, item.name.partition("[")[2]] for word in SERVERS_NAMES
    )


def _told(target: Target, verdicts: Sequence[Verdict]) -> float:
    """Print a table of the files; the percentage of all faults that were killed."""
    by_file = defaultdict[str, Counter[str]](Counter)
    for verdict in verdicts:
        by_file[Path(verdict.fault.key.file).name][verdict.outcome] += 1
    total = sum(by_file.values(), Counter[str]())
    print(f"{'file':24} {'faults':>7}" + "".join(f" {outcome:>9}" for outcome in OUTCOMES) + "  killed of all")
    for file, counts in [*sorted(by_file.items()), (target.name, total)]:
        numbers = "".join(f" {counts[outcome]:9}" for outcome in OUTCOMES)
        print(f"{file:24} {counts.total():7}{numbers} {_rate(counts):12.1f} %")
    return _rate(total)


def _rate(counts: Counter[str]) -> float:
    return 100 * (counts["killed"] + counts["late"]) / max(counts.total(), 1)


def main(argv: Sequence[str]) -> int:
    """The exit code: 1 where too few faults were seen."""
    given = arguments(argv)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    files = sorted({file for target in given.targets for file in target.test_files()})
    measuring = Measuring(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # children are ended on the way out
    options = ["-q", "--capture=no", "-p", "no:cacheprovider", "-m", "not slow", f"--rootdir={ROOT}"]
    code = pytest.main([*options, *(str(ROOT / file) for file in files)], plugins=[measuring])
    return int(code) or int(not measuring.good)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
