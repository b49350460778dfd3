"""Turns of a gateway: what is answered, what reaches the model, what is kept."""

from __future__ import annotations

from tests.behaviour.kit import user
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange


@exchange(["Hello.", "Again."], stores=DATABASES)
async def test_two_turns(x: Exchange) -> None:
    for said in ("Hi.", "Hi again."):
        await x.post("/v1/chat/completions", session_id="s", messages=[user(said)])
    await x.rows("/v1/sessions/s/messages", "seq", "turn_id", "role", "content")
    await x.get("/v1/sessions/s")
    for page in ({"limit": 1}, {"limit": 1, "order": "desc"}, {"limit": 2}):
        await x.rows("/v1/sessions/s/messages", "seq", **page)
