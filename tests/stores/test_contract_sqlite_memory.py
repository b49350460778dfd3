"""Run the checks on SQLite in memory that no database can change, and those that depend on how a store runs its statements.

All others run on an SQLite file, which has the same statements.
"""

import inspect

import pytest

from tests.contract import CHECKS, ONCE

AT_ONCE = {"races", "state_races", "memories_races", "cancellation", "leaks"}
"""Modules of checks about many callers, callers that give up, and closing."""
OF_SEVERAL = {"shared_opener", "writer"}
"""Fixtures of checks that open a store several times."""

globals().update(ONCE)
for name, check in CHECKS.items():
    if check.__module__.rpartition(".")[2] in AT_ONCE and OF_SEVERAL.isdisjoint(inspect.signature(check).parameters):
        globals()[name] = check
pytestmark = pytest.mark.parametrize("url", ["sqlite-memory"], indirect=True)
