"""Summaries in prompts: what they cover, how they replace each other, and what undoes them."""

from __future__ import annotations

from typing import Any

from holdfast.testing import Reply
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange
from tests.behaviour.kit.prompts import WEEK, converse, prompt, say, talk

CONFIG = """
sessions: {ttl: 0}
agents:
  s: {context: {strategy: summary_buffer, budget: 280, threshold: 0.8, target: 0.5}}
  own: {context: {strategy: summary_buffer, budget: 300, prompt: "Write a poem.", facts: false, recall: off}}
  plain: {context: {strategy: token_window, budget: 300}}
  fail: {context: {strategy: summary_buffer, budget: 300}}
"""
FIELDS = ("id", "status", "first", "last", "text", "tokens", "source_tokens", "lost_identifiers", "error")


def model(body: dict[str, Any]) -> Any:
    first = body["messages"][0]
    if first["role"] != "system":
        return "I see; and there is more to say of it, of the harbour, the market and the old town, which are near."
    if "P-100" in str(body["messages"]):
        return Reply(
            text=f"They ordered {len(str(body['messages'][1:]))} things, KX-7731 among them.",
            usage={"prompt_tokens": 70, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 30}},
        )
    return f"A week in Bergen, told in {len(str(body['messages'][1:]))} characters."


@exchange(model, CONFIG, stores=DATABASES)
async def test_compactions_on_request(x: Exchange) -> None:
    path = "/v1/sessions/s/compactions"
    await talk(x, "s", "orders", agent="s")
    await x.post(path, preview=True)
    await x.post(path, preview=True, target=0.9)
    await x.rows(path, *FIELDS)
    await x.post(path, budget=900)
    await prompt(x, "s")
    await prompt(x, "s", agent="plain")
    await talk(x, "s", "diary")
    await x.post(path)
    await x.rows(path, *FIELDS)
    await prompt(x, "s")
    for page in ({"limit": 1}, {"limit": 1, "order": "desc"}, {"after": 1}, {"after": 2, "order": "desc"}):
        await x.rows(path, "id", **page)
    await x.get(f"{path}/1")
    await x.delete(f"{path}/2")
    await x.rows(path, "id", "status")
    await prompt(x, "s")
    await x.delete(f"{path}/1")
    await x.delete(f"{path}/1")
    await x.get(f"{path}/3")
    await x.rows(path, "id", "status")
    await prompt(x, "s")
    await x.post(path, agent="own", wait=False)
    await x.settle()
    await x.post(path, agent="plain", target=0.3)
    await x.rows(path, "id", "status", "first", "last")
    await prompt(x, "s", agent="own")
    await x.delete("/v1/sessions/s/messages/3")
    await x.rows(path, "id", "status", "text")
    await prompt(x, "s", agent="own")


@exchange(model, CONFIG)
async def test_summaries_between_turns(x: Exchange) -> None:
    for words in WEEK:
        await say(x, "s", words, model="s")
        await x.rows("/v1/sessions/s/compactions", "id", "status", "first", "last", "text")
    await x.rows("/v1/sessions/s/calls", "id", "messages", "frontier", "common")
    for turn in (3, 6, 8):
        await prompt(x, "s", at_turn=turn)
    await x.get("/v1/sessions/s/explain", seq=2)
    await x.post("/v1/sessions/s/fork", id="f", at_turn=6)
    await x.rows("/v1/sessions/f/compactions", *FIELDS)
    await prompt(x, "f")
    await x.post("/v1/sessions/s/rewind", turn=4)
    await x.rows("/v1/sessions/s/compactions", "id", "status", "first", "last")
    await prompt(x, "s")
    for query in ("", "?before=1", "?id=1", "?id=99"):
        await x.page(f"/inspect/sessions/s/compactions{query}")
    await x.post("/v1/sessions/s/compactions", target=0.9, threshold=0.5)
    await x.post("/v1/sessions/s/compactions")
    await x.post("/v1/sessions/s/compactions", strategy="digest")


@exchange(
    lambda body: Reply(status=500, error="down") if body["messages"][0]["role"] == "system" else "Yes. " * 20, CONFIG
)
async def test_summaries_that_fail(x: Exchange) -> None:
    await converse(x, "s", WEEK, model="fail")
    await converse(x, "s", WEEK, model="fail")
    await x.rows("/v1/sessions/s/compactions", "id", "status", "first", "last", "error")
    await prompt(x, "s")
    await x.post("/v1/sessions/s/compactions")
    await x.later(seconds=29)
    await say(x, "s", "Still there?", model="fail")
    await x.later(seconds=40)
    await say(x, "s", "And now?", model="fail")
    await x.rows("/v1/sessions/s/compactions", "id", "status", "first", "last", "error")
    await prompt(x, "s")
