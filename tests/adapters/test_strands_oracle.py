"""Compare `HoldfastSessionManager` with Strands' own `FileSessionManager`: both must do the same in each scenario.

A scenario opens agents, each with a session manager of its own as in a new process, and returns what it observes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("strands", reason="Strands is not installed here: make adapters")

from pydantic import BaseModel
from strands import Agent, tool
from strands.agent.conversation_manager import SlidingWindowConversationManager, SummarizingConversationManager
from strands.hooks import BeforeInvocationEvent, BeforeToolCallEvent
from strands.session import FileSessionManager, SessionManager
from strands.types.exceptions import ContextWindowOverflowException, SessionException
from strands.types.tools import ToolContext

import holdfast
from holdfast.adapters.strands import HoldfastSessionManager
from tests.adapters.strands_kit import ScriptedModel, call_find, make_agent, play_orders
from tests.adapters.test_strands_sessions import make_graph, redact, say

Open = Callable[..., Agent]
"""Opens an agent with a new session manager: `open_agent(replies, **settings)`."""


def observe(agent: Agent) -> Any:
    """Return the messages and the state of an agent, without random ids and times."""
    messages = [{"role": one["role"], "content": one["content"]} for one in agent.messages]
    return json.loads(json.dumps([messages, agent.state.get()], default=repr))


def run_one_turn(open_agent: Open) -> Any:
    agent = open_agent([say("Hi.")])
    agent("Hello.")
    return observe(agent), observe(open_agent())


def restart_between_turns(open_agent: Open) -> Any:
    seen = []
    for order in range(4):
        agent = open_agent(play_orders(1, order).replies)
        agent(f"Where is order {order}?")
        seen.append((observe(agent), agent.model.calls))  # type: ignore[attr-defined]
    return seen


def call_tools_in_parallel(open_agent: Open) -> Any:
    agent = open_agent([[call_find(1), call_find(2), {"text": "Both."}], say("Done.")])
    agent("Find both.")
    return observe(open_agent())


def fail_in_a_tool(open_agent: Open) -> Any:
    @tool
    def fail(order: int) -> str:
        """Fail."""
        raise ValueError("broken")

    call = {"toolUse": {"toolUseId": "f", "name": "fail", "input": {"order": 1}}}
    open_agent([[call], say("Sorry.")], tools=[fail])("Find it.")
    return observe(open_agent())


def call_an_unknown_tool(open_agent: Open) -> Any:
    calls: list[Any] = [
        {"toolUse": {"toolUseId": "u", "name": name, "input": {}}} for name in ("unknown", "not a name!")
    ]
    open_agent([[calls[0]], [calls[1]], say("Sorry.")])("Find it.")
    return observe(open_agent())


def send_media(open_agent: Open) -> Any:
    image = {"image": {"format": "png", "source": {"bytes": bytes(5_000)}}}
    document = {"document": {"format": "pdf", "name": "offer", "source": {"bytes": b"%PDF"}}}
    open_agent([say("I see.")])([image, document, {"text": "See?"}, {"cachePoint": {"type": "default"}}])
    return observe(open_agent())


def change_state_in_a_tool(open_agent: Open) -> Any:
    @tool(context=True)
    def remember(key: str, tool_context: ToolContext) -> str:
        """Remember."""
        tool_context.agent.state.set(key, {"nested": [1, None, "ü"]})
        return "remembered"

    call = {"toolUse": {"toolUseId": "r", "name": "remember", "input": {"key": "k"}}}
    open_agent([[call], say("Done.")], tools=[remember], state={"first": 1})("Remember.")
    return observe(open_agent(state={"second": 2}))


def change_state_between_turns(open_agent: Open) -> Any:
    agent = open_agent([say("Hi."), say("Bye.")])
    agent("Hello.")
    agent.state.set("key", "value")
    between = observe(open_agent())
    agent("Bye.")
    return between, observe(open_agent())


def begin_with_messages(open_agent: Open) -> Any:
    given: Any = [{"role": "user", "content": say("Hello.")}, {"role": "assistant", "content": say("Hi.")}]
    open_agent(messages=given)
    again = open_agent([say("Bye.")], messages=[{"role": "user", "content": say("Ignored.")}])
    again("Bye.")
    return observe(again), observe(open_agent())


def redact_a_prompt(open_agent: Open) -> Any:
    agent = open_agent([say("Hi."), [redact("[redacted]"), {"text": "I cannot."}], say("Bye.")])
    for prompt in ("Hello.", "Something bad.", "Thanks."):
        agent(prompt)
    return observe(agent), observe(open_agent())


def redact_tool_results(open_agent: Open) -> Any:
    agent = open_agent([[call_find(1), call_find(2)], [redact("[redacted]"), {"text": "I cannot."}]])
    agent("Find both.")
    return observe(agent), observe(open_agent())


def repeat_a_prompt_after_an_error(open_agent: Open) -> Any:
    agent = open_agent([ValueError("broken"), say("Hi.")])
    with pytest.raises(ValueError, match="broken"):
        agent("Hello.")
    after_error = observe(open_agent())
    agent("Hello.")
    return after_error, observe(open_agent())


def resume_after_an_interrupt(open_agent: Open) -> Any:
    def ask(event: BeforeToolCallEvent) -> None:
        if event.tool_use["name"] == "find" and event.interrupt("approval", reason="May I?") != "yes":
            event.cancel_tool = "No."

    result = open_agent([[call_find(1), call_find(2)]], hooks=[ask])("Find both.")
    answers: Any = [
        {"interruptResponse": {"interruptId": one.id, "response": answer}}
        for one, answer in zip(result.interrupts or (), ("yes", "no"), strict=True)
    ]
    between = observe(open_agent())
    open_agent([say("Done.")], hooks=[ask])(answers)
    return between, observe(open_agent())


def continue_after_a_call_without_result(open_agent: Open) -> Any:
    given: Any = [{"role": "user", "content": say("Find it.")}, {"role": "assistant", "content": [call_find(1)]}]
    open_agent(messages=given)
    agent = open_agent([say("Done.")])
    agent("Go on.")
    return observe(agent), observe(open_agent())


def repair_calls_without_results(open_agent: Open) -> Any:
    result: Any = {"toolUseId": "stale", "status": "success", "content": say("?")}
    given: Any = [
        {"role": "user", "content": [{"toolResult": result}, {"text": "Find it."}]},
        {"role": "assistant", "content": [call_find(1), call_find(2)]},
        {"role": "user", "content": [{"toolResult": {**result, "toolUseId": "call_2"}}]},
        {"role": "assistant", "content": [call_find(3)]},
        {"role": "user", "content": say("Stop.")},
    ]
    open_agent(messages=given)
    agent = open_agent([say("Done.")])
    agent("Go on.")
    return observe(agent), agent.model.calls, observe(open_agent())  # type: ignore[attr-defined]


def restore_a_sliding_window(open_agent: Open) -> Any:
    seen = []
    for order in range(5):
        window = SlidingWindowConversationManager(window_size=6)
        agent = open_agent(play_orders(1, order).replies, conversation_manager=window)
        agent(f"Where is order {order}?")
        seen.append((observe(agent), window.removed_message_count))
    return seen


def restore_a_summary(open_agent: Open) -> Any:
    window = SummarizingConversationManager(summary_ratio=0.5, preserve_recent_messages=2)
    replies = [*play_orders(3).replies, ContextWindowOverflowException("long"), say("A summary."), say("Bye.")]
    agent = open_agent(replies, conversation_manager=window)
    for order in range(3):
        agent(f"Where is order {order}?")
    agent("Thanks.")
    again = SummarizingConversationManager()
    return observe(agent), observe(open_agent(conversation_manager=again)), again.removed_message_count


def share_a_session(open_agent: Open) -> Any:
    for agent_id in ("planner", "coder"):
        open_agent([say(f"I am {agent_id}.")], agent_id=agent_id, state={"name": agent_id})("Who are you?")
    return [observe(open_agent(agent_id=agent_id)) for agent_id in ("planner", "coder", "other")]


def use_an_id_twice(open_agent: Open) -> Any:
    agent = open_agent()
    with pytest.raises(SessionException, match="must be unique in a session"):
        make_agent(session_manager=agent._session_manager)  # noqa: SLF001
    return observe(agent)


def ask_for_structured_output(open_agent: Open) -> Any:
    class Order(BaseModel):
        """An order."""

        number: int

    call = {"toolUse": {"toolUseId": "o", "name": "Order", "input": {"number": 7}}}
    result = open_agent([[call]])("Which order?", structured_output_model=Order)
    return repr(result.structured_output), observe(open_agent())


def call_a_tool_directly(open_agent: Open) -> Any:
    agent = open_agent()
    agent.tool.find(order=3)
    again = observe(open_agent())
    random = agent.messages[1]["content"][0]["toolUse"]["toolUseId"]
    return json.loads(json.dumps(again).replace(random, "id"))


def cancel_in_a_hook(open_agent: Open) -> Any:
    def cancel(event: BeforeInvocationEvent) -> None:
        event.cancel = "Not now."

    open_agent(hooks=[cancel])("Hello.")
    return observe(open_agent())


def stop_a_reply(open_agent: Open) -> Any:
    def stop(event: BeforeToolCallEvent) -> None:
        event.agent.cancel()

    result = open_agent([[call_find(1)]], hooks=[stop])("Find it.")
    return result.stop_reason, observe(open_agent())


def run_a_graph(open_agent: Open) -> Any:
    seen = []
    for replies in ([say("A plan."), ValueError("broken")], [None, say("Code.")], [say("A plan."), say("Code.")]):
        sessions: Any = open_agent()._session_manager  # noqa: SLF001
        graph = make_graph(sessions, {"plan": replies[:1], "code": replies[1:]})
        try:
            result = graph("Build it.")
            seen.append((result.status.value, [node.node_id for node in result.execution_order]))
        except ValueError as exc:
            seen.append((str(exc), []))
    return seen


SCENARIOS = [
    run_one_turn,
    restart_between_turns,
    call_tools_in_parallel,
    fail_in_a_tool,
    call_an_unknown_tool,
    send_media,
    change_state_in_a_tool,
    change_state_between_turns,
    begin_with_messages,
    redact_a_prompt,
    redact_tool_results,
    repeat_a_prompt_after_an_error,
    resume_after_an_interrupt,
    continue_after_a_call_without_result,
    repair_calls_without_results,
    restore_a_sliding_window,
    restore_a_summary,
    share_a_session,
    use_an_id_twice,
    ask_for_structured_output,
    call_a_tool_directly,
    cancel_in_a_hook,
    stop_a_reply,
    run_a_graph,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_both_session_managers_do_the_same(scenario: Callable[[Open], Any], tmp_path: Path) -> None:
    def make_opener(make_sessions: Callable[[], SessionManager[Any]]) -> Open:
        def open_agent(replies: Any = (), **settings: Any) -> Agent:
            return make_agent(ScriptedModel(replies), session_manager=make_sessions(), **settings)

        return open_agent

    with holdfast.Portal("sqlite://:memory:") as portal:
        ours = scenario(make_opener(lambda: HoldfastSessionManager(portal, "s", user_id="ada")))
    theirs = scenario(make_opener(lambda: FileSessionManager("s", storage_dir=str(tmp_path))))
    assert ours == theirs
