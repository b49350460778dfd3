"""Run the store contract on a Redis server."""

import pytest

from tests.contract import *  # noqa: F403  # the same checks that a store of your own runs

pytestmark = pytest.mark.parametrize("url", ["redis"], indirect=True)
