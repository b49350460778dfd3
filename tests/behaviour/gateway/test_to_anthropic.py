"""A model with Anthropic's API: what its server gets for a request of Chat Completions, and what the client gets back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import UPSTREAM_KEY, Served, answer_of, gateway, result, system, user
from tests.behaviour.kit.anthropic import AnthropicUpstream

Row = dict[str, Any]
OLD, NEW = "claude-sonnet-4-5", "claude-opus-4-6"
SCHEMA = {"type": "object", "properties": {"town": {"type": "string"}}}
THOUGHT = {"type": "thinking", "thinking": "let me see", "signature": "c2ln"}


def tool(name: str = "find", **more: Any) -> Row:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}}


def claude(script: Any = None, *config: str, model: str = OLD, **options: Any) -> Any:
    """A gateway whose model has Anthropic's API."""
    llm = {"provider": "anthropic", "model": model, **options.pop("llm", {})}
    return gateway((), *config, upstream=AnthropicUpstream(script or (lambda _: "ok"), **options), llm=llm)


def without_marks(value: Any) -> Any:
    if isinstance(value, list):
        return [without_marks(one) for one in value]
    if isinstance(value, dict):
        return {name: without_marks(one) for name, one in value.items() if name != "cache_control"}
    return value


def prompt(served: Served, at: int = -1) -> list[Row]:
    """Return the messages that the model got, without marks of the cache."""
    messages: list[Row] = without_marks(served.upstream.requests[at].body["messages"])
    return messages


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_reply_of_claude_reaches_a_client_of_chat_completions(stream: bool) -> None:
    """Text, reasoning, calls, reason and usage; the reasoning goes back signed with the results."""
    usage = {"prompt_tokens": 9, "cache_read_input_tokens": 30, "completion_tokens": 4}
    asked = Reply(
        text="One moment.", message={"thinking_blocks": [THOUGHT]}, tool_calls=[("find", {"n": 7})], usage=usage
    )
    thinking = {"type": "enabled", "budget_tokens": 2000}
    async with claude([asked, "Found."]) as served:
        fields = {"tools": [tool()], "thinking": thinking, "max_tokens": 4000}
        if stream:
            async with served.openai.chat.completions.stream(
                model="default",
                messages=[user("Where?")],
                tools=fields["tools"],
                max_tokens=4000,
                stream_options={"include_usage": True},
                extra_body={"session_id": "s", "thinking": thinking},
            ) as events:
                answer = (await events.get_final_completion()).model_dump()
        else:
            answer = await served.chat("Where?", **fields)
        choice, used = answer["choices"][0], answer["usage"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "One moment.")
        assert choice["message"]["reasoning_content"] == "let me see"
        (call,) = choice["message"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("find", {"n": 7})
        assert (used["prompt_tokens"], used["completion_tokens"]) == (39, 4)
        assert used["prompt_tokens_details"]["cached_tokens"] == 30
        assert answer_of(await served.chat([result(call["id"], "here")], **fields)) == "Found."
        assert [block["type"] for block in prompt(served)[1]["content"]] == ["thinking", "text", "tool_use"]
        assert prompt(served)[1]["content"][0] == THOUGHT
        assert served.upstream.violations == []


async def test_blocks_that_only_anthropic_has_go_back_unchanged() -> None:
    found: list[Row] = [
        {"type": "text", "text": "Searching. "},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "kelp"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "text", "text": "Kelp.", "citations": [{"type": "char_location", "cited_text": "x"}]},
    ]
    async with claude([Reply(message={"content": found}), "Yes."]) as served:
        answer = await served.chat("Hi")
        assert answer_of(answer) == "Searching. Kelp."
        assert [block["type"] for block in answer["choices"][0]["message"]["content_blocks"]] == [
            b["type"] for b in found
        ]
        await served.chat("Sure?")
        assert prompt(served)[1]["content"] == found


async def test_marks_can_be_turned_off() -> None:
    async with claude(llm={"params": {"cache_control": False}}) as served:
        await served.chat([system("Sys."), user("One")])
        built = await served.rest.session().context(dialect="anthropic")
        assert "cache_control" not in json.dumps([served.sent, built])


async def test_the_preview_of_a_prompt_is_what_is_sent() -> None:
    async with claude() as served:
        for text in ("One", "Two"):
            await served.chat([system("Be brief."), user(text)])
        built = await served.rest.session().context(dialect="anthropic", at_turn=1)
        assert built["messages"] == served.sent["messages"]


async def test_the_provider_counts_if_the_configuration_says_so() -> None:
    async with claude(counts=lambda _: 1234, llm={"count": "provider"}) as served:
        await served.chat("Hello")
        (asked,) = served.upstream.counted
        assert (asked.path, asked.headers["x-api-key"]) == ("/v1/messages/count_tokens", UPSTREAM_KEY)
        assert asked.body["messages"][0]["content"][0]["text"] == "Hello"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_paused_reply_is_continued_ten_times(stream: bool) -> None:
    """The client gets one reply, with all of its parts."""
    searches = [
        {"type": "server_tool_use", "id": f"srvtoolu_{at}", "name": "web_search", "input": {"query": str(at)}}
        for at in range(10)
    ]
    paused = [
        Reply(message={"content": [{"type": "text", "text": f"{at} "}, search]}, finish_reason="pause_turn")
        for at, search in enumerate(searches)
    ]
    async with claude([*paused, "end."]) as served:
        said: Any = {"model": "default", "messages": [user("Go on.")], "stream": stream}
        made = await served.openai.chat.completions.create(**said)
        if stream:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in made if chunk.choices])
        else:
            text = made.choices[0].message.content
        assert "".join(text.split()) == "0123456789end."
        assert len(served.upstream.requests) == 11
