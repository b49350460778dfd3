"""The JSON examples of document 003: what is said is put in, read, and sent to a model as they are written."""

from __future__ import annotations

from typing import Final

from tests.behaviour.kit import gateway
from tests.behaviour.kit.rest import ask
from tests.behaviour.kit.voice import CONTENTS, PLAIN

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
