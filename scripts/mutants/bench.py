"""Run the collected tests in child processes: find the lines that each test runs, and the test that a fault makes fail."""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import hashlib
import importlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from scripts.mutants.faults import SEEN, Fault, FunctionKey, Replacement, Source
from scripts.mutants.forks import Task, TaskResult, run_in_children
from scripts.mutants.targets import ROOT

CACHE: Final = ROOT / "build" / "mutants"
WAITING: Final = 4
"""Seconds of waiting that count as one second of work."""
FILE_SECONDS: Final = 900.0
"""Seconds that a file of tests may take while its lines are recorded."""


class BaselineRun(NamedTuple):
    """Duration of a test without a fault, and the lines that it runs by file."""

    seconds: float
    lines: dict[str, set[int]]


class Verdict(NamedTuple):
    """Result of testing a fault."""

    fault: Fault
    outcome: str
    """`killed`, `late` (the tests did not end), `survived`, or `uncovered` (no test runs it)."""
    by: str
    """Name of the test that failed."""
    tests: int
    """Number of tests that were chosen for the fault."""


class Bench:
    """The collected tests, which run only in child processes so that tests share no state of the pytest session."""

    def __init__(self, items: Sequence[pytest.Item], sources: Sequence[Source], *, jobs: int) -> None:
        self._items = {item.nodeid: item for item in items}
        self._jobs = jobs
        self._sources = sources
        for source in sources:  # drivers are imported on first use, which is too late in a child process
            importlib.import_module(".".join(source.path.relative_to(ROOT / "src").with_suffix("").parts))
        gc.unfreeze()  # `gc.get_objects` does not return frozen objects
        self._functions = _find_functions({str(source.path) for source in sources})
        gc.freeze()  # so that child processes share the memory
        self.ran = self._observe_tests()
        self._killers: dict[FunctionKey, list[str]] = defaultdict(list)
        self._kills = Counter[tuple[str, str]]()  # by file and test

    def judge_faults(self, faults: Iterable[tuple[Fault, Replacement]], *, limit: float) -> Iterator[Verdict]:
        """Yield the verdict on each fault.

        Args:
            faults: the faults and their code.
            limit: total seconds of the tests per fault. Tests that killed a fault of the same function come first, then those that
                killed most in the file, then the fastest.
        """

        def tasks() -> Iterator[Task[tuple[Fault, list[str]]]]:
            for fault, replacement in faults:
                tests = self._choose_tests(fault, limit)
                seconds = 15 + 10 * sum(self.ran[test].seconds for test in tests)
                yield Task(
                    (fault, tests),
                    functools.partial(self._try_fault, fault, replacement, tests),
                    seconds,
                )

        for result in run_in_children(tasks(), self._jobs):
            yield self._judge(result)

    def _judge(self, result: TaskResult[tuple[Fault, list[str]]]) -> Verdict:
        fault, tests = result.about
        if not tests:
            return Verdict(fault, "uncovered", "", 0)
        if result.late:
            return Verdict(fault, "late", "", len(tests))
        by = result.result if result.result is not None else "(the process died)"
        self._kills[fault.key.file, by] += 1
        if by in self._items and by not in self._killers[fault.key]:
            self._killers[fault.key].append(by)
        return Verdict(fault, "killed" if by else "survived", by, len(tests))

    def _choose_tests(self, fault: Fault, limit: float) -> list[str]:
        known = self._killers[fault.key]
        run = [test for test, ran in self.ran.items() if fault.reached in ran.lines.get(fault.key.file, ())]
        run.sort(key=lambda test: (test not in known, -self._kills[fault.key.file, test], self.ran[test].seconds))
        asked, left = list[str](), limit
        for test in run:
            left -= self.ran[test].seconds
            if left < 0 and asked:
                break
            asked.append(test)
        return asked

    def _try_fault(self, fault: Fault, replacement: Replacement, tests: Sequence[str]) -> str:
        """Apply the fault in a child process; return the name of the first test that fails, or an empty string."""
        for function in self._functions.get(fault.key, ()):
            apply_fault(function, replacement)
        for item, passed, _ in _run_tests([self._items[test] for test in tests]):
            if not passed:
                return item.nodeid
        return ""

    def _observe_tests(self) -> dict[str, BaselineRun]:
        """Return the lines that each test runs, from the cache unless its file or the sources have changed."""
        CACHE.mkdir(parents=True, exist_ok=True)
        by_file: dict[Path, list[pytest.Item]] = defaultdict(list)
        for item in self._items.values():
            by_file[item.path].append(item)
        kept = {file: CACHE / f"{self._hash_inputs(file, items)}.json" for file, items in by_file.items()}
        codes = [code for source in self._sources for code in source.instrument().items()]
        instrumented = {one: code for key, code in codes for one in self._functions.get(key, ())}
        tasks = (
            Task(file, functools.partial(_watch_tests, items, instrumented), FILE_SECONDS)
            for file, items in by_file.items()
            if not kept[file].exists()
        )
        for result in run_in_children(tasks, self._jobs):
            print(f"  recorded {result.about.relative_to(ROOT)}{' (stopped)' if result.late else ''}", flush=True)
            kept[result.about].write_text(json.dumps(result.result or {}), encoding="utf-8")
        return {
            test: BaselineRun(ran["seconds"], {file: {*lines} for file, lines in ran["lines"].items()})
            for place in kept.values()
            for test, ran in json.loads(place.read_bytes()).items()
        }

    def _hash_inputs(self, file: Path, items: Sequence[pytest.Item]) -> str:
        mark = hashlib.sha256("\n".join(item.nodeid for item in items).encode())
        for one in [file, *(source.path for source in self._sources)]:
            mark.update(one.read_bytes())
        return mark.hexdigest()[:24]


def _watch_tests(items: Sequence[pytest.Item], instrumented: Mapping[FunctionType, CodeType]) -> dict[str, Any]:
    """Record in a child process how long each test takes and which statements it runs; leave out tests that fail."""
    seen: set[tuple[str, int]] = set()
    setattr(builtins, SEEN, lambda file, line: seen.add((file, line)))
    for function, code in instrumented.items():
        function.__code__ = code
    ran = {}
    for item, passed, seconds in _run_tests(items):
        lines = defaultdict[str, list[int]](list)
        for file, line in seen.copy():
            lines[file].append(line)
        if passed and lines:
            ran[item.nodeid] = {"seconds": seconds, "lines": lines}
        seen.clear()
    return ran


def _run_tests(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, bool, float]]:
    """Run tests; yield each one, True if it passed, and its seconds of CPU time, or a part of its waiting time if that is more."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        started, worked = time.perf_counter(), time.process_time()
        reports = runtestprotocol(item, log=False, nextitem=following)
        passed = all(report.passed for report in reports)
        yield item, passed, max(time.process_time() - worked, (time.perf_counter() - started) / WAITING)


def _find_functions(files: set[str]) -> dict[FunctionKey, list[FunctionType]]:
    """Return the functions of the files in this process, whether or not something wraps them."""
    found: dict[FunctionKey, list[FunctionType]] = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename in files:
            code = one.__code__
            found[FunctionKey(code.co_filename, code.co_firstlineno, code.co_name)].append(one)
    return found


def apply_fault(function: FunctionType, replacement: Replacement) -> None:
    """Replace the code or a default of a function in this process."""
    if replacement.code is not None:
        function.__code__ = replacement.code
        return
    assert replacement.default is not None
    name, value = replacement.default
    if name in (function.__kwdefaults__ or {}):
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), name: value}
        return
    code, defaults = function.__code__, list(function.__defaults__ or ())
    with contextlib.suppress(ValueError):
        at = code.co_varnames[: code.co_argcount].index(name) - code.co_argcount
        defaults[at] = value
        function.__defaults__ = tuple(defaults)
