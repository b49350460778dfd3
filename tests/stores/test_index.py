"""Run the contract of an index on each engine that makes one."""

import pytest

from tests.contract.index import INDEX_CHECKS, ONCE
from tests.stores.conftest import INDEXES

EVERYWHERE = ["sqlite-file", "postgres", "mysql"]
OF_VECTORS = {"index_vectors", "index_against_model"}
"""Modules whose checks compare vectors, which is all that pgvector changes."""

for name, check in INDEX_CHECKS.items():
    if name in ONCE:
        engines = ["sqlite-memory"]
    elif check.__module__.rpartition(".")[2] in OF_VECTORS:
        engines = [engine for engine in INDEXES if engine != "sqlite-memory"]
    else:
        engines = EVERYWHERE
    globals()[name] = pytest.mark.parametrize("index_url", engines, indirect=True)(check)
