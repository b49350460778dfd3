"""Explanations of single messages: where they are in the prompt, why, since when, and what brings them back."""

from __future__ import annotations

from tests.behaviour.kit.exchanges import Exchange, exchange
from tests.behaviour.kit.prompts import WEEK, WEEK_AGENTS, answer_at_length, converse, talk


@exchange()
async def test_messages_of_a_conversation(x: Exchange) -> None:
    await talk(x, "s", "orders")
    path = "/v1/sessions/s/explain"
    await x.get(path, strategy="digest", budget=500)
    for seq in (0, 1, 3, 5, 9, 11, 15, 20, 22, 28, 29, 30):
        await x.get(path, strategy="digest", budget=600, seq=seq)
    for query in ("12.50", "lübeck", "Van 9", "order KX", "nowhere said this", "harbour berg"):
        await x.get(path, strategy="token_window", budget=400, q=query)
    for page in ({"limit": 1}, {"limit": 1, "before": 28}, {"before": 3}, {"limit": 51}, {"limit": 0}):
        await x.get(path, q="KX-7731", strategy="token_window", budget=200, **page)
    for options in (
        {"strategy": "salience", "budget": 500},
        {"strategy": "clear_tool_results"},
        {"strategy": "none"},
        {"strategy": "buffer_window"},
        {"strategy": "head_tail"},
        {"budget": 300},
        {"strategy": "x"},
        {"seq": 3, "q": "x"},
        {"agent": "x"},
        {"q": ""},
    ):
        await x.get(path, **{"seq": 5, **options})


@exchange(answer_at_length, WEEK_AGENTS)
async def test_messages_of_past_turns(x: Exchange) -> None:
    await converse(x, "s", WEEK, model="wide")
    path = "/v1/sessions/s/explain"
    for query in (
        {"seq": 2},
        {"seq": 2, "turn": 1},
        {"seq": 2, "turn": 5},
        {"seq": 12, "turn": 5},
        {"q": "Ida"},
        {"q": "budget", "turn": 6},
        {"seq": 4, "turn": 8, "budget": 900},
        {"turn": 8},
        {"turn": 99},
        {"seq": 2, "agent": "few"},
        {"seq": 2, "agent": "long", "turn": 5},
    ):
        await x.get(path, **query)
    await x.patch("/v1/sessions/s/messages/2", pinned=True)
    await x.delete("/v1/sessions/s/messages/4")
    await x.get(path, seq=2)
    await x.get(path, seq=4)
    await x.get(path, q="budget")
    await x.post("/v1/sessions/s/rewind", turn=6)
    await x.get(path, seq=14)
    await x.get(path)
