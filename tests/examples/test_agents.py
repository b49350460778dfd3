"""Examples 3 to 6: programs with agents of their own, by the `offline` model and by one that decides for itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Reply, ScriptedUpstream
from holdfast.tools.python.process import detect_sandbox
from tests.examples.gallery import README, Example
from tests.markers import strip_markers

HELD = pytest.mark.skipif(bool(detect_sandbox().missing), reason=f"not held in here: {detect_sandbox().missing}")
KEY = "sk-real-0123456789abcdef"


def reply_to(body: dict[str, Any]) -> tuple[str, str]:
    """Role and words of the last message of a request."""
    last = body["messages"][-1]
    return last["role"], str(last["content"])


def names(body: dict[str, Any]) -> set[str]:
    """The tools that a request offers."""
    return {tool["function"]["name"] for tool in body.get("tools") or ()}


# -- the support bot ---------------------------------------------------------------


def test_the_support_bot(tmp_path: Path) -> None:
    """The second conversation recalls what the first one said; another customer's does not."""
    example = Example("support_bot/bot.py", tmp_path)
    output = example.run()
    example.check_output(output)
    ada, bob = output.split("== Tuesday, Ada")[1].split("== Tuesday, Bob")
    assert ada.count("Recalled for me") == 2
    for hers in ("Recalled for me", 'peanuts"', "7461", "premium"):
        assert hers in ada
        assert hers not in bob
    # Once more: what is remembered twice is one memory.
    assert '"outcome":"new"' in output
    assert '"outcome":"merged"' in example.run()
    (command,) = [part for part in README.split("`") if part.endswith("holdfast memories list --user ada")]
    (memory,) = json.loads(example.shell(f"{command} --json"))
    assert memory["content"] == "The user is allergic to peanuts"
    assert len({source["session_id"] for source in memory["sources"]}) > 1


def test_the_support_bot_with_a_real_model(tmp_path: Path) -> None:
    """One that remembers what it is asked to remember, and answers by what it is reminded of."""

    def model(body: dict[str, Any]) -> Reply | str:
        role, text = reply_to(body)
        if text == "Please remember that I am allergic to peanuts.":
            assert "memory" in names(body)
            return Reply(tool_calls=[("memory", {"action": "remember", "content": "The user is allergic to peanuts"})])
        if role == "tool":
            return "Noted."
        recalled = [one["content"] for one in body["messages"] if str(one["content"]).startswith("[recalled from")]
        return f"I know: {recalled[-1]}" if recalled else "I know nothing of you."

    with ScriptedUpstream(model).in_thread() as upstream:
        output = Example("support_bot/bot.py", tmp_path).run(OPENAI_BASE_URL=upstream.url, OPENAI_API_KEY=KEY)
    ada, bob = output.split("== Tuesday, Ada")[1].split("== Tuesday, Bob")
    assert '"text":"The user is allergic to peanuts"' in ada
    assert '"text":"My parcel 7461 arrived with a broken lid."' in ada
    assert bob.count("I know nothing of you.") == 2


# -- the coding agent ---------------------------------------------------------------


@HELD
def test_the_coding_agent(tmp_path: Path) -> None:
    """A failure that the model reads, its repair, a function that is still there, and a file that stays."""
    example = Example("coding_agent/agent.py", tmp_path)
    output = example.run()
    example.check_output(output)
    kept = output.partition(", by python:\n")[2]
    namespace: dict[str, Any] = {}
    exec(kept, namespace)
    assert namespace["slug"]("Hello, World") == "hello-world"


@HELD
def test_the_coding_agent_with_a_real_model(tmp_path: Path) -> None:
    """One that tries again in the same turn when it reads what went wrong."""

    def model(body: dict[str, Any]) -> Reply | str:
        role, text = reply_to(body)
        assert names(body) == {"python"}
        if role == "user" and text.startswith("Write slug"):
            return Reply(tool_calls=[("python", {"code": "1 / 0"})])
        if "ZeroDivisionError" in text:
            return Reply(tool_calls=[("python", {"code": "open('slug.py', 'w').write('x = 1')"})])
        return "Done."

    with ScriptedUpstream(model).in_thread() as upstream:
        output = Example("coding_agent/agent.py", tmp_path).run(OPENAI_BASE_URL=upstream.url, OPENAI_API_KEY=KEY)
    first = output.split("== Mend")[0]
    assert "python: error; exception ZeroDivisionError" in first
    assert "python: success; result 5; files slug.py\nDone." in first
    assert output.endswith("slug.py, version 0, by python:\nx = 1\n")


# -- the voice agent ---------------------------------------------------------------


def test_the_voice_agent(tmp_path: Path) -> None:
    """What was heard is what the model sees; each record says how it came; the next call knows of this one."""
    example = Example("voice_agent/call.py", tmp_path)
    output = example.run()
    example.check_output(output)
    made = [int(number) for number in re.findall(r"(\d+) characters (?:were )?generated", output)]
    assert len(made) == 2
    assert made[0] == made[1] > 30


def test_the_voice_agent_with_a_real_model(tmp_path: Path) -> None:
    """The model of the second turn is sent thirty characters of its first reply, and what was said in the silence."""
    first = "Certainly. I have a table by the window at seven, or at eight."
    with ScriptedUpstream([first, "Eight it is.", "They booked a table for eight."]).in_thread() as upstream:
        output = Example("voice_agent/call.py", tmp_path).run(OPENAI_BASE_URL=upstream.url, OPENAI_API_KEY=KEY)
    sent = [message["content"] for message in upstream.requests[1].body["messages"] if message["role"] == "assistant"]
    assert sent == ["Good morning, how can I help you?", first[:30], "Are you still there?"]
    assert "They booked a table for eight." in output.partition("The next call begins with:")[2]


# -- the team ----------------------------------------------------------------------


def test_the_team(tmp_path: Path) -> None:
    """The conversation changes hands and comes back; each agent sees the other's work as the other's."""
    example = Example("team/team.py", tmp_path)
    output = example.run()
    example.check_output(output)
    desk, expert = strip_markers(output).split("What desk would be sent:")[1].split("What expert would be sent:")
    theirs, own = "[agent expert's tool look_up returned]: kettle: 12 euro, in stock", "tool: kettle: 12 euro, in stock"
    assert (theirs in desk, own in desk) == (True, False)
    assert (theirs in expert, own in expert) == (False, True)
    called = re.search(r"tool \(in (\S+)\)", output)
    assert called is not None
    assert f"  {called[1]}: translator, closed, 2 messages" in output
    assert "state found: " in output
    assert output.rstrip().endswith('"kettle: 12 euro, in stock"')


def test_the_team_with_a_real_model(tmp_path: Path) -> None:
    """Agents that decide for themselves: one hands over, one looks up and answers, one is called like a tool."""

    def model(body: dict[str, Any]) -> Reply | str:
        role, text = reply_to(body)
        system = str(body["messages"][0]["content"])
        if system.startswith("Translate"):
            return "Der Wasserkocher kostet 12 Euro."
        if system.startswith("You know the catalogue"):
            if "look_up" in names(body) and role != "tool":
                return Reply(tool_calls=[("look_up", {"product": "kettle"})])
            return f"Found: {text}"
        if text == "Tell me the price in German." and "translator" in names(body):
            return Reply(tool_calls=[("translator", {"request": "The kettle costs 12 euro."})])
        if text == "What does the kettle cost?":
            return Reply(tool_calls=[("transfer_to_agent", {"agent_name": "expert"})])
        return text

    with ScriptedUpstream(model).in_thread() as upstream:
        output = Example("team/team.py", tmp_path).run(OPENAI_BASE_URL=upstream.url, OPENAI_API_KEY=KEY)
    assert "turn 0 expert: assistant calls look_up" in output
    assert "Found: kettle: 12 euro, in stock" in output
