"""Behaviours of a history provider, checked for the framework's own in-memory provider and for Holdfast's.

Where the two differ, the test says both results; docs/agent-framework.md explains why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

pytest.importorskip("agent_framework", reason="the Agent Framework is not installed here: make adapters")

from agent_framework import (
    Agent,
    AgentMiddleware,
    AgentResponse,
    AgentSession,
    ChatMiddleware,
    Content,
    ContextProvider,
    FunctionTool,
    HistoryProvider,
    InMemoryHistoryProvider,
    Message,
    SessionContext,
)

import holdfast
from holdfast.adapters.agent_framework import HoldfastHistoryProvider
from tests.adapters.test_agent_framework import Script, ScriptedClient, find, find_once, list_contents

IN_MEMORY, HOLDFAST = "in memory", "holdfast"
IMAGE = Content.from_data(b"\x89PNG\r\n\x1a\n" + b"x" * 5_000, "image/png")
ANNOTATIONS: Any = [{"type": "citation", "title": "Orders", "url": "https://example.org", "additional_properties": {}}]
EVERYTHING = [
    Message("user", ["Where?"], message_id="u1", author_name="Ada", additional_properties={"tag": [1, None]}),
    Message("user", ["Here:", IMAGE, Content.from_uri("https://example.org/a.png", media_type="image/png")]),
    Message(
        "assistant",
        [
            Content.from_text_reasoning(text="Hm.", protected_data="gAAA", additional_properties={"id": "rs_1"}),
            Content.from_text("Wait.", annotations=ANNOTATIONS),
            Content.from_function_call("c1", "find", arguments={"order": 1}, additional_properties={"fc_id": "fc_1"}),
            Content.from_function_call("c2", "find", arguments='{"order": 2}'),
            Content.from_usage({"input_token_count": 3}),
        ],
        message_id="a1",
    ),
    Message("tool", [Content.from_function_result("c1", result="On its way."), Content.from_function_result("c2")]),
    Message("assistant", [Content.from_function_call("c3", "draw", arguments="{}")]),
    Message("tool", [Content.from_function_result("c3", result=[Content.from_text("Drawn:"), IMAGE])]),
    Message("assistant", [Content.from_text_reasoning(text="Done?", protected_data="gBBB")]),
    Message(
        "assistant",
        [
            Content.from_mcp_server_tool_call("m1", "search", server_name="shop", arguments={"q": "parcel"}),
            Content.from_mcp_server_tool_result("m1", output=[Content.from_text("None.")]),
            Content.from_error(message="Slow.", error_code="429"),
            "Nothing found.",
        ],
    ),
    Message("system", ["Be brief."]),
    Message("assistant", []),
    Message("user", [""]),
    Message("critic", ["A role of its own."]),
    Message("user", [Content.from_hosted_file("file_1"), Content.from_data(b"a,b", "text/csv")]),
]


class Kit:
    """A history provider, and what a test needs to use it in both forms."""

    def __init__(self, name: str, hf: holdfast.Holdfast) -> None:
        self.name, self._hf = name, hf
        self.sessions: dict[str, AgentSession] = {}
        self.provider = self.make()

    def make(self, **options: Any) -> HistoryProvider:
        if self.name == IN_MEMORY:
            return InMemoryHistoryProvider("history", **options)
        return HoldfastHistoryProvider(self._hf, source_id="history", **options)

    def open(self, session_id: str = "s") -> AgentSession:
        return self.sessions.setdefault(session_id, AgentSession(session_id=session_id))

    def get_state(self, session_id: str) -> dict[str, Any]:
        state: dict[str, Any] = self.open(session_id).state.setdefault("history", {})
        return state

    async def save(self, *messages: Message, session_id: str = "s") -> None:
        await self.provider.save_messages(session_id, messages, state=self.get_state(session_id))

    async def get(self, session_id: str = "s") -> list[Message]:
        read: list[Message] = await self.provider.get_messages(session_id, state=self.get_state(session_id))
        return read

    async def run(
        self, script: Script, *inputs: Any, provider: HistoryProvider | None = None, **options: Any
    ) -> ScriptedClient:
        """Run an agent once for each input, and return its client."""
        client = ScriptedClient(script)
        agent = Agent(client, name="orders", tools=[find], context_providers=[provider or self.provider], **options)
        for one in inputs:
            await agent.run(one, session=self.open())
        return client


@pytest.fixture(params=[IN_MEMORY, HOLDFAST])
async def kit(request: pytest.FixtureRequest) -> AsyncIterator[Kit]:
    async with holdfast.open("sqlite://:memory:") as hf:
        yield Kit(request.param, hf)


def say_yes(messages: Sequence[Message]) -> list[Content]:
    return [Content.from_text("Yes.")]


def list_roles(messages: Sequence[Message]) -> list[str]:
    return [message.role for message in messages]


async def test_messages_of_all_kinds_come_back_as_they_were(kit: Kit) -> None:
    await kit.save(*EVERYTHING)
    assert [one.to_dict() for one in await kit.get()] == [one.to_dict() for one in EVERYTHING]
    assert list_contents(await kit.get()) == list_contents(EVERYTHING)


async def test_a_repeated_history_is_stored_once(kit: Kit) -> None:
    first = [Message("user", ["Where?"]), Message("assistant", ["Here."])]
    await kit.save(*first)
    await kit.save(*first, Message("user", ["Sure?"]))
    assert [message.text for message in await kit.get()] == ["Where?", "Here.", "Sure?"]


async def test_a_repeated_end_of_the_history_is_stored_once(kit: Kit) -> None:
    await kit.save(*(Message("user" if at % 2 == 0 else "assistant", [f"Message {at}."]) for at in range(6)))
    await kit.save(Message("user", ["Message 4."]), Message("assistant", ["Message 5."]), Message("user", ["New."]))
    assert [message.text for message in await kit.get()][4:] == ["Message 4.", "Message 5.", "New."]


async def test_the_same_question_without_an_id_is_stored_again(kit: Kit) -> None:
    await kit.save(Message("user", ["Well?"]))
    await kit.save(Message("user", ["Well?"]))
    assert len(await kit.get()) == 2


async def test_the_same_id_is_stored_once(kit: Kit) -> None:
    await kit.save(Message("user", ["Well?"], message_id="u1"))
    await kit.save(Message("user", ["Well?"], message_id="u1"))
    assert len(await kit.get()) == 1


async def test_equal_answers_to_different_questions_are_kept(kit: Kit) -> None:
    for question in ("One?", "Two?", "Three?"):
        await kit.save(Message("user", [question]), Message("assistant", ["Yes."]))
    assert len(await kit.get()) == 6


@pytest.mark.differs
async def test_exceptions_of_tools(kit: Kit) -> None:
    await kit.save(
        Message("assistant", [Content.from_function_call("c1", "find", arguments="{}")]),
        Message("tool", [Content.from_function_result("c1", result="Failed.", exception="ValueError: secret")]),
    )
    expected = {IN_MEMORY: "ValueError: secret", HOLDFAST: "FunctionInvocationError"}
    assert (await kit.get())[1].contents[0].exception == expected[kit.name]


@pytest.mark.differs
async def test_raw_objects_of_the_sdk(kit: Kit) -> None:
    await kit.save(Message("user", ["Where?"], raw_representation=object()))
    assert ((await kit.get())[0].raw_representation is None) == (kit.name == HOLDFAST)


@pytest.mark.differs
async def test_another_session_object_with_the_same_id(kit: Kit) -> None:
    await kit.save(Message("user", ["Where?"]))
    kit.sessions.clear()
    assert len(await kit.get()) == {IN_MEMORY: 0, HOLDFAST: 1}[kit.name]


async def test_storing_after_each_call_of_the_model(kit: Kit) -> None:
    client = await kit.run(find_once, "Where is order 1", require_per_service_call_history_persistence=True)
    assert list_roles(await kit.get()) == ["user", "assistant", "tool", "assistant"]
    assert [list_roles(prompt) for prompt in client.prompts] == [["user"], ["user", "assistant", "tool"]]


@pytest.mark.parametrize(
    ("options", "stored", "sent"),
    [
        ({"store_inputs": False}, ["assistant"] * 2, 2),
        ({"store_outputs": False}, ["user"] * 2, 2),
        ({"load_messages": False}, ["user", "assistant"] * 2, 3),  # the framework adds an in-memory provider
    ],
)
async def test_flags_choose_what_is_stored(kit: Kit, options: dict[str, bool], stored: list[str], sent: int) -> None:
    provider = kit.make(**options)
    replies = iter("ab")
    client = await kit.run(lambda messages: [Content.from_text(next(replies))], "One?", "Two?", provider=provider)
    assert list_roles(await provider.get_messages("s", state=kit.get_state("s"))) == stored
    assert len(client.prompts[1]) == sent


class Facts(ContextProvider):
    """Adds a message to each run."""

    async def before_run(self, *, agent: Any, session: AgentSession, context: SessionContext, state: Any) -> None:
        context.extend_messages(self, [Message("user", [f"Fact from {self.source_id}."])])


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({}, ["One?", "Yes."]),
        ({"store_context_messages": True}, ["Fact from a.", "Fact from b.", "One?", "Yes."]),
        ({"store_context_messages": True, "store_context_from": {"b"}}, ["Fact from b.", "One?", "Yes."]),
    ],
)
async def test_messages_of_other_providers_are_stored_on_request(kit: Kit, options: Any, texts: list[str]) -> None:
    provider = kit.make(**options)
    client = ScriptedClient(say_yes)
    agent = Agent(client, context_providers=[Facts("a"), Facts("b"), provider])
    await agent.run("One?", session=kit.open())
    read = await provider.get_messages("s", state=kit.get_state("s"))
    assert [message.text for message in read] == texts
    assert [message.text for message in client.prompts[0]] == ["Fact from a.", "Fact from b.", "One?"]


@pytest.mark.differs
async def test_a_failed_run(kit: Kit) -> None:
    def fail(messages: Sequence[Message]) -> list[Content]:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await kit.run(fail, "Where?")
    assert list_roles(await kit.get()) == {IN_MEMORY: [], HOLDFAST: ["user"]}[kit.name]


class DenyRun(AgentMiddleware):
    """Answers in place of the agent."""

    async def process(self, context: Any, call_next: Any) -> None:
        context.result = AgentResponse(messages=[Message("assistant", ["Denied."])])


class DenyCall(ChatMiddleware):
    """Raises before the model is called."""

    async def process(self, context: Any, call_next: Any) -> None:
        raise PermissionError


@pytest.mark.parametrize("per_call", [False, True])
async def test_a_run_that_agent_middleware_denies(kit: Kit, per_call: bool) -> None:
    options: Any = {"middleware": [DenyRun()], "require_per_service_call_history_persistence": per_call}
    await kit.run(say_yes, "Hello.", **options)
    assert await kit.get() == []


async def test_a_run_that_chat_middleware_denies_before_each_call_is_stored(kit: Kit) -> None:
    options: Any = {"middleware": [DenyCall()], "require_per_service_call_history_persistence": True}
    with pytest.raises(PermissionError):
        await kit.run(say_yes, "Hello.", **options)
    assert await kit.get() == []


@pytest.mark.differs
async def test_a_run_that_chat_middleware_denies_after_its_input_is_stored(kit: Kit) -> None:
    with pytest.raises(PermissionError):
        await kit.run(say_yes, "Hello.", middleware=[DenyCall()])
    assert list_roles(await kit.get()) == {IN_MEMORY: [], HOLDFAST: ["user"]}[kit.name]


@pytest.mark.parametrize("per_call", [False, True])
async def test_approved_calls_run_and_are_sent_once(kit: Kit, per_call: bool) -> None:
    buy = FunctionTool(name="buy", description="Buy.", func=lambda: "Bought.", approval_mode="always_require")
    replies = iter(
        [[Content.from_function_call("c1", "buy", arguments="{}")], [Content.from_text("Done.")], say_yes([])]
    )
    client = ScriptedClient(lambda messages: next(replies))
    agent = Agent(
        client,
        tools=[buy],
        context_providers=[kit.provider],
        require_per_service_call_history_persistence=per_call,
    )
    asked = await agent.run("Buy it.", session=kit.open())
    request = asked.user_input_requests[0]
    answered = await agent.run(
        Message("user", [request.to_function_approval_response(approved=True)]), session=kit.open()
    )
    assert answered.text == "Done."
    await agent.run("Thanks.", session=kit.open())
    assert list_roles(client.prompts[1]) == ["user", "assistant", "tool"]
    assert list_roles(client.prompts[2]) == ["user", "assistant", "tool", "assistant", "user"]
    sent = [content.type for message in client.prompts[2] for content in message.contents]
    assert sent == ["text", "function_call", "function_result", "text", "text"]
    assert list_roles(await kit.get()) == [
        "user",
        "assistant",
        *([] if per_call else ["user"]),
        "tool",
        "assistant",
        "user",
        "assistant",
    ]


@pytest.mark.differs
async def test_a_call_that_was_not_approved(kit: Kit) -> None:
    buy = FunctionTool(name="buy", description="Buy.", func=lambda: "Bought.", approval_mode="always_require")
    replies = iter([[Content.from_function_call("c1", "buy", arguments="{}")], say_yes([])])
    client = ScriptedClient(lambda messages: next(replies))
    agent = Agent(client, tools=[buy], context_providers=[kit.provider])
    await agent.run("Buy it.", session=kit.open())
    await agent.run("Never mind.", session=kit.open())
    expected = {IN_MEMORY: ["user", "user"], HOLDFAST: ["user", "assistant", "tool", "user"]}
    assert list_roles(client.prompts[1]) == expected[kit.name]
