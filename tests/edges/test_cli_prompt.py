"""`holdfast prompt`: the messages of a prompt, as text and as a provider's request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from holdfast import from_config
from holdfast.cli import commands
from tests.edges.cli_kit import AGENT_CONFIG, CONTROLS


@pytest.fixture
def trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """Create a session of a configured agent in `holdfast.db`. Return the prompt of each turn as it was sent."""
    monkeypatch.chdir(tmp_path)
    Path("holdfast.yaml").write_text(AGENT_CONFIG, encoding="utf-8")
    sent: list[list[dict[str, Any]]] = []

    async def talk() -> None:
        async with from_config() as hf:
            session = await hf.session("trip", user_id="ada", agent="planner", system="You help with boats.")
            for n in range(20):
                words = f"What about harbour number {n} and its {n * 7} boats? " * 2
                async with session.turn(CONTROLS if n == 2 else words) as turn:
                    sent.append(list(turn.messages))
                    call = {
                        "id": f"c{n}",
                        "type": "function",
                        "function": {"name": "find", "arguments": f'{{"n": {n}}}'},
                    }
                    turn.add({"role": "assistant", "content": None, "tool_calls": [call]})
                    turn.add({"role": "tool", "tool_call_id": f"c{n}", "content": f"harbour {n}\nis open"})
                    turn.add("That is fine: a boat with a large sail takes you there in an afternoon. " * 2)

    anyio.run(talk)
    return sent


def run_prompt(*args: str) -> Result:
    return CliRunner().invoke(commands, ["prompt", "trip", *args], prog_name="holdfast")


def get_output(*args: str) -> str:
    result = run_prompt(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_each_message_of_the_sent_prompt_is_printed(trip: list[list[dict[str, Any]]]) -> None:
    """With its section, the numbers in the log and its whole text, also of a digest; stored text cannot control the terminal."""
    result = run_prompt("15")
    assert (result.exit_code, result.stderr) == (0, "")
    first, *lines = result.stdout.splitlines()
    assert first.startswith("the last prompt of turn 15: ")
    assert "digest" in first
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert len(headings) == len(trip[15])
    assert headings[0].startswith("system  system, ")
    assert headings[-1].startswith("user  current, message 60, ")
    assert any(" digest, messages " in heading for heading in headings)
    for message in trip[15]:
        for line in str(message["content"] or "").splitlines():
            assert line.strip().replace("\x1b", "\\x1b").replace("\u202e", "\\u202e") in result.stdout
    early = get_output("2")
    assert '        -> find {"n": 1}\n' in early
    assert "        <- find: harbour 1\n           is open\n" in early
    assert "\x1b" not in early
    assert "\u202e" not in early


@pytest.mark.usefixtures("trip")
def test_the_prompt_of_other_settings_is_printed() -> None:
    """`next` is the default; nothing is stored."""
    assert get_output().startswith("the next prompt: ")
    assert get_output("next") == get_output()
    large = get_output("--budget", "50000", "--strategy", "token_window")
    assert "token_window" in large.splitlines()[0]
    assert large.count("What about harbour number") > get_output().count("What about harbour number")


def test_the_request_of_a_provider_is_json(trip: list[list[dict[str, Any]]]) -> None:
    """It has the messages that were sent, and --json has everything that is known of the prompt."""
    request = json.loads(get_output("15", "--format", "openai"))
    assert request["messages"] == trip[15]
    assert json.loads(get_output("15", "--format", "anthropic"))["system"]
    view = json.loads(get_output("15.0", "--json"))
    assert (view["id"], view["exact"], view["request"]) == ("15.0", True, None)


@pytest.mark.usefixtures("trip")
@pytest.mark.parametrize(
    ("args", "says"), [(("99",), "turn 99"), (("1.x",), "call"), (("next", "--budget", "0"), "--budget")]
)
def test_what_does_not_exist_is_named(args: tuple[str, ...], says: str) -> None:
    """An error in one line."""
    result = run_prompt(*args)
    assert result.exit_code != 0
    assert says in result.stderr
