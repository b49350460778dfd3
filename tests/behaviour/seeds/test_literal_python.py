"""The Python names, tools, strategies and commands that the product's founding documents write out."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import InvalidRequest
from holdfast.testing import Reply
from tests.behaviour.kit import gateway
from tests.behaviour.kit.seams import run_command

STRATEGIES: dict[str, dict[str, Any]] = {
    "none": {},
    "buffer_window": {"window_size": 20},
    "token_window": {"budget": 8000, "preserve_recent": 5},
    "summary_buffer": {"budget": 8000, "threshold": 0.85, "target": 0.7},
    "head_tail": {"window_size": 4},
    "salience": {"budget": 8000},
    "clear_tool_results": {"trigger": 500, "keep": 2, "clear_at_least": 100},
}
"""Strategies and their keys. `summarizer_llm` and the agents' blocks are tested with the configuration."""


def test_limits_of_a_short_term_memory() -> None:
    """`max_history_turns`, `max_sessions` and `session_ttl` are arguments of `holdfast.open`."""
    parameters = inspect.signature(holdfast.open).parameters
    assert {"max_history_turns", "max_sessions", "session_ttl"} <= set(parameters)


async def test_log_entries_have_role_content_and_timestamp() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        await session.append([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}])
        entries = await session.entries()
        assert [(one.message.role, one.message.content) for one in entries] == [("user", "hi"), ("assistant", "Hello.")]
        assert all(one.timestamp > 0 for one in entries)
        assert [one["content"] for one in await session.messages()] == ["hi", "Hello."]
        assert len(await session.history()) == 2


async def test_on_expire_gets_the_ended_session() -> None:
    ended: list[tuple[str, str]] = []
    async with holdfast.open("sqlite://:memory:") as hf:

        @hf.on_expire
        async def note(session: holdfast.EndedSession, reason: str) -> None:
            ended.append((session.id, reason))

        await hf.session("s")
        await hf.create("t")
        await hf.close_session(holdfast.SessionRef("default", "t"))
    assert ended == [("t", "close")]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_and_their_keys(strategy: str) -> None:
    conversation = [{"role": "user", "content": "Plan a trip."}, {"role": "assistant", "content": "Where to?"}]
    fitted = holdfast.fit(conversation, model="gpt-4o", strategy=strategy, **STRATEGIES[strategy])
    assert fitted.messages == conversation


def test_budget_of_a_window() -> None:
    """Window, reply, headroom and headroom for tool results, with the example's figures."""
    budget = holdfast.Budget(
        context_window=200_000, max_reply_tokens=4096, safety_headroom=2048, tool_result_headroom=8192
    )
    assert budget.input == 185_664


async def test_too_long_a_prompt_is_context_length_exceeded() -> None:
    """A provider's refusal with this code is returned with the same code if no smaller prompt is accepted."""
    refusal = {
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
        "message": "too long",
    }
    async with gateway([Reply(status=400, error=refusal)] * 9) as served:
        assert (await served.chat("hi"))["error"]["code"] == "context_length_exceeded"


async def test_tools_that_a_model_sees(tmp_path: Path) -> None:
    """`tools: [search]` offers `search_conversations`, `[text_editor]` the editor, and memory one tool with `action`."""
    agents = f"""
agents:
  researcher: {{tools: [search]}}
  writer: {{tools: [text_editor]}}
  keeper: {{tools: [memory], memory: {{enabled: true}}}}
hooks: {{workspace_git: {{enabled: true, path: "{tmp_path}"}}}}
"""
    async with gateway(["One.", "Two.", "Three."], agents) as served:
        for agent in ("researcher", "writer", "keeper"):
            assert (await served.chat("hi", session_id=agent, model=agent))["status"] == 200
        tools = [one["function"] for request in served.upstream.requests for one in request.body["tools"]]
        assert {"search_conversations", "text_editor", "memory"} <= {one["name"] for one in tools}
        memory = next(one for one in tools if one["name"] == "memory")
        assert {"remember", "recall", "forget"} <= set(memory["parameters"]["properties"]["action"]["enum"])


@pytest.mark.parametrize(
    "command",
    [["explain"], ["replay"], ["sessions", "list"], ["sessions", "verify"], ["search"], ["config", "check"], ["serve"]],
)
async def test_commands(command: list[str]) -> None:
    assert (await run_command([*command, "--help"])).out.startswith(f"Usage: holdfast {' '.join(command)} ")


@pytest.mark.parametrize(
    "name",
    [
        "include_system",
        "includeSystem",
        "startOn",
        "start_on",
        "allowPartial",
        "allow_partial",
        "tokenCounter",
        "maxTokens",
    ],
)
def test_options_of_other_trimmers_are_refused_by_name(name: str) -> None:
    """What they ask for always holds: system messages stay, calls and results stay together, no message is split in two."""
    options: dict[str, Any] = {name: True}
    with pytest.raises(InvalidRequest, match=name):
        holdfast.fit([{"role": "user", "content": "hi"}], budget=1000, **options)


@pytest.mark.parametrize(
    ("strategy", "suggested"),
    [("last", "token_window"), ("clear_tool_uses", "clear_tool_results"), ("keep_tail", "keep_tail")],
)
def test_unknown_strategies_are_refused(strategy: str, suggested: str) -> None:
    with pytest.raises(InvalidRequest, match=suggested):
        holdfast.fit([{"role": "user", "content": "hi"}], budget=1000, strategy=strategy)


def test_newest_result_of_each_tool_is_kept() -> None:
    """`keep_latest` keeps the newest result of each tool, however old it is."""
    conversation: list[dict[str, Any]] = [{"role": "user", "content": "Watch the prices."}]
    for at, tool in enumerate(["stock", *["price"] * 8]):
        call = {"id": f"c{at}", "type": "function", "function": {"name": tool, "arguments": "{}"}}
        conversation.append({"role": "assistant", "content": None, "tool_calls": [call]})
        conversation.append({"role": "tool", "tool_call_id": f"c{at}", "content": f"{tool} {at} " + "row " * 100})
    conversation.append({"role": "user", "content": "And now?"})
    options: dict[str, Any] = {"trigger": 200, "keep": 1, "clear_at_least": 0}
    texts = {
        latest: str(
            holdfast.fit(
                conversation, model="gpt-4o", strategy="clear_tool_results", keep_latest=latest, **options
            ).messages
        )
        for latest in (True, False)
    }
    assert ("stock 0 row" in texts[True], "stock 0 row" in texts[False]) == (True, False)
    assert "price 8 row" in texts[True]
    assert "price 2 row" not in texts[True]


@pytest.mark.parametrize("model", ["claude-opus-4-7", "claude-sonnet-4-6"])
def test_windows_of_named_models(model: str) -> None:
    assert holdfast.Budget.for_model(model).context_window == 1_000_000
