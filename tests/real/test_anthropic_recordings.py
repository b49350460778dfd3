"""The recorded sessions, played through the gateway to Anthropic's Messages: no prompt is refused, and most of each is cached."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

import pytest

from holdfast.testing import PromptCache, Reply
from holdfast.testing.anthropic_upstream import CacheUse
from tests.amounts import sampling_step
from tests.behaviour.kit.anthropic import AnthropicUpstream
from tests.edges.server import Served, serving
from tests.real.test_gateway_recordings import rounds

Data = dict[str, Any]
AT_ONCE = 10
STEP = 10
"""The step by which the recordings are sampled: the way of all is the same."""
CONFIGS = {
    "the default": ("{}", 0.88),
    "a small digest": ("{strategy: digest, budget: 1024}", 0.72),
    "a token window": ("{strategy: token_window, budget: 1500}", 0.75),
    "a summary": ("{strategy: summary_buffer, budget: 1500}", 0.74),
    "cleared results": ("{strategy: clear_tool_results, trigger: 1500, keep: 1, clear_at_least: 200}", 0.75),
}
"""An agent's context, and the least share of the prompts' tokens that is read from the cache.

Markers of sessions are random, and their tokens move the share of a small budget by 0.01 from run to run.
"""


class Recorded:
    """An upstream that answers as the recordings did, some replies with reasoning, and counts what its cache spares."""

    def __init__(self) -> None:
        self.answers: dict[str, Data] = {}
        """What is answered next, by recording."""
        self.uses: list[CacheUse] = []
        self.short = 0
        """Calls that read less than the call before had written: after a step of the frontier, else never."""
        self._before: dict[str, int] = {}
        self._caches: defaultdict[str, PromptCache] = defaultdict(PromptCache)

    def __call__(self, body: Data) -> Reply:
        recording = body.get("metadata", {}).get("user_id")
        if recording is None:
            return Reply(text="A summary of what was said.")
        use = self._caches[recording].process(body)
        self.short += use.cache_read_input_tokens < self._before.get(recording, 0)
        self._before[recording] = use.cache_read_input_tokens + use.cache_creation_input_tokens
        self.uses.append(use)
        number = len(self.uses)
        thought = [{"type": "thinking", "thinking": f"thought {number}", "signature": f"s{number}"}]
        return Reply(message={**self.answers[recording], "thinking_blocks": thought if number % 3 else []}, stream=True)

    def share(self) -> float:
        """Of all prompts' tokens those that were read from the cache."""
        read = sum(use.cache_read_input_tokens for use in self.uses)
        return read / sum(map(sum, self.uses))


async def play(served: Served, upstream: Recorded, recording: Data, tools: list[Data]) -> None:
    """One session, sending only what is new; each reply is the recorded one."""
    for sent, answer in rounds(recording["messages"]):
        upstream.answers[recording["id"]] = answer
        body = {"model": "support", "session_id": recording["id"], "messages": sent, "tools": tools}
        response = await served.http.post(
            "/v1/chat/completions", json={**body, "metadata": {"user_id": recording["id"]}}
        )
        assert response.status_code == 200, response.text


def tools_of(recordings: list[Data]) -> list[Data]:
    """Those that the recorded agents used."""
    calls = [call for one in recordings for message in one["messages"] for call in message.get("tool_calls") or ()]
    names = sorted({call["function"]["name"] for call in calls})
    return [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]


@pytest.mark.parametrize(("context", "least"), CONFIGS.values(), ids=CONFIGS.keys())
async def test_no_prompt_is_refused(recordings: list[Data], context: str, least: float) -> None:
    """With budgets that cut, condense, summarize and clear; the scripted upstream is as strict as the API documents."""
    chosen = recordings[:: sampling_step(STEP)]
    script, tools = Recorded(), tools_of(recordings)
    instruction = json.dumps(recordings[0]["messages"][0]["content"])
    async with AnthropicUpstream(script) as upstream:
        llm = {
            "provider": "anthropic",
            "model": "claude-sonnet-4-5",
            "base_url": upstream.url,
            "api_key": "sk-ant-test",
        }
        agents = f"agents: {{support: {{llm: default, instruction: {instruction}, context: {context}}}}}"
        async with serving("\n".join([f"llms: {json.dumps({'default': llm})}", agents])) as served:
            limit = asyncio.Semaphore(AT_ONCE)

            async def one(recording: Data) -> None:
                async with limit:
                    await play(served, script, recording, tools)

            await asyncio.gather(*(one(recording) for recording in chosen))
    assert upstream.violations == []
    assert len(script.uses) == sum(1 for recording in chosen for _ in rounds(recording["messages"]))
    assert script.share() >= least
    assert (script.short > 0) == (context != "{}")
