"""The curl commands of README.md and docs/, sent as curl would send them, are accepted by a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.edges.curl_kit import Request, parse_commands
from tests.edges.server import gateway

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


BODIES = [(page.name, one) for page in PAGES for one in parse_commands(page) if one.body is not None]


@pytest.mark.parametrize(("page", "sent"), BODIES, ids=[f"{page}-{one.path}" for page, one in BODIES])
async def test_documented_bodies_are_accepted(page: str, sent: Request) -> None:
    """As JSON, by an existing route; an error may only concern a missing session."""
    async with gateway(["ok"]) as (served, _):
        headers = {name: value for name, value in sent.headers.items() if name != "authorization"}
        told = await served.http.request(sent.method, sent.path, headers=headers, content=sent.body)
        found = told.json().get("error", {}).get("code")
        about_session = [(404, "session_not_found"), (409, "no_reply")]
        assert (told.status_code, found) in [(200, None), (201, None), *about_session], (page, told.text)


async def test_commands_of_the_voice_pages_work_in_order() -> None:
    """Records are imported, and an empty list answers the last user message."""
    async with gateway(["A joke.", "Another one.", "A third one."]) as (served, upstream):
        for sent in [
            one for page in ("voice.md", "voice-interruptions.md") for one in parse_commands(ROOT / "docs" / page)
        ]:
            told = await served.http.request(sent.method, sent.path, headers=sent.headers, content=sent.body)
            assert told.status_code == 200, told.text
        contents = (await served.http.get("/v1/sessions/call-9/history")).json()["contents"]
        assert [one["metadata"]["source"] for one in contents] == ["greeting", "asr", "llm", "llm", "asr", "llm"]
        assert (contents[3]["content"], contents[3]["metadata"]["original"]) == ("An", "Another one.")
        assert (contents[1]["turn_id"], contents[1]["timestamp"]) == (2, 1678901235000)
        assert len(upstream.requests) == 3


async def test_commands_of_the_state_page_work_in_order() -> None:
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
