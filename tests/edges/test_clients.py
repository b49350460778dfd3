"""Third-party clients against a real server, used as their users would, without Holdfast-specific code.

The official OpenAI client, LangChain's `ChatOpenAI` and `litellm` run the same conversations: streamed and not,
with client tools, with images, and with the whole history resent and no session named.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from holdfast.domain.session import SessionRef
from holdfast.testing import Reply, ScriptedUpstream
from holdfast.wire.openai import to_chat_message
from tests.edges.server import CLIENT_KEY, UPSTREAM_KEY, Served, gateway

# The internals of litellm are not checked here.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning")

Data = dict[str, Any]
NAMES = {"openai": "openai", "langchain": "langchain_openai", "litellm": "litellm"}
WEATHER: Data = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}


class Client(ABC):
    """A client as its user sees it.

    Messages in the shape of Chat Completions go in, the client's own messages come out.

    Args:
        served: the server.
        stream: whether replies are streamed.
        named: a session's id, sent in the body (`extra_body`) or in a header; None: the server matches the
            session.
        header: send the id in a header.
    """

    def __init__(self, served: Served, *, stream: bool, named: str | None, header: bool) -> None:
        self.url = f"{served.url}/v1"
        self.stream = stream
        self.body = {"session_id": named} if named and not header else {}
        self.headers = {"X-Session-Id": named} if named and header else {}

    @abstractmethod
    async def ask(self, history: list[Data], tools: list[Data]) -> tuple[Data, Any]:
        """Return the reply as the client's user keeps it, and the server's own fields that they see."""


class OpenAI(Client):
    """The official client."""

    async def ask(self, history: list[Data], tools: list[Data]) -> tuple[Data, Any]:
        import openai

        async with (
            httpx2.AsyncClient(trust_env=False) as http,
            openai.AsyncOpenAI(base_url=self.url, api_key=CLIENT_KEY, max_retries=0, http_client=http) as client,
        ):
            given: Data = {
                "model": "gpt-4o",
                "messages": history,
                "extra_body": self.body,
                "extra_headers": self.headers,
            }
            if tools:
                given["tools"] = tools
            if not self.stream:
                completion = await client.chat.completions.create(**given)
                return completion.choices[0].message.model_dump(exclude_none=True), completion.model_extra
            async with client.chat.completions.stream(**given) as events:
                async for _ in events:
                    pass
                whole = await events.get_final_completion()
            return whole.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"}), whole.model_extra


class LangChain(Client):
    """`ChatOpenAI`, whose history consists of its own messages, converted both ways."""

    async def ask(self, history: list[Data], tools: list[Data]) -> tuple[Data, Any]:
        from langchain_core.messages import convert_to_messages, convert_to_openai_messages
        from langchain_openai import ChatOpenAI
        from pydantic import SecretStr

        # With explicit HTTP clients: those it creates itself outlive the test.
        async with httpx2.AsyncClient(trust_env=False) as http:
            model: Any = ChatOpenAI(
                model="gpt-4o",
                base_url=self.url,
                api_key=SecretStr(CLIENT_KEY),
                max_retries=0,
                extra_body=self.body or None,
                default_headers=self.headers or None,
                stream_usage=True,
                http_async_client=http,
            )
            if tools:
                model = model.bind_tools(tools)
            asked = convert_to_messages(history)
            if not self.stream:
                said = await model.ainvoke(asked)
            else:
                said = None
                async for chunk in model.astream(asked):
                    said = chunk if said is None else said + chunk
        kept = convert_to_openai_messages(said)
        return kept, said.response_metadata


class LiteLLM(Client):
    """`litellm.acompletion`."""

    async def ask(self, history: list[Data], tools: list[Data]) -> tuple[Data, Any]:
        import litellm
        import openai

        given: Data = {
            "model": "openai/gpt-4o",
            "messages": history,
            "num_retries": 0,
            "extra_body": self.body,
            "extra_headers": self.headers,
        }
        if tools:
            given["tools"] = tools
        # With an explicit HTTP client: those it creates itself outlive the test.
        async with (
            httpx2.AsyncClient(trust_env=False) as http,
            openai.AsyncOpenAI(base_url=self.url, api_key=CLIENT_KEY, max_retries=0, http_client=http) as client,
        ):
            said: Any = await litellm.acompletion(**given, stream=self.stream, client=client)
            if self.stream:
                said = litellm.stream_chunk_builder([chunk async for chunk in said], messages=history)
        return said.choices[0].message.model_dump(exclude_none=True), said.model_extra


CLIENTS: dict[str, type[Client]] = {"openai": OpenAI, "langchain": LangChain, "litellm": LiteLLM}


@pytest.fixture(params=CLIENTS)
def client_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    """Return the class of an installed client, with its network access to its vendor disabled."""
    name = str(request.param)
    if importlib.util.find_spec(NAMES[name]) is None:
        pytest.skip(f"{NAMES[name]} is not installed: group `clients`")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    return CLIENTS[name]


@asynccontextmanager
async def start_client(
    client_kind: type[Client], script: Any, *, stream: bool, named: str | None = None, header: bool = False
) -> AsyncIterator[tuple[Client, Served, ScriptedUpstream]]:
    """Run a single-user server whose model follows a script; yield a client of it."""
    async with gateway(script, "gateway: {single_user: true}") as (served, upstream):
        yield client_kind(served, stream=stream, named=named, header=header), served, upstream


async def list_sessions(served: Served) -> list[str]:
    """Return the ids of all sessions."""
    return [session.id for session in (await served.hf.sessions()).sessions]


async def log(served: Served, session_id: str) -> list[Data]:
    """Return the live messages of a session."""
    entries = await served.hf.store.entries(SessionRef("default", session_id))
    return [to_chat_message(entry.message) for entry in entries]


def user(content: Any) -> Data:
    return {"role": "user", "content": content}


streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@streaming
async def test_conversation_without_a_session_id_stays_in_one_session(client_kind: type[Client], stream: bool) -> None:
    """The client resends everything each time; the prompt equals what it sent."""
    replies = ["Hello! How can I help?", "It is in Lyon.", "Two hours by train.", "You are welcome."]
    async with start_client(client_kind, replies, stream=stream) as (client, served, upstream):
        history: list[Data] = [{"role": "system", "content": "Be brief."}]
        for words, reply in zip(("Hi", "Where is it?", "How far is that?", "Thanks"), replies, strict=True):
            history.append(user(words))
            said, _ = await client.ask(history, [])
            assert said["content"] == reply
            assert said["role"] == "assistant"
            assert upstream.requests[-1].headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
            told = [(one["role"], one["content"]) for one in upstream.requests[-1].body["messages"]]
            assert told == [(one["role"], one["content"]) for one in history]
            history.append(said)
        # The first request had no assistant message, and an opening alone cannot be matched.
        (session_id,) = await list_sessions(served)
        assert [(one["role"], one["content"]) for one in await log(served, session_id)] == [
            (one["role"], one["content"]) for one in history[1:]
        ]


@streaming
async def test_two_conversations_with_equal_beginnings_stay_separate(client_kind: type[Client], stream: bool) -> None:
    """The same opening and the same first reply; they separate once they differ."""

    def script(body: Data) -> str:
        return "Hello!" if len(body["messages"]) == 1 else f"re: {body['messages'][-1]['content']}"

    async with start_client(client_kind, script, stream=stream) as (client, served, _):
        histories: list[list[Data]] = [[user("hi")], [user("hi")]]
        for number, history in enumerate(histories):
            history.append((await client.ask(history, []))[0])
            history.append(user(f"I am number {number}"))
            history.append((await client.ask(history, []))[0])
        for turn in range(2):
            for number, history in enumerate(histories):
                history.append(user(f"{number}.{turn}"))
                history.append((await client.ask(history, []))[0])
        found = [await log(served, name) for name in await list_sessions(served)]
        texts = sorted([one["content"] for one in messages] for messages in found)
        assert texts == sorted([one["content"] for one in history] for history in histories)


@streaming
@pytest.mark.parametrize("header", [False, True], ids=["body", "header"])
async def test_conversation_with_a_session_id(client_kind: type[Client], stream: bool, header: bool) -> None:
    """The client sends only new messages; the server supplies the history."""
    replies = ["One.", "Two.", "Three."]
    async with start_client(client_kind, replies, stream=stream, named="my session", header=header) as (
        client,
        served,
        upstream,
    ):
        for at, reply in enumerate(replies):
            said, _ = await client.ask([user(f"message {at}")], [])
            assert said["content"] == reply
        assert await list_sessions(served) == ["my session"]
        assert [one["content"] for one in await log(served, "my session")] == [
            text for at, reply in enumerate(replies) for text in (f"message {at}", reply)
        ]
        assert len(upstream.requests[-1].body["messages"]) == 5


@streaming
@pytest.mark.parametrize("named", [None, "s"], ids=["unnamed", "named"])
async def test_tool_round(client_kind: type[Client], stream: bool, named: str | None) -> None:
    """Two parallel calls, both results, the reply, and a following question: one session without duplicates."""
    arguments = [{"town": "Lyon"}, {"town": "Nice", "unit": "C"}]
    script = [
        Reply(tool_calls=[("weather", given) for given in arguments]),
        Reply(text="Sun in both."),
        Reply(text="Then go."),
    ]
    async with start_client(client_kind, script, stream=stream, named=named) as (client, served, upstream):
        history = [user("Weather in Lyon and Nice?")]
        said, _ = await client.ask(history, [WEATHER])
        calls = said["tool_calls"]
        assert [json.loads(call["function"]["arguments"]) for call in calls] == arguments
        assert upstream.requests[0].body["tools"] == [WEATHER]
        history.append(said)
        history += [
            {"role": "tool", "tool_call_id": call["id"], "content": f"sun {at}"} for at, call in enumerate(calls)
        ]
        said, _ = await client.ask(history, [WEATHER])
        assert said["content"] == "Sun in both."
        prompt = upstream.requests[1].body["messages"]
        assert [one["role"] for one in prompt] == ["user", "assistant", "tool", "tool"]
        assert [one["tool_call_id"] for one in prompt[2:]] == [call["id"] for call in prompt[1]["tool_calls"]]
        history += [said, user("Shall I go?")]
        said, _ = await client.ask(history, [WEATHER])
        assert said["content"] == "Then go."
        ids = await list_sessions(served)
        logs = {name: await log(served, name) for name in ids}
        longest = max(logs.values(), key=len)
        assert [one["role"] for one in longest] == [
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
            "user",
            "assistant",
        ]
        assert len(ids) == 1


@streaming
@pytest.mark.parametrize("named", [None, "s"], ids=["unnamed", "named"])
async def test_conversation_about_an_image(client_kind: type[Client], stream: bool, named: str | None) -> None:
    """The image reaches the model each time; a second one is added to it."""
    first, second = make_image(10), make_image(200)
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": first}}]
    async with start_client(client_kind, ["A dot.", "A red one.", "Brighter."], stream=stream, named=named) as (
        client,
        served,
        upstream,
    ):
        history = [user(content)]
        history.append((await client.ask(history, []))[0])
        history.append(user("What colour?"))
        history.append((await client.ask(history, []))[0])
        history.append(
            user([{"type": "text", "text": "And this?"}, {"type": "image_url", "image_url": {"url": second}}])
        )
        said, _ = await client.ask(history, [])
        assert said["content"] == "Brighter."
        shown = [image_urls(request.body["messages"]) for request in upstream.requests]
        assert shown == [[first], [first], [first, second]]
        assert len(await list_sessions(served)) == 1
        (session_id,) = await list_sessions(served)
        assert image_urls(await log(served, session_id)) in (
            [first, second],
            [],
        )  # whole, or as references: never in halves
        exported = (await served.http.get(f"/v1/sessions/{session_id}")).json()
        assert image_urls(exported["messages"]) == [first, second]


def image_urls(messages: list[Data]) -> list[str]:
    """Return the URLs of the images in messages."""
    parts = [part for one in messages if isinstance(one["content"], list) for part in one["content"]]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url" and "url" in part["image_url"]]


def make_image(red: int) -> str:
    """Return a picture of one pixel as a data URL."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(bytes([0, red, 0, 0]))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


@streaming
async def test_edit_and_regeneration(client_kind: type[Client], stream: bool) -> None:
    """As with a chat window's buttons: an earlier message is changed, then the last reply regenerated.

    Nothing is lost.
    """
    replies = ["a1", "a2", "a2 again", "a2 edited"]
    async with start_client(client_kind, replies, stream=stream) as (client, served, _):
        history = [user("u1")]
        history.append((await client.ask(history, []))[0])
        history.append(user("u2"))
        await client.ask(history, [])
        assert (await client.ask(history, []))[0]["content"] == "a2 again"
        history[-1] = user("u2, edited")
        assert (await client.ask(history, []))[0]["content"] == "a2 edited"
        (session_id,) = await list_sessions(served)
        assert [one["content"] for one in await log(served, session_id)] == ["u1", "a1", "u2, edited", "a2 edited"]
        entries = await served.hf.store.entries(SessionRef("default", session_id), retired=True)
        assert {entry.message.text for entry in entries} == {"u1", "u2", "u2, edited", *replies}


@streaming
async def test_upstream_error_becomes_the_clients_own_exception(client_kind: type[Client], stream: bool) -> None:
    """With the server's message and status."""
    async with start_client(
        client_kind, [Reply(status=429, error="too fast", headers={"retry-after": "7"})], stream=stream
    ) as (
        client,
        _,
        _,
    ):
        with pytest.raises(Exception, match="too fast") as raised:
            await client.ask([user("hi")], [])
        assert getattr(raised.value, "status_code", None) == 429
