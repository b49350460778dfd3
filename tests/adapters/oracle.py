"""Mark the tests in which a service is known to differ from its framework's own in-memory service, the oracle.

A test that takes the fixture `service` runs against the oracle and against ours. A difference needs a reason, and a reason that no longer
holds fails the test, so the tables in the documentation pages stay true.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest


def expect_difference(request: pytest.FixtureRequest, reasons: Mapping[str, str]) -> None:
    """Expect the requesting test to fail if `reasons` has its name, or its name with the id of one of its parameters in brackets."""
    node = request.node
    ids = node.callspec.id.split("-")
    names = [node.originalname, *(f"{node.originalname}[{one}]" for one in ids)]
    for name in names:
        if name in reasons:
            node.add_marker(pytest.mark.xfail(strict=True, reason=reasons[name]))
