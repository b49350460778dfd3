"""The built-in model `offline`, which answers until a real model is connected."""

from __future__ import annotations

import json

import pytest

from tests.behaviour.kit import answer_of, gateway, user


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_it_reports_what_it_received(stream: bool) -> None:
    async with gateway(None) as served:
        await served.chat("I am Ada.")
        if stream:
            events = await served.openai.chat.completions.create(
                model="offline", messages=[user("What do you see?")], stream=True, extra_body={"session_id": "s"}
            )
            text = "".join([one.choices[0].delta.content or "" async for one in events if one.choices])
        else:
            text = answer_of(await served.chat("What do you see?"))
        assert "3 messages" in text
        assert [row["role"] for row in await served.entries()] == ["user", "assistant"] * 2


async def test_it_calls_the_tool_that_a_message_names() -> None:
    async with gateway(None, tools=[shout]) as served:
        answer = await served.chat('call shout {"text": "kelp"}')
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert "KELP" in [row["content"] for row in await served.entries()]
        tool = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}
        asked = await served.chat("call open_door {}", "t", tools=[tool])
        (call,) = asked["choices"][0]["message"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("open_door", {})


async def test_it_answers_in_every_api_with_usage() -> None:
    async with gateway(None) as served:
        message = await served.ask("Hi")
        assert message.content[0].text
        assert message.usage.output_tokens > 0
        response = await served.openai.responses.create(model="offline", input="Hi")
        assert response.output_text
        assert [model.id async for model in served.openai.models.list()] == ["default"]
