"""Failure messages of agents: when one replaces a reply, how it is stored, and what the client gets."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.agents import Agent
from holdfast.domain.session import Entry
from holdfast.errors import (
    BudgetTooSmall,
    ContextTooLong,
    HoldfastError,
    InvalidRequest,
    ModelProtocolError,
    ModelRejected,
    ModelUnavailable,
    TurnInterrupted,
)
from holdfast.models import Collector
from holdfast.secrets import Guard, make_redactor
from holdfast.turns.respond import respond
from holdfast.turns.turn import Turn
from tests.service.tools_kit import THEIRS, USAGE, Bench, bench, content, make_call, make_reply, shout

SORRY = "I am sorry, I cannot answer right now."
DOWN = ModelUnavailable("http://model answered 503: down", status=503)
AGENTS = {"a": Agent(name="a", failure_message=SORRY), "b": Agent(name="b")}
NOTHING_USED = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


@asynccontextmanager
async def open_bench(*script: Any, tools: tuple[Any, ...] = (), **settings: Any) -> AsyncIterator[Bench]:
    async with bench([one if isinstance(one, str | list) else [one] for one in script], *tools, agents=AGENTS) as made:
        yield made


async def run_turn(made: Bench, text: str = "Hi", **fields: Any) -> tuple[Turn, list[dict[str, Any]]]:
    """Run a turn of the agent and return it with its chunks."""
    turn = made.turn(text, agent=fields.pop("agent", "a"), **fields)
    return turn, [chunk async for chunk in respond(turn)]


def build_completion(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    collector = Collector()
    for chunk in chunks:
        collector.add(chunk)
    return collector.build_completion()


def get_metadata(entry: Entry) -> dict[str, Any]:
    return entry.metadata or {}


# -- applied ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        DOWN,
        ModelRejected("said no: bad key", status=401),
        ModelRejected("said no: bad request", status=400),
        ModelProtocolError("no answer"),
        ContextTooLong("too long", status=400),
    ],
    ids=lambda error: error.code if error.status != 401 else "401",
)
async def test_failure_message_replaces_the_reply(error: Any) -> None:
    """It is stored with its source and the error code, sent as a complete reply, and explained in the summary."""
    async with bench(lambda _: [error], agents=AGENTS) as made:
        turn, chunks = await run_turn(made)
        completion = build_completion(chunks)
        assert content(completion) == SORRY
        assert completion["choices"][0]["finish_reason"] == "stop"
        assert completion["choices"][0]["message"]["role"] == "assistant"
        assert completion["usage"] == NOTHING_USED
        assert await made.describe_log() == ["user: Hi", f"assistant: {SORRY}"]
        reply = (await made.log())[-1]
        assert reply.metadata == {"source": "llm_failure", "error": error.code}
        assert (reply.agent, reply.turn_id) == ("a", 0)
        assert turn.summarize()["failure"]["code"] == error.code
        assert error.public_message in turn.summarize()["failure"]["message"]
        assert "http://model" not in turn.summarize()["failure"]["message"]
        assert made.hf.engine.failures == {error.code: 1}
        assert await made.hf.store.calls(turn.request.ref) == ()


async def test_next_prompt_contains_the_failure_message() -> None:
    """The session is not blocked."""
    async with open_bench(DOWN, "Here I am.") as made:
        await run_turn(made)
        turn, chunks = await run_turn(made, "Hello?")
        assert content(build_completion(chunks)) == "Here I am."
        assert "failure" not in turn.summarize()
        assert made.model.prompts[-1] == [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": SORRY},
            {"role": "user", "content": "Hello?"},
        ]


async def test_failure_message_is_stored_before_it_is_sent() -> None:
    """The summary follows the text."""
    async with open_bench(DOWN) as made:
        turn = made.turn("Hi", agent="a")
        seen = []
        async for chunk in respond(turn):
            seen.append((chunk["choices"][:1], turn.closed))
            assert (await made.describe_log())[-1] == f"assistant: {SORRY}"
        assert [closed for _, closed in seen] == [False, True, True]


async def test_library_returns_the_failure_message() -> None:
    """From `session.send`."""
    async with open_bench(DOWN) as made:
        session = await made.hf.session("s2", agent="a")
        assert content(await session.send("Hi")) == SORRY


async def test_failure_is_logged_without_the_upstreams_text(caplog: pytest.LogCaptureFixture) -> None:
    """The upstream may quote the conversation."""
    async with open_bench(DOWN) as made:
        with caplog.at_level(logging.ERROR, "holdfast.turns.respond"):
            await run_turn(made)
        (record,) = [one for one in caplog.records if one.name == "holdfast.turn"]
        assert vars(record)["fields"] == {"session_id": "s", "agent": "a", "code": "upstream_unavailable"}
        assert "down" not in record.getMessage()


async def test_reported_error_is_redacted() -> None:
    key = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3
    guard = Guard(make_redactor())
    async with bench(lambda _: [ModelUnavailable(f"key {key} failed")], agents=AGENTS, guard=guard) as made:
        turn, _ = await run_turn(made)
        assert key not in str(turn.summarize())


# -- not applied-----------------------------------------------------------------------


async def test_agent_without_a_failure_message_raises_the_error() -> None:
    """So does a session without an agent."""
    for agent in ("b", None):
        async with open_bench(DOWN) as made:
            with pytest.raises(ModelUnavailable):
                await run_turn(made, agent=agent)
            assert await made.describe_log() == ["user: Hi"]


async def test_partial_reply_is_kept_and_the_error_is_raised() -> None:
    """The part is marked as interrupted. A failure message would be a second reply."""
    async with open_bench([*make_reply("One two")[:2], DOWN]) as made:
        with pytest.raises(ModelUnavailable):
            await run_turn(made)
        assert await made.describe_log() == ["user: Hi", "assistant: One "]
        assert get_metadata((await made.log())[-1])["interrupted"] is True
        assert made.hf.engine.failures == {}


async def test_reasoning_alone_is_replaced_by_the_failure_message() -> None:
    """A model that fails while it thinks has sent no content."""
    thought = {"choices": [{"index": 0, "delta": {"role": "assistant", "reasoning_content": "Hm"}}]}
    async with open_bench([thought, DOWN]) as made:
        _, chunks = await run_turn(made)
        assert content(build_completion(chunks)) == SORRY
        assert await made.describe_log() == ["user: Hi", f"assistant: {SORRY}"]


async def test_partial_call_of_a_client_tool_raises_the_error() -> None:
    """The client has begun to read the call."""
    call = {"index": 0, **make_call("c", "open_door", "{")}
    chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}}]}
    async with open_bench([chunk, DOWN]) as made:
        with pytest.raises(ModelUnavailable):
            await run_turn(made, body={"tools": THEIRS})
        assert await made.describe_log() == ["user: Hi"]


async def test_partial_call_of_a_server_tool_is_replaced_by_the_failure_message() -> None:
    """The client has not seen it."""
    call = {"index": 0, **make_call("c", "shout", "{")}
    chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}}]}
    async with open_bench([chunk, DOWN], tools=(shout,)) as made:
        _, chunks = await run_turn(made)
        assert content(build_completion(chunks)) == SORRY


async def test_complete_reply_is_not_replaced_by_the_failure_message() -> None:
    """An error after the finish reason is raised, and the log has one reply."""
    delta = {"role": "assistant", "content": "Done."}
    async with open_bench([{"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}, DOWN]) as made:
        with pytest.raises(ModelUnavailable):
            await run_turn(made)
        assert await made.describe_log() == ["user: Hi", "assistant: Done."]


@pytest.mark.parametrize("error", [InvalidRequest("no"), TurnInterrupted("s"), RuntimeError("no")])
async def test_other_errors_are_raised(error: Exception) -> None:
    """Invalid requests, programming errors and lost turns are not failures of the model."""
    async with open_bench(error) as made:
        with pytest.raises(type(error)):
            await run_turn(made)
        assert await made.describe_log() == ["user: Hi"]


async def test_prompt_that_does_not_fit_raises_the_error() -> None:
    """No model was called."""
    async with open_bench("never") as made:
        with pytest.raises((BudgetTooSmall, HoldfastError)):
            await run_turn(made, "word " * 200_000, body={"max_tokens": 127_900})
        assert made.model.prompts == []


async def test_rejected_key_of_the_client_raises_the_error() -> None:
    """Only the client can fix it."""
    for status, told in ((401, True), (403, True), (400, False)):
        async with open_bench(ModelRejected("said no", status=status)) as made:
            headers = {"authorization": "Bearer theirs"}
            if told:
                with pytest.raises(ModelRejected):
                    await run_turn(made, headers=headers)
                assert await made.describe_log() == ["user: Hi"]
            else:
                await run_turn(made, headers=headers)
                assert (await made.describe_log())[-1] == f"assistant: {SORRY}"


# -- tools and retries --------------------------------------------------------------------


async def test_failure_message_after_tool_rounds_ends_the_reply() -> None:
    """The text sent before is stored as its preface, so that the transcript matches. The usage is reported."""
    script = [make_reply("Let me see.", ("c", "shout", {"text": "a"})), DOWN, "Fine."]
    async with open_bench(*script, tools=(shout,)) as made:
        _, chunks = await run_turn(made)
        completion = build_completion(chunks)
        assert content(completion) == f"Let me see.\n\n{SORRY}"
        assert completion["usage"] == USAGE
        assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
        assert await made.describe_log() == [
            "user: Hi",
            "assistant shout(c): Let me see.",
            "tool c: A",
            f"assistant: {SORRY}",
        ]
        assert get_metadata((await made.log())[-1]) == {
            "preface": "Let me see.\n\n",
            "source": "llm_failure",
            "error": "upstream_unavailable",
        }
        sent = [("user", "Hi"), ("assistant", content(completion)), ("user", "And now?")]
        turn = made.turn(*({"role": role, "content": text} for role, text in sent), agent="a")
        assert content(build_completion([chunk async for chunk in respond(turn)])) == "Fine."
        assert turn.summarize()["reconciled"] == "continued"


async def test_idempotency_key_replays_the_failure_message() -> None:
    """The model is not called again."""
    async with open_bench(DOWN, "never") as made:
        key: dict[str, Any] = {"idempotency_key": "k", "fingerprint": b"f"}
        _, first = await run_turn(made, **key)
        turn, again = await run_turn(made, **key)
        assert content(build_completion(again)) == content(build_completion(first)) == SORRY
        assert turn.summarize()["failure"]["code"] == "upstream_unavailable"
        assert len(made.model.prompts) == 1
        assert await made.describe_log() == ["user: Hi", f"assistant: {SORRY}"]


async def test_transcript_without_the_failure_message_is_answered_again() -> None:
    async with open_bench("One.", DOWN, "Two.") as made:
        await run_turn(made)
        await run_turn(made, "More")
        sent = [("user", "Hi"), ("assistant", "One."), ("user", "More")]
        turn = made.turn(*({"role": role, "content": text} for role, text in sent), agent="a")
        assert content(build_completion([chunk async for chunk in respond(turn)])) == "Two."
        assert await made.describe_log() == ["user: Hi", "assistant: One.", "user: More", "assistant: Two."]


async def test_metadata_chunk_before_the_reply_is_passed_on() -> None:
    """Agora's custom models may send one. It is not part of the reply, with or without tools."""
    note = {"id": "n", "object": "chat.completion.custom_metadata", "choices": [], "metadata": {"interruptable": False}}
    for tools in ((), (shout,)):
        async with open_bench([note, *make_reply("Hello.")], tools=tools) as made:
            _, chunks = await run_turn(made)
            assert chunks[0] == note
            assert content(build_completion(chunks)) == "Hello."
            assert build_completion(chunks)["metadata"] == {"interruptable": False}
            assert await made.describe_log() == ["user: Hi", "assistant: Hello."]
            assert all(chunk.get("object") != note["object"] for chunk in chunks[1:])
