"""A trial of docs/stores.md: a store in a plain folder passes the contract's checks of sessions and the log.

`replace`, and what is no part of a session or its log, is left out: it would need the other parts of the contract.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.contract import log, sessions
from tests.stores.folder_store import FolderStore

_OTHER_PARTS = {
    "test_too_large_fields_are_refused",
    "test_replace_installs_a_complete_session",
    "test_replace_creates_a_missing_session",
    "test_delete_removes_everything",
    "test_a_closed_store_raises",
    "test_closing_a_tenants_handle_closes_only_that_handle",
    "test_memories_outlive_sessions",
    "test_tenants_see_nothing_of_each_other",
}
globals().update(
    {
        name: check
        for module in (log, sessions)
        for name, check in vars(module).items()
        if name.startswith("test_") and name not in _OTHER_PARTS
    }
)


@pytest.fixture(params=["folder"])
def url(request: pytest.FixtureRequest) -> str:
    """Says which store it is."""
    return str(request.param)


@pytest.fixture
def open_store(tmp_path: Path) -> Callable[..., Awaitable[FolderStore]]:
    """Opens the store in a folder of its own."""

    async def open_tenant(tenant: str = "acme") -> FolderStore:
        return FolderStore(tmp_path, tenant)

    return open_tenant
