"""Tests, collected once: which lines each of them runs, and which of them fails where a fault is in its way."""

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

from scripts.mutants.faults import SEEN, Fault, Faulty, FunctionKey, Source
from scripts.mutants.forks import Done, Task, in_children
from scripts.mutants.targets import ROOT

CACHE: Final = ROOT / "build" / "mutants"
WAITING: Final = 4
"""How many seconds of waiting are worth one of work."""
FILE_SECONDS: Final = 900.0
"""How long a file of tests may take while it is looked at."""


class Ran(NamedTuple):
    """What a test did without any fault."""

    seconds: float
    lines: dict[str, set[int]]


class Verdict(NamedTuple):
    """What the tests said of a fault."""

    fault: Fault
    outcome: str
    """`killed`, `late` (it never ended, which is seen), `survived`, or `uncovered`: no test runs it."""
    by: str
    """The test that failed."""
    tests: int
    """How many would have been asked."""


class Bench:
    """The collected tests. They run in children only, so that what a session keeps for its tests is never shared between two."""

    def __init__(self, items: Sequence[pytest.Item], sources: Sequence[Source], *, jobs: int) -> None:
        self._items = {item.nodeid: item for item in items}
        self._jobs = jobs
        self._sources = sources
        for source in sources:  # drivers are imported by their first use: in children that would be too late
            importlib.import_module(".".join(source.path.relative_to(ROOT / "src").with_suffix("").parts))
        gc.unfreeze()  # what is frozen is not found
        self._functions = _functions({str(source.path) for source in sources})
        gc.freeze()  # children share what was collected
        self.ran = self._looked()
        self._killers: dict[FunctionKey, list[str]] = defaultdict(list)
        self._kills = Counter[tuple[str, str]]()  # by file and test

    def verdicts(self, faults: Iterable[tuple[Fault, Faulty]], *, limit: float) -> Iterator[Verdict]:
        """What comes of each fault, asked of tests of `limit` seconds together: those first that saw one in the same function, then what saw most in the file, then the quickest."""

        def tasks() -> Iterator[Task[tuple[Fault, list[str]]]]:
            for fault, faulty in faults:
                tests = self._asked(fault, limit)
                seconds = 15 + 10 * sum(self.ran[test].seconds for test in tests)
                yield Task(
                    (fault, tests),
                    functools.partial(self._tried, fault, faulty, tests),
                    seconds,
                )

        for done in in_children(tasks(), self._jobs):
            yield self._judged(done)

    def _judged(self, done: Done[tuple[Fault, list[str]]]) -> Verdict:
        fault, tests = done.about
        if not tests:
            return Verdict(fault, "uncovered", "", 0)
        if done.late:
            return Verdict(fault, "late", "", len(tests))
        by = done.result if done.result is not None else "(the process died)"
        self._kills[fault.key.file, by] += 1
        if by in self._items and by not in self._killers[fault.key]:
            self._killers[fault.key].append(by)
        return Verdict(fault, "killed" if by else "survived", by, len(tests))

    def _asked(self, fault: Fault, limit: float) -> list[str]:
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

    def _tried(self, fault: Fault, faulty: Faulty, tests: Sequence[str]) -> str:
        """In a child: the first test that fails, or nothing."""
        for function in self._functions.get(fault.key, ()):
            change(function, faulty)
        for item, passed, _ in _run([self._items[test] for test in tests]):
            if not passed:
                return item.nodeid
        return ""

    def _looked(self) -> dict[str, Ran]:
        """What each test does, as it was seen now or before its file or the sources changed."""
        CACHE.mkdir(parents=True, exist_ok=True)
        by_file: dict[Path, list[pytest.Item]] = defaultdict(list)
        for item in self._items.values():
            by_file[item.path].append(item)
        kept = {file: CACHE / f"{self._mark(file, items)}.json" for file, items in by_file.items()}
        codes = [code for source in self._sources for code in source.watched().items()]
        watching = {one: code for key, code in codes for one in self._functions.get(key, ())}
        tasks = (
            Task(file, functools.partial(_watched, items, watching), FILE_SECONDS)
            for file, items in by_file.items()
            if not kept[file].exists()
        )
        for done in in_children(tasks, self._jobs):
            print(f"  looked at {done.about.relative_to(ROOT)}{' (given up)' if done.late else ''}", flush=True)
            kept[done.about].write_text(json.dumps(done.result or {}), encoding="utf-8")
        return {
            test: Ran(ran["seconds"], {file: {*lines} for file, lines in ran["lines"].items()})
            for place in kept.values()
            for test, ran in json.loads(place.read_bytes()).items()
        }

    def _mark(self, file: Path, items: Sequence[pytest.Item]) -> str:
        mark = hashlib.sha256("\n".join(item.nodeid for item in items).encode())
        for one in [file, *(source.path for source in self._sources)]:
            mark.update(one.read_bytes())
        return mark.hexdigest()[:24]


def _watched(items: Sequence[pytest.Item], watching: Mapping[FunctionType, CodeType]) -> dict[str, Any]:
    """In a child: how long each test takes, and which statements it runs. One that fails, or does not run, is none to ask."""
    seen: set[tuple[str, int]] = set()
    setattr(builtins, SEEN, lambda file, line: seen.add((file, line)))
    for function, code in watching.items():
        function.__code__ = code
    ran = {}
    for item, passed, seconds in _run(items):
        lines = defaultdict[str, list[int]](list)
        for file, line in seen.copy():
            lines[file].append(line)
        if passed and lines:
            ran[item.nodeid] = {"seconds": seconds, "lines": lines}
        seen.clear()
    return ran


def _run(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, bool, float]]:
    """Each test, whether it passed, and its seconds: of work, so that a busy machine changes little; waiting counts for less."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        started, worked = time.perf_counter(), time.process_time()
        reports = runtestprotocol(item, log=False, nextitem=following)
        passed = all(report.passed for report in reports)
        yield item, passed, max(time.process_time() - worked, (time.perf_counter() - started) / WAITING)


def _functions(files: set[str]) -> dict[FunctionKey, list[FunctionType]]:
    """The functions of the files, as they are in this process, whatever wraps them."""
    found: dict[FunctionKey, list[FunctionType]] = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename in files:
            code = one.__code__
            found[FunctionKey(code.co_filename, code.co_firstlineno, code.co_name)].append(one)
    return found


def change(function: FunctionType, faulty: Faulty) -> None:
    """Put the fault into a function of this process."""
    if faulty.code is not None:
        function.__code__ = faulty.code
        return
    assert faulty.default is not None
    name, value = faulty.default
    if name in (function.__kwdefaults__ or {}):
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), name: value}
        return
    code, defaults = function.__code__, list(function.__defaults__ or ())
    with contextlib.suppress(ValueError):
        at = code.co_varnames[: code.co_argcount].index(name) - code.co_argcount
        defaults[at] = value
        function.__defaults__ = tuple(defaults)
