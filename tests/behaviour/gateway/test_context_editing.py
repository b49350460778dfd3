"""Anthropic's context editing, served by the gateway for a model that is not Anthropic's."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import Served, gateway

TOOL: Any = {"name": "read", "input_schema": {"type": "object", "properties": {"page": {"type": "integer"}}}}
PAGE = "The quick brown fox jumps over the lazy dog. " * 40
EDIT: dict[str, Any] = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "tool_uses", "value": 3},
    "keep": {"type": "tool_uses", "value": 1},
}


def client(served: Served) -> anthropic.AsyncAnthropic:
    """Return Anthropic's client for a server."""
    return anthropic.AsyncAnthropic(
        base_url=served.url, api_key="k", max_retries=0, http_client=httpx2.AsyncClient(trust_env=False)
    )


async def ask(claude: anthropic.AsyncAnthropic, request: dict[str, Any], *, stream: bool) -> Any:
    """Return the answer to a request, from a stream or in one piece."""
    if not stream:
        return await claude.beta.messages.create(**request)
    async with claude.beta.messages.stream(**request) as events:
        return await events.get_final_message()


async def read_pages(served: Served, pages: int, *, edit: dict[str, Any], stream: bool = False) -> list[Any]:
    """Let the model read pages one by one, resending everything; return the answers."""
    messages: list[Any] = [{"role": "user", "content": "Read the book."}]
    answers = []
    async with client(served) as claude:
        for _ in range(pages + 1):
            request: dict[str, Any] = {
                "model": "gpt-4o",
                "max_tokens": 500,
                "messages": messages,
                "tools": [TOOL],
                "betas": ["context-management-2025-06-27"],
                "context_management": {"edits": [edit]},
            }
            answer = await ask(claude, request, stream=stream)
            answers.append(answer)
            messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": f"Page {block.input['page']}. {PAGE}"}
                for block in answer.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results})
    return answers


def script(pages: int) -> list[Any]:
    """Return replies that read pages, then end."""
    return [*(Reply(tool_calls=[("read", {"page": page})]) for page in range(pages)), "Done."]


def find_sent_results(upstream: Any, at: int) -> list[bool]:
    """Return for each tool result of a request whether the model received it in whole."""
    return [PAGE.strip() in one["content"] for one in upstream.requests[at].body["messages"] if one["role"] == "tool"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_old_results_are_cleared_and_reported(stream: bool) -> None:
    """With more than three uses, all but the newest are cleared; the reply says how many and how many tokens."""
    async with gateway(script(5)) as served:
        answers = await read_pages(served, 5, edit=EDIT, stream=stream)
        assert [find_sent_results(served.upstream, at) for at in (3, 4)] == [[True] * 3, [False, False, False, True]]
        assert answers[3].context_management.applied_edits == []
        (edit,) = answers[4].context_management.applied_edits
        assert (edit.type, edit.cleared_tool_uses) == ("clear_tool_uses_20250919", 3)
        assert edit.cleared_input_tokens > 900


async def test_cleared_results_stay_cleared() -> None:
    """The next prompt begins with the previous one: what was cleared does not come back."""
    async with gateway(script(6)) as served:
        await read_pages(served, 6, edit=EDIT)
        for at in (5, 6):
            before, after = (served.upstream.requests[one].body["messages"] for one in (at - 1, at))
            assert after[: len(before)] == before


async def test_token_trigger_is_exact() -> None:
    """Nothing is cleared at the number of tokens of the trigger, and something one token above it."""
    async with gateway(script(4)) as served:
        answers = await read_pages(served, 4, edit={**EDIT, "trigger": {"type": "input_tokens", "value": 10**6}})
        listed = (await served.http.get("/v1/sessions")).json()["data"]
        assert not any(answer.context_management.applied_edits for answer in answers)
        used = (await served.http.post(f"/v1/sessions/{listed[0]['id']}/context", json={"strategy": "none"})).json()
    for value, clears in ((used["conversation_tokens"], False), (used["conversation_tokens"] - 8, True)):
        async with gateway(script(4)) as served:
            edit = {**EDIT, "trigger": {"type": "input_tokens", "value": value}}
            answers = await read_pages(served, 4, edit=edit)
            assert bool(answers[4].context_management.applied_edits) is clears


# -- reasoning ---------------------------------------------------------------------

THINKING: dict[str, Any] = {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}}
THOUGHT = "First I look at the page, then I compare it with the others. " * 8


async def think(served: Served, turns: int, *edits: Any, stream: bool = False) -> list[Any]:
    """Ask a model that reasons, turn by turn; return the answers."""
    messages: list[Any] = []
    answers = []
    async with client(served) as claude:
        for at in range(turns):
            messages.append({"role": "user", "content": f"Question {at}?"})
            request: dict[str, Any] = {
                "model": "gpt-4o",
                "max_tokens": 500,
                "messages": messages,
                "betas": ["context-management-2025-06-27"],
                "context_management": {"edits": list(edits)},
            }
            answer = await ask(claude, request, stream=stream)
            answers.append(answer)
            messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
    return answers


def thoughts(turns: int) -> list[Any]:
    """Return replies with reasoning."""
    return [Reply(text=f"Answer {at}.", message={"reasoning_content": f"{at}: {THOUGHT}"}) for at in range(turns)]


def find_sent_thoughts(upstream: Any, at: int) -> list[bool]:
    """Return for each reply in a request whether the model received its reasoning."""
    sent = upstream.requests[at].body["messages"]
    return ["reasoning_content" in one for one in sent if one["role"] == "assistant"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_reasoning_of_older_turns_is_cleared(stream: bool) -> None:
    """The newest two turns keep their reasoning; what was cleared stays cleared, and the reply counts turns and tokens."""
    async with gateway(thoughts(6), llm={"profile": "vllm"}) as served:
        answers = await think(served, 6, THINKING, stream=stream)
        for at in range(6):
            assert find_sent_thoughts(served.upstream, at) == [False] * max(0, at - 2) + [True] * min(2, at)
        assert answers[2].context_management.applied_edits == []
        for at in (3, 5):
            (edit,) = answers[at].context_management.applied_edits
            assert (edit.type, edit.cleared_thinking_turns) == ("clear_thinking_20251015", at - 2)
            assert 80 * (at - 2) < edit.cleared_input_tokens < 140 * (at - 2)
        listed = (await served.http.get("/v1/sessions")).json()["data"]
        log = (await served.http.get(f"/v1/sessions/{listed[0]['id']}/messages")).json()["data"]
        assert sum("reasoning_content" in str(one) for one in log) == 6, "the log keeps all reasoning"


async def test_reasoning_and_results_are_cleared_together() -> None:
    """Both edits in one request: each message loses what its edit says, and each edit is reported."""
    script = [
        *(Reply(tool_calls=[("read", {"page": at})], message={"reasoning_content": THOUGHT}) for at in range(5)),
        Reply(text="Done.", message={"reasoning_content": THOUGHT}),
        Reply(text="Yes.", message={"reasoning_content": THOUGHT}),
    ]
    async with gateway(script, llm={"profile": "vllm"}) as served:
        messages: list[Any] = [{"role": "user", "content": "Read the book."}]
        managed: Any = {"edits": [{"type": "clear_thinking_20251015"}, {**EDIT, "clear_tool_inputs": True}]}
        async with client(served) as claude:
            for _ in range(7):
                answer = await claude.beta.messages.create(
                    model="gpt-4o",
                    max_tokens=500,
                    messages=messages,
                    tools=[TOOL],
                    context_management=managed,
                )
                messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
                results = [
                    {"type": "tool_result", "tool_use_id": block.id, "content": f"Page. {PAGE}"}
                    for block in answer.content
                    if block.type == "tool_use"
                ]
                messages.append({"role": "user", "content": results or "Are you sure?"})
        last = [one for one in served.upstream.requests[-1].body["messages"] if one["role"] == "assistant"]
        assert ["reasoning_content" in one for one in last] == [True] * 6, (
            "one turn, which is the newest with reasoning"
        )
        assert [one["tool_calls"][0]["function"]["arguments"] == "{}" for one in last[:5]] == [True] * 3 + [False] * 2
        reported: Any = answer.context_management
        kinds = [edit.type for edit in reported.applied_edits]
        assert kinds == ["clear_tool_uses_20250919"]


async def test_tokens_without_cleared_reasoning_are_counted() -> None:
    """`count_tokens` applies the edit too."""
    messages: list[Any] = []
    for at in range(5):
        thought = {"type": "thinking", "thinking": THOUGHT, "signature": "x"}
        messages.append({"role": "user", "content": f"Question {at}?"})
        messages.append({"role": "assistant", "content": [thought, {"type": "text", "text": "Yes."}]})
    messages.append({"role": "user", "content": "And now?"})
    async with gateway([]) as served, client(served) as claude:
        managed: Any = {"edits": [THINKING]}
        counted = await claude.beta.messages.count_tokens(model="gpt-4o", messages=messages, context_management=managed)
        edited: Any = counted.context_management
        assert edited.original_input_tokens - counted.input_tokens > 3 * 80
