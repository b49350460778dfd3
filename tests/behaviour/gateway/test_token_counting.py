"""Counting the tokens of a request without running it, with the official clients."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2

from holdfast.testing import Reply
from tests.behaviour.kit import Served, gateway, until

PAGE = "The quick brown fox jumps over the lazy dog. " * 40
TOOL: Any = {"name": "read", "input_schema": {"type": "object", "properties": {"page": {"type": "integer"}}}}


async def count_of_turn(served: Served, response: Any) -> int:
    """Return the tokens of the prompt that led to a response."""
    tokens: int = response.session["working_set"]["total_tokens"]
    return tokens


async def list_sessions(served: Served) -> list[Any]:
    """Return all sessions of the server."""
    found: list[Any] = (await served.http.get("/v1/sessions")).json()["data"]
    return found


async def test_what_one_server_learns_of_a_window_another_server_knows_a_minute_later() -> None:
    error = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
    refusals = iter([Reply(status=400, error=error)])

    def answer(body: dict[str, Any]) -> Any:
        return next(refusals, "ok") if "learn" in str(body["messages"]) else "ok"

    async with gateway(answer, store="file") as one:
        llm = {"model": "gpt-4o", "base_url": one.upstream.url, "api_key": "k"}
        config = f"llms: {json.dumps({'default': llm})}"
        async with gateway(None, config, store=one.store, clock=one.clock) as two:

            async def read_budget() -> int:
                budget: int = (await two.chat("Hi", "two"))["session"]["working_set"]["budget"]
                return budget

            before = await read_budget()
            await one.chat("Please learn. " + PAGE, "one")
            assert await read_budget() == before > 8192

            async def knows() -> bool:
                one.clock.now += 60_000
                return await read_budget() < 8192

            await until(knows)


async def test_count_equals_the_prompt_that_is_sent() -> None:
    """New, after a response, after an earlier response, and in a conversation: the count is that of the turn."""
    async with gateway([f"Reply {at}. {PAGE}" for at in range(8)]) as served:
        create, count = served.openai.responses.create, served.openai.responses.input_tokens.count
        fields: dict[str, Any] = {"model": "gpt-4o", "instructions": "Be brief."}
        before = await count(input="Hello there.", **fields)
        assert await list_sessions(served) == []
        first = await create(input="Hello there.", **fields)
        assert before.object == "response.input_tokens"
        assert before.input_tokens == await count_of_turn(served, first)
        follow: dict[str, Any] = {**fields, "input": "And then?", "previous_response_id": first.id}
        counted = await count(**follow)
        second = await create(**follow)
        assert counted.input_tokens == await count_of_turn(served, second) > before.input_tokens + 300
        counted = await count(**follow)  # of an earlier response
        branch = await create(**follow)
        assert counted.input_tokens == await count_of_turn(served, branch) == await count_of_turn(served, second)
        talk = await served.openai.conversations.create()
        await create(input="One.", conversation=talk.id, **fields)
        counted = await count(input="Two.", conversation=talk.id, **fields)
        assert counted.input_tokens == await count_of_turn(
            served, await create(input="Two.", conversation=talk.id, **fields)
        )


async def test_count_stores_nothing() -> None:
    """The log, the sessions and later prompts are the same, whether tokens were counted or not."""
    async with gateway(["One.", "Two."]) as served:
        first = await served.openai.responses.create(model="gpt-4o", input="Hello.")
        log, sessions = await served.log(first.session_id), await list_sessions(served)
        for _ in range(3):
            await served.openai.responses.input_tokens.count(
                model="gpt-4o", input="More.", previous_response_id=first.id
            )
        assert await served.log(first.session_id) == log
        assert await list_sessions(served) == sessions
        assert len(served.upstream.requests) == 1


async def test_count_depends_on_the_budget() -> None:
    """With a budget, the count is that of the shortened prompt."""
    async with gateway([PAGE] * 9) as served:
        last: Any = None
        for at in range(8):
            last = await served.openai.responses.create(
                model="gpt-4o", input=f"Page {at}?", previous_response_id=last and last.id
            )
        count = served.openai.responses.input_tokens.count
        whole = await count(model="gpt-4o", input="Next?", previous_response_id=last.id)
        short = await count(model="gpt-4o", input="Next?", previous_response_id=last.id, extra_body={"budget": 1000})
        assert whole.input_tokens > 3000 > 1100 > short.input_tokens


async def test_anthropic_count_with_edits() -> None:
    """`input_tokens` counts the edited prompt, and `original_input_tokens` the one that was sent."""
    messages: list[Any] = [{"role": "user", "content": "Read the book."}]
    for at in range(6):
        use = {"type": "tool_use", "id": f"t{at}", "name": "read", "input": {"page": at}}
        result = {"type": "tool_result", "tool_use_id": f"t{at}", "content": f"Page {at}. {PAGE}"}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    async with gateway([]) as served:
        claude = anthropic.AsyncAnthropic(
            base_url=served.url, api_key="k", max_retries=0, http_client=httpx2.AsyncClient(trust_env=False)
        )
        async with claude:
            plain = await claude.beta.messages.count_tokens(model="gpt-4o", messages=messages, tools=[TOOL])
            counts = {}
            for trigger in (3, 6):
                edit: Any = {
                    "type": "clear_tool_uses_20250919",
                    "trigger": {"type": "tool_uses", "value": trigger},
                    "keep": {"type": "tool_uses", "value": 2},
                }
                counts[trigger] = await claude.beta.messages.count_tokens(
                    model="gpt-4o", messages=messages, tools=[TOOL], context_management={"edits": [edit]}
                )
        assert plain.context_management is None
        edited: list[Any] = [one.context_management for one in counts.values()]
        assert {one.original_input_tokens for one in edited} == {plain.input_tokens}
        assert counts[6].input_tokens == plain.input_tokens
        assert counts[3].input_tokens < plain.input_tokens - 4 * 350
