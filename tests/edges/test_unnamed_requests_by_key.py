"""Session matching and keys: another user's words sent with one's own key lead to one's own session."""

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


async def send_messages(served: Served, headers: dict[str, str], messages: Any, **body: Any) -> Any:
    answer = await served.http.post(
        "/v1/chat/completions", json={"model": "gpt-4o", "messages": messages, **body}, headers=headers
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("how", SENT)
async def test_another_users_words_do_not_match_their_session(tmp_path: Path, how: str) -> None:
    """With another user's key, another tenant's, or one of the same user name there, whatever user the request names."""
    async with server(tmp_path) as served:
        known = await callers(served)
        ref = SessionRef("ada", "s")
        await served.hf.import_({"messages": PAST}, session_id="s", user_id="ada")
        before = await served.hf.export(ref, retired=True, digests=True)
        for caller in ("bob", "other tenant", "ada of another tenant"):
            for more in ({}, {"user": "ada"}, {"session_match": "on", "user": "ada"}):
                answer = await send_messages(served, known[caller], SENT[how], **more)
                assert answer["session_id"] != "s"
                assert answer["session"]["turn"] < len(PAST)
                assert await served.hf.export(ref, retired=True, digests=True) == before
        mine = await send_messages(served, known["write of ada"], SENT[how])
        assert (mine["session_id"] == "s") is (how != "only new messages")
