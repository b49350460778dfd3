"""Run the store contract on a PostgreSQL server."""

import pytest

from tests.contract import EVERYWHERE

globals().update(EVERYWHERE)
pytestmark = pytest.mark.parametrize("url", ["postgres"], indirect=True)
