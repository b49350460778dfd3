"""The HTML pages of the server: the API description, without external resources, and the page at `/`."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from tests.edges.server import gateway


class Page(HTMLParser):
    """Parse a page as a browser would: tags, links and ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for name, value in attrs:
            assert name in ("href", "id", "class", "name", "content", "charset", "lang"), name
            if name == "href":
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


async def test_page_shows_everything_without_external_resources() -> None:
    """Every route, parameter, status, object and field; no scripts, forms or other hosts."""
    async with gateway([]) as (served, _):
        document = (await served.http.get("/openapi.json")).json()
        response = await served.http.get("/docs")
        page = Page(response.text)
        assert page.open == []
        assert set(page.tags) & {"script", "iframe", "img", "link", "form", "object", "base"} == set()
        assert all(link.startswith(("#", "/")) for link in page.links)
        assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
        assert len(page.ids) == len(set(page.ids))
        for path, item in document["paths"].items():
            assert path in page.words
            for operation in item.values():
                for parameter in operation["parameters"]:
                    assert parameter["name"] in page.words
        for name, schema in document["components"]["schemas"].items():
            assert name in page.ids
            for field in schema.get("properties", {}):
                assert field in page.words
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert (await served.http.head("/docs")).status_code == 200


def test_description_text_is_escaped() -> None:
    from holdfast.server import pages as page

    evil = '<script>alert("x")</script>\'"&`<b>`'
    schema = {"type": "object", "description": evil, "properties": {evil: {"enum": [evil], "description": evil}}}
    operation = {
        "tags": [evil],
        "summary": evil,
        "description": evil,
        "operationId": evil,
        "parameters": [{"name": evil, "in": evil, "schema": {"type": evil}, "description": evil}],
        "responses": {
            evil: {
                "description": evil,
                "content": {evil: {"schema": {"const": evil}}},
                "headers": {evil: {"description": evil}},
            }
        },
    }
    document = {
        "info": {"title": evil, "version": evil, "summary": evil, "description": evil},
        "tags": [{"name": evil, "description": evil}],
        "paths": {evil: {"get": operation}},
        "components": {"schemas": {evil: schema}},
    }
    shown = Page(page.render_docs(document).body.decode())
    assert set(shown.tags) & {"script", "b"} == set()
    assert shown.words.count('alert("x")') > 10


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
    async with gateway([]) as (served, _):
        response = await served.http.get("/", headers={"Accept": accept})
        assert response.headers["content-type"].startswith("text/html" if html else "application/json")
        assert response.headers["vary"] == "Accept"
        if html:
            assert "<h1>Overview</h1>" in response.text
        else:
            assert response.json()["docs"] == "GET /docs"
