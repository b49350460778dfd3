"""The contract of `holdfast.recall.base` as checks: what every index is held to, and anybody's own index may be.

    # conftest.py
    pytest_plugins = ["holdfast.testing.contract.index_plugin"]

    @pytest.fixture
    def index_url():
        yield "mydb://an/empty/place"

    @pytest.fixture
    def index_opened_by():
        return "mydb:open_index"

    # test_mydb.py
    from holdfast.testing.contract.index import *

The fixtures that a project gives, and what they are by default, stand in `holdfast.testing.contract.index_plugin`.
"""

from __future__ import annotations

import pytest

from holdfast.testing.contract import __name__ as package
from holdfast.testing.contract import checks_of

MODULES = (
    "index_documents",
    "index_lookups",
    "index_spaces",
    "index_vectors",
    "index_against_model",
    "index_races",
    "index_processes",
)
"""Where the checks stand, in the order in which they run."""

pytest.register_assert_rewrite(*(f"{package}.{name}" for name in MODULES))

INDEX_CHECKS = checks_of(MODULES)
globals().update(INDEX_CHECKS)
__all__ = [*INDEX_CHECKS]  # noqa: PLE0604  # names, as it should be
