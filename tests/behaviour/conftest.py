"""Fixtures of the tests of behaviour."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.behaviour.kit import DRIVERS, World
from tests.behaviour.kit.world import MARK

OVER_HTTP = {"agents", "exchanges", "gateway", "inspector", "operate", "refusals"}
"""Folders whose tests reach the product over HTTP if they name no driver. The others use the library."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(*drivers): run through these drivers only")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `world` through every driver, or through those that it names."""
    if "world" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker(MARK)
        metafunc.parametrize("world", mark.args if mark else DRIVERS, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`HOLDFAST_TEST_DRIVER=rest` leaves out the tests of other drivers; `HOLDFAST_TEST_ORDER=N` runs all in a random order."""
    if driver := os.environ.get("HOLDFAST_TEST_DRIVER"):
        left_out = [item for item in items if find_driver(item) != driver]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if find_driver(item) == driver]
    if number := os.environ.get("HOLDFAST_TEST_ORDER"):
        random.Random(number).shuffle(items)


def find_driver(item: pytest.Item) -> str:
    """Return the driver of a test; without one, the folder says what it uses."""
    named = getattr(getattr(item, "callspec", None), "params", {}).get("world")
    return str(named or ("rest" if OVER_HTTP & set(item.path.parts) else "library"))


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """The product through one driver."""
    return World(request.param, tmp_path)
