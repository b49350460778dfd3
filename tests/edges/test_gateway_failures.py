"""The log after a failure of the model, the connection or the client during a turn."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import openai
import pytest

from holdfast.testing import Gate, Reply
from tests.edges.gateway_kit import CHUNKS, TEXT, WORDS, assert_next_turn_works, entries, send_and_disconnect
from tests.edges.server import Served, gateway


async def ask(served: Served, *, stream: bool) -> tuple[str, BaseException | None]:
    """Return the text that the client received, and its exception."""
    got = ""
    try:
        if not stream:
            whole = await served.client.chat.completions.create(
                model="gpt-4o", messages=[{"role": "user", "content": "count"}], extra_body={"session_id": "s"}
            )
            return whole.choices[0].message.content or "", None
        chunks = await served.client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "count"}], stream=True, extra_body={"session_id": "s"}
        )
        async for chunk in chunks:
            got += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    except openai.APIError as exc:
        return got, exc
    return got, None


async def test_half_a_tool_call_is_not_stored() -> None:
    """The text of the reply is kept; an incomplete call could never be answered."""
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Let me see."}, "finish_reason": None}]},
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {
                        "tool_calls": [
                            {
                                "index": 0,
                                "id": "c",
                                "type": "function",
                                "function": {"name": "look", "arguments": '{"a'},
                            }
                        ]
                    },
                    "finish_reason": None,
                }
            ]
        },
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    ]
    async with gateway([Reply(chunks=chunks, cut_after=2), "fine"]) as (served, upstream):
        await served.chat("count")
        assert await served.log() == [("user", "count"), ("assistant", "Let me see.")]
        sent = await assert_next_turn_works(served, upstream)
        assert "tool_calls" not in sent[1]


async def test_stream_with_a_finish_reason_is_complete_without_done() -> None:
    async with gateway([Reply(text=TEXT, end=b""), "fine"]) as (served, upstream):
        assert await ask(served, stream=True) == (TEXT, None)
        _, reply = await entries(served)
        assert reply.metadata is None
        await assert_next_turn_works(served, upstream)


# -- disconnecting clients ---------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", range(CHUNKS))
async def test_disconnected_client_ends_its_turn(after: int, stream: bool) -> None:
    """At every chunk: nothing or a marked partial reply is stored, the model's stream is closed, and the next turn
    includes it.
    """
    gate = Gate()
    reply = Reply(text=TEXT, hold=gate, hold_after=after)
    arrived = "".join(WORDS[: max(0, after - 1)])
    async with gateway([reply, "fine"]) as (served, upstream):
        body = {"messages": [{"role": "user", "content": "count"}], "session_id": "s", "stream": stream}
        async with httpx2.AsyncClient(base_url=served.url, trust_env=False) as client:
            await send_and_disconnect(client, body, arrived if stream else None, upstream)
        await upstream.until(lambda: upstream.requests[0].disconnected)
        sent = await assert_next_turn_works(served, upstream)
        user, *partial, _, _ = await entries(served)
        assert user.message.content == "count"
        for entry in partial:
            assert entry.metadata is not None
            assert entry.metadata["interrupted"] is True
            assert TEXT.startswith(str(entry.message.content))
        if stream:
            # Everything that the client received is in the log.
            assert [entry.message.content for entry in partial] == ([arrived] if arrived else [])
        assert [message["content"] for message in sent] == [
            "count",
            *(entry.message.content for entry in partial),
            "go on",
        ]
        assert served.hf.engine.locks.is_empty


async def test_client_that_disconnects_during_its_body_is_ignored() -> None:
    """The server continues."""

    async with gateway(["fine"]) as (served, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Length: 500\r\n\r\n"
        writer.write(head.encode() + b'{"messages": [')
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert reader is not None
        assert (await served.chat("hi"))["status"] == 200


async def test_session_deleted_during_the_turn_is_a_404() -> None:
    """The reply is discarded, and the session is not recreated."""

    gate = Gate()
    async with gateway([Reply(text="late", hold=gate), "new"]) as (served, upstream):
        running = asyncio.create_task(served.chat("a"))
        await upstream.until(lambda: upstream.requests)
        assert (await served.http.delete("/v1/sessions/s")).status_code == 200
        gate.open()
        answer = await running
        assert (answer["status"], answer["error"]["code"]) == (404, "session_not_found")
        assert (await served.http.get("/v1/sessions/s")).status_code == 404
        await served.chat("b")
        assert await served.log() == [("user", "b"), ("assistant", "new")]
