"""What is measured, and by which tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
_SERVERS: Final = ("redis/*.py", "postgres*.py", "mysql*.py", "sql/*.py", "logic/network.py")
"""What of `stores` only a database server runs."""


class Target(NamedTuple):
    """Some of the source, and the tests that are to hold it. Both are patterns of files."""

    name: str
    source: tuple[str, ...]
    tests: tuple[str, ...]
    mention: str = ""
    """What a file of tests has in its text, so that it is taken; empty: all are."""
    left_out: tuple[str, ...] = ()
    """Patterns of files that are not its own."""
    servers: bool = False
    """Whether tests that need a database server run."""

    def sources(self) -> list[Path]:
        """Its files."""
        return [file for file in _files(self.source) if not any(map(file.match, self.left_out))]

    def test_files(self) -> list[str]:
        """The files of its tests, relative to the project."""
        found = [file for file in _files(self.tests) if self.mention in file.read_text(encoding="utf-8")]
        return [str(file.relative_to(ROOT)) for file in found]


def _files(patterns: Iterable[str]) -> list[Path]:
    return sorted({file for pattern in patterns for file in ROOT.glob(pattern)})


_OF_STORES: Final = (
    "tests/unit/test_store_*.py",
    *(f"tests/stores/test_{name}.py" for name in ("artifacts", "contract*", "deleted_users", "dialects", "index*")),
    *(f"tests/stores/test_{name}.py" for name in ("m*", "promises", "re*", "rows", "s*", "verify", "walk")),
    "tests/edges/test_cli_backup.py",
    *(f"tests/service/test_{name}.py" for name in ("compacting_life", "lease")),
)
"""Without those that run everything once more in processes of their own."""
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
        ("tests/unit/test_session.py", "tests/unit/test_heard.py", "tests/service/test_fork.py"),
    ),
    Target("stores", ("src/holdfast/stores/**/*.py",), _OF_STORES, left_out=_SERVERS),
    Target(
        "servers",
        tuple(f"src/holdfast/stores/{pattern}" for pattern in _SERVERS),
        _OF_STORES,
        servers=True,
    ),
)
"""The last one is measured where it is asked for: its tests need the servers, and take long."""
