"""The SDK's `OpenAIResponsesCompactionSession` against a server whose model is not OpenAI's."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, SQLiteSession, function_tool
from agents.memory import OpenAIResponsesCompactionSession

from holdfast.testing import Reply
from tests.edges.server import gateway


@function_tool
def read_order(number: int) -> str:
    """Read an order."""
    return json.dumps(
        {"id": f"ORD-{number}11", "total": 200 + number, "text": "A long description of the goods. " * 12}
    )


def script(turns: int) -> list[Any]:
    """Return replies: each turn reads an order, then answers."""
    return [one for at in range(turns) for one in (Reply(tool_calls=[("read_order", {"number": at})]), f"Done {at}.")]


@pytest.mark.parametrize("mode", ["input", "previous_response_id", "auto"])
@pytest.mark.parametrize("store", [True, False], ids=["stored", "not-stored"])
async def test_compaction_session_in_a_loop_with_tools(mode: Any, store: bool) -> None:
    """Ten turns with a tool: the SDK compacts its items again and again, and every prompt is valid and short."""
    if mode == "previous_response_id" and not store:
        pytest.skip("the SDK does not combine them")
    async with gateway(script(10)) as (served, upstream):
        session = OpenAIResponsesCompactionSession(
            "s",
            SQLiteSession("s"),
            client=served.client,
            compaction_mode=mode,
            should_trigger_compaction=lambda found: len(found["compaction_candidate_items"]) >= 6,
        )
        agent = Agent(
            name="clerk",
            model=OpenAIResponsesModel("gpt-4o", served.client),
            tools=[read_order],
            model_settings=ModelSettings(store=store),
        )
        compacted = 0
        for at in range(10):
            done = await Runner.run(
                agent, f"Question {at}?", session=session, run_config=RunConfig(tracing_disabled=True)
            )
            assert done.final_output == f"Done {at}."
            items: list[Any] = await session.get_items()
            kinds = [item.get("type", "message") for item in items]
            compacted += "compaction" in kinds and kinds[-1] == "compaction"
            assert kinds.count("compaction") <= 1
        assert compacted >= 3
        assert len(upstream.requests) == 20
        last = upstream.requests[-1].body["messages"]
        asked = [str(one["content"]) for one in last if one["role"] == "user"]
        assert any("Question 9?" in text for text in asked)
        (summary,) = (text for text in asked if "Summary of messages" in text)
        assert sum(f"ORD-{at}11" in summary for at in range(7)) >= 3, "the summary has the facts of the tool results"
        assert len(last) < 40
        sessions = (await served.http.get("/v1/sessions")).json()["data"]
        assert len(sessions) == 1, "all turns continue one session"
