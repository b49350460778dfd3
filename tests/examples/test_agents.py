"""Examples 3 to 6: programs with agents of their own, by the `offline` model and by one that decides for itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.tools.python.process import detect_sandbox
from tests.examples.gallery import README, Example
from tests.markers import strip_markers

HELD = pytest.mark.skipif(bool(detect_sandbox().missing), reason=f"not held in here: {detect_sandbox().missing}")
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


# -- the voice agent ---------------------------------------------------------------


def test_the_voice_agent(tmp_path: Path) -> None:
    """What was heard is what the model sees; each record says how it came; the next call knows of this one."""
    example = Example("voice_agent/call.py", tmp_path)
    output = example.run()
    example.check_output(output)
    made = [int(number) for number in re.findall(r"(\d+) characters (?:were )?generated", output)]
    assert len(made) == 2
    assert made[0] == made[1] > 30


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
