"""What a model of one API answers reaches the client of each API, whole and streamed, and the next model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import Served, gateway
from tests.behaviour.kit.claude import Row, text, use
from tests.behaviour.kit.messages import user
from tests.behaviour.kit.trips import CITED, CLIENTS, SEARCH, UPSTREAMS, find_words

TOOL: Final = {"type": "object", "properties": {}}
TOOLS: Final[Mapping[str, list[Row]]] = {
    "chat": [{"type": "function", "function": {"name": "look", "parameters": TOOL}}],
    "messages": [{"name": "look", "input_schema": TOOL}],
    "responses": [{"type": "function", "name": "look", "parameters": TOOL}],
}
THOUGHT: Final = {"type": "thinking", "thinking": "zqthought", "signature": "s"}
REPLIES: Final[Mapping[str, Reply]] = {
    "chat": Reply(
        text="zqfirst zqsaid",
        tool_calls=[("look", {"zqa": "ä"}), ("look", {"zqb": [1]})],
        message={"reasoning_content": "zqthought"},
    ),
    "messages": Reply(
        message={
            "content": [
                THOUGHT,
                text("zqfirst"),
                *SEARCH,
                text(" zqsaid", citations=[CITED]),
                use("toolu_1", given={"zqa": "ä"}),
                use("toolu_2", given={"zqb": [1]}),
            ]
        }
    ),
    "responses": Reply(
        text="zqfirst zqsaid",
        tool_calls=[("look", {"zqa": "ä"}), ("look", {"zqb": [1]})],
        message={"reasoning_content": "zqthought"},
    ),
}
"""What a model of each API answers, with all that clients of every API understand."""
WORDS: Final = {"zqthought", "zqfirst", "zqsaid", "zqa", "zqb"}


def split(upstream: str, reply: Reply, body: Row) -> Reply:
    """Return a reply whose stream comes in pieces of one byte."""
    server = UPSTREAMS[upstream][0]()
    raw = b"".join(server.format_events(reply, body, 1))
    return Reply(raw=[raw[at : at + 1] for at in range(len(raw))])


async def ask(served: Served, client: str, *, stream: bool, history: Sequence[Any], **fields: Any) -> Any:
    """Send a history with the client that people use; return the whole answer."""
    given: Row = {"model": "default", "tools": TOOLS[client], **fields}
    if client == "chat":
        made = {**given, "messages": history}
        if not stream:
            return (await served.openai.chat.completions.create(**made)).model_dump()
        counted = {"stream_options": {"include_usage": True}}
        async with served.openai.chat.completions.stream(**made, **counted) as events:
            return (await events.get_final_completion()).model_dump()
    if client == "messages":
        return (await served.ask(list(history), stream=stream, **given)).model_dump()
    made = {**given, "input": history}
    if not stream:
        return (await served.openai.responses.create(**made)).model_dump()
    async with served.openai.responses.stream(**made) as events:
        return (await events.get_final_response()).model_dump()


def outline(client: str, answer: Row) -> Any:
    """Return what an answer says, without ids and fields that the client's library adds."""
    if client == "chat":
        message = answer["choices"][0]["message"]
        calls = [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in message["tool_calls"]]
        finish = answer["choices"][0]["finish_reason"]
        return message["content"], message.get("reasoning_content"), calls, finish, answer["usage"]["completion_tokens"]
    if client == "messages":
        return (
            [_drop(block, "id") for block in answer["content"]],
            answer["stop_reason"],
            answer["usage"]["output_tokens"],
        )
    return [_drop(one, "id") for one in answer["output"]], answer["status"], answer["usage"]["output_tokens"]


def _drop(value: Any, *names: str) -> Any:
    """Return a value without ids, and without what is null."""
    if isinstance(value, list):
        return [_drop(one, *names) for one in value]
    if not isinstance(value, dict):
        return value
    hidden = {*names, "parsed_arguments", "parsed", "parsed_output", "call_id", "tool_use_id"}
    return {name: _drop(one, *names) for name, one in value.items() if name not in hidden and one is not None}


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_replies_reach_every_client(client: str, upstream: str) -> None:
    """A reply says the same whole, streamed, and streamed in pieces of one byte."""
    server, llm = UPSTREAMS[upstream]

    def answer(body: Row) -> Reply:
        reply = REPLIES[upstream]
        return split(upstream, reply, body) if "in bytes" in json.dumps(body) else reply

    async with gateway((), upstream=server(answer), llm=llm) as served:
        whole = await ask(served, client, stream=False, history=[user("Hi.")])
        assert find_words(whole) >= WORDS
        streamed = await ask(served, client, stream=True, history=[user("Hi again.")])
        in_bytes = await ask(served, client, stream=True, history=[user("Hi in bytes.")])
        assert outline(client, whole) == outline(client, streamed) == outline(client, in_bytes)


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("other", UPSTREAMS)
async def test_the_next_model_gets_every_word(client: str, upstream: str, other: str) -> None:
    """The reply of one model is legal for a model of another API, and nothing that was said is lost."""
    (server, llm), (next_server, next_llm) = UPSTREAMS[upstream], UPSTREAMS[other]
    models = {"next": (next_server(lambda _: "zqlast"), next_llm)}
    async with gateway((), upstream=server([REPLIES[upstream]]), llm=llm, models=models) as served:
        own = CLIENTS[client](served.http)
        history = [user("zqhi")]
        answer, session = await own.send(history, tools=TOOLS[client])
        results = own.make_results(answer)
        resent = [*own.extend(history, answer)[:-1], *results]
        again, same = await own.send(resent, tools=TOOLS[client], model="next")
        assert same == session
        assert find_words(again) == {"zqlast"}
        sent = served.models["next"].requests[-1].body
        assert find_words(sent) >= (WORDS - {"zqthought"}) | {"zqhi", "zqfound"}


# -- one API on both sides -------------------------------------------------------------------

MESSAGE: Final[Row] = {"role": "assistant", "content": "zqsaid"}


def chat_reply(message: Row, choice: Row | None = None, more: Row | None = None) -> Any:
    """Return a completion, and its stream, with the given fields of the message, the choice and the whole."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "m", **(more or {})}
    last = {"index": 0, "delta": {}, "finish_reason": "stop", **(choice or {})}
    chunks = [{"index": 0, "delta": {**MESSAGE, **message}, "finish_reason": None}, last]
    return [{**head, "choices": [one]} for one in chunks]


def event(kind: str, **fields: Any) -> Row:
    return {"type": kind, **fields}


def claude_reply(*blocks: Row, stop: Row | None = None, usage: Row | None = None, head: Row | None = None) -> list[Row]:
    """Return the events of a message with blocks, each of which comes at once."""
    message: Row = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
    }
    message |= {"stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 0}, **(head or {})}
    events = [event("message_start", message=message)]
    for at, block in enumerate(blocks):
        events += [event("content_block_start", index=at, content_block=block), event("content_block_stop", index=at)]
    delta = {"stop_reason": "end_turn", "stop_sequence": None, **(stop or {})}
    used = {"output_tokens": 7, **(usage or {})}
    return [*events, event("message_delta", delta=delta, usage=used), event("message_stop")]


def items_reply(*items: Row, more: Row | None = None) -> list[Row]:
    """Return the events of a response with items, each of which comes at once."""
    usage = {"input_tokens": 1, "output_tokens": 7, "total_tokens": 8}
    whole = {"id": "resp_1", "object": "response", "created_at": 0, "model": "m", "status": "completed", "usage": usage}
    whole |= {"output": list(items), **(more or {})}
    events = [event("response.created", response={**whole, "status": "in_progress", "output": []})]
    for at, one in enumerate(items):
        events.append(event("response.output_item.added", output_index=at, item={**one, "content": []}))
        for number, part in enumerate(one.get("content", ())):
            about = {"item_id": one["id"], "output_index": at, "content_index": number}
            events.append(event("response.content_part.added", **about, part={**part, "text": ""}))
            events.append(event("response.output_text.delta", **about, delta=part["text"], logprobs=[]))
            events.append(event("response.content_part.done", **about, part=part))
        events.append(event("response.output_item.done", output_index=at, item=one))
    return [*events, event("response.completed", response=whole)]


def spoken(words: str, part: Row | None = None, **more: Any) -> Row:
    """Return a message item of a reply."""
    content = [{"type": "output_text", "text": words, "annotations": [], "logprobs": [], **(part or {})}]
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content, **more}


MARKED_CALL: Final[Row] = {"type": "function", "mark": "zqx", "function": {"name": "look", "arguments": "{}"}}
CITATION: Final[Row] = {"type": "url_citation", "url": "zqx", "title": "t", "start_index": 0, "end_index": 1}
SUMMARY: Final[Row] = {"type": "summary_text", "text": "zqx"}
OWN: Final[Mapping[str, tuple[str, list[Row]]]] = {
    "usage-in-choice": ("chat", chat_reply({}, {"usage": {"prompt_tokens": 1, "completion_tokens": 7, "zqx": 1}})),
    "reasoning-details": (
        "chat",
        chat_reply({"reasoning_details": [{"type": "reasoning.text", "text": "zqx", "index": 0}]}),
    ),
    "annotations": ("chat", chat_reply({"annotations": [{"type": "url_citation", "url_citation": {"url": "zqx"}}]})),
    "message-field": ("chat", chat_reply({"mark": "zqx"})),
    "choice-field": ("chat", chat_reply({}, {"mark": "zqx"})),
    "top-field": ("chat", chat_reply({}, {}, {"provider": "zqx"})),
    "refusal": ("chat", chat_reply({"content": None, "refusal": "zqx"})),
    "images": ("chat", chat_reply({"images": [{"type": "image_url", "image_url": {"url": "https://zqx"}}]})),
    "call-field": ("chat", chat_reply({"tool_calls": [{"index": 0, "id": "c", **MARKED_CALL}]})),
    "unknown-block": ("messages", claude_reply(text("zqsaid"), {"type": "map", "place": "zqx"})),
    "only-unknown-block": ("messages", claude_reply({"type": "map", "place": "zqx"})),
    "block-field": ("messages", claude_reply(text("zqsaid", mark="zqx"))),
    "stop-details": ("messages", claude_reply(text("zqsaid"), stop={"stop_details": {"type": "x", "why": "zqx"}})),
    "claude-usage": ("messages", claude_reply(text("zqsaid"), usage={"mark": {"zqx": 1}})),
    "claude-head": ("messages", claude_reply(text("zqsaid"), head={"mark": "zqx"})),
    "container": (
        "messages",
        claude_reply(text("zqsaid"), stop={"container": {"id": "zqx", "expires_at": "2030-01-01T00:00:00Z"}}),
    ),
    "unknown-item": ("responses", items_reply({"id": "x_1", "type": "new_kind", "value": "zqx"}, spoken("zqsaid"))),
    "item-annotations": ("responses", items_reply(spoken("zqsaid", {"annotations": [CITATION]}))),
    "phase": ("responses", items_reply(spoken("zqsaid", phase="zqx"))),
    "item-field": ("responses", items_reply(spoken("zqsaid", mark="zqx"))),
    "part-field": ("responses", items_reply(spoken("zqsaid", {"mark": "zqx"}))),
    "response-field": ("responses", items_reply(spoken("zqsaid"), more={"mark": "zqx"})),
    "two-messages": ("responses", items_reply(spoken("zqx ", phase="a"), {**spoken("zqsaid"), "id": "msg_2"})),
    "summary": ("responses", items_reply({"id": "rs_1", "type": "reasoning", "summary": [SUMMARY]}, spoken("zqsaid"))),
}
"""Replies with something that only one API has, marked `zqx`."""


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", OWN)
async def test_own_fields_come_back(kind: str, stream: bool) -> None:
    """What only one API has reaches clients of this API, and is in pieces of one byte too."""
    api, chunks = OWN[kind]
    server, llm = UPSTREAMS[api]
    counted = {"stream_options": {"include_usage": True}} if api == "chat" and stream else {}

    async with gateway((), upstream=server(lambda body: split(api, Reply(chunks=chunks), body)), llm=llm) as served:
        own = CLIENTS[api](served.http)
        asked = {"model": "default", own.field: [user("Hi.")], **own.more, "stream": stream, **counted}
        made = await served.http.post(own.path, json=asked)
        assert made.status_code == 200, made.text
        assert find_words(made.text) >= {"zqx"}


@pytest.mark.parametrize("kind", ["unknown-item", "item-annotations", "phase", "part-field", "two-messages"])
async def test_own_fields_go_back_to_their_upstream(kind: str) -> None:
    """The next request has them, and the stored response is the one that was sent."""
    server, llm = UPSTREAMS["responses"]
    async with gateway((), upstream=server([Reply(chunks=OWN[kind][1]), "zqlast"]), llm=llm) as served:
        own = CLIENTS["responses"](served.http)
        answer, _ = await own.send(history := [user("Hi.")])
        assert (await served.http.get(f"/v1/responses/{answer['id']}")).json()["output"] == answer["output"]
        await own.send(own.extend(history, answer))
        sent = served.sent["input"][1:-1]
        assert find_words(sent) >= {"zqx", "zqsaid"}
        assert [one["type"] for one in sent] == [one["type"] for one in answer["output"]]


async def test_own_fields_of_a_text_go_back_to_its_model() -> None:
    """The next request has the block as the model sent it."""
    server, llm = UPSTREAMS["messages"]
    block = text("zqsaid", mark="zqx")
    async with gateway((), upstream=server(lambda _: Reply(chunks=claude_reply(block))), llm=llm) as served:
        own = CLIENTS["messages"](served.http)
        answer, _ = await own.send([user("Hi.")])
        await own.send(own.extend([user("Hi.")], answer))
        assert served.upstream.requests[-1].body["messages"][1]["content"] == [block]
