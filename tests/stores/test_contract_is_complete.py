"""The contract's suite has checks of every method and in every module."""

from __future__ import annotations

import inspect

from holdfast.stores.base import Store
from tests.contract import CHECKS, MODULES
from tests.contract.tenants import OF_A_SESSION, OF_A_TENANT

MAKES = {"create", "replace", "put_blob", "learn", "lease", "add_key", "add_deletion", "register_index", "start_job"}
"""Methods that create something in their own tenant, whatever another tenant has."""
OPEN = {"tenants", "ping", "close"}
"""Methods that concern the whole database, or the handle."""
APART = {"add_to_job", "finish_due"}
"""Methods that take numbers which the database gives; a check of their own names them."""


def test_tenant_isolation_is_checked_for_every_method() -> None:
    methods = {name for name, one in inspect.getmembers(Store, inspect.iscoroutinefunction) if not name.startswith("_")}
    assert set(OF_A_SESSION) | set(OF_A_TENANT) == methods - MAKES - OPEN - APART


def test_every_module_of_checks_has_some() -> None:
    homes = {check.__module__.rpartition(".")[2] for check in CHECKS.values()}
    assert homes == set(MODULES)
