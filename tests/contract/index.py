"""The contract of `holdfast.recall.base` as checks that every index must pass, including an index outside this repository.

    # conftest.py
    pytest_plugins = ["holdfast_contract.index_plugin"]

    @pytest.fixture
    def index_url():
        yield "mydb://an/empty/place"

    @pytest.fixture
    def index_opened_by():
        return "mydb:open_index"

    # test_mydb.py
    from holdfast_contract.index import *

`index_plugin.py` defines the fixtures that a project provides and their defaults.
"""

from __future__ import annotations

import pytest

from . import __name__ as package
from . import checks_of, split_by_database

MODULES = (
    "index_documents",
    "index_lookups",
    "index_spaces",
    "index_vectors",
    "index_against_model",
    "index_races",
    "index_processes",
)
"""The modules that contain the checks, in the order in which they run."""

pytest.register_assert_rewrite(*(f"{package}.{name}" for name in MODULES))

INDEX_CHECKS = checks_of(MODULES)
EVERYWHERE, ONCE = split_by_database(INDEX_CHECKS)
globals().update(INDEX_CHECKS)
__all__ = [*INDEX_CHECKS]  # noqa: PLE0604  # names, as it should be
