"""`GET /v1/search`: pages, parameters, errors; and recalled messages in a response."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.edges.server import Served, gateway

SEARCH = "/v1/search"


async def request_search(served: Served, **parameters: Any) -> Any:
    """Send a search; return the answer."""
    return await served.http.get(SEARCH, params={"q": "gate code", **parameters})


async def test_unavailable_embedder_is_reported_without_its_address(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        place = f"127.0.0.1:{unused.getsockname()[1]}"
    embedder = f"embedders: {{far: {{base_url: 'http://{place}/v1', model: m}}}}"
    async with gateway([], embedder, "storage: {index: {type: hybrid, embedder: far}}") as (served, _):
        answer = await request_search(served, mode="vector")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "embedding_failed")
    assert "the endpoint cannot be reached" in answer.json()["error"]["message"]
    assert place not in answer.text
    assert place in caplog.text
