"""Run the store contract on an SQLite file."""

import pytest

from tests.contract import EVERYWHERE

globals().update(EVERYWHERE)
pytestmark = pytest.mark.parametrize("url", ["sqlite-file"], indirect=True)
