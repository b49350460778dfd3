"""The curl commands of README.md and docs/, sent as curl would send them: a server takes what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.edges.curl_kit import Request, commands
from tests.edges.server import gateway

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


BODIES = [(page.name, one) for page in PAGES for one in commands(page) if one.body is not None]


@pytest.mark.parametrize(("page", "sent"), BODIES, ids=[f"{page}-{one.path}" for page, one in BODIES])
async def test_a_body_that_a_page_sends_is_one_that_is_read(page: str, sent: Request) -> None:
    """It comes as JSON, to a route that there is: whatever the answer is, it is about what it says."""
    async with gateway(["ok"]) as (served, _):
        headers = {name: value for name, value in sent.headers.items() if name != "authorization"}
        told = await served.http.request(sent.method, sent.path, headers=headers, content=sent.body)
        found = told.json().get("error", {}).get("code")
        assert (told.status_code, found) in [(200, None), (201, None), (404, "session_not_found")], (page, told.text)


async def test_those_about_state_do_what_their_page_says() -> None:
    """One after the other, as somebody would who reads docs/state.md."""
    async with gateway() as (served, _):
        made = {"id": "support-42", "state": {"topic": "kelp"}}
        assert (await served.http.post("/v1/sessions", json=made)).status_code == 201
        for sent in commands(ROOT / "docs/state.md"):
            told = await served.http.request(sent.method, sent.path, headers=sent.headers, content=sent.body)
            assert told.status_code == 200, told.text
        assert (await served.http.get("/v1/sessions/support-42/state")).json() == {
            "user:theme": "dark",
            "user:owner": "support-42",
            "user:visits": 2,
            "user:places": ["Porto"],
        }
