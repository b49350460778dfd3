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
            *(
                f"tests/service/test_{name}.py"
                for name in ("explain", "perspectives", "salience_turns", "session_cache")
            ),
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
        "prompts",
        tuple(
            f"src/holdfast/sessions/{name}.py"
            for name in ("prompt_sections", "prompt_views", "model_calls", "past_pins", "compaction_views")
        ),
        (
            *(f"tests/service/test_{name}.py" for name in ("compaction_views", "model_calls", "past_prompts")),
            *(f"tests/edges/test_rest_{name}.py" for name in ("calls", "compactions", "explain")),
            *(f"tests/edges/test_{name}.py" for name in ("cli_drawings", "inspector_prompt", "memory_files")),
        ),
    ),
    Target(
        "inspector",
        (
            *(f"src/holdfast/server/inspector/{name}.py" for name in ("frame", "access", "actions")),
            *(f"src/holdfast/server/{name}.py" for name in ("access", "sign_in", "key_cache")),
        ),
        (
            *(f"tests/edges/test_inspector_{name}.py" for name in ("admin", "data", "frame", "pages", "sessions")),
            *(f"tests/edges/test_{name}.py" for name in ("access", "rest_keys", "sign_in")),
        ),
    ),
    Target(
        "journals",
        (
            *(f"src/holdfast/engine/{name}.py" for name in ("activity", "deletion_journal", "session_removal")),
            *(f"src/holdfast/server/{name}.py" for name in ("activity", "bulk", "deletions", "retention")),
            "src/holdfast/domain/activity.py",
            "src/holdfast/lifecycle/retention.py",
        ),
        (
            "tests/unit/test_activity.py",
            *(f"tests/service/test_{name}.py" for name in ("deletions", "removal", "retention")),
            *(f"tests/edges/test_rest_{name}.py" for name in ("activity", "bulk", "deletions", "retention")),
        ),
    ),
    Target(
        "responses",
        (
            *(f"src/holdfast/domain/{name}.py" for name in ("provider_items", "sealed_items")),
            "src/holdfast/engine/seal_keys.py",
            *(f"src/holdfast/wire/{name}.py" for name in ("response*", "anthropic_threads")),
            *(f"src/holdfast/server/{name}.py" for name in ("conversations", "stored_responses", "threads")),
        ),
        (
            *(f"tests/unit/test_{name}.py" for name in ("responses_items", "sealed_items")),
            *(f"tests/service/test_{name}.py" for name in ("model_calls", "responses_model")),
            *(f"tests/edges/test_{name}.py" for name in ("apis_in_turn", "hosted_tools", "provider_compaction")),
            *(f"tests/edges/test_{name}.py" for name in ("message_threads*", "response*")),
        ),
    ),
    Target(
        "memory-files",
        tuple(f"src/holdfast/{name}.py" for name in ("memory/file*", "server/memory_files", "tools/memory_files")),
        (
            *(f"tests/{folder}/test_memory_files.py" for folder in ("unit", "service", "edges")),
            "tests/adapters/test_anthropic.py",
        ),
    ),
    Target(
        "records",
        tuple(
            f"src/holdfast/{name}.py"
            for name in ("domain/record", "indexes/records", "search/records", "server/records", "sessions/records")
        ),
        (
            "tests/unit/test_record_places.py",
            *(f"tests/service/test_record{name}.py" for name in ("s", "_search")),
            "tests/edges/test_rest_records.py",
        ),
    ),
    Target(
        "forks",
        (
            "src/holdfast/stores/logic/store.py",
            *(f"src/holdfast/{name}.py" for name in ("engine/branches", "sessions/forks", "sessions/moves")),
        ),
        (
            *(f"tests/service/test_{name}.py" for name in ("fork", "matching_forks", "session_moves")),
            *(f"tests/stores/test_{name}.py" for name in ("contract_sqlite_memory", "verify")),
        ),
    ),
    Target(
        "servers",
        tuple(f"src/holdfast/stores/{pattern}" for pattern in _SERVERS),
        _OF_STORES,
        servers=True,
    ),
)
"""The last target must be named explicitly: its tests need the servers and take long."""
