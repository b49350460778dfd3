"""The contract of `holdfast.stores.base` as checks: what every store is held to, and anybody's own store may be.

    # conftest.py
    pytest_plugins = ["holdfast.testing.contract.plugin"]

    @pytest.fixture
    def url():
        yield "mydb://an/empty/place"

    # test_mydb.py
    from holdfast.testing.contract import *

The fixtures that a project gives, and what they are by default, stand in `holdfast.testing.contract.plugin`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any

from holdfast.errors import MissingExtra

try:
    import hypothesis as hypothesis
    import pytest
except ImportError as exc:
    raise MissingExtra("the contract's suite", "testing") from exc

MODULES = (
    "sessions",
    "tenants",
    "refusing",
    "installing",
    "log",
    "edits",
    "compactions",
    "compactions_reference",
    "leases",
    "life",
    "artifacts",
    "matching",
    "media",
    "origins",
    "claims",
    "keys",
    "state",
    "memories",
    "memories_limits",
    "races",
    "cancelling",
    "state_reference",
    "state_races",
    "memories_reference",
    "memories_races",
    "openings",
    "processes",
    "leaks",
)
"""Where the checks stand, in the order in which they run."""

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in MODULES))


def checks_of(modules: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Every check of these modules by its name; each name is there once."""
    found: dict[str, Callable[..., Any]] = {}
    for module in modules:
        for name, check in vars(import_module(f"{__name__}.{module}")).items():
            if name.startswith("test_"):
                if name in found:
                    raise RuntimeError(f"two checks are called {name}: in {found[name].__module__} and in {module}")
                found[name] = _on_asyncio(check)
    return found


def _on_asyncio(check: Callable[..., Any]) -> Callable[..., Any]:
    """The check, so marked that it runs on asyncio whatever the project's other tests run on."""
    inner = check.hypothesis.inner_test if hasattr(check, "hypothesis") else check
    if not iscoroutinefunction(inner):
        return check
    backend = pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id=pytest.HIDDEN_PARAM)])
    marked: Callable[..., Any] = pytest.mark.anyio(backend(check))
    return marked


CHECKS = checks_of(MODULES)
globals().update(CHECKS)
__all__ = [*CHECKS]  # noqa: PLE0604  # names, as it should be
