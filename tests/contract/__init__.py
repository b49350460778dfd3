"""The contract of `holdfast.stores.base` as checks that every store must pass, including a store outside this repository.

To check a database in another project, copy this folder into your project, under any name that can be imported:

    # conftest.py
    pytest_plugins = ["holdfast_contract.plugin"]

    @pytest.fixture
    def url():
        yield "mydb://an/empty/place"

    # test_mydb.py
    from holdfast_contract import *

`plugin.py` defines the fixtures that a project provides and their defaults. docs/stores.md describes them. `once.py` says which checks
Holdfast runs on one database only; a project runs them all. The suite needs
pytest and hypothesis. Its modules import each other relatively, so that a copy works under another name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any

import pytest

Checks = dict[str, Callable[..., Any]]

MODULES = (
    "sessions",
    "tenants",
    "refusals",
    "installation",
    "log",
    "notes",
    "edits",
    "compactions",
    "compactions_reference",
    "leases",
    "expiry",
    "artifacts",
    "matching",
    "media",
    "origins",
    "forks",
    "claims",
    "keys",
    "deletions",
    "state",
    "memories",
    "memories_limits",
    "records",
    "record_texts",
    "races",
    "cancellation",
    "state_reference",
    "state_races",
    "memories_reference",
    "memories_races",
    "openings",
    "processes",
    "leaks",
)
"""The modules that contain the checks, in the order in which they run."""

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in MODULES))


def checks_of(modules: Sequence[str]) -> Checks:
    """Return every check of these modules by its name.

    Raises:
        RuntimeError: two checks have the same name.
    """
    found: Checks = {}
    for module in modules:
        for name, check in vars(import_module(f"{__name__}.{module}")).items():
            if name.startswith("test_"):
                if name in found:
                    raise RuntimeError(f"two checks are called {name}: in {found[name].__module__} and in {module}")
                found[name] = _run_on_asyncio(check)
    return found


def _run_on_asyncio(check: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a check to run on asyncio, whichever event loop the other tests of the project use."""
    inner = check.hypothesis.inner_test if hasattr(check, "hypothesis") else check
    if not iscoroutinefunction(inner):
        return check
    backend = pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id=pytest.HIDDEN_PARAM)])
    marked: Callable[..., Any] = pytest.mark.anyio(backend(check))
    return marked


def split_by_database(checks: Mapping[str, Callable[..., Any]]) -> tuple[Checks, Checks]:
    """Return the checks that run on every database, and those that run on one (see `once.py`)."""
    single = {name: check for name, check in checks.items() if hasattr(check, "once")}
    return {name: check for name, check in checks.items() if name not in single}, single


CHECKS = checks_of(MODULES)
EVERYWHERE, ONCE = split_by_database(CHECKS)
globals().update(CHECKS)
__all__ = [*CHECKS]  # noqa: PLE0604  # names, as it should be
