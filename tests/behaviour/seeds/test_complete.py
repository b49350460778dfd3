"""Each statement of the founding documents has a test, or a reason why it has none.

The documents were taken apart into 373 statements, numbered in each document. A test of one begins with its number:
`test_001_76_…`, or is a case `001-76` of a table. Statements that are not yet true are strict expected failures, and name the issue
that mends them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
LINE: Final = "statement: "
"""How a line of `pytest_collection_modifyitems` begins."""
STATEMENTS: Final = {"000": 43, "001": 135, "002": 99, "003": 58, "004": 38}
"""Number of statements of each document."""
BACKGROUND: Final = {
    **dict.fromkeys(("000-24", "000-42"), "advice to the reader"),
    **dict.fromkeys(
        ("001-44", "001-45", "001-59", "001-64", "001-87", "001-120", "001-121", "001-122", "001-135"),
        "about other products, or why the text was written",
    ),
    **dict.fromkeys(("002-67", "002-99"), "headings and navigation of the page"),
    "003-58": "version numbers, links and a picture of another service",
    "004-38": "headings and navigation of the page",
}
"""Statements that say nothing that a product could do."""
LEFT: Final = {
    **dict.fromkeys(("001-117", "001-134", "002-38", "002-41"), 46),
    **dict.fromkeys(("001-67", "001-81", "001-82", "001-123", "003-57", "000-7", "000-43"), 49),
    **dict.fromkeys(("002-50", "002-72"), 47),
    "001-76": 48,
}
"""Statements that are not yet true, and the issue that mends each."""


@cache
def list_tests() -> list[tuple[str, str]]:
    """Return the number of each statement that has a test, and the reason for which it is expected to fail, if it is."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        __name__,
        str(HERE),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "HOLDFAST"))}
    path = os.pathsep.join(map(str, (ROOT, ROOT / "src")))
    printed = subprocess.run(
        command, env={**environment, "PYTHONPATH": path}, cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = [line.removeprefix(LINE) for line in printed.stdout.splitlines() if line.startswith(LINE)]
    return [(number, reason) for number, reason in map(json.loads, lines)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Print the statements of collected tests: this module is a plugin of the run that `list_tests` starts."""
    for item in items:
        name = item.name.replace("_", "-", 2) if re.match(r"test_00\d_\d", item.name) else item.name
        mark = item.get_closest_marker("xfail")
        reason = mark.kwargs["reason"] if mark is not None and mark.kwargs.get("strict") else ""
        for number in re.findall(r"\b00\d-\d+", name):
            print(LINE + json.dumps([number, reason]))


def test_each_statement_has_a_test() -> None:
    wanted = {f"{document}-{number}" for document, most in STATEMENTS.items() for number in range(1, most + 1)}
    tested = {number for number, _ in list_tests()}
    assert sorted(wanted - tested - set(BACKGROUND)) == []
    assert sorted(tested - wanted) == []
    assert sorted(tested & set(BACKGROUND)) == []


def test_a_statement_that_is_not_yet_true_names_the_issue_that_mends_it() -> None:
    expected = {number: reason for number, reason in list_tests() if reason}
    assert {number: int(re.findall(r"issue (\d+)", reason)[0]) for number, reason in expected.items()} == LEFT


def test_there_are_as_many_statements_as_were_counted() -> None:
    assert sum(STATEMENTS.values()) == 373
    assert len(BACKGROUND) == 15
