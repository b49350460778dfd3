"""The JSON examples of document 003: what is said is put in, read, and sent to a model as they are written."""

from __future__ import annotations

from typing import Any, Final

from tests.behaviour.kit import gateway
from tests.behaviour.kit.rest import ask

STORY: Final = (
    "Once upon a time in a land far away, there lived a brave knight who fought dragons and saved princesses."
)
JOKE: Final = "Why did the scarecrow win an award? Because he was outstanding in his field!"


def said(role: str, content: str, turn_id: int, timestamp: int, **metadata: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "turn_id": turn_id, "timestamp": timestamp, "metadata": metadata}


CONTENTS: Final = [
    said("assistant", "How can I help you today?", 1, 1678901234, source="greeting"),
    said("user", "Can you tell me a joke?", 2, 1678901235, source="asr", user="user123"),
    said(
        "assistant",
        "Why did the scarecrow ",
        2,
        1678901236,
        interrupted=True,
        interrupt_timestamp=1678905225,
        original=JOKE,
        source="llm",
    ),
    said("user", "You know what? Tell me a story instead.", 3, 1678905235, source="asr", user="user123"),
    said("assistant", STORY, 3, 1678905236, source="llm"),
    said("assistant", "Are you still there?", 4, 1678905236, source="command"),
]
"""What is said, with its records."""
PLAIN: Final = [{"role": one["role"], "content": one["content"]} for one in CONTENTS]
SYSTEM: Final = [
    {"role": "system", "content": "You are a helpful assistant. xxx"},
    {
        "role": "system",
        "content": "Previously, user has talked about their favorite hobbies with some key topics: xxx",
    },
]
HISTORY: Final = "/v1/sessions/s/history"


async def test_contents_are_put_in_and_read_as_they_are_written() -> None:
    async with gateway() as served:
        await ask(served.http, "PUT", "/v1/sessions/s", {"contents": CONTENTS})
        assert (await ask(served.http, "GET", HISTORY))["contents"] == CONTENTS
        assert (await ask(served.http, "GET", HISTORY, view="plain"))["messages"] == PLAIN


async def test_plain_messages_are_put_in_as_they_are_written() -> None:
    async with gateway() as served:
        await ask(served.http, "PUT", "/v1/sessions/s", {"messages": PLAIN})
        assert (await ask(served.http, "GET", HISTORY, view="plain"))["messages"] == PLAIN


async def test_a_custom_model_gets_the_request_as_it_is_written() -> None:
    async with gateway(["Yes."]) as model:
        llm = f"llm: {{vendor: custom, base_url: '{model.upstream.url}', model: xxxx}}"
        async with gateway(None, llm) as served:
            await ask(served.http, "PUT", "/v1/sessions/s", {"contents": CONTENTS})
            await served.chat("Go on.", interruptable=True)
        body = model.upstream.requests[0].body
        assert body["messages"][:-1] == CONTENTS
        assert (body["messages"][-1]["content"], body["messages"][-1]["turn_id"]) == ("Go on.", body["turn_id"])
        assert (body["interruptable"], body["model"]) == (True, "xxxx")
        assert body["timestamp"] >= 1_700_000_000


async def test_system_messages_are_sent_first_as_they_are_written() -> None:
    async with gateway(["Hello."]) as served:
        await served.rest.create("s", system_messages=SYSTEM)
        await served.chat("Hi.")
        assert served.upstream.requests[0].body["messages"][:2] == SYSTEM
