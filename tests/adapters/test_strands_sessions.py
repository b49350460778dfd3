"""Sessions of Strands that Holdfast stores, with real agents, graphs and swarms, and a scripted model."""

from __future__ import annotations

import asyncio
import copy
import math
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("strands", reason="Strands is not installed here: make adapters")

import itertools

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.agent.state import AgentState
from strands.hooks import HookRegistry, MessageAddedEvent, MessageUpdatedEvent
from strands.multiagent import GraphBuilder, Swarm
from strands.types.exceptions import SessionException

import holdfast
from holdfast.adapters.strands import HoldfastConversationManager, HoldfastSessionManager
from holdfast.errors import HoldfastError, NotFound, WrongEventLoop
from tests.adapters.strands_kit import ScriptedModel, call_find, check_prompt, make_agent, play_orders

MEMORY = "sqlite://:memory:"
SECRET = "canary-4711"
IMAGE = bytes(range(256)) * 8_000
"""Two megabytes."""
TRACKED = "11111111-1111-4111-8111-111111111111"
CONVERSATION: list[Any] = [
    {
        "role": "user",
        "content": [
            {"image": {"format": "png", "source": {"bytes": IMAGE}}},
            {"document": {"format": "pdf", "name": "offer", "source": {"bytes": b"%PDF"}, "citations": None}},
            {"video": {"format": "mp4", "source": {"bytes": b"\x00\xff"}}},
            {"audio": {"format": "wav", "source": {"bytes": b"RIFF"}}},
            {"image": {"format": "png", "source": {"location": {"type": "s3", "uri": "s3://b/k"}}}},
            {"text": "What is this?"},
            {"guardContent": {"text": {"text": "Guard me.", "qualifiers": ["query"]}}},
            {"cachePoint": {"type": "default", "ttl": "5m"}},
        ],
        "tracking_id": TRACKED,
        "metadata": {"custom": {"from": "web"}},
    },
    {
        "role": "assistant",
        "content": [
            {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "abc"}}},
            {"reasoningContent": {"redactedContent": b"\x01\x02"}},
            {"text": "Let me see."},
            {"toolUse": {"toolUseId": "a", "name": "find", "input": {"__bytes_encoded__": True, "data": "eA=="}}},
            {"toolUse": {"toolUseId": "b", "name": "find", "input": {}, "reasoningSignature": "xyz"}},
        ],
        "metadata": {"usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}, "metrics": {"latencyMs": 5}},
    },
    {
        "role": "user",
        "content": [
            {
                "toolResult": {
                    "toolUseId": "b",
                    "status": "error",
                    "content": [{"json": {"n": [1, None], "x": math.inf}}],
                }
            },
            {
                "toolResult": {
                    "toolUseId": "a",
                    "status": "success",
                    "content": [{"text": "A parcel."}, {"image": {"format": "jpeg", "source": {"bytes": IMAGE}}}],
                }
            },
            {"cachePoint": {"type": "default"}},
        ],
    },
    {
        "role": "assistant",
        "content": [{"citationsContent": {"content": [{"text": "Cited."}], "citations": [{"title": "offer"}]}}],
    },
    {"role": "user", "content": [{"text": ""}]},
    {"role": "assistant", "content": []},
    {"role": "assistant", "content": [{"reasoningContent": {"reasoningText": {"text": "Only this."}}}]},
]


async def open_agent(hf: Any, replies: Any = (), session_id: str = "s", **settings: Any) -> Agent:
    agent_id = settings.get("agent_id", "default")
    sessions = await HoldfastSessionManager(hf, session_id, user_id="ada").load(agent_id)
    model = replies if isinstance(replies, ScriptedModel) else ScriptedModel(replies)
    return make_agent(model, session_manager=sessions, **settings)


def say(text: str) -> list[Any]:
    return [{"text": text}]


async def read_messages(hf: Any, session_id: str = "s") -> list[Any]:
    return list((await open_agent(hf, session_id=session_id)).messages)


# -- messages and state ------------------------------------------------------------


async def test_an_image_in_two_messages_is_stored_once(tmp_path: Path) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
        await (await open_agent(hf, [say("Done.")], messages=copy.deepcopy(CONVERSATION))).invoke_async("Thanks.")
    assert (tmp_path / "chat.db").stat().st_size < 1.3 * len(IMAGE)


async def test_the_log_can_be_read_as_chat_messages() -> None:
    async with holdfast.open(MEMORY) as hf:
        agent = await open_agent(hf, play_orders(1))
        await agent.invoke_async("Where is order 0?")
        session = await hf.get("s", user_id="ada")
        messages = await session.messages()
        assert [one["role"] for one in messages] == ["user", "assistant", "tool", "assistant"]
        assert messages[1]["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"order": 0}'}
        assert (await session.info()).system_messages[0].text == "You help with orders."


async def test_messages_that_a_program_adds_itself_are_stored() -> None:
    async with holdfast.open(MEMORY) as hf:
        agent = await open_agent(hf, [say("One."), say("Two.")])
        await agent.invoke_async("First.")
        agent.messages += [{"role": "user", "content": say("By hand.")}, {"role": "assistant", "content": say("Yes.")}]
        await agent.invoke_async("Second.")
        assert await read_messages(hf) == agent.messages
        assert len(agent.messages) == 6


async def test_a_message_that_grows_is_replaced() -> None:
    """Strands merges input that arrives during a run with the newest message, and reports it as added."""
    async with holdfast.open(MEMORY) as hf:
        agent = await open_agent(hf, [[call_find(1)], say("Done.")])
        await agent.invoke_async("Where is order 1?")
        del agent.messages[3:]
        await (await hf.get("s", user_id="ada")).pop()
        agent = await open_agent(hf)
        assert "toolResult" in agent.messages[-1]["content"][0]
        merged: Any = {**agent.messages[-1], "content": [*agent.messages[-1]["content"], {"text": "A task has ended."}]}
        agent.messages[-1] = merged
        await agent.hooks.invoke_callbacks_async(MessageAddedEvent(agent=agent, message=merged))
        assert await read_messages(hf) == agent.messages
        assert len(agent.messages) == 3
        roles = [one["role"] for one in await (await hf.get("s", user_id="ada")).messages()]
        assert roles == ["user", "assistant", "tool", "user"]


async def test_a_message_that_a_hook_changes_is_stored_as_changed() -> None:
    async with holdfast.open(MEMORY) as hf:

        def mask(event: MessageAddedEvent) -> None:
            for block in event.message["content"]:
                if "text" in block:
                    block["text"] = block["text"].replace(SECRET, "#")

        agent = await open_agent(hf, [say(f"It is {SECRET}.")], hooks=[mask])
        await agent.invoke_async(f"My card is {SECRET}.")
        assert [one["content"] for one in await read_messages(hf)] == [say("My card is #."), say("It is #.")]


async def test_voice_agents_replace_messages() -> None:
    """A `BidiAgent` adds an empty message when a reply begins, and replaces it when the reply is complete."""
    async with holdfast.open(MEMORY) as hf:
        sessions = await HoldfastSessionManager(hf, "s", user_id="ada").load("voice")
        voice: Any = SimpleNamespace(
            agent_id="voice", messages=[], state=AgentState(), storage=None, system_prompt=None
        )
        voice.model = SimpleNamespace(stateful=False)
        registry = HookRegistry()
        sessions.register_hooks(registry)
        sessions.initialize(voice)
        for number in range(3):
            message: Any = {"role": "assistant", "content": say(""), "tracking_id": f"t{number}"}
            voice.messages.append(message)
            await registry.invoke_callbacks_async(MessageAddedEvent(agent=voice, message=message))
        voice.messages[0] = {**voice.messages[0], "content": say("Hello.")}
        await registry.invoke_callbacks_async(MessageUpdatedEvent(voice, "t0", voice.messages[0]))
        voice.messages.append({"role": "user", "content": say("Hi."), "tracking_id": "t3"})
        await registry.invoke_callbacks_async(MessageAddedEvent(agent=voice, message=voice.messages[-1]))
        assert (await open_agent(hf, agent_id="voice")).messages == voice.messages


# -- redaction -----------------------------------------------------------------------


def redact(text: str) -> Any:
    return {"chunk": {"redactContent": {"redactUserContentMessage": text}}}


def find_traces(folder: Path, secret: str = SECRET) -> list[str]:
    return [file.name for file in folder.iterdir() if secret.encode() in file.read_bytes()]


async def test_a_redacted_prompt_leaves_no_trace(tmp_path: Path) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
        agent = await open_agent(hf, [say("Hello."), [redact("[redacted]"), {"text": "I cannot."}], say("Bye.")])
        await agent.invoke_async("Hello.")
        await agent.invoke_async(f"My card is {SECRET}.")
        assert find_traces(tmp_path) == []
        await agent.invoke_async("Thanks.")
        assert await read_messages(hf) == agent.messages
        assert agent.messages[2]["content"] == say("[redacted]")
        assert len(await (await hf.get("s", user_id="ada")).messages()) == 6


def test_a_redacted_prompt_leaves_no_trace_without_await(tmp_path: Path) -> None:
    with holdfast.Portal(f"sqlite:///{tmp_path}/chat.db") as portal:
        sessions = HoldfastSessionManager(portal, "s", user_id="ada")
        agent = make_agent(ScriptedModel([[redact("[redacted]"), {"text": "I cannot."}]]), session_manager=sessions)
        agent(f"My card is {SECRET}.")
        assert find_traces(tmp_path) == []
        assert portal.call(read_messages, portal.hf) == agent.messages


async def test_redacted_tool_results_leave_no_trace(tmp_path: Path) -> None:
    @tool
    def read(number: int) -> str:
        """Read a file."""
        return f"{SECRET} {number}"

    calls = [{"toolUse": {"toolUseId": f"c{at}", "name": "read", "input": {"number": at}}} for at in range(3)]
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
        agent = await open_agent(hf, [calls, [redact("[redacted]"), {"text": "I cannot."}]], tools=[read])
        await agent.invoke_async("Read them.")
        assert find_traces(tmp_path) == []
        assert await read_messages(hf) == agent.messages
        results = [block["toolResult"] for block in agent.messages[2]["content"]]
        assert [one["content"] for one in results] == [say("[redacted]")] * 3
        assert [one["role"] for one in await (await hf.get("s", user_id="ada")).messages()].count("tool") == 3


async def test_the_text_after_redacted_tool_results_leaves_no_trace(tmp_path: Path) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
        given: list[Any] = [
            {"role": "user", "content": say("Find it.")},
            {"role": "assistant", "content": [call_find(1)]},
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": "call_1", "status": "success", "content": say("There.")}},
                    {"text": f"My card is {SECRET}."},
                ],
            },
        ]
        agent = await open_agent(hf, [[redact("[redacted]"), {"text": "I cannot."}], say("Bye.")], messages=given)
        await agent.invoke_async(None)
        assert find_traces(tmp_path) == []
        await agent.invoke_async("Thanks.")
        assert await read_messages(hf) == agent.messages


async def test_a_redaction_erases_the_copy_of_a_prompt_that_was_sent_again(tmp_path: Path) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
        agent = await open_agent(
            hf, [say("Hello."), ValueError("broken"), [redact("[redacted]"), {"text": "I cannot."}], say("Bye.")]
        )
        await agent.invoke_async("Hello.")
        prompt: Any = [{"role": "user", "content": say(f"My card is {SECRET}.")}]
        with pytest.raises(ValueError, match="broken"):
            await agent.invoke_async(prompt)
        assert find_traces(tmp_path)
        await agent.invoke_async(prompt)
        assert find_traces(tmp_path) == []
        await agent.invoke_async("Thanks.")
        assert await read_messages(hf) == agent.messages


def make_filler(count: int) -> list[Any]:
    roles = ("assistant", "user")
    return [{"role": roles[at % 2], "content": say(f"Step {at}.")} for at in range(count)]


async def test_a_redaction_erases_a_copy_that_is_too_far_back_to_be_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A program sends one prompt object again, more than 1,000 messages later."""
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
        refuse: Any = [redact("[redacted]"), {"text": "I cannot."}]
        replies = [say("Yes."), refuse, say("Bye."), refuse, say("Good.")]
        agent = await open_agent(hf, replies, conversation_manager=NullConversationManager())
        prompt: Any = [{"role": "user", "content": say(f"My card is {SECRET}.")}]
        await agent.invoke_async(prompt)
        agent.messages += make_filler(1_002)[1:]
        await agent.invoke_async(prompt)
        assert agent.messages[0]["content"] == agent.messages[-2]["content"] == say("[redacted]")
        assert find_traces(tmp_path) == []
        await agent.invoke_async("Thanks.")
        await agent.invoke_async(prompt)
        await agent.invoke_async("Thanks again.")
        stored = await read_messages(hf)
        assert [one["content"] for one in stored[1:]] == [one["content"] for one in agent.messages[1:]]
        assert "erased" in stored[0]["content"][0]["text"]
        assert len(caplog.records) == 1, "the program is warned once"
        assert "its content is erased instead" in caplog.text


async def test_a_prompt_is_not_made_from_the_old_content_of_a_message_that_cannot_be_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with holdfast.open(MEMORY) as hf:
        sessions = await HoldfastSessionManager(hf, "s", user_id="ada").load()
        model = ScriptedModel([say("Hello."), say("Yes."), say("No.")])
        manager = HoldfastConversationManager(sessions, budget=2_000)
        agent = make_agent(model, session_manager=sessions, conversation_manager=manager)
        await agent.invoke_async(f"My card is {SECRET}.")
        agent.messages += make_filler(1_002)[1:]
        await agent.invoke_async("Go on.")
        changed: Any = {**agent.messages[0], "content": say("My card is #.")}
        agent.messages[0] = changed
        await agent.hooks.invoke_callbacks_async(MessageUpdatedEvent(agent, changed["tracking_id"], changed))
        await agent.invoke_async("And now?")
        assert SECRET in str(model.calls[1])
        assert "My card is #." in str(model.calls[2])
        assert SECRET not in str(model.calls[2])
        assert "the log keeps its old content" in caplog.text
        assert len(await read_messages(hf)) == len(agent.messages)


async def test_a_redaction_that_failed_is_written_by_the_next_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
        agent = await open_agent(hf, [[redact("[redacted]"), {"text": "I cannot."}], say("Bye.")])
        failing = fail_once(monkeypatch, "replace")
        with pytest.raises(HoldfastError):
            await agent.invoke_async(f"My card is {SECRET}.")
        assert failing
        await agent.invoke_async("Thanks.")
        assert find_traces(tmp_path) == []
        assert await read_messages(hf) == agent.messages


def fail_once(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Make the next call of a method of sessions fail. Return a list that then has the method's name."""
    method = getattr(holdfast.SessionHandle, name)
    failed: list[str] = []

    async def fail(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not failed:
            failed.append(name)
            raise HoldfastError("the database is full")
        return await method(self, *args, **kwargs)

    monkeypatch.setattr(holdfast.SessionHandle, name, fail)
    return failed


async def test_a_message_whose_write_failed_is_written_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with holdfast.open(MEMORY) as hf:
        agent = await open_agent(hf, [say("One."), say("Two.")])
        await agent.invoke_async("First.")
        fail_once(monkeypatch, "append")
        with pytest.raises(HoldfastError, match="full"):
            await agent.invoke_async("Second.")
        await agent.invoke_async("Third.")
        assert len(agent.messages) == 5
        assert await read_messages(hf) == agent.messages


# -- several agents, users and processes ----------------------------------------------


async def test_agents_of_a_session_have_their_own_logs() -> None:
    async with holdfast.open(MEMORY) as hf:
        sessions = await HoldfastSessionManager(hf, "s", user_id="ada").load("default", "planner", "coder")
        agents = [
            make_agent(play_orders(10, start), session_manager=sessions, agent_id=agent_id)
            for agent_id, start in ((None, 0), ("planner", 100), ("coder", 200))
        ]

        async def work(agent: Agent, start: int) -> None:
            for order in range(start, start + 10):
                await agent.invoke_async(f"Where is order {order}?")

        await asyncio.gather(*(work(agent, at * 100) for at, agent in enumerate(agents)))
        for agent, name in zip(agents, ("s", "s:planner", "s:coder"), strict=True):
            assert (await open_agent(hf, agent_id=agent.agent_id)).messages == agent.messages
            assert len(await (await hf.get(name, user_id="ada")).messages()) == 40
        with pytest.raises(SessionException, match="must be unique"):
            make_agent(session_manager=sessions, agent_id="coder")


async def test_a_session_is_deleted_with_all_agents() -> None:
    async with holdfast.open(MEMORY) as hf:
        for agent_id in ("default", "planner"):
            await (await open_agent(hf, [say("Hi.")], agent_id=agent_id)).invoke_async("Hello.")
        await HoldfastSessionManager(hf, "s", user_id="ada").delete()
        assert (await hf.sessions()).sessions == ()
        await HoldfastSessionManager(hf, "s", user_id="ada").delete()


async def test_logs_with_the_same_name_are_not_mixed_up() -> None:
    async with holdfast.open(MEMORY) as hf:
        await (await open_agent(hf, [say("Hi.")], agent_id="planner")).invoke_async("Hello.")
        with pytest.raises(SessionException, match="agent 'planner' in session 's'"):
            await open_agent(hf, session_id="s:planner")


async def test_users_do_not_share_sessions() -> None:
    async with holdfast.open(MEMORY) as hf:
        await (await open_agent(hf, [say("Hi.")])).invoke_async("My secret.")
        sessions = await HoldfastSessionManager(hf, "s", user_id="bob").load()
        assert make_agent(session_manager=sessions).messages == []


async def test_an_agent_notices_that_another_process_has_written() -> None:
    async with holdfast.open(MEMORY) as hf:
        replies = [say("One."), say("Two."), say("Three.")]
        first, second = await open_agent(hf, replies), await open_agent(hf, replies)
        await first.invoke_async("First.")
        with pytest.raises(SessionException, match="create the agent again"):
            await second.invoke_async("Second.")
        third = await open_agent(hf, replies)
        await third.invoke_async("Third.")
        with pytest.raises(SessionException, match="create the agent again"):
            await first.invoke_async("Fourth.")
        assert await read_messages(hf) == third.messages


async def test_notes_pins_and_erasures_of_other_programs_do_not_disturb_an_agent() -> None:
    async with holdfast.open(MEMORY) as hf:
        sessions = await HoldfastSessionManager(hf, "s", user_id="ada").load()
        model = play_orders(9)
        manager = HoldfastConversationManager(sessions, budget=700)
        agent = make_agent(model, session_manager=sessions, conversation_manager=manager)
        session: Any = None
        for order in range(9):
            if session is not None:
                await session.append(note={"seen": order})
                await session.annotate(0, importance=order / 10)
            if order == 6:
                await hf.erase(session.ref, 2)
            await agent.invoke_async(f"Where is order {order}?")
            session = await hf.get("s", user_id="ada")
        assert len(await read_messages(hf)) == len(agent.messages)
        for prompt in model.calls:
            check_prompt(prompt)


async def test_a_cancelled_invocation_leaves_the_log_consistent() -> None:
    async with holdfast.open(MEMORY) as hf:
        for waits in range(0, 120, 4):
            agent = await open_agent(hf, play_orders(1, waits), session_id=f"s{waits}")
            running = asyncio.create_task(agent.invoke_async(f"Where is order {waits}?"))
            for _ in range(waits):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            agent.model.replies = [say("Done.")]  # type: ignore[attr-defined]
            await agent.invoke_async("Go on.")
            assert await read_messages(hf, f"s{waits}") == agent.messages


async def test_sessions_of_other_programs_are_continued() -> None:
    calls = [
        {"id": f"c{at}", "type": "function", "function": {"name": "find", "arguments": '{"order": 1}'}}
        for at in range(2)
    ]
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session("s", user_id="ada")
        await session.append(
            [
                {"role": "user", "content": [{"type": "text", "text": "See:"}, make_image_part()]},
                {"role": "assistant", "content": "Wait.", "tool_calls": calls},
                {"role": "tool", "tool_call_id": "c0", "content": "Here."},
                {"role": "tool", "tool_call_id": "c1", "content": ""},
                {"role": "assistant", "content": "Found."},
            ],
            note={"any": "note"},
        )
        agent = await open_agent(hf, [say("Bye.")])
        roles = [one["role"] for one in agent.messages]
        assert roles == ["user", "assistant", "user", "assistant"]
        assert agent.messages[0]["content"][1] == {"image": {"format": "png", "source": {"bytes": IMAGE[:3000]}}}
        assert agent.messages[1]["content"][1]["toolUse"] == {"toolUseId": "c0", "name": "find", "input": {"order": 1}}
        assert [block["toolResult"]["toolUseId"] for block in agent.messages[2]["content"]] == ["c0", "c1"]
        await agent.invoke_async("Thanks.")
        again = await read_messages(hf)
        assert [one["content"] for one in again] == [one["content"] for one in agent.messages]


def make_image_part() -> Any:
    import base64

    return {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(IMAGE[:3000]).decode()},
    }


# -- event loops -------------------------------------------------------------------------


async def test_a_note_between_results_of_another_program_loses_none() -> None:
    calls = [{"id": f"c{at}", "type": "function", "function": {"name": "find", "arguments": "{}"}} for at in range(2)]
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session("s", user_id="ada")
        await session.append(
            [{"role": "user", "content": "Find both."}, {"role": "assistant", "content": "", "tool_calls": calls}]
        )
        await session.append({"role": "tool", "tool_call_id": "c0", "content": "First."}, note={"any": "note"})
        await session.append({"role": "tool", "tool_call_id": "c1", "content": "Second."})
        sessions = await HoldfastSessionManager(hf, "s", user_id="ada").load()
        model = ScriptedModel([say("Done.")])
        manager = HoldfastConversationManager(sessions)
        await make_agent(model, session_manager=sessions, conversation_manager=manager).invoke_async(None)
        check_prompt(model.calls[0])
        assert [block["toolResult"]["content"] for block in model.calls[0][-1]["content"]] == [
            say("First."),
            say("Second."),
        ]


async def test_an_open_holdfast_must_be_loaded_first() -> None:
    async with holdfast.open(MEMORY) as hf:
        sessions = HoldfastSessionManager(hf, "s")
        with pytest.raises(TypeError, match=r"load\(agent_id\)"):
            make_agent(session_manager=sessions)
        await sessions.load()
        agent = make_agent(session_manager=sessions)
        with pytest.raises(TypeError, match="Portal"):
            sessions.append_message({"role": "user", "content": say("Hi.")}, agent)


async def test_an_open_holdfast_is_refused_in_another_event_loop() -> None:
    async with holdfast.open(MEMORY) as hf:
        agent = await open_agent(hf, [say("Hi.")])
        with pytest.raises(WrongEventLoop):
            await asyncio.to_thread(agent, "Hello.")


def test_a_new_agent_is_stored_at_once_with_a_portal() -> None:
    with holdfast.Portal(MEMORY) as portal:
        sessions = HoldfastSessionManager(portal, "s", user_id="ada")
        make_agent(session_manager=sessions, messages=[{"role": "user", "content": say("Hello.")}])
        assert len(portal.call(read_messages, portal.hf)) == 1


def test_the_synchronous_methods_work_with_a_portal(tmp_path: Path) -> None:
    with holdfast.Portal(f"sqlite:///{tmp_path}/chat.db") as portal:
        sessions = HoldfastSessionManager(portal, "s", user_id="ada")
        agent = make_agent(session_manager=sessions)
        with pytest.raises(SessionException, match="No message"):
            sessions.redact_latest_message({"role": "user", "content": say("#")}, agent)
        sessions.append_message({"role": "user", "content": say(SECRET)}, agent)
        agent.state.set("key", "value")
        sessions.sync_agent(agent)
        sessions.redact_latest_message({"role": "user", "content": say("#")}, agent)
        assert find_traces(tmp_path) == []
        again = make_agent(session_manager=HoldfastSessionManager(portal, "s", user_id="ada"))
        assert [one["content"] for one in again.messages] == [say("#")]
        assert again.state.get("key") == "value"


async def test_a_session_that_was_never_used_is_not_created() -> None:
    async with holdfast.open(MEMORY) as hf:
        await open_agent(hf)
        with pytest.raises(NotFound):
            await hf.get("s", user_id="ada")


# -- graphs and swarms -------------------------------------------------------------------


def make_graph(sessions: HoldfastSessionManager, replies: dict[str, Any]) -> Any:
    builder = GraphBuilder()
    for name, given in replies.items():
        builder.add_node(make_agent(ScriptedModel(given), name=name, agent_id=name), name)
    names = list(replies)
    for before, after in itertools.pairwise(names):
        builder.add_edge(before, after)
    builder.set_entry_point(names[0])
    builder.set_graph_id("team")
    builder.set_max_node_executions(9)
    builder.set_session_manager(sessions)
    return builder.build()


CRASHING = """
import asyncio, os, signal, sys
import holdfast
from holdfast.adapters.strands import HoldfastSessionManager
from tests.adapters.test_strands_sessions import make_graph, say

async def main():
    async with holdfast.open(sys.argv[1]) as hf:
        graph = make_graph(HoldfastSessionManager(hf, "s"), {"plan": [say("A plan.")], "code": []})
        graph.nodes["code"].executor.add_hook(lambda event: os.kill(os.getpid(), signal.SIGKILL), BeforeModelCallEvent)
        await graph.invoke_async("Build it.")

from strands.hooks import BeforeModelCallEvent
asyncio.run(main())
"""


async def test_a_graph_continues_after_the_process_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    ended = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", CRASHING, url], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    async with holdfast.open(url) as hf:
        again = make_graph(HoldfastSessionManager(hf, "s"), {"plan": [], "code": [say("Code.")]})
        result = await again.invoke_async("Build it.")
        assert result.status.value == "completed"
        assert str(result.results["code"].result).strip() == "Code."


def test_a_graph_is_stored_without_await() -> None:
    with holdfast.Portal(MEMORY) as portal:
        replies = {"plan": [say("A plan.")], "code": [ValueError("broken")]}
        with pytest.raises(ValueError, match="broken"):
            make_graph(HoldfastSessionManager(portal, "s"), replies)("Build it.")
        again = make_graph(HoldfastSessionManager(portal, "s"), {"plan": [], "code": []})
        again.session_manager.initialize_multi_agent(again)
        assert [node.node_id for node in again.state.completed_nodes] == ["plan"]
        again.session_manager.sync_multi_agent(again)


async def test_parallel_nodes_never_store_an_older_state(monkeypatch: pytest.MonkeyPatch) -> None:
    async with holdfast.open(MEMORY) as hf:
        sessions = HoldfastSessionManager(hf, "s")
        states = iter(range(20))
        source: Any = SimpleNamespace(id="team", serialize_state=lambda: {"number": next(states)})
        put, began = holdfast.Records.put, []

        async def wait_and_put(self: Any, key: str, value: Any, **options: Any) -> Any:
            began.append(value)
            if len(began) == 1:
                for _ in range(200):
                    await asyncio.sleep(0)
            return await put(self, key, value, **options)

        monkeypatch.setattr(holdfast.Records, "put", wait_and_put)
        event: Any = SimpleNamespace(source=source)
        await asyncio.gather(*(sessions._store_orchestrator(event) for _ in range(5)))  # noqa: SLF001
        record = await (await hf.get("s")).records(("strands", "multi_agents")).get("team")
        assert record is not None
        assert record.value == {"number": 4}


async def test_a_swarm_is_stored() -> None:
    def make(sessions: HoldfastSessionManager, replies: Any) -> Swarm:
        agent = make_agent(ScriptedModel(replies), name="solo", agent_id="solo")
        return Swarm([agent], session_manager=sessions, id="swarm")

    async with holdfast.open(MEMORY) as hf:
        swarm = make(HoldfastSessionManager(hf, "s"), [ValueError("broken")])
        result = await swarm.invoke_async("Do it.")
        assert result.status.value == "failed"
        again = make(HoldfastSessionManager(hf, "s"), [say("Done.")])
        result = await again.invoke_async("Do it.")
        assert result.status.value == "completed"
