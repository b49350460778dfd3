"""The page at `/`."""

from __future__ import annotations

import pytest

from tests.behaviour.kit import gateway


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("text/html", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("application/json, text/html", False),
        ("nonsense", False),
    ],
)
async def test_front_page_is_html_or_json_by_accept_header(accept: str, html: bool) -> None:
    """With `Vary` for caches."""
    async with gateway([]) as served:
        response = await served.http.get("/", headers={"Accept": accept})
        assert response.headers["content-type"].startswith("text/html" if html else "application/json")
        assert response.headers["vary"] == "Accept"
        if html:
            assert "<h1>Overview</h1>" in response.text
        else:
            assert response.json()["api"] == "GET /openapi.json"
