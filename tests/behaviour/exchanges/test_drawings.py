"""Drawings of `sessions show` and `explain` on a terminal: the bar of a prompt, its sections, and the marks of messages."""

from __future__ import annotations

import shlex
from typing import Final

from tests.behaviour.kit import assistant, user
from tests.behaviour.kit.exchanges import Exchange, exchange

CONFIG: Final = """
agents:
  planner: {instruction: Plan trips., context: {strategy: digest, budget: 500}}
  short: {context: {strategy: token_window, budget: 300}, tools: []}
  large: {context: {strategy: digest, budget: 100000}}
"""
EVIL: Final = "\x1b[2J\u202e" + "seasick " * 20


async def draw(x: Exchange, *lines: str, columns: int = 80, encoding: str = "utf-8") -> None:
    for line in lines:
        await x.run(*shlex.split(line), env={"COLUMNS": str(columns)}, terminal=encoding)


@exchange(lambda body: "Yes, by boat. " * 9, CONFIG, stores=["file"])
async def test_prompts_on_a_terminal(x: Exchange) -> None:
    system = [{"role": "system", "content": "Help people. " * 40}]
    await x.served.http.post(
        "/v1/sessions", json={"id": "trip", "user_id": "ada", "agent": "planner", "system_messages": system}
    )
    said = [(f"I am allergic to nut-{n}. {EVIL}" if n == 2 else f"What about harbour number {n} and its {n * 7} boats? " * 2, f"Fine: boat {n} takes you there. " * 4) for n in range(18)]  # fmt: skip
    messages = [one(text) for pair in said for one, text in zip((user, assistant), pair, strict=True)]
    await x.served.http.post("/v1/sessions/trip/messages?user_id=ada", json={"messages": messages})
    await x.served.http.patch("/v1/sessions/trip/messages/6?user_id=ada", json={"pinned": True})
    await draw(x, "sessions show trip --last 2")
    for text in ("And a ferry?", f"Why? {EVIL}"):
        asked = {"session_id": "trip", "user_id": "ada", "messages": [user(text)]}
        await x.served.http.post("/v1/chat/completions", json=asked)
        await draw(x, "sessions show trip --last 3", "explain trip")
    await draw(x, "sessions show trip", "sessions show trip --last 36", "sessions show trip --full --last 4", "explain trip --agent large", "explain trip --text nut-2.", "explain trip --seq 4 --turn 2", "explain trip --seq 38 --turn 18", "explain trip --text 'harbour boats nonsense'", "explain trip --agent short --seq 6")  # fmt: skip
    await draw(x, "explain trip", columns=50)
    await draw(x, "explain trip", "sessions show trip --last 2", encoding="ascii")
    await draw(x, "sessions show trip --json --last 3", "explain trip --json --seq 1", "sessions show gone")
    (x.folder / "holdfast.yaml").write_text("agents: {other: {}}\n")
    await draw(x, "sessions show trip --last 2")
    assert [*x.take_requests()]  # they are those of any turn
