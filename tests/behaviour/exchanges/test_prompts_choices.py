"""Choices of people and scorers: ratings, pins that change, messages that a provider refused, and a strategy of the program."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.testing import Reply, ScriptedUpstream
from tests.behaviour.kit import calls, result, user
from tests.behaviour.kit.exchanges import Exchange, exchange
from tests.behaviour.kit.prompts import WEEK, answer_at_length, prompt, say, talk

PATH = "/v1/sessions/s/messages"
SCORED = """
agents:
  rated: {context: {strategy: salience, budget: 300, scorer: mine, recall: off, facts: false}}
  evens: {context: {strategy: evens, budget: 300, threshold: 0.8}}
"""


def rate(messages: Sequence[dict[str, Any]]) -> list[float]:
    return [1.0 if "Ida" in str(one["content"]) and one["role"] == "user" else 0.2 for one in messages]


def evens(units: Sequence[Any], budget: int) -> Iterable[int]:
    return [one.seq for one in units if one.seq % 4 == 0 and one.tokens < budget]


@exchange(answer_at_length, SCORED, scorers={"mine": rate}, strategies={"evens": evens})
async def test_scorers_and_own_strategies(x: Exchange) -> None:
    for agent in ("rated", "evens"):
        for words in WEEK[:7]:
            await say(x, agent, words, model=agent)
        await x.rows(f"/v1/sessions/{agent}/messages", "seq", "importance")
        await prompt(x, agent)
        await prompt(x, agent, at_turn=5)
        await x.get(f"/v1/sessions/{agent}/calls/6.0", log_limit=9)
        await x.post(f"/v1/sessions/{agent}/rewind", at_turn=3)
        await x.get(f"/v1/sessions/{agent}/calls/5.0", log_limit=20)


@exchange()
async def test_pins_and_refusals_change_prompts(x: Exchange) -> None:
    await talk(x, "s", "orders")
    shown = {"strategy": "token_window", "budget": 300}
    for seq, choice in (
        (7, {"pinned": True}),
        (9, {"pinned": False}),
        (20, {"importance": None}),
        (5, {"importance": 1.0}),
        (28, {"refused_by": ["default"]}),
        (7, {"refused_by": ["default", "x"]}),
        (24, {"refused_by": ["other"]}),
        (29, {"refused_by": ["default"]}),
    ):
        await x.patch(f"{PATH}/{seq}", **choice)
        await prompt(x, "s", **shown)
    await prompt(x, "s", strategy="salience", budget=300)
    await prompt(x, "s", strategy="none", dialect="anthropic")
    await x.get("/v1/sessions/s/explain", seq=28)
    await x.get("/v1/sessions/s/explain", strategy="token_window", budget=300)
    await x.patch(f"{PATH}/7", refused_by=[])
    await x.put(f"{PATH}/26", message={"role": "user", "content": "No longer a call."})
    await x.delete(f"{PATH}/29")
    await prompt(x, "s", **shown)


@exchange()
async def test_settings_that_are_refused(x: Exchange) -> None:
    await x.post("/v1/sessions", id="s")
    for body in (
        {"strategy": "diget"}, {"strategy": "zzz"}, {"strategy": "none", "budget": 5}, {"budget": 0}, {"budget": 1.5}, {"target": 1.0}, {"target": 0}, {"window_size": 3}, {"recall": "maybe"}, {"facts": "yes"},
        {"strategy": "summary_buffer", "threshold": 0.5}, {"strategy": "summary_buffer", "threshold": 0.5, "target": 2}, {"strategy": "summary_buffer", "target": 0.85}, {"strategy": "clear_tool_results", "keep": -1, "exclude_tools": "x"},
        {"clear_tool_results": {"kept": 1}}, {"clear_tool_results": {"keep": 1, "trigger": 0}}, {"clear_tool_results": False}, {"dialect": "x"}, {"at_turn": -1}, {"at_turn": 0}, {"agent": "x"}, {"model": "x"}, {"tools": [1]}, {"system_messages": [7]},
    ):  # fmt: skip
        await x.post("/v1/sessions/s/context", **body)


FORMS: Any = (
    lambda n: [1 + at % 10 for at in range(n)],
    lambda n: {str(at): f"{at % 10 or 1}/10" for at in range(1, n + 1)},
    lambda n: [{"n": at, "importance": 9} if at % 2 else {"n": at, "score": "3.5"} for at in range(n)],
    lambda n: [0.5 if at else 1 for at in range(n)],
    lambda n: [7] * (n - 1), lambda n: [11] * n, lambda n: ["high"] * n, lambda n: [True] * n, lambda n: {"ratings": 5}, lambda n: [0] * n,
    lambda n: [10] * n,
)  # fmt: skip


class Judge:
    """A model that writes its ratings in each form in turn, between other words."""

    def __init__(self) -> None:
        self.forms = [*FORMS]

    def __call__(self, body: dict[str, Any]) -> Any:
        number = int(str(body["messages"][-1]["content"]).rpartition("a JSON list of ")[2].split()[0])
        return Reply(
            text=f"First [1, 2]. {json.dumps(self.forms.pop(0)(number))} [that is it", usage={"prompt_tokens": 9}
        )


MANY = [
    calls(("c1", "look", {"at": "x" * 3000}), ("c2", "look", {}), text='Let me."}\n{"n": 9}'),
    result("c1", "r" * 2500),
    result("c2", "-"),
]


@exchange(
    answer_at_length,
    "agents: {judged: {context: {strategy: salience, budget: 400, scorer: judge, recall: off, facts: false}}}",
    models={"judge": (lambda: ScriptedUpstream(Judge()), {"max_tokens": 70})},
)
async def test_models_that_rate_messages(x: Exchange) -> None:
    for number in range(len(FORMS) + 1):
        picture = {"type": "image_url", "image_url": {"url": "https://kelp.example/p.png"}}
        more = [[], MANY, [{"role": "user", "content": [{"type": "text", "text": "See."}, picture]}]][number % 3]
        said = [user(f"{words} ({number})") for words in WEEK[:5]]
        await x.served.rest.session("s").append(*more, *said) if number else await x.served.rest.given("s", *said)
        await say(x, "s", f"So what of {number}?", model="judged")
        await x.later(hours=2)
    await x.rows("/v1/sessions/s/messages", "seq", "importance", limit=200)
    lines = (await x.served.http.get("/metrics")).text.splitlines()
    x.note("metrics", [line for line in lines if line.startswith("holdfast_rating")])
