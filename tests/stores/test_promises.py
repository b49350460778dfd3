"""docs/store-checks.md names every check of the contract, under the promise that it holds, and every promise has one."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import Path

from holdfast.stores import base, log, tenants
from holdfast.stores.base import Store
from tests.contract import CHECKS, MODULES
from tests.contract.tenants import OF_A_SESSION, OF_A_TENANT

PAGE = Path(__file__).parents[2] / "docs" / "store-checks.md"
MAKES = {"create", "replace", "put_blob", "learn", "lease", "add_key", "add_sign_in", "add_deletion"}
"""Methods that make what they are told in their own tenant, whatever another one has."""
OPEN = {"tenants", "ping", "close"}
"""Methods that are of the whole database, or of the handle."""
PROTOCOLS = (base, log, tenants)
"""Modules whose prose is in paragraphs of these names; what the others say, the page has under one heading each."""
WITHOUT_CHECKS = {"Time", "Driver errors", "Appending"}
"""Of what they promise there is nothing to ask, nothing that can be asked of any store alike, or it stands under Writing."""


def rows() -> list[tuple[str, list[str]]]:
    """Each promise of the page with its checks."""
    table = re.findall(r"^\| (.*) \| (`[a-z0-9_]+`(?: `[a-z0-9_]+`)*) \|$", PAGE.read_text(), re.MULTILINE)
    return [(promise, [f"test_{name}" for name in re.findall(r"`(\w+)`", checks)]) for promise, checks in table]


def test_the_page_names_every_check_and_no_other() -> None:
    """A check that is new needs a promise there."""
    named = {check for _, checks in rows() for check in checks}
    assert set(CHECKS) - named == set()
    assert named - set(CHECKS) == set()


def test_every_promise_has_a_check() -> None:
    """One row a promise, each with at least one."""
    page = PAGE.read_text().partition("## Promises and their checks")[2]
    lines = [line for line in page.splitlines() if line.startswith("|") and not line.startswith(("| promise", "| ---"))]
    assert len(lines) == len(rows())
    assert max(Counter(promise for promise, _ in rows()).values()) == 1


def test_the_page_has_every_part_of_the_contract() -> None:
    """The paragraphs of the contract in prose, of all protocols, are the page's headings."""
    prose = "\n".join(str(module.__doc__) for module in PROTOCOLS)
    parts = set(re.findall(r"^\*\*(.+?)\.?\*\*", prose, re.MULTILINE))
    headings = set(re.findall(r"^### (.*)", PAGE.read_text(), re.MULTILINE))
    assert len(parts) > 10
    assert parts - WITHOUT_CHECKS <= headings


def test_tenant_isolation_is_checked_for_every_method() -> None:
    """A method that is new is asked what it gives to a stranger."""
    methods = {name for name, one in inspect.getmembers(Store, inspect.iscoroutinefunction) if not name.startswith("_")}
    assert set(OF_A_SESSION) | set(OF_A_TENANT) == methods - MAKES - OPEN


def test_every_module_of_checks_has_some() -> None:
    """A module without one is not of the suite."""
    homes = {check.__module__.rpartition(".")[2] for check in CHECKS.values()}
    assert homes == set(MODULES)
