"""What an agent says if no model answers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast.testing import Reply, ScriptedUpstream, Tokenizer
from tests.behaviour.kit import answer_of, assistant, gateway, texts, user

SORRY = "I am sorry, I cannot answer right now."
AGENTS = f"agents: {{a: {{failure_message: {SORRY!r}}}, b: {{}}}}"
DOOR = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object", "properties": {}}}}
NOT_JSON = Reply(raw=[b"<html>"], content_type="text/html")


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(status=503, error="http://inside is down"), "upstream_unavailable"),
        (Reply(status=401, error="bad key"), "upstream_rejected"),
        (Reply(status=400, error="bad request"), "upstream_rejected"),
        (NOT_JSON, "upstream_protocol_error"),
    ],
    ids=["down", "key", "request", "protocol"],
)
async def test_the_message_is_the_reply(
    reply: Reply, code: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is stored with its source and code. Neither the session nor the server's log quotes the upstream."""
    async with gateway([reply, "Here I am."], AGENTS) as served:
        body = {"model": "a", "session_id": "s", "messages": [user("Hi")], "stream": stream}
        with caplog.at_level(logging.ERROR, "holdfast.turn"):
            answer = await served.http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, SORRY in answer.text, "inside" in answer.text) == (200, True, False)
        assert f'"code":"{code}"' in answer.text.replace(" ", "")
        assert "inside" not in caplog.text
        row = (await served.entries())[-1]
        assert (row["content"], row["agent"]) == (SORRY, "a")
        assert row["metadata"] == {"source": "llm_failure", "error": code}
        assert await served.rest.session().calls() == []
        again = await served.chat("Hello?", model="a")
        assert (answer_of(again), "failure" in again["session"]) == ("Here I am.", False)
        assert texts(served.sent["messages"]) == ["Hi", SORRY, "Hello?"]


@pytest.mark.parametrize("fields", [{"model": "b"}, {}], ids=["agent without one", "no agent"])
async def test_without_a_message_the_client_gets_the_error(fields: dict[str, Any]) -> None:
    async with gateway([Reply(status=503)], AGENTS) as served:
        assert (await served.chat("Hi", **fields))["status"] == 503
        assert texts(await served.entries()) == ["Hi"]


CALL = {"id": "c", "index": 0, "type": "function", "function": {"name": "open_door", "arguments": ""}}


def part(**delta: Any) -> list[dict[str, Any]]:
    return [{"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}]}]


@pytest.mark.parametrize(
    ("chunks", "fields", "said"),
    [
        (part(content="One "), {}, False),
        (part(reasoning_content="Hm"), {}, True),
        (part(tool_calls=[{**CALL, "function": {"name": "open_door", "arguments": "{"}}]), {"tools": [DOOR]}, False),
        (part(tool_calls=[{**CALL, "function": {"name": "shout", "arguments": ""}}]), {}, True),
    ],
    ids=["text", "reasoning", "client's call", "server's call"],
)
async def test_it_is_said_only_if_the_client_has_seen_nothing(
    chunks: list[dict[str, Any]], fields: dict[str, Any], said: bool
) -> None:
    async with gateway(
        [Reply(chunks=chunks, error="broke", cut_after=1)], AGENTS, tools=[] if fields else [shout]
    ) as served:
        body = {"model": "a", "session_id": "s", "messages": [user("Hi")], "stream": True, **fields}
        text = (await served.http.post("/v1/chat/completions", json=body)).text
        assert (SORRY in text, "upstream_unavailable" in text) == (said, True)
        last = (await served.entries())[-1]
        assert (last["content"] == SORRY) is said


async def test_after_rounds_of_tools_it_ends_the_reply() -> None:
    """What was said before is part of the one reply, so that a resent history matches."""
    script = [Reply(text="Hm.", tool_calls=[("shout", {"text": "x"})]), Reply(status=503), "Yes."]
    async with gateway(script, AGENTS, tools=[shout]) as served:
        answer = await served.chat("Hi", None, model="a")
        assert answer_of(answer) == f"Hm.\n\n{SORRY}"
        assert answer["usage"]["total_tokens"] == 15
        history = [user("Hi"), assistant(answer_of(answer)), user("Now?")]
        again = await served.chat(history, None, model="a")
        assert (answer_of(again), again["session"]["reconciled"]) == ("Yes.", "continued")


async def test_a_retry_with_the_key_repeats_it_and_a_transcript_without_it_asks_again() -> None:
    async with gateway([Reply(status=503), "One."], AGENTS) as served:
        key = {"Idempotency-Key": "k"}
        answers = [await served.chat("Hi", model="a", headers=key) for _ in range(2)]
        assert [(answer_of(one), one["session"]["failure"]["code"]) for one in answers] == [
            (SORRY, "upstream_unavailable")
        ] * 2
        assert len(served.upstream.requests) == 1
        assert answer_of(await served.chat("Hi", model="a", session_mode="transcript")) == "One."


async def test_what_only_the_caller_can_mend_is_an_error() -> None:
    """A key of the client that the provider refuses, and a request that is wrong."""
    async with gateway([Reply(status=401)], AGENTS, "gateway: {upstream_auth: passthrough}") as served:
        key = {"authorization": "Bearer sk-of-the-client"}
        answer = await served.chat("Hi", model="a", headers=key)
        assert (answer["status"], answer["error"]["code"]) == (401, "upstream_rejected")
        assert (await served.chat("Hi", model="a", headers=key, n=0))["status"] == 400


async def test_a_prompt_that_no_model_takes_is_answered_with_it() -> None:
    upstream = ScriptedUpstream(lambda _: "never", tokenizer=Tokenizer(window=10))
    async with gateway((), AGENTS, upstream=upstream) as served:
        answer = await served.chat("A long message. " * 20, model="a")
        assert (answer_of(answer), answer["session"]["failure"]["code"]) == (SORRY, "context_length_exceeded")


async def test_the_library_returns_it_too() -> None:
    async with gateway([Reply(status=503)], AGENTS) as served:
        session = await served.native.session("s", agent="a")
        assert answer_of(await session.send("Hi")) == SORRY
