"""Prompts of agents that share a session: whose messages are quoted, which branches are seen, what a strategy keeps of them."""

from __future__ import annotations

from typing import Any

from holdfast.testing import Reply, ScriptedUpstream
from tests.behaviour.kit import Speakers
from tests.behaviour.kit.exchanges import Exchange, exchange
from tests.behaviour.kit.prompts import prompt, say, talk

NESTED = """
agents:
  whole: {sequence: [plan, panel, verdict]}
  plan: {instruction: I am plan, tools: [look]}
  panel: {parallel: [hope, doubt]}
  hope: {instruction: I am hope}
  doubt: {instruction: I am doubt, tools: [look]}
  verdict: {instruction: "I am verdict", context: {strategy: digest, budget: 900}}
  other: {instruction: I am other, context: {strategy: token_window, budget: 200}}
  desk: {instruction: I am desk, sub_agents: [clerk]}
  clerk: {instruction: I am clerk}
"""


def look(place: str, why: str = "") -> str:
    """Look at a place."""
    return f"{place}: KX-7731 lies there.\n[agent plan]: not a heading. " + "A gull sits on it, and cries. " * 9


LINES: dict[str, Any] = {
    "plan": [Reply(text="I look.", tool_calls=[("look", {"place": "pier 7", "why": "x" * 1200})]), "A plan:\nfirst look, then go.", "No plan."],
    "hope": "All is well. [agent doubt]: no.", "doubt": [Reply(tool_calls=[("look", {"place": "cellar"})]), "All is lost.", "Still lost."], "verdict": "Go to pier 7 at 9:30.", "other": "I know of nothing.",
    "desk": [Reply(tool_calls=[("transfer_to_agent", {"agent_name": "clerk"})])], "clerk": "I am the clerk.",
}  # fmt: skip


@exchange(Speakers(LINES), NESTED, tools=[look], llm={"max_requests": 1})
async def test_what_each_agent_sees(x: Exchange) -> None:
    await say(x, "s", "Where is my parcel KX-7731?", model="whole")
    await say(x, "s", "And now?", model="whole")
    await say(x, "s", "Anybody else?", model="other")
    await say(x, "s", "A clerk, please.", model="desk")
    for agent in ("plan", "hope", "doubt", "verdict", "other", "clerk", "whole"):
        await prompt(x, "s", agent=agent, strategy="none")
    for strategy, options in (
        ("token_window", {"budget": 300}),
        ("digest", {"budget": 300}),
        ("clear_tool_results", {"trigger": 100, "keep": 0, "clear_at_least": 1, "clear_tool_inputs": True}),
        ("salience", {"budget": 300}),
    ):
        await prompt(x, "s", agent="verdict", strategy=strategy, **options)
    for dialect in ("anthropic", "gemini"):
        await prompt(x, "s", agent="doubt", strategy="token_window", budget=400, dialect=dialect)
    for row in await x.rows("/v1/sessions/s/calls", "id", limit=100):
        rebuilt = (await x.served.http.get(f"/v1/sessions/s/calls/{row['id']}")).json()
        x.note(row["id"], [rebuilt["call"]["agent"], rebuilt["exact"]])
    await x.get("/v1/sessions/s/explain", agent="verdict", seq=1)
    await x.get("/v1/sessions/s/explain", agent="other", q="KX-7731", limit=3)


@exchange(Speakers(LINES), NESTED)
async def test_what_agents_see_of_parts_and_calls_of_others(x: Exchange) -> None:
    await talk(x, "s", "relayed")
    for agent in ("verdict", "doubt", "clerk"):
        await prompt(x, "s", agent=agent, strategy="none")
        await prompt(x, "s", agent=agent, strategy="summary_buffer", budget=350, threshold=0.5, target=0.2)
    await prompt(x, "s", agent="other", strategy="digest", budget=300, dialect="anthropic")
    await x.rows("/v1/search", "text", "role", q="pier parcel", agent="plan")
    await x.get("/v1/sessions/s/explain", agent="verdict", q="pier 7")


MINI: Any = {"mini": (lambda: ScriptedUpstream(["Short."] * 20), {"model": "gpt-mini", "context_window": 4000})}


@exchange(["Long."] * 20, "agents: {zoe: {instruction: Be Zoe.}, abe: {instruction: Be Abe., llm: mini, sub_agents: [eve]}, eve: {instruction: Be Eve.}}", models=MINI)  # fmt: skip
async def test_who_sent_each_call_is_found(x: Exchange) -> None:
    for root in (None, "zoe", "abe"):
        await x.post("/v1/sessions", id=f"s-{root}", agent=root)
        for fields in ({}, {"model": "mini"}, {"model": "gpt-mini"}, {"model": "zoe"}, {"agent": "abe"}, {"agent": "zoe", "model": "mini"}, {"budget": 900}, {"model": "mini", "budget": 700}):  # fmt: skip
            await say(x, f"s-{root}", "And?", **fields)
        for row in await x.rows(f"/v1/sessions/s-{root}/calls", "id", limit=100):
            rebuilt = (await x.served.http.get(f"/v1/sessions/s-{root}/calls/{row['id']}")).json()
            x.note(row["id"], [rebuilt["call"]["agent"], rebuilt["call"]["model"], rebuilt["exact"]])
