"""Who may be recognised: the words of others, sent with a key of one's own, lead to a session of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from tests.edges.access_kit import callers, server
from tests.edges.server import Served

PAST: list[dict[str, Any]] = [
    {"role": "user", "content": "My number is 4711."},
    {"role": "assistant", "content": "Noted."},
    {"role": "user", "content": "And the colour?"},
    {"role": "assistant", "content": "Blue."},
]
NEXT = {"role": "user", "content": "What was it?"}
SENT = {
    "resent": [*PAST, NEXT],
    "truncated": [*PAST[1:], NEXT],
    "edited": [*PAST[:2], {"role": "user", "content": "And the size?"}],
    "only new messages": [NEXT],
}


async def asked(served: Served, headers: dict[str, str], messages: Any, **body: Any) -> Any:
    answer = await served.http.post(
        "/v1/chat/completions", json={"model": "gpt-4o", "messages": messages, **body}, headers=headers
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("how", SENT)
async def test_the_words_of_somebody_else(tmp_path: Path, how: str) -> None:
    """Another user's key, another tenant's, one of the same user name there: each gets a session of its own, whatever it says of itself."""
    async with server(tmp_path) as served:
        known = await callers(served)
        ref = SessionRef("ada", "s")
        await served.hf.import_({"messages": PAST}, session_id="s", user_id="ada")
        before = await served.hf.export(ref, retired=True, digests=True)
        for caller in ("bob", "other tenant", "ada of another tenant"):
            for more in ({}, {"user": "ada"}, {"session_match": "on", "user": "ada"}):
                answer = await asked(served, known[caller], SENT[how], **more)
                assert answer["session_id"] != "s"
                assert answer["session"]["turn"] < len(PAST)
                assert await served.hf.export(ref, retired=True, digests=True) == before
        mine = await asked(served, known["write of ada"], SENT[how])
        assert (mine["session_id"] == "s") is (how != "only new messages")
