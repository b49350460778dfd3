"""Failing upstreams: what the client gets, what is logged, whether the call is retried, and which fallback answers."""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import openai
import pytest

from holdfast.errors import ModelUnavailable
from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.behaviour.kit import UPSTREAM_KEY, Served, answer_of, gateway, tune_models
from tests.behaviour.kit.anthropic import AnthropicUpstream
from tests.behaviour.kit.gateway import model_fields

TEXT = "one two three"


class FailureCase(NamedTuple):
    """One way in which an upstream fails."""

    reply: Reply | str
    """What the upstream answers, each time; or the address that is called."""
    status: int
    """What the client of a whole reply gets."""
    code: str = ""
    """Of its error."""
    said: str = ""
    """What of the reply arrives."""
    attempts: int = 1
    over: bool = True
    """Whether one that stands in is asked."""
    options: Mapping[str, Any] = {}
    """Of the client, so that nothing takes its time."""
    calls: tuple[str, ...] = ()
    """Ids of the calls in the reply."""


def make_event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def make_chunk(reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def make_failure(status: int, error: Any = "broken", **headers: str) -> Reply:
    return Reply(status=status, error=error, headers={name.replace("_", "-"): text for name, text in headers.items()})


def make_raw_reply(*pieces: bytes, content_type: str = "text/event-stream", **more: Any) -> Reply:
    return Reply(raw=pieces, content_type=content_type, **more)


ONE, TWO, END = (
    make_event(**one)
    for one in (make_chunk(role="assistant", content="one "), make_chunk(content="two"), make_chunk("stop"))
)
DONE = b"data: [DONE]\n\n"
DOWN, WRONG, REFUSED = "upstream_unavailable", "upstream_protocol_error", "upstream_rejected"
LARGE = "upstream_reply_too_large"
NEVER = Gate()
QUOTA = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
TOO_LONG = {"error": {"message": "the prompt is too long", "code": "context_length_exceeded"}}
SOON = {"date": "Fri, 20 Nov 2026 10:00:00 GMT", "retry_after": "Fri, 20 Nov 2026 10:00:02 GMT"}
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a'}}
JSON = "application/json"
QUICK = {"read_timeout": 0.05}

WAYS: dict[str, FailureCase] = {
    # an error status
    "429, `Retry-After` in seconds": FailureCase(make_failure(429, retry_after="2"), 429, DOWN, attempts=3),
    "429, `Retry-After` as a date": FailureCase(make_failure(429, **SOON), 429, DOWN, attempts=3),
    "429, `retry-after-ms`": FailureCase(make_failure(429, retry_after_ms="1500"), 429, DOWN, attempts=3),
    "429, `Retry-After` of more than 30 s": FailureCase(make_failure(429, retry_after="3600"), 429, DOWN),
    "429": FailureCase(make_failure(429), 429, DOWN, attempts=3),
    "429, `insufficient_quota`": FailureCase(make_failure(429, QUOTA), 429, DOWN),
    "408": FailureCase(make_failure(408), 502, DOWN, attempts=3),
    "500": FailureCase(make_failure(500), 502, DOWN, attempts=3),
    "502 with an HTML page": FailureCase(
        make_raw_reply(b"<html>", status=502, content_type="text/html"), 502, DOWN, attempts=3
    ),
    "503": FailureCase(make_failure(503), 503, DOWN, attempts=3),
    "504": FailureCase(make_failure(504), 504, DOWN, attempts=3),
    "529": FailureCase(make_failure(529), 502, DOWN, attempts=3),
    "500, `x-should-retry: false`": FailureCase(make_failure(500, x_should_retry="false"), 502, DOWN),
    "401": FailureCase(make_failure(401), 502, REFUSED),
    "402": FailureCase(make_failure(402), 402, REFUSED),
    "403": FailureCase(make_failure(403), 502, REFUSED),
    "404": FailureCase(make_failure(404), 404, REFUSED),
    "400": FailureCase(make_failure(400), 400, REFUSED, over=False),
    "400, the prompt is too long": FailureCase(make_failure(400, TOO_LONG), 400, "context_length_exceeded", over=False),
    "413": FailureCase(make_failure(413), 413, REFUSED, over=False),
    "422": FailureCase(make_failure(422), 422, REFUSED, over=False),
    "301": FailureCase(make_failure(301, location="http://127.0.0.1:9/"), 502, WRONG),
    # no connection
    "connection refused": FailureCase("http://127.0.0.1:{unused}/v1", 502, DOWN, attempts=3),
    "unknown host": FailureCase("http://no-such-host.invalid/v1", 502, DOWN, attempts=3),
    "https to an http port": FailureCase("https://127.0.0.1:{port}/v1", 502, DOWN, attempts=3),
    # 200 without an answer
    "200 with an HTML page": FailureCase(make_raw_reply(b"<html>hello</html>", content_type="text/html"), 502, WRONG),
    "200 with an empty body": FailureCase(make_raw_reply(), 502, WRONG),
    "204": FailureCase(Reply(status=204, raw=[]), 502, WRONG),
    "JSON that is not a completion": FailureCase(make_raw_reply(b'{"ok": true}', content_type=JSON), 502, WRONG),
    "200 with an error in JSON": FailureCase(make_raw_reply(b'{"error": "overloaded"}', content_type=JSON), 502, DOWN),
    "binary data": FailureCase(make_raw_reply(b"\x00\xff\xfe garbage\n\n"), 502, WRONG),
    "an event that is not JSON": FailureCase(make_raw_reply(b"data: {nonsense\n\n"), 502, WRONG),
    "an event that is not UTF-8": FailureCase(
        make_raw_reply(b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n'), 502, WRONG
    ),
    "an event that is too long": FailureCase(
        make_raw_reply(b"data: " + b"x" * 5000), 502, LARGE, options={"max_event_bytes": 1000}
    ),
    "a response that is too long": FailureCase(
        make_raw_reply(b'{"x": "' + b"x" * 5000, content_type=JSON), 502, LARGE, options={"max_event_bytes": 1000}
    ),
    "only `[DONE]`": FailureCase(make_raw_reply(DONE), 502, WRONG),
    "chunks without choices": FailureCase(make_raw_reply(make_event(id="x", choices=[]), DONE), 502, WRONG),
    "invalid choices": FailureCase(make_raw_reply(make_event(choices=[1]), DONE), 502, WRONG),
    "choices that are not a list": FailureCase(make_raw_reply(make_event(choices={"0": {}}), DONE), 502, WRONG),
    "an invalid delta": FailureCase(
        make_raw_reply(make_event(choices=[{"index": 0, "delta": "one"}]), DONE), 502, WRONG
    ),
    "content that is a number": FailureCase(make_raw_reply(make_event(**make_chunk(content=5)), END, DONE), 502, WRONG),
    "an error as the first event": FailureCase(
        Reply(text=TEXT, error="overloaded", cut_after=0, stream=True), 502, DOWN
    ),
    # the stream breaks off before any text
    "closed within the first chunk": FailureCase(make_raw_reply(ONE[:20], cut_after=1), 502, WRONG),
    "reset after the headers": FailureCase(make_raw_reply(b": hi\n\n", cut_after=1, reset=True), 502, WRONG),
    "silence before the headers": FailureCase(make_raw_reply(ONE, hold=NEVER), 502, DOWN, options=QUICK),
    "silence after the headers": FailureCase(
        make_raw_reply(b": hi\n\n", ONE, hold=NEVER, hold_after=1), 502, DOWN, options=QUICK
    ),
    "silence within the first chunk": FailureCase(
        make_raw_reply(ONE[:20], ONE, hold=NEVER, hold_after=1), 502, DOWN, options=QUICK
    ),
    "silence after the role": FailureCase(
        make_raw_reply(make_event(**make_chunk(role="assistant")), ONE, hold=NEVER, hold_after=1),
        502,
        DOWN,
        options=QUICK,
    ),
    "endless comments": FailureCase(
        make_raw_reply(b": hi\n\n", endless=b": hi\n\n"), 502, DOWN, options={"total_timeout": 0.1}
    ),
    # the stream breaks off after some text
    "closed mid-stream": FailureCase(make_raw_reply(ONE, TWO, TWO, cut_after=2), 502, WRONG, "one two", over=False),
    "closed without a finish reason": FailureCase(make_raw_reply(ONE, TWO), 502, WRONG, "one two", over=False),
    "half a chunk mid-stream": FailureCase(
        make_raw_reply(ONE, TWO, TWO[:9], cut_after=3), 502, WRONG, "one two", over=False
    ),
    "garbage mid-stream": FailureCase(make_raw_reply(ONE, TWO, b"data: }{\n\n"), 502, WRONG, "one two", over=False),
    "an error mid-stream": FailureCase(
        make_raw_reply(ONE, TWO, make_event(error="overloaded")), 502, DOWN, "one two", over=False
    ),
    "silence mid-stream": FailureCase(
        make_raw_reply(ONE, TWO, TWO, hold=NEVER, hold_after=2), 502, DOWN, "one two", over=False, options=QUICK
    ),
    "a reply over the size limit": FailureCase(
        make_raw_reply(ONE, TWO, endless=make_event(**make_chunk(reasoning_content="hm"))),
        502,
        LARGE,
        "one two",
        over=False,
        options={"max_stream_bytes": 100_000},
    ),
    "endless text in large chunks": FailureCase(
        make_raw_reply(ONE, TWO, endless=make_event(**make_chunk(reasoning_content="hm")) * 500),
        502,
        DOWN,
        "one two",
        over=False,
        options={"total_timeout": 0.1},
    ),
    "endless comments mid-stream": FailureCase(
        make_raw_reply(ONE, TWO, endless=b": hi\n\n"), 502, DOWN, "one two", over=False, options={"total_timeout": 0.1}
    ),
    # unusual, but a valid answer
    "JSON instead of a stream": FailureCase(Reply(text=TEXT, stream=False), 200, said=TEXT, over=False),
    "a stream declared as JSON": FailureCase(
        make_raw_reply(ONE, TWO, END, DONE, content_type=JSON), 200, said="one two", over=False
    ),
    "no `[DONE]`": FailureCase(make_raw_reply(ONE, TWO, END), 200, said="one two", over=False),
    "no `finish_reason`": FailureCase(make_raw_reply(ONE, TWO, DONE), 200, said="one two", over=False),
    "a repeated chunk": FailureCase(make_raw_reply(ONE, TWO, TWO, END, DONE), 200, said="one twotwo", over=False),
    "chunks in another order": FailureCase(make_raw_reply(TWO, ONE, END, DONE), 200, said="twoone ", over=False),
    "an empty reply": FailureCase(make_raw_reply(END, DONE), 200, over=False),
    "a call with invalid JSON arguments": FailureCase(
        make_raw_reply(make_event(**make_chunk("tool_calls", tool_calls=[CALL])), DONE), 200, over=False, calls=("c",)
    ),
    "a call without an id": FailureCase(
        make_raw_reply(make_event(**make_chunk("tool_calls", tool_calls=[{**CALL, "id": None}])), DONE),
        200,
        over=False,
        calls=("call_0",),
    ),
}
MODES = ("alone", "alone streamed", "both", "both streamed")


# Anthropic's upstreams fail in the same ways, in their own format.


def make_anthropic_event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\n" + make_event(type=kind, **fields)


def make_text_event(text: str) -> bytes:
    return make_anthropic_event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


START = make_anthropic_event(
    "message_start", message={"id": "m", "model": "m", "role": "assistant", "usage": {"input_tokens": 3}}
)
BEGIN = START + make_anthropic_event("content_block_start", index=0, content_block={"type": "text", "text": ""})
STOP = make_anthropic_event("content_block_stop", index=0)
REASON = make_anthropic_event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
OVERLOADED = make_anthropic_event("error", error={"type": "overloaded_error", "message": "Overloaded"})
TOO_MANY_TOKENS = {"error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"}}

ANTHROPIC: dict[str, FailureCase] = {
    **{name: way for name, way in WAYS.items() if isinstance(way.reply, str) or way.reply.status != 200},
    "400, the prompt is too long": FailureCase(
        make_failure(400, TOO_MANY_TOKENS), 400, "context_length_exceeded", over=False
    ),
    **{
        name: WAYS[name]
        for name in (
            "200 with an HTML page",
            "200 with an empty body",
            "JSON that is not a completion",
            "an event that is not JSON",
        )
    },
    "an OpenAI event": FailureCase(make_raw_reply(ONE, TWO, END, DONE), 502, WRONG),
    "an event that is too long": WAYS["an event that is too long"],
    "only the end": FailureCase(make_raw_reply(make_anthropic_event("message_stop")), 502, WRONG),
    "an invalid delta": FailureCase(
        make_raw_reply(BEGIN, make_anthropic_event("content_block_delta", index=0, delta=5)), 502, WRONG
    ),
    "an error as the first event": FailureCase(make_raw_reply(OVERLOADED), 502, DOWN),
    "an error after the start": FailureCase(make_raw_reply(BEGIN, OVERLOADED), 502, DOWN),
    "closed after the start": FailureCase(make_raw_reply(BEGIN, STOP, cut_after=1), 502, WRONG),
    "silence before the headers": WAYS["silence before the headers"],
    "silence after the start": FailureCase(
        make_raw_reply(BEGIN, STOP, hold=NEVER, hold_after=1), 502, DOWN, options=QUICK
    ),
    "endless pings": FailureCase(
        make_raw_reply(BEGIN, endless=make_anthropic_event("ping")), 502, DOWN, options={"total_timeout": 0.1}
    ),
    "closed mid-stream": FailureCase(
        make_raw_reply(BEGIN, make_text_event("one "), make_text_event("two"), STOP, cut_after=3),
        502,
        WRONG,
        "one two",
        over=False,
    ),
    "closed without a finish reason": FailureCase(
        make_raw_reply(BEGIN, make_text_event("one two"), STOP), 502, WRONG, "one two", over=False
    ),
    "an end without a stop reason": FailureCase(
        make_raw_reply(BEGIN, make_text_event("one two"), STOP, make_anthropic_event("message_stop")),
        502,
        WRONG,
        "one two",
        over=False,
    ),
    "an error mid-stream": FailureCase(
        make_raw_reply(BEGIN, make_text_event("one two"), OVERLOADED), 502, DOWN, "one two", over=False
    ),
    "silence mid-stream": FailureCase(
        make_raw_reply(BEGIN, make_text_event("one two"), STOP, hold=NEVER, hold_after=2),
        502,
        DOWN,
        "one two",
        over=False,
        options=QUICK,
    ),
    "garbage mid-stream": FailureCase(
        make_raw_reply(BEGIN, make_text_event("one two"), b"data: }{\n\n"), 502, WRONG, "one two", over=False
    ),
    "JSON instead of a stream": FailureCase(Reply(text=TEXT, stream=False), 200, said=TEXT, over=False),
    "no `message_stop`": FailureCase(
        make_raw_reply(BEGIN, make_text_event("one two"), STOP, REASON), 200, said="one two", over=False
    ),
    "an unknown event type": FailureCase(
        make_raw_reply(
            BEGIN,
            make_anthropic_event("news", a=1),
            make_text_event("one two"),
            STOP,
            REASON,
            make_anthropic_event("message_stop"),
        ),
        200,
        said="one two",
        over=False,
    ),
    "an empty reply": FailureCase(make_raw_reply(START, REASON, make_anthropic_event("message_stop")), 200, over=False),
}


def find_unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@asynccontextmanager
async def failing_server(
    way: FailureCase, provider: str = "openai"
) -> AsyncIterator[tuple[Served, ScriptedUpstream, list[float]]]:
    """Run a server with the models `alone`, whose upstream fails in that way, `both`, which has a fallback, and
    `other`, the fallback.
    """
    reply = way.reply if isinstance(way.reply, Reply) else Reply(text="never")
    kind = AnthropicUpstream if provider == "anthropic" else ScriptedUpstream
    async with kind(lambda _: reply) as upstream, ScriptedUpstream(lambda _: "from the other") as other:
        url = upstream.url
        if isinstance(way.reply, str):
            url = way.reply.format(unused=find_unused_port(), port=url.split(":")[2].split("/")[0])
        one = {"model": "gpt-4o", "base_url": url, "api_key": UPSTREAM_KEY, "provider": provider}
        two = {"model": "gpt-4o", "base_url": other.url, "api_key": "sk-other"}
        llms = {"alone": one, "both": {**one, "fallbacks": ["other"]}, "other": two, "default": two}
        async with gateway(None, f"llms: {json.dumps(llms)}", retries=2) as served:
            pauses = tune_models(served.native, way.options, "alone", "both")
            try:
                yield served, upstream, pauses
            finally:
                assert other.requests == [] or all("sk-other" in one.headers["authorization"] for one in other.requests)


class ClientResult(NamedTuple):
    """What a client received for a turn."""

    text: str
    error: Any
    session: dict[str, Any]
    calls: tuple[str, ...] = ()


async def ask(served: Served, model: str, session: str, *, stream: bool) -> ClientResult:
    asked: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
        "extra_body": {"session_id": session},
    }
    text, calls = "", []
    told: dict[str, Any] = {}
    try:
        if not stream:
            whole = await served.openai.chat.completions.create(**asked)
            message = whole.choices[0].message
            return ClientResult(
                message.content or "", None, whole.session, tuple(call.id for call in message.tool_calls or ())
            )
        chunks = await served.openai.chat.completions.create(**asked, stream=True)
        async with chunks:
            async for one in chunks:
                text += (one.choices[0].delta.content or "") if one.choices else ""
                told = getattr(one, "session", None) or told
                calls += [call.id for choice in one.choices for call in choice.delta.tool_calls or ()]
    except openai.APIError as exc:
        return ClientResult(text, exc, told)
    return ClientResult(text, None, told, tuple(calls))


TRIED = [
    *(pytest.param("openai", way, mode, id=f"{name}: {mode}") for name, way in WAYS.items() for mode in MODES),
    *(
        pytest.param("anthropic", way, mode, id=f"anthropic: {name}: {mode}")
        for name, way in ANTHROPIC.items()
        for mode in ("alone streamed", "both")
    ),
]


@pytest.mark.parametrize(("provider", "way", "mode"), TRIED)
async def test_failing_upstream(provider: str, way: FailureCase, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    """With and without a fallback; whole and streamed."""
    model = mode.partition(" ")[0]
    async with failing_server(way, provider) as (served, upstream, pauses):
        got = await ask(served, model, mode, stream="streamed" in mode)
        place = urlsplit(upstream.url).netloc
        assert place not in f"{got} {getattr(got.error, 'body', '')}"
        assert len(pauses) + 1 == way.attempts
        if isinstance(way.reply, Reply):
            assert len(upstream.requests) == way.attempts
        if model == "both" and way.over:
            await check_fallback(served, way, mode, got)
        else:
            await check_failure(served, way, mode, got)
    lines = [record for record in caplog.records if record.name == "holdfast.models"]
    assert len(lines) == (way.status != 200)
    assert UPSTREAM_KEY not in caplog.text


async def check_fallback(served: Served, way: FailureCase, mode: str, got: ClientResult) -> None:
    """Check that the fallback's whole answer arrived, with the model that failed."""
    assert (got.text, got.error) == ("from the other", None)
    (told,) = got.session["upstream"]["failed"]
    assert (got.session["upstream"]["model"], told["model"], told["code"]) == ("other", "both", way.code)
    assert await served.log(mode) == [("user", "hi"), ("assistant", "from the other")]


async def check_failure(served: Served, way: FailureCase, mode: str, got: ClientResult) -> None:
    """Check the error against the table, and the log for the user's message and the partial reply."""
    streamed = "streamed" in mode
    if way.status == 200:
        assert (got.text, got.error) == (way.said, None)
        assert "upstream" not in got.session
    elif streamed and way.said:
        assert got.text == way.said
        assert got.error.body["code"] == way.code
    else:
        assert got.text == ""
        assert (got.error.status_code, got.error.body["code"]) == (way.status, way.code)
        assert UPSTREAM_KEY not in str(got.error)
    user, *rest = await served.entries(mode)
    assert user["content"] == "hi"
    if way.status == 200:
        (reply,) = rest
        assert (reply["content"] or "") == way.said
        assert tuple(call["id"] for call in reply.get("tool_calls") or ()) == got.calls == way.calls
        assert not reply.get("metadata", {}).get("interrupted")
    else:
        parts = [(entry["content"], entry["metadata"].get("interrupted")) for entry in rest]
        assert parts == ([(way.said, True)] if way.said else [])


@pytest.mark.parametrize(
    ("headers", "seconds", "attempts"),
    [
        ({"retry_after": "2"}, 2, 3),
        ({"retry_after_ms": "1500"}, 1.5, 3),
        (SOON, 2, 3),
        ({**SOON, "retry_after": "Fri, 20 Nov 2026 11:00:00 GMT"}, 3600, 1),
        ({**SOON, "retry_after": "Fri, 20 Nov 2026 09:59:00 GMT"}, 0, 3),
    ],
    ids=["seconds", "milliseconds", "a date", "a date after the longest pause", "a date in the past"],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_pause_that_an_upstream_asks_for(
    status: int, headers: dict[str, str], seconds: float, attempts: int
) -> None:
    """Holdfast waits for it, or passes it on: to the client of the gateway, and to the program."""
    async with gateway(lambda _: make_failure(status, **headers), retries=2) as served:
        pauses = tune_models(served.native, {}, "default")
        for stream in (False, True):
            answer = await served.chat("hi", session_id=None, stream=stream)
            assert (answer["status"], answer["headers"]["retry-after"]) == (status, str(math.ceil(seconds)))
        with pytest.raises(ModelUnavailable) as refused:
            await (await served.native.session("s")).send("hi")
        assert refused.value.retry_after == seconds
        assert len(pauses) == 3 * (attempts - 1)
        assert all(seconds <= pause <= seconds * 1.1 for pause in pauses)


async def test_a_connection_is_used_again_although_its_answer_ends_late() -> None:
    connections = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))  # type: ignore[index]
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for event in (make_event(**make_chunk("stop", content="Yes.")), b"data: [DONE]\n\n"):
                    writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
                await asyncio.sleep(0.02)
                writer.write(b"0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as upstream:
        llm = model_fields(f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}/v1")
        async with gateway(None, f"llms: {{default: {json.dumps(llm)}}}") as served:
            for _ in range(3):
                assert answer_of(await served.chat("Well?")) == "Yes."
            assert len(connections) == 1
