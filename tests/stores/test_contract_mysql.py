"""Run the store contract on a MySQL or MariaDB server."""

import pytest

from tests.contract import EVERYWHERE

globals().update(EVERYWHERE)
pytestmark = pytest.mark.parametrize("url", ["mysql"], indirect=True)
