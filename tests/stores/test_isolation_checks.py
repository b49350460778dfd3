"""The contract of stores checks the isolation of tenants for each method."""

from __future__ import annotations

import inspect

from holdfast.stores.base import Store
from tests.contract.tenants import OF_A_SESSION, OF_A_TENANT

MAKES = {"create", "replace", "put_blob", "learn", "lease", "add_key", "add_sign_in", "add_deletion"}
"""Methods that make what they are told in their own tenant, whatever another one has."""
OPEN = {"tenants", "ping", "close"}
"""Methods that are of the whole database, or of the handle."""


def test_tenant_isolation_is_checked_for_every_method() -> None:
    """A method that is new is asked what it gives to a stranger."""
    methods = {name for name, one in inspect.getmembers(Store, inspect.iscoroutinefunction) if not name.startswith("_")}
    assert set(OF_A_SESSION) | set(OF_A_TENANT) == methods - MAKES - OPEN
