"""One session, continued through every API in turn: the log and the prompts are those of one conversation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.testing import Reply
from tests.behaviour.kit import Served, gateway

USER: Final = "ada"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"at": {"type": "integer"}}}
CHAT_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
FLAT_TOOL: dict[str, Any] = {"type": "function", "name": "look", "parameters": SCHEMA}
CLAUDE_TOOL: dict[str, Any] = {"name": "look", "input_schema": SCHEMA}


class Said(NamedTuple):
    """One message of the conversation."""

    role: str
    text: str
    calls: tuple[tuple[str, int], ...] = ()
    """Id and argument of each call."""
    call_id: str = ""


class Client:
    """A client that knows the conversation and can continue it through any API."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.said: list[Said] = []
        self.last_response: str | None = None
        self.conversation = ""
        self.session_id = ""

    async def begin(self) -> None:
        """Create the session. It is also a conversation, but unlike one that `POST /v1/conversations` creates, it is found by its messages."""
        answer = await self.served.http.post("/v1/sessions", json={"user_id": USER})
        self.session_id = answer.json()["id"]
        self.conversation = "conv_" + self.session_id.removeprefix("sess_")

    # -- the conversation in each format ---------------------------------------------

    def chat(self, messages: list[Said]) -> list[dict[str, Any]]:
        """Return messages of Chat Completions."""
        made: list[dict[str, Any]] = []
        for one in messages:
            message: dict[str, Any] = {"role": one.role, "content": one.text or None}
            if one.calls:
                message["tool_calls"] = [
                    {"id": id_, "type": "function", "function": {"name": "look", "arguments": json.dumps({"at": at})}}
                    for id_, at in one.calls
                ]
            if one.call_id:
                message["tool_call_id"] = one.call_id
            made.append(message)
        return made

    def items(self, messages: list[Said]) -> list[dict[str, Any]]:
        """Return items of the Responses API."""
        made: list[dict[str, Any]] = []
        for one in messages:
            if one.call_id:
                made.append({"type": "function_call_output", "call_id": one.call_id, "output": one.text})
                continue
            if one.text:
                made.append({"role": one.role, "content": one.text})
            made += [
                {"type": "function_call", "call_id": id_, "name": "look", "arguments": json.dumps({"at": at})}
                for id_, at in one.calls
            ]
        return made

    def blocks(self, messages: list[Said]) -> list[dict[str, Any]]:
        """Return messages of Anthropic's API."""
        made: list[dict[str, Any]] = []
        for one in messages:
            if one.call_id:
                block = {"type": "tool_result", "tool_use_id": one.call_id, "content": one.text}
                if made and made[-1]["role"] == "user" and made[-1]["content"][0]["type"] == "tool_result":
                    made[-1]["content"].append(block)
                else:
                    made.append({"role": "user", "content": [block]})
                continue
            content: list[dict[str, Any]] = [{"type": "text", "text": one.text}] if one.text else []
            content += [{"type": "tool_use", "id": id_, "name": "look", "input": {"at": at}} for id_, at in one.calls]
            made.append({"role": one.role, "content": content})
        return made

    # -- requests ----------------------------------------------------------------------

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and return its decoded answer."""
        answer = await self.served.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        decoded: dict[str, Any] = answer.json()
        return decoded

    def note_chat(self, answer: dict[str, Any]) -> Said:
        """Return the reply in an answer of Chat Completions."""
        message = answer["choices"][0]["message"]
        calls = message.get("tool_calls") or ()
        return Said(
            "assistant",
            message.get("content") or "",
            tuple((call["id"], json.loads(call["function"]["arguments"])["at"]) for call in calls),
        )

    def note_response(self, answer: dict[str, Any]) -> Said:
        """Return the reply in a Response object."""
        self.last_response = answer["id"]
        texts = [part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"]]
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        return Said(
            "assistant",
            "".join(texts),
            tuple((call["call_id"], json.loads(call["arguments"])["at"]) for call in calls),
        )

    def note_blocks(self, answer: dict[str, Any]) -> Said:
        """Return the reply in an Anthropic message."""
        texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        return Said("assistant", "".join(texts), tuple((call["id"], call["input"]["at"]) for call in calls))

    async def chat_delta(self, new: list[Said]) -> Said:
        """Chat Completions with the session's id and the new messages."""
        body = {"session_id": self.session_id, "user_id": USER, "messages": self.chat(new), "tools": [CHAT_TOOL]}
        return self.note_chat(await self.post("/v1/chat/completions", {**body, "session_mode": "delta"}))

    async def chat_all(self, new: list[Said]) -> Said:
        """Chat Completions with the session's id and the whole conversation."""
        body = {"session_id": self.session_id, "user_id": USER, "messages": self.chat([*self.said, *new])}
        return self.note_chat(
            await self.post("/v1/chat/completions", {**body, "tools": [CHAT_TOOL], "session_mode": "transcript"})
        )

    async def chat_matched(self, new: list[Said]) -> Said:
        """Chat Completions with the whole conversation and no id."""
        if not self.said:
            return await self.chat_all(new)
        body = {"user_id": USER, "messages": self.chat([*self.said, *new]), "tools": [CHAT_TOOL]}
        return self.note_chat(await self.post("/v1/chat/completions", body))

    async def after_response(self, new: list[Said]) -> Said:
        """Responses with the id of the last response, if the last reply has one; else with the conversation."""
        if self.last_response is None:
            return await self.in_conversation(new)
        body = {
            "input": self.items(new),
            "previous_response_id": self.last_response,
            "user_id": USER,
            "tools": [FLAT_TOOL],
        }
        return self.note_response(await self.post("/v1/responses", body))

    async def in_conversation(self, new: list[Said]) -> Said:
        """Responses with the conversation."""
        body = {"input": self.items(new), "conversation": self.conversation, "user_id": USER, "tools": [FLAT_TOOL]}
        return self.note_response(await self.post("/v1/responses", body))

    async def conversation_all(self, new: list[Said]) -> Said:
        """Responses with the conversation and all items."""
        items = self.items([*self.said, *new])
        body = {"input": items, "conversation": {"id": self.conversation}, "user_id": USER, "tools": [FLAT_TOOL]}
        return self.note_response(await self.post("/v1/responses", body))

    async def stream(self, new: list[Said]) -> Said:
        """Responses as a stream."""
        body = {"input": self.items(new), "conversation": self.conversation, "user_id": USER, "tools": [FLAT_TOOL]}
        answer = await self.served.http.post("/v1/responses", json={**body, "stream": True})
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return self.note_response(events[-1]["response"])

    async def not_stored(self, new: list[Said]) -> Said:
        """Responses with all items and without ids, as Codex sends them."""
        if not self.said:
            return await self.in_conversation(new)
        body = {"input": self.items([*self.said, *new]), "store": False, "user_id": USER, "tools": [FLAT_TOOL]}
        reply = self.note_response(await self.post("/v1/responses", body))
        self.last_response = None
        return reply

    async def claude_delta(self, new: list[Said]) -> Said:
        """Anthropic's API with the session's id and the new messages."""
        body = {"session_id": self.session_id, "user_id": USER, "messages": self.blocks(new), "tools": [CLAUDE_TOOL]}
        return self.note_blocks(await self.post("/v1/messages", {**body, "session_mode": "delta", "max_tokens": 100}))

    async def claude_all(self, new: list[Said]) -> Said:
        """Anthropic's API with the whole conversation and no id."""
        if not self.said:
            return await self.claude_delta(new)
        body = {"user_id": USER, "messages": self.blocks([*self.said, *new]), "tools": [CLAUDE_TOOL], "max_tokens": 100}
        return self.note_blocks(await self.post("/v1/messages", body))


APIS: Final = (
    "chat_delta",
    "chat_all",
    "chat_matched",
    "after_response",
    "in_conversation",
    "conversation_all",
    "stream",
    "not_stored",
    "claude_delta",
    "claude_all",
)
Steps = list[tuple[str, str, bool]]
"""For each turn: the API of the question, the API of the results, and whether the model calls two tools."""


def answer(body: dict[str, Any]) -> Reply | str:
    """Answer a request: call two tools if the last user message asks for it and they have not been called."""
    last = body["messages"][-1]
    number = len(body["messages"])
    if last["role"] == "user" and "look" in str(last["content"]):
        return Reply(text=f"Looking {number}.", tool_calls=[("look", {"at": number}), ("look", {"at": number + 1})])
    return f"Reply {number}."


async def play(steps: Steps) -> None:
    """Have a conversation through the APIs in `steps`, and check log and prompts after each reply."""
    more = ("context: {strategy: none}",)
    async with gateway(answer, *more) as served:
        client = Client(served)
        await client.begin()
        for number, (first, second, calls) in enumerate(steps):
            new = [Said("user", f"Question {number}{', look' if calls else ''}")]
            for api in (first, second):
                ask: Callable[[list[Said]], Awaitable[Said]] = getattr(client, api)
                before = client.last_response
                reply = await ask(new)
                if client.last_response == before:  # another API: the response's id is no longer the last one
                    client.last_response = None
                client.said += new
                check_prompt(client, served.upstream.requests[-1].body["messages"])
                client.said.append(reply)
                await check_log(client)
                if not reply.calls:
                    break
                new = [Said("tool", f"seen {at}", call_id=id_) for id_, at in reply.calls]
        assert len(await served.rest.sessions()) == 1


def check_prompt(client: Client, sent: list[dict[str, Any]]) -> None:
    """Check that the model received the whole conversation, in order, nothing twice."""
    shown = [(one["role"], read_text(one.get("content")), len(one.get("tool_calls") or ())) for one in sent]
    assert shown == [(one.role, one.text, len(one.calls)) for one in client.said]


def read_text(content: Any) -> str:
    """Return the text of a message's content."""
    return "".join(part["text"] for part in content) if isinstance(content, list) else content or ""


async def check_log(client: Client) -> None:
    """Check that the log has the conversation, and nothing was retired."""
    rows = await client.served.entries(client.session_id, USER, retired=True)
    found = [(row["role"], read_text(row.get("content")), len(row.get("tool_calls") or ())) for row in rows]
    assert found == [(one.role, one.text, len(one.calls)) for one in client.said]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(APIS), st.sampled_from(APIS), st.booleans()), min_size=1, max_size=5))
@example([(one, two, True) for one, two in zip(APIS, APIS[1:] + APIS[:1], strict=True)])
@example([(api, api, True) for api in APIS])
def test_every_api_continues_the_same_session(steps: Steps) -> None:
    """Whatever API continues a conversation, with tools or without, the log and the prompts stay right."""
    asyncio.run(play(steps))
