"""An agent's failure message: when it stands in place of a reply, what the log has of it, and what the client is told."""

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
from tests.service.tools_kit import THEIRS, USAGE, Bench, bench, called, content, said, shout

SORRY = "I am sorry, I cannot answer right now."
DOWN = ModelUnavailable("http://model answered 503: down", status=503)
AGENTS = {"a": Agent(name="a", failure_message=SORRY), "b": Agent(name="b")}
NOTHING_USED = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


@asynccontextmanager
async def benched(*script: Any, tools: tuple[Any, ...] = (), **settings: Any) -> AsyncIterator[Bench]:
    async with bench([one if isinstance(one, str | list) else [one] for one in script], *tools, agents=AGENTS) as made:
        yield made


async def asked(made: Bench, text: str = "Hi", **fields: Any) -> tuple[Turn, list[dict[str, Any]]]:
    """A turn of the agent's, and its chunks."""
    turn = made.turn(text, agent=fields.pop("agent", "a"), **fields)
    return turn, [chunk async for chunk in respond(turn)]


def completed(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    collector = Collector()
    for chunk in chunks:
        collector.add(chunk)
    return collector.build_completion()


def noted(entry: Entry) -> dict[str, Any]:
    return entry.metadata or {}


# -- when ------------------------------------------------------------------------------


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
async def test_it_stands_in_place_of_a_reply(error: Any) -> None:
    """Recorded with its source and the error's code, told as a whole reply that ended well, with why in the summary."""
    async with bench(lambda _: [error], agents=AGENTS) as made:
        turn, chunks = await asked(made)
        completion = completed(chunks)
        assert content(completion) == SORRY
        assert completion["choices"][0]["finish_reason"] == "stop"
        assert completion["choices"][0]["message"]["role"] == "assistant"
        assert completion["usage"] == NOTHING_USED
        assert await made.told() == ["user: Hi", f"assistant: {SORRY}"]
        reply = (await made.log())[-1]
        assert reply.metadata == {"source": "llm_failure", "error": error.code}
        assert (reply.agent, reply.turn_id) == ("a", 0)
        assert turn.summarize()["failure"]["code"] == error.code
        assert error.public_message in turn.summarize()["failure"]["message"]
        assert "http://model" not in turn.summarize()["failure"]["message"]
        assert made.hf.engine.failures == {error.code: 1}
        assert await made.hf.store.calls(turn.request.ref) == ()


async def test_the_next_turn_holds_it_like_any_reply() -> None:
    """The model is told what was said, once it answers again; nothing keeps the session busy."""
    async with benched(DOWN, "Here I am.") as made:
        await asked(made)
        turn, chunks = await asked(made, "Hello?")
        assert content(completed(chunks)) == "Here I am."
        assert "failure" not in turn.summarize()
        assert made.model.prompts[-1] == [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": SORRY},
            {"role": "user", "content": "Hello?"},
        ]


async def test_the_words_leave_when_the_reply_is_durable() -> None:
    """What the client hears is in the log by then, and the summary comes behind the words."""
    async with benched(DOWN) as made:
        turn = made.turn("Hi", agent="a")
        seen = []
        async for chunk in respond(turn):
            seen.append((chunk["choices"][:1], turn.closed))
            assert (await made.told())[-1] == f"assistant: {SORRY}"
        assert [closed for _, closed in seen] == [False, True, True]


async def test_the_library_says_it_too() -> None:
    """`session.send` returns it."""
    async with benched(DOWN) as made:
        session = await made.hf.session("s2", agent="a")
        assert content(await session.send("Hi")) == SORRY


async def test_it_is_logged_as_an_error_without_the_upstreams_words(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever owns the server has to know; what the upstream said may quote the conversation."""
    async with benched(DOWN) as made:
        with caplog.at_level(logging.ERROR, "holdfast.turns.respond"):
            await asked(made)
        (record,) = [one for one in caplog.records if one.name == "holdfast.turn"]
        assert vars(record)["fields"] == {"session_id": "s", "agent": "a", "code": "upstream_unavailable"}
        assert "down" not in record.getMessage()


async def test_no_secret_is_told_of_the_error() -> None:
    """What is told of it goes through the guard, as any error does."""
    key = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3
    guard = Guard(make_redactor())
    async with bench(lambda _: [ModelUnavailable(f"key {key} failed")], agents=AGENTS, guard=guard) as made:
        turn, _ = await asked(made)
        assert key not in str(turn.summarize())


# -- when not ---------------------------------------------------------------------------


async def test_an_agent_without_one_tells_the_error() -> None:
    """As does a session without an agent."""
    for agent in ("b", None):
        async with benched(DOWN) as made:
            with pytest.raises(ModelUnavailable):
                await asked(made, agent=agent)
            assert await made.told() == ["user: Hi"]


async def test_what_was_said_already_stays() -> None:
    """The part is marked as interrupted, and the error is told: two replies in one would be none."""
    async with benched([*said("One two")[:2], DOWN]) as made:
        with pytest.raises(ModelUnavailable):
            await asked(made)
        assert await made.told() == ["user: Hi", "assistant: One "]
        assert noted((await made.log())[-1])["interrupted"] is True
        assert made.hf.engine.failures == {}


async def test_a_thought_is_not_said() -> None:
    """A model that fails while it thinks has said nothing."""
    thought = {"choices": [{"index": 0, "delta": {"role": "assistant", "reasoning_content": "Hm"}}]}
    async with benched([thought, DOWN]) as made:
        _, chunks = await asked(made)
        assert content(completed(chunks)) == SORRY
        assert await made.told() == ["user: Hi", f"assistant: {SORRY}"]


async def test_half_a_call_of_the_clients_own_tool_is_said() -> None:
    """The client has begun to read it: an error tells that it will not be whole."""
    call = {"index": 0, **called("c", "open_door", "{")}
    chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}}]}
    async with benched([chunk, DOWN]) as made:
        with pytest.raises(ModelUnavailable):
            await asked(made, body={"tools": THEIRS})
        assert await made.told() == ["user: Hi"]


async def test_half_a_call_that_would_run_here_is_not() -> None:
    """The client saw nothing of it."""
    call = {"index": 0, **called("c", "shout", "{")}
    chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "tool_calls": [call]}}]}
    async with benched([chunk, DOWN], tools=(shout,)) as made:
        _, chunks = await asked(made)
        assert content(completed(chunks)) == SORRY


async def test_a_reply_that_is_in_the_log_is_not_replaced() -> None:
    """An error behind the last word is told as such, also where the words came with it; the log has one reply."""
    delta = {"role": "assistant", "content": "Done."}
    async with benched([{"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}, DOWN]) as made:
        with pytest.raises(ModelUnavailable):
            await asked(made)
        assert await made.told() == ["user: Hi", "assistant: Done."]


@pytest.mark.parametrize("error", [InvalidRequest("no"), TurnInterrupted("s"), RuntimeError("no")])
async def test_other_errors_are_told(error: Exception) -> None:
    """What the request or this program did wrong, and a turn that gave up its place, are no failures of a model."""
    async with benched(error) as made:
        with pytest.raises(type(error)):
            await asked(made)
        assert await made.told() == ["user: Hi"]


async def test_a_prompt_that_cannot_be_built_is_told() -> None:
    """No model was asked."""
    async with benched("never") as made:
        with pytest.raises((BudgetTooSmall, HoldfastError)):
            await asked(made, "word " * 200_000, body={"max_tokens": 127_900})
        assert made.model.prompts == []


async def test_a_callers_own_key_that_is_refused_is_told() -> None:
    """Only the caller can mend it."""
    for status, told in ((401, True), (403, True), (400, False)):
        async with benched(ModelRejected("said no", status=status)) as made:
            headers = {"authorization": "Bearer theirs"}
            if told:
                with pytest.raises(ModelRejected):
                    await asked(made, headers=headers)
                assert await made.told() == ["user: Hi"]
            else:
                await asked(made, headers=headers)
                assert (await made.told())[-1] == f"assistant: {SORRY}"


# -- tools, and the same again ------------------------------------------------------------


async def test_after_tools_it_ends_the_reply() -> None:
    """What the client was sent before is noted, so that it is recognised; what was used before is told."""
    script = [said("Let me see.", ("c", "shout", {"text": "a"})), DOWN, "Fine."]
    async with benched(*script, tools=(shout,)) as made:
        _, chunks = await asked(made)
        completion = completed(chunks)
        assert content(completion) == f"Let me see.\n\n{SORRY}"
        assert completion["usage"] == USAGE
        assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
        assert await made.told() == [
            "user: Hi",
            "assistant shout(c): Let me see.",
            "tool c: A",
            f"assistant: {SORRY}",
        ]
        assert noted((await made.log())[-1]) == {
            "preface": "Let me see.\n\n",
            "source": "llm_failure",
            "error": "upstream_unavailable",
        }
        sent = [("user", "Hi"), ("assistant", content(completion)), ("user", "And now?")]
        turn = made.turn(*({"role": role, "content": text} for role, text in sent), agent="a")
        assert content(completed([chunk async for chunk in respond(turn)])) == "Fine."
        assert turn.summarize()["reconciled"] == "continued"


async def test_an_idempotency_key_gives_the_same_reply_again() -> None:
    """The model is not asked again: a key stands for one answer. The summary says what it was."""
    async with benched(DOWN, "never") as made:
        key: dict[str, Any] = {"idempotency_key": "k", "fingerprint": b"f"}
        _, first = await asked(made, **key)
        turn, again = await asked(made, **key)
        assert content(completed(again)) == content(completed(first)) == SORRY
        assert turn.summarize()["failure"]["code"] == "upstream_unavailable"
        assert len(made.model.prompts) == 1
        assert await made.told() == ["user: Hi", f"assistant: {SORRY}"]


async def test_a_client_may_ask_again_without_it() -> None:
    """A transcript that ends before the failure message has the question answered anew."""
    async with benched("One.", DOWN, "Two.") as made:
        await asked(made)
        await asked(made, "More")
        sent = [("user", "Hi"), ("assistant", "One."), ("user", "More")]
        turn = made.turn(*({"role": role, "content": text} for role, text in sent), agent="a")
        assert content(completed([chunk async for chunk in respond(turn)])) == "Two."
        assert await made.told() == ["user: Hi", "assistant: One.", "user: More", "assistant: Two."]


async def test_an_upstreams_note_ahead_of_its_reply_is_passed_on() -> None:
    """Agora's custom models may send one: it is no chunk of the reply, with tools or without."""
    note = {"id": "n", "object": "chat.completion.custom_metadata", "choices": [], "metadata": {"interruptable": False}}
    for tools in ((), (shout,)):
        async with benched([note, *said("Hello.")], tools=tools) as made:
            _, chunks = await asked(made)
            assert chunks[0] == note
            assert content(completed(chunks)) == "Hello."
            assert completed(chunks)["metadata"] == {"interruptable": False}
            assert await made.told() == ["user: Hi", "assistant: Hello."]
            assert all(chunk.get("object") != note["object"] for chunk in chunks[1:])
