"""The library: sessions and turns in a program that calls the model itself with the official client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessage

import holdfast
from holdfast.agents import Llm, Roster
from holdfast.domain.messages import Message
from holdfast.errors import (
    BudgetTooSmall,
    InvalidMessage,
    InvalidRequest,
    ModelUnavailable,
    SessionNotFound,
    StaleSession,
    StoreClosed,
)
from holdfast.testing import Reply, ScriptedUpstream

TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}]


@asynccontextmanager
async def open_client(script: list[Reply | str]) -> AsyncIterator[tuple[AsyncOpenAI, ScriptedUpstream]]:
    """Open the official client in front of a scripted upstream."""
    async with (
        ScriptedUpstream(script) as upstream,
        AsyncOpenAI(base_url=upstream.url, api_key="sk-any", max_retries=0) as client,
    ):
        yield client, upstream


@asynccontextmanager
async def open_holdfast(url: str = "sqlite://:memory:", **settings: Any) -> AsyncIterator[holdfast.Holdfast]:
    async with holdfast.open(url, **settings) as hf:
        yield hf


async def test_library_example_works_twice_on_one_database(tmp_path: Path) -> None:
    """The second run continues the session of the first."""
    for number in range(2):
        async with open_client(["It is on its way."]) as (client, upstream):
            async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
                session = await hf.session("support-42", user_id="ada")
                async with session.turn("Where is my order?") as turn:
                    messages: Any = turn.messages
                    reply = await client.chat.completions.create(model="gpt-4o", messages=messages)
                    turn.add(reply.choices[0].message)
                print(turn.explain())  # what was kept, what was not, and why
                assert [message["role"] for message in await session.messages()] == ["user", "assistant"] * (number + 1)
            assert len(upstream.requests[0].body["messages"]) == 1 + 2 * number


async def test_tool_loop_is_one_turn() -> None:
    """`turn.next()` writes what was added and returns the next prompt."""
    script: list[Reply | str] = [
        Reply(tool_calls=[("find", {"n": 1}), ("find", {"n": 2})]),
        Reply(tool_calls=[("find", {})]),
        "Done.",
    ]
    async with open_client(script) as (client, upstream), open_holdfast() as hf:
        session = await hf.session("s", system="Be kind.")
        async with session.turn("Find them", tools=TOOLS) as turn:
            messages: Any = turn.messages
            while True:
                reply = await client.chat.completions.create(model="gpt-4o", messages=messages, tools=TOOLS)  # type: ignore[arg-type]  # plain dicts
                turn.add(reply.choices[0].message)
                calls = reply.choices[0].message.tool_calls
                if not calls:
                    break
                for call in calls:
                    turn.add({"role": "tool", "tool_call_id": call.id, "content": f"found {call.id}"})
                messages = await turn.next()
        prompts = [[message["role"] for message in received.body["messages"]] for received in upstream.requests]
        assert prompts[0] == ["system", "user"]
        assert prompts[2] == ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]
        entries = await session.entries()
        assert {entry.turn_id for entry in entries} == {0}
        assert [entry.unit for entry in entries] == [0, 1, 1, 1, 4, 4, 6]
        assert await session.verify() == 7


async def test_added_messages_are_stored_when_the_block_raises() -> None:
    """The exception passes through."""
    async with open_holdfast() as hf:
        session = await hf.session("s")

        async def fails(text: str, *said: str) -> None:
            async with session.turn(text) as turn:
                for part in said:
                    turn.add(part)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fails("a", "half an answer")
        assert [message["content"] for message in await session.messages()] == ["a", "half an answer"]
        with pytest.raises(ZeroDivisionError):
            await fails("b")
        async with session.turn("c") as turn:
            assert [message["content"] for message in turn.messages] == ["a", "half an answer", "b", "c"]


async def test_added_messages_are_stored_when_the_block_is_cancelled() -> None:
    async with open_holdfast() as hf:
        session = await hf.session("s")
        inside = asyncio.Event()

        async def work() -> None:
            async with session.turn("a") as turn:
                turn.add("so far")
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        await asyncio.wait([task])
        async with session.turn("b") as turn:
            assert [message["content"] for message in turn.messages] == ["a", "so far", "b"]


async def test_invalid_messages_are_rejected_when_added() -> None:
    """Messages that were added before are kept."""
    async with open_holdfast() as hf:
        session = await hf.session("s")
        async with session.turn("a") as turn:
            turn.add({"role": "assistant", "content": "b"})
            for wrong in (
                {"role": "robot", "content": "x"},
                {"content": "x"},
                5,
                {"role": "user", "content": "\ud800"},
            ):
                with pytest.raises(InvalidMessage):
                    turn.add(wrong)
            turn.add(Message(role="assistant", content="c"))
        assert [message["content"] for message in await session.messages()] == ["a", "b", "c"]
        no_messages: list[Any] = [5, [5], [{"role": "user"}], Message(role="user", content=5)]  # type: ignore[arg-type]
        for wrong in no_messages:
            with pytest.raises(InvalidRequest):
                async with session.turn(wrong):
                    pass


async def test_list_may_mix_texts_dicts_and_messages() -> None:
    async with open_holdfast() as hf:
        session = await hf.session("s", system=["Be kind.", "Be brief."])
        await session.append(["a", Message(role="assistant", content="b"), {"role": "user", "content": "c"}])
        assert [message["content"] for message in await session.messages()] == ["a", "b", "c"]
        assert len((await session.info()).system_messages) == 2


@pytest.mark.parametrize("wrong", [{"session_id": 5}, {"user_id": None}, {"agent": 5}, {"system": 5}, {"system": [5]}])
async def test_parameter_of_wrong_type_is_named_in_the_error(wrong: dict[str, Any]) -> None:
    """No session is created."""
    async with open_holdfast() as hf:
        with pytest.raises(InvalidRequest) as caught:
            await hf.session(**{"session_id": "s", **wrong})
        assert next(iter(wrong)) in str(caught.value)
        assert (await hf.sessions()).sessions == ()


async def test_message_with_wrong_field_types_is_not_stored() -> None:
    """A `Message` is a plain struct: its fields are checked when it is added to a session."""
    async with open_holdfast() as hf:
        session = await hf.session("s")
        wrong: list[Any] = [
            Message(role="user", content=5),  # type: ignore[arg-type]
            Message(role="tool", content="no id"),
            Message(role="assistant", tool_calls=({"id": "x"},)),  # type: ignore[arg-type]
            Message(role="system"),
        ]
        for message in wrong:
            with pytest.raises(InvalidMessage):
                await session.append(message)
        assert await session.messages() == []


async def test_nested_turn_of_the_same_session_is_rejected() -> None:
    """It would wait for itself. The outer turn continues."""
    async with open_holdfast() as hf:
        session = await hf.session("s")
        async with session.turn("a") as turn:
            with pytest.raises(InvalidRequest, match="is open in this task"):
                await session.send("b")
            turn.add("c")
        await session.send("d")
        assert [message["content"] for message in await session.messages()][:3] == ["a", "c", "d"]


async def test_adding_to_an_ended_turn_is_rejected() -> None:
    """The message would be lost."""
    async with open_holdfast() as hf:
        session = await hf.session("s")
        async with session.turn("a") as turn:
            turn.add("b")
        with pytest.raises(InvalidRequest, match="has ended"):
            turn.add("c")


@pytest.mark.parametrize("body", [{"tools": "abc"}, {"tools": [{"function": "x"}]}, {"max_tokens": 10**6}])
async def test_invalid_request_parameters_are_rejected_before_anything_is_written(body: dict[str, Any]) -> None:
    """The error names the parameter."""
    async with open_holdfast() as hf:
        session = await hf.session("s")
        with pytest.raises(InvalidRequest) as caught:
            await session.send("a", **body)
        assert str(caught.value.param).startswith(next(iter(body)))
        assert await session.messages() == []


async def test_offline_is_always_the_built_in_model() -> None:
    """Selecting it by name calls no upstream."""
    async with ScriptedUpstream(["never"]) as upstream:
        llm = Llm(name="default", model="gpt-4o", client=holdfast.OpenAIModel(upstream.url))
        async with open_holdfast(roster=Roster({"default": llm})) as hf:
            assert hf.roster.find_llm("offline").model == "offline"
            assert hf.roster.find_llm("gpt-4o-mini").model == "gpt-4o-mini"


async def test_explain_shows_the_outcome_of_each_message() -> None:
    """One line per run of messages: anchored, evicted or kept, with a small budget."""
    async with open_holdfast(
        roster=Roster(context=holdfast.settings.ContextSettings("token_window", {"budget": 300}))
    ) as hf:
        session = await hf.session("s")
        for at in range(12):
            await session.append(
                [{"role": "user", "content": f"q{at}"}, {"role": "assistant", "content": "word " * 30}]
            )
        async with session.turn("now") as turn:
            lines = turn.explain().splitlines()
            used = f"{turn._turn.working_set.tokens} of 300 tokens"  # type: ignore[union-attr]
            assert lines[0] == f"{len(turn.messages)} messages, strategy token_window, {used}"
            told = [line.split()[1] for line in lines[1:]]
            assert told[:2] == ["anchored", "evicted"]
            assert told[-1] == "kept"
            assert "current user message" in lines[-1]


async def test_context_preview_stores_nothing() -> None:
    """With the agent's strategy or another one, for a model and a dialect, and at an earlier turn."""
    async with open_holdfast() as hf:
        session = await hf.session("s", system="Sys.")
        for at in range(30):
            await session.append(
                [{"role": "user", "content": f"question {at}"}, {"role": "assistant", "content": "word " * 20}]
            )
        version = (await session.info()).version
        whole = await session.context()
        assert len(whole.messages) == 61
        assert whole.total_tokens > whole.conversation_tokens
        assert repr(whole).startswith("<context of 61 messages, ")
        small = await session.context("token_window", budget=300, model="gpt-4", dialect="anthropic")
        assert small.conversation_tokens <= small.budget == 300
        assert small.system == [{"type": "text", "text": "Sys.", "cache_control": {"type": "ephemeral"}}]
        assert small.messages[0]["content"][0]["text"] == "question 0"
        contents = await session.context("token_window", budget=300, dialect="gemini")
        assert contents.system == {"parts": [{"text": "Sys."}]}
        assert contents.messages[0]["parts"][0] == {"text": "question 0"}
        assert whole.system is None
        covered = [seq for run in small.decisions for seq in range(run.first, run.last + 1)]
        assert covered == list(range(60))
        then = await session.context(at_turn=2)
        assert then.messages[-1] == {"role": "user", "content": "question 2"}
        assert (await session.info()).version == version
        for strategy, options in (("magic", {}), ("token_window", {"budgett": 1}), ("token_window", {"budget": "x"})):
            with pytest.raises(InvalidRequest):
                await session.context(strategy, **options)
        with pytest.raises(BudgetTooSmall):
            await session.context("token_window", budget=3)


async def test_send_runs_a_whole_turn() -> None:
    """It uses the session's own model. If that is down, the user's message is still stored."""
    async with ScriptedUpstream(["Hello.", Reply(status=418, error="no")]) as upstream:
        llm = Llm(name="default", model="gpt-4o", client=holdfast.OpenAIModel(upstream.url))
        async with open_holdfast(roster=Roster({"default": llm})) as hf:
            session = await hf.session("s")
            completion = await session.send("Hi", temperature=0)
            assert completion["choices"][0]["message"]["content"] == "Hello."
            assert upstream.requests[0].body["temperature"] == 0
    async with open_holdfast(
        roster=Roster(
            {"default": Llm(name="default", model="m", client=holdfast.OpenAIModel(upstream.url, max_retries=0))}
        )
    ) as hf:
        session = await hf.session("s")
        with pytest.raises(ModelUnavailable):
            await session.send("Hi")
        assert await session.messages() == [{"role": "user", "content": "Hi"}]


async def test_turns_of_one_session_queue() -> None:
    """A second turn begins when the first block has ended and sees its messages. Other sessions do not wait."""
    async with open_holdfast() as hf:
        session, other = await hf.session("s"), await hf.session("t")
        seen: list[list[str]] = []

        async def second() -> None:
            async with session.turn("b") as turn:
                seen.append([message["content"] for message in turn.messages])

        async with session.turn("a") as turn:
            task = asyncio.create_task(second())
            async with other.turn("x"):
                pass
            assert seen == []
            turn.add("A")
        await task
        assert seen == [["a", "A", "b"]]


async def test_session_is_created_or_found_by_id() -> None:
    """Without an id it is new. A known session keeps its agent and stores a changed system prompt."""
    roster = Roster(agents={"support": holdfast.Agent(name="support", instruction="Be kind.")})
    async with open_holdfast(roster=roster) as hf:
        first = await hf.session("s", system="One.", agent="support")
        again = await hf.session("s", system="Two.")
        info = await again.info()
        assert (info.agent, info.system_messages[0].content) == ("support", "Two.")
        async with again.turn("hi") as turn:
            assert [message["content"] for message in turn.messages] == ["Be kind.", "Two.", "hi"]
        assert (await hf.session()).id != (await hf.session()).id
        with pytest.raises(InvalidRequest):
            await hf.session("new", agent="nobody")
        with pytest.raises(InvalidRequest):
            await hf.session("")
        assert await first.delete() is True
        assert await first.delete() is False
        with pytest.raises(SessionNotFound):
            await again.info()


async def test_turn_stores_fields_of_its_messages() -> None:
    """`send` and `turn` accept the same fields as `append`, for a new message or a whole transcript."""
    spoken = {"role": "user", "content": "Where is it?", "metadata": {"source": "asr", "user": "u1"}, "pinned": True}
    async with open_holdfast() as hf:
        session = await hf.session("s")
        await session.send([{"role": "system", "content": "Be brief."}, {**spoken, "turn_id": 9, "importance": 0.5}])
        async with session.turn([{"role": "user", "content": "And now?", "timestamp": 7}]) as turn:
            turn.add("Here.")
        first, _, second, _ = await session.entries()
        assert (first.metadata, first.pinned, first.importance) == (spoken["metadata"], True, 0.5)
        assert (first.turn_id, second.turn_id, second.timestamp, second.metadata) == (9, 10, 7, None)
        whole = [*await session.messages(), {"role": "user", "content": "Sure?", "metadata": {"source": "command"}}]
        await session.send(whole)
        assert (await session.entries())[4].metadata == {"source": "command"}
        with pytest.raises(InvalidMessage):
            await session.send({"role": "user", "content": "x", "pinned": "yes"})


async def test_append_checks_version_and_idempotency_key() -> None:
    """`expect` is checked, a key is applied once, and a plain text is a user message."""
    async with open_holdfast() as hf:
        session = await hf.session("s")
        assert (await session.append("a", expect=0)).version == 1
        with pytest.raises(StaleSession):
            await session.append("b", expect=0)
        for _ in range(2):
            done = await session.append("c", idempotency_key="k", fingerprint=b"1")
        assert done.replayed
        assert [entry["content"] for entry in await session.export()] == ["a", "c"]


async def test_use_before_opening_is_rejected() -> None:
    """The error says how to open it. Closing twice is allowed."""
    hf = holdfast.open("sqlite://:memory:")
    with pytest.raises(StoreClosed, match="async with"):
        await hf.session("s")
    async with hf:
        pass
    await hf.close()


async def test_message_is_pinned_and_rated_on_append_or_later() -> None:
    """These fields are not sent to the model."""
    async with open_holdfast() as hf:
        session = await hf.session("s")
        await session.append({"role": "user", "content": "Mind the kelp.", "pinned": True, "importance": 0.25})
        entry = (await session.entries())[0]
        assert (entry.pinned, entry.importance, entry.message.extra) == (True, 0.25, {})
        assert (await session.messages())[0] == {"role": "user", "content": "Mind the kelp."}
        await session.annotate(0, pinned=False, importance=1.0)
        entry = (await session.entries())[0]
        assert (entry.pinned, entry.importance) == (False, 1.0)
        assert (await session.annotate(0, importance=None)).importance is None
        with pytest.raises(InvalidMessage, match="importance must be a number from 0 to 1"):
            await session.append([{"role": "user", "content": "x", "importance": 2}])
        assert (await session.info()).messages == 1


@pytest.mark.parametrize("given", [None, [1], "x", 5])
async def test_invalid_export_is_rejected(given: Any) -> None:
    """The error describes the expected format."""
    async with open_holdfast() as hf:
        with pytest.raises(InvalidRequest, match="an object"):
            await hf.import_(given)


async def test_import_accepts_sdk_messages() -> None:
    """As `append` and `send` do."""
    async with open_holdfast() as hf:
        message = ChatCompletionMessage(role="assistant", content="Hello.")
        arrival = await hf.import_({"id": "s", "messages": [{"role": "user", "content": "Hi"}, message]})
        assert arrival.session.messages == 2


async def test_non_string_ids_are_rejected() -> None:
    async with open_holdfast() as hf:
        session = await hf.session("s")
        for doing in (hf.delete_user(5), session.fork(id=5)):  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest):
                await doing
    with pytest.raises(InvalidRequest):
        async with holdfast.open("sqlite://:memory:", tenant=5):  # type: ignore[arg-type]
            pass
