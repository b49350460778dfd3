"""What the tests of the examples share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.servers import reach


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty place on the server of that name; without such a server the test is skipped, which the summary tells."""
    server = reach(request.param)
    url = server.place()
    try:
        yield url
        assert server.count_connections(url) == 0, "connections that nobody closed"
    finally:
        server.drop(url)
