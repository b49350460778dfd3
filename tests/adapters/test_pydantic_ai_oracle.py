"""Behaviours of a conversation store of Pydantic AI: the same tests for its own store in memory (the oracle) and for ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed here: make adapters")

from pydantic_ai import Agent, BinaryContent, DeferredToolRequests, ImageUrl, ModelRequest, ModelResponse
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

import holdfast
from holdfast.adapters.pydantic_ai_store import HoldfastConversationStore
from tests.adapters.oracle import expect_difference

NO_JSON: Final = "messages are stored as Pydantic AI's own JSON, which has no such values"
REASONS: Final[dict[str, dict[str, str]]] = {
    "in_memory": {},
    "holdfast": {
        "test_messages_are_returned_unchanged[image]": "Pydantic AI's own JSON turns a `BinaryContent` with an image into a `BinaryImage`",
        "test_half_a_surrogate_pair_is_stored": "databases refuse half a surrogate pair; nothing of the save is written",
        "test_numbers_that_are_not_json_are_kept": NO_JSON,
        "test_values_that_are_not_json_are_kept": NO_JSON,
        "test_ids_may_be_empty_or_long": "an id has 1 to 512 bytes",
    },
}
"""The known differences of each store, by the name of the test."""


@pytest.fixture(params=list(REASONS))
async def service(request: pytest.FixtureRequest) -> AsyncIterator[ConversationStore]:
    """Each store in turn. A test that fails for a known reason is expected to fail."""
    expect_difference(request, REASONS[request.param])
    if request.param == "in_memory":
        yield InMemoryConversationStore()
    else:
        async with holdfast.open("sqlite://:memory:") as hf:
            yield HoldfastConversationStore(hf, user_id="ada")


def say(*texts: str) -> list[ModelMessage]:
    return [ModelRequest([UserPromptPart(text)]) for text in texts]


def begin(*texts: str, name: str = "t", **fields: Any) -> Conversation:
    return Conversation(messages=say(*texts), conversation_id=name, **fields)


async def load(store: ConversationStore, name: str = "t", **options: Any) -> Conversation:
    found = await store.load(name, **options)
    assert found is not None
    return found


async def read(store: ConversationStore, name: str = "t", **options: Any) -> list[str]:
    return [str(message.parts[0].content) for message in (await load(store, name, **options)).messages]  # type: ignore[union-attr]


async def add(store: ConversationStore, *texts: str, name: str = "t") -> list[ConversationEntry]:
    conversation = await store.load(name) or Conversation(conversation_id=name)
    conversation.messages += say(*texts)
    entries: list[ConversationEntry] = await store.save(conversation)
    return entries


# -- saving and loading ---------------------------------------------------------------------


MESSAGES: Final[dict[str, ModelMessage]] = {
    "text": ModelRequest([SystemPromptPart("Be brief."), UserPromptPart("é 👍 \0 \u2028")], instructions="Help."),
    "parts": ModelRequest([UserPromptPart(["See", ImageUrl("https://a.example/b.png", force_download=True)])]),
    "image": ModelRequest([UserPromptPart([BinaryContent(bytes(range(256)) * 9, media_type="image/png")])]),
    "thinking": ModelResponse(
        [ThinkingPart("Hm.", signature="c2ln", id="rs_1", provider_name="x"), TextPart("Yes.", id="msg_1")],
        usage=RequestUsage(input_tokens=3, output_tokens=2, details={"reasoning": 1}),
        model_name="m",
        provider_details={"finish": [1, None]},
        finish_reason="stop",
    ),
    "calls": ModelResponse([ToolCallPart("find", {"q": None, "n": 1.5}, "c1"), ToolCallPart("find", '{"q": 1}', "c2")]),
    "returns": ModelRequest(
        [
            ToolReturnPart("find", {"a": [None, 1.0]}, "c1", metadata={"k": 1}),
            ToolReturnPart("find", "No.", "c2", outcome="failed"),
        ]
    ),
    "old": ModelRequest([UserPromptPart("a", timestamp=datetime(1990, 1, 1, tzinfo=UTC))], metadata={"k": {"n": None}}),
    "large": ModelRequest([UserPromptPart("x" * 2_000_000)]),
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=list(MESSAGES))
async def test_messages_are_returned_unchanged(service: ConversationStore, message: ModelMessage) -> None:
    await service.save(Conversation(messages=[message], conversation_id="t"))
    assert (await load(service)).messages == [message]


async def test_half_a_surrogate_pair_is_stored(service: ConversationStore) -> None:
    await service.save(begin("a\ud83db"))
    assert await read(service) == ["a\ud83db"]


async def test_numbers_that_are_not_json_are_kept(service: ConversationStore) -> None:
    message = ModelRequest([ToolReturnPart("find", {"score": float("inf")}, "c1")])
    await service.save(Conversation(messages=[message], conversation_id="t"))
    assert (await load(service)).messages == [message]


async def test_values_that_are_not_json_are_kept(service: ConversationStore) -> None:
    message = ModelRequest([ToolReturnPart("find", {"a", "b"}, "c1")])
    await service.save(Conversation(messages=[message], conversation_id="t"))
    assert (await load(service)).messages == [message]


async def test_waiting_tool_calls_are_kept(service: ConversationStore) -> None:
    waiting = DeferredToolRequests(approvals=[ToolCallPart("pay", {"n": 1}, "c1")], metadata={"c1": {"by": None}})
    await service.save(begin("a", deferred_tool_requests=waiting))
    assert (await load(service)).deferred_tool_requests == waiting


async def test_what_is_saved_and_loaded_are_copies(service: ConversationStore) -> None:
    conversation = begin("a")
    await service.save(conversation)
    conversation.messages[0].parts[0].content = "changed"  # type: ignore[union-attr]
    conversation.usage.requests = 9
    for _ in range(2):
        found = await load(service)
        assert (found.usage.requests, found.messages[0].parts[0].content) == (0, "a")  # type: ignore[union-attr]
        found.messages[0].parts[0].content = "changed"  # type: ignore[union-attr]
        found.usage.requests = 9


# -- histories ----------------------------------------------------------------------------------


async def test_the_newest_messages_can_be_loaded(service: ConversationStore) -> None:
    await add(service, *"abcde")
    assert await read(service, limit=2) == ["d", "e"]
    assert await read(service, limit=99) == [*"abcde"]
    assert await read(service, limit=0) == []
    with pytest.raises(UserError):
        await service.load("t", limit=-1)


async def test_messages_are_added_to_a_window(service: ConversationStore) -> None:
    await add(service, *"abcde")
    window = await load(service, limit=2)
    window.messages += say("f")
    await service.save(window)
    assert await read(service) == [*"abcdef"]


async def test_entries_are_found_by_their_ids(service: ConversationStore) -> None:
    entries = await add(service, "a", "b")
    assert await service.read_entry(entries[0].id) == entries[0]
    assert await service.read_history(entries[1].id) == entries
    assert await service.read_history(entries[1].id, limit=1) == entries[1:]
    assert await service.read_history(None) == []
    with pytest.raises(LookupError):
        await service.read_entry("unknown")


# -- branches and forks ----------------------------------------------------------------------------


async def test_a_stale_branch_is_refused(service: ConversationStore) -> None:
    await add(service, "a", "b")
    revision = (await load(service)).revision
    await add(service, "c")
    with pytest.raises(ConversationConflict):
        await service.branch("t", at=1, expected_revision=revision)
    for wrong in ({"at": 9}, {}, {"from_entry": "unknown"}):
        with pytest.raises(UserError):
            await service.branch("t", **wrong, expected_revision=(await load(service)).revision)  # type: ignore[arg-type]
    assert await read(service) == ["a", "b", "c"]


async def test_a_fork_cannot_take_the_id_of_another_conversation(service: ConversationStore) -> None:
    for name in ("t", "f"):
        await add(service, name, name=name)
    with pytest.raises(ConversationConflict):
        await service.fork("t", new_conversation_id="f")
    with pytest.raises(UserError):
        await service.fork("unknown")
    assert await read(service, "f") == ["f"]


# -- concurrent writers, deleting -------------------------------------------------------------------


async def test_a_record_whose_head_is_missing_is_refused(service: ConversationStore) -> None:
    with pytest.raises(ConversationConflict):
        await service.write_record(ConversationRecord(conversation_id="t", head_id="unknown"), expected_revision=None)
    assert await service.load("t") is None


async def test_a_deleted_conversation_is_gone_and_its_copy_cannot_be_saved(service: ConversationStore) -> None:
    await add(service, "a")
    copy = await load(service)
    await service.delete("t")
    assert await service.load("t") is None
    copy.messages += say("b")
    with pytest.raises(ConversationConflict):
        await service.save(copy)
    await add(service, "c")
    assert await read(service) == ["c"]
    with pytest.raises(ConversationConflict):
        await service.delete_record("t", expected_revision="another")


# -- scopes and lists ---------------------------------------------------------------------------------


async def test_a_scope_keeps_a_conversation_to_its_owner(service: ConversationStore) -> None:
    conversation = begin("a")
    await service.save(conversation, scope="ada")
    assert await read(service, scope="ada") == await read(service) == ["a"]
    assert await service.load("t", scope="bob") is None
    with pytest.raises(ConversationConflict):
        await service.save(await load(service), scope="bob")
    await service.delete("t", scope="bob")
    assert await read(service) == ["a"]
    await add(service, "b")
    record = await service.read_record("t")
    assert record is not None
    assert record.scope == "ada"


async def test_conversations_are_listed_by_scope_from_the_last_saved(service: ConversationStore) -> None:
    now = datetime.now(UTC)
    for at, (name, scope) in enumerate((("a", "ada"), ("b", "bob"), ("c", "ada"), ("d", None))):
        time = now + timedelta(seconds=(3, 1, 2, 4)[at])
        record = ConversationRecord(conversation_id=name, head_id=None, scope=scope, updated_at=time)
        await service.write_record(record, expected_revision=None)
    assert [one.conversation_id for one in await service.list_conversations()] == ["d", "a", "c", "b"]
    assert [one.conversation_id for one in await service.list_conversations(scope="ada")] == ["a", "c"]
    assert [one.conversation_id for one in await service.list_conversations(scope="ada", limit=1)] == ["a"]
    assert await service.list_conversations(scope="unknown") == await service.list_conversations(limit=0) == []
    with pytest.raises(UserError):
        await service.list_conversations(limit=-1)


@pytest.mark.parametrize("name", ["a/b", "é 👍", "../a", "a#b", " a ", "x" * 200, "a\nb", "'; --"])
async def test_ids_may_have_any_characters(service: ConversationStore, name: str) -> None:
    await add(service, "a", name=name)
    assert await read(service, name) == ["a"]
    assert await service.load(f"{name}2") is None
    assert [one.conversation_id for one in await service.list_conversations()] == [name]


@pytest.mark.parametrize("name", ["", "x" * 600], ids=["empty", "long"])
async def test_ids_may_be_empty_or_long(service: ConversationStore, name: str) -> None:
    await add(service, "a", name=name)
    assert await read(service, name) == ["a"]


# -- runs ------------------------------------------------------------------------------------------------


def find(order: int) -> str:
    """Find an order."""
    return f"Order {order} is on its way."


async def test_runs_with_tools_are_continued(service: ConversationStore) -> None:
    agent = Agent(TestModel(), tools=[find], instructions="Help.")
    for number in range(3):
        conversation = await service.load("t") or Conversation(conversation_id="t")
        result = await agent.run(f"Question {number}", conversation=conversation)
        entries = await service.save(result)
        assert len(entries) == len(result.new_messages())
    found = await load(service)
    assert found.messages == result.all_messages()
    assert (found.usage.requests, found.usage.tool_calls) == (4, 1)  # the model calls tools once in a conversation
