"""Parts of the source that mutation testing covers, and their tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
_SERVERS: Final = ("redis/*.py", "postgres*.py", "mysql*.py", "sql/*.py", "logic/network.py")
"""Files of `stores` that need a database server."""


class Target(NamedTuple):
    """A part of the source and its tests, both as file patterns."""

    name: str
    source: tuple[str, ...]
    tests: tuple[str, ...]
    mention: str = ""
    """Text that a test file must contain; empty: use all files."""
    left_out: tuple[str, ...] = ()
    """Patterns of files to leave out."""
    servers: bool = False
    """True if tests that need a database server run."""

    def find_sources(self) -> list[Path]:
        """Return the source files."""
        return [file for file in _find_files(self.source) if not any(map(file.match, self.left_out))]

    def find_tests(self) -> list[str]:
        """Return the test files, relative to the project."""
        found = [file for file in _find_files(self.tests) if self.mention in file.read_text(encoding="utf-8")]
        return [str(file.relative_to(ROOT)) for file in found]


def _find_files(patterns: Iterable[str]) -> list[Path]:
    return sorted({file for pattern in patterns for file in ROOT.glob(pattern)})


_OF_STORES: Final = (
    "tests/unit/test_store_*.py",
    *(f"tests/stores/test_{name}.py" for name in ("artifacts", "contract*", "deleted_users", "dialects", "index*")),
    *(f"tests/stores/test_{name}.py" for name in ("m*", "promises", "re*", "rows", "s*", "verify", "walk")),
    "tests/edges/test_cli_backup.py",
    *(f"tests/service/test_{name}.py" for name in ("compaction_lifecycle", "lease")),
)
"""Tests of stores, without those that run everything again in other processes."""
TARGETS: Final = (
    Target(
        "context",
        ("src/holdfast/context/**/*.py",),
        (
            "tests/unit/test_*.py",
            *(f"tests/service/test_{name}.py" for name in ("explain", "perspectives", "salience_turns", "warm")),
        ),
        mention="holdfast.context",
    ),
    Target(
        "session",
        ("src/holdfast/domain/session.py", "src/holdfast/domain/log.py"),
        ("tests/unit/test_session.py", "tests/unit/test_interruption_reports.py", "tests/service/test_fork.py"),
    ),
    Target("stores", ("src/holdfast/stores/**/*.py",), _OF_STORES, left_out=_SERVERS),
    Target(
        "servers",
        tuple(f"src/holdfast/stores/{pattern}" for pattern in _SERVERS),
        _OF_STORES,
        servers=True,
    ),
)
"""The last target must be named explicitly: its tests need the servers and take long."""
