"""The built-in model `offline`, which answers until a real model is connected."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.behaviour.kit import answer_of, calls, gateway, result, system, user

DOOR = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}


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
        asked = await served.chat("call open_door {}", "t", tools=[DOOR])
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


async def test_it_describes_every_part_of_a_prompt_in_order() -> None:
    async with gateway(None) as served:

        async def ask(*messages: dict[str, Any], **fields: Any) -> list[str]:
            said = answer_of(await served.chat([*messages], **fields))
            return re.sub(r"[\d,]+ tokens", "N tokens", said).splitlines()[2:]

        called = calls(("a", "look", {"at": 1}), ("b", "list", {}))
        answered = await ask(
            system("Be brief.\nBe kind."), user("I am Ada."), called, result("a", "kelp"), result("b", "x")
        )
        assert answered == ['look answered with 4 characters: "kelp"', 'list answered with 1 character: "x"']
        assert (await ask(user("Well?"), tools=[DOOR]))[:-1] == [
            "I was given 7 messages (1 system, 2 user, 2 assistant, 2 tool), about N tokens.",
            'The system prompt begins: "Be brief."',
            "Tools I may call: open_door.",
            'The task, your first message that I see: "I am Ada."',
            'You just said: "Well?"',
        ]
        assert [line.split(" (")[0] for line in await ask(user("What do you see?")) if "built-in" not in line] == [
            "9 messages, about N tokens:",
            '1. system "Be brief. Be kind."',
            '2. user "I am Ada."',
            "3. assistant calls look, list",
            '4. tool "kelp"',
            '5. tool "x"',
            '7. user "Well?"',
            '9. user "What do you see?"',
        ]
