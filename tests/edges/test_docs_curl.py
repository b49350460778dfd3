"""The curl commands of README.md and docs/, sent as curl would send them: a server takes what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.edges.curl_kit import Request, parse_commands
from tests.edges.server import gateway

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


BODIES = [(page.name, one) for page in PAGES for one in parse_commands(page) if one.body is not None]


@pytest.mark.parametrize(("page", "sent"), BODIES, ids=[f"{page}-{one.path}" for page, one in BODIES])
async def test_a_body_that_a_page_sends_is_one_that_is_read(page: str, sent: Request) -> None:
    """It comes as JSON, to a route that there is: whatever the answer is, it is about what it says."""
    async with gateway(["ok"]) as (served, _):
        headers = {name: value for name, value in sent.headers.items() if name != "authorization"}
        told = await served.http.request(sent.method, sent.path, headers=headers, content=sent.body)
        found = told.json().get("error", {}).get("code")
        about_session = [(404, "session_not_found"), (409, "no_reply")]
        assert (told.status_code, found) in [(200, None), (201, None), *about_session], (page, told.text)


async def test_those_about_voice_do_what_their_page_says() -> None:
    """One after the other: records come in, and an empty list has what was said last answered."""
    async with gateway(["A joke.", "Another one.", "A third one."]) as (served, upstream):
        for sent in parse_commands(ROOT / "docs/voice.md"):
            told = await served.http.request(sent.method, sent.path, headers=sent.headers, content=sent.body)
            assert told.status_code == 200, told.text
        contents = (await served.http.get("/v1/sessions/call-9/history")).json()["contents"]
        assert [one["metadata"]["source"] for one in contents] == ["greeting", "asr", "llm", "llm", "asr", "llm"]
        assert (contents[3]["content"], contents[3]["metadata"]["original"]) == ("An", "Another one.")
        assert (contents[1]["turn_id"], contents[1]["timestamp"]) == (2, 1678901235000)
        assert len(upstream.requests) == 3


async def test_those_about_state_do_what_their_page_says() -> None:
    """One after the other, as somebody would who reads docs/state.md."""
    async with gateway() as (served, _):
        made = {"id": "support-42", "state": {"topic": "kelp"}}
        assert (await served.http.post("/v1/sessions", json=made)).status_code == 201
        for sent in parse_commands(ROOT / "docs/state.md"):
            told = await served.http.request(sent.method, sent.path, headers=sent.headers, content=sent.body)
            assert told.status_code == 200, told.text
        assert (await served.http.get("/v1/sessions/support-42/state")).json() == {
            "user:theme": "dark",
            "user:owner": "support-42",
            "user:visits": 2,
            "user:places": ["Porto"],
        }
