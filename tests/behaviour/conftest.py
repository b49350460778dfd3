"""Fixtures of the tests of behaviour."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.behaviour.kit import DRIVERS, World
from tests.behaviour.kit.world import MARK


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(*drivers): run through these drivers only")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `world` through every driver, or through those that it names."""
    if "world" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker(MARK)
        metafunc.parametrize("world", mark.args if mark else DRIVERS, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `HOLDFAST_TEST_ORDER=N`, run the tests in the random order of this number."""
    if number := os.environ.get("HOLDFAST_TEST_ORDER"):
        random.Random(number).shuffle(items)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """The product through one driver."""
    return World(request.param, tmp_path)
