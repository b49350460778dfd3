"""Run the store contract on an SQLite file."""

import pytest

from tests.contract import *  # noqa: F403  # the same checks that a store of your own runs

pytestmark = pytest.mark.parametrize("url", ["sqlite-file"], indirect=True)
