"""Print what docs/frameworks.md says about the adapters: results of the comparisons and of the cases, and the tokens of forty turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest

SUBJECTS = frozenset({"artifacts", "kit", "memories", "saver", "service", "store"})
"""Fixtures that are the framework's own object, or ours."""
_equal: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)
"""By test file and id of the compared object: False for each behaviour, a test function, that differs from the tests."""
_cases: dict[str, list[str]] = defaultdict(list)
"""By test file: outcomes of the cases."""
_figures: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "differs: our object has another result than the framework's own, and the test says both"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: Any
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" or report.skipped:
        _note(item, report)
    return report


def _note(item: pytest.Function, report: pytest.TestReport) -> None:
    file = item.path.name
    if file.endswith("_cases.py"):
        _cases[file].append("does not apply" if report.skipped else report.outcome)
    _figures.extend(f"{file}: {value}" for name, value in report.user_properties if name == "figures")
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    if (run := params.get("run", params.get("scenario"))) is not None:
        _equal[file, f"{item.originalname}, {params.get('kind', 'holdfast')}"][run.__name__] = report.passed
    subject = next((name for name in SUBJECTS if isinstance(params.get(name), str)), None)
    if subject is None:
        return
    kind = params[subject]
    differs = item.get_closest_marker("differs") and "holdfast" in kind.lower()
    same = report.passed and not differs
    known = _equal[file, f"{subject} {kind}"]
    known[item.originalname] = known.get(item.originalname, True) and same


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the results."""
    for (file, kind), known in sorted(_equal.items()):
        terminalreporter.write_line(f"{file}: {kind}: {sum(known.values())} of {len(known)} behaviours")
    for file, outcomes in _cases.items():
        counts = ", ".join(f"{outcomes.count(one)} {one}" for one in sorted(set(outcomes), reverse=True))
        terminalreporter.write_line(f"{file}: cases: {counts}")
    for line in _figures:
        terminalreporter.write_line(line)
