"""`holdfast chat`: turns, the budget display, commands, Ctrl-C, and failing models."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.edges.server import Process

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def chat(*args: str, say: str, **more: Any) -> Result:
    return CliRunner().invoke(commands, ["chat", *args], prog_name="holdfast", input=say, **more)


def upstream_environment(upstream: ScriptedUpstream) -> dict[str, str]:
    return {"OPENAI_BASE_URL": upstream.url, "OPENAI_API_KEY": "sk-test"}


def export_messages(session_id: str, *args: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(commands, ["sessions", "export", session_id, *args])
    assert result.exit_code == 0, result.stderr
    messages: list[dict[str, Any]] = json.loads(result.stdout)["messages"]
    return messages


# -- turns -----------------------------------------------------------------------


def test_existing_session_is_continued() -> None:
    assert chat("--session", "s", "--user", "ada", say="The word is kelp.\n").exit_code == 0
    result = chat("--session", "s", say="what do you see?\n")
    assert result.stdout.startswith("session s of user ada, 2 messages so far; the built-in offline model")
    assert '1. user "The word is kelp."' in result.stdout


def test_session_id_of_two_users_is_ambiguous() -> None:
    for user in ("ada", "bob"):
        chat("--session", "s", "--user", user, say="Hi\n")
    result = chat("--session", "s", say="Hi\n")
    assert result.exit_code == 1
    assert "--user" in result.stderr


def test_model_and_agent_options_are_used() -> None:
    Path("holdfast.yaml").write_text(
        "llms: {small: {model: tiny, base_url: '${UP}'}}\nagents: {guide: {llm: small, instruction: Guide them.}}\n"
    )
    with ScriptedUpstream(lambda body: f"I am {body['model']}.").in_thread() as upstream:
        guided = chat("--agent", "guide", say="Hi\n", env={"UP": upstream.url})
        large = chat("--agent", "guide", "--model", "large", say="Hi\n", env={"UP": upstream.url})
    assert "I am tiny." in guided.stdout
    assert "I am large." in large.stdout
    assert upstream.requests[0].body["messages"][0] == {"role": "system", "content": "Guide them."}
    wrong = chat("--agent", "guard", say="Hi\n", env={"UP": "http://127.0.0.1:9"})
    assert wrong.exit_code == 2
    assert "known: guide" in wrong.stderr


def test_stored_and_streamed_text_cannot_control_the_terminal() -> None:
    pieces = ["a\x1b[2J", "b\r", "\nc\u202e"]
    chunks = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in pieces]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    with ScriptedUpstream([Reply(chunks=[*chunks, end])]).in_thread() as upstream:
        result = chat(say="one\n/history\n/context\n", env=upstream_environment(upstream))
    assert "a\\x1b[2Jb\nc\\u202e\n" in result.stdout
    assert not {"\x1b", "\u202e", "\r"} & set(result.stdout)


def test_tool_calls_of_the_model_are_shown() -> None:
    reply = Reply(text="Let me look.", tool_calls=[("find_order", {"order": "A-1733"})])
    with ScriptedUpstream([reply]).in_thread() as upstream:
        result = chat(say="Where is it?\n", env=upstream_environment(upstream))
    assert 'Let me look.\n-> find_order {"order": "A-1733"}\n[' in result.stdout


# -- failures ----------------------------------------------------------------------


def test_failing_model_is_one_error_line_and_the_chat_continues() -> None:
    script: list[Reply | str] = [Reply(status=400, error="no such \x1bmodel"), "Now it works."]
    with ScriptedUpstream(script).in_thread() as upstream:
        result = chat("--session", "s", say="Hi\nHi\n", env=upstream_environment(upstream))
    assert result.exit_code == 1, "a script has to know"
    (told,) = result.stderr.splitlines()
    assert told.startswith("Error: ")
    assert "no such \\x1bmodel" in told
    assert "your message is saved" in told
    assert "Now it works." in result.stdout
    assert [one["content"] for one in export_messages("s")] == ["Hi", "Now it works."], (
        "the same words again: a new try"
    )


def test_interrupted_reply_is_kept() -> None:
    with ScriptedUpstream([Reply(text="One two three", cut_after=3), "Four."]).in_thread() as upstream:
        result = chat("--session", "s", say="Count\nGo on\n", env=upstream_environment(upstream))
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert [one["role"] for one in export_messages("s")] == ["user", "assistant", "user", "assistant"]
    assert export_messages("s")[1]["metadata"]["interrupted"] is True


def test_invalid_utf8_input_is_still_sent() -> None:
    result = CliRunner().invoke(commands, ["chat", "--session", "s"], input=b"a\xffb\n")
    assert result.exit_code == 0, result.stderr
    assert export_messages("s")[0]["content"] == "a\ufffdb"


# -- commands ----------------------------------------------------------------------


# -- budget display --------------------------------------------------------------------


def test_evictions_are_reported_when_they_happen() -> None:
    Path("holdfast.yaml").write_text("context: {strategy: token_window, budget: 120}\n")
    with ScriptedUpstream(lambda body: "kelp " * 20).in_thread() as upstream:
        result = chat(say="".join(f"Question {at}\n" for at in range(6)), env=upstream_environment(upstream))
    bars = [line for line in result.stdout.splitlines() if line.startswith("[")]
    left = [line for line in result.stdout.splitlines() if line.startswith("  left: ")]
    assert len(bars) == 6
    assert all(" of 120 tokens" in one for one in bars)
    assert left
    assert len(left) == len(set(left)), "what left is told once"
    assert "left out" in left[0]


# -- Ctrl-C and terminals --------------------------------------------------------------


def start_chat(**more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "holdfast", "chat", "--session", "s"]
    return subprocess.Popen(command, text=True, bufsize=1, stderr=subprocess.PIPE, **more)


def read_until(stream: IO[str], text: str) -> None:
    seen = ""
    while text not in seen:
        piece = stream.read(1)
        assert piece, f"it ended before {text!r}: {seen!r}"
        seen += piece


@pytest.mark.skipif(sys.platform == "win32", reason="signals are of POSIX")
def test_ctrl_c_stops_the_reply_and_then_ends_the_chat() -> None:
    gate = Gate()
    script: list[Reply | str] = [Reply(text="One two three", hold=gate, hold_after=3), "Again."]
    with ScriptedUpstream(script).in_thread() as upstream:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with start_chat(env={**os.environ, **upstream_environment(upstream)}, **pipes) as talk:
            assert talk.stdin is not None
            assert talk.stdout is not None
            talk.stdin.write("Count\n")
            assert talk.stdout.readline().startswith("session s")
            read_until(talk.stdout, "two")
            talk.send_signal(signal.SIGINT)
            read_until(talk.stdout, "(stopped; the part that arrived is saved)\n")
            asyncio.run(upstream.until(lambda: upstream.requests[0].disconnected))
            gate.open()
            talk.stdin.write("And now?\n")
            read_until(talk.stdout, "Again.\n")
            assert talk.stdout.readline().startswith("[")
            talk.send_signal(signal.SIGINT)
            _, said = talk.communicate(timeout=60)
    assert talk.returncode == 130
    assert said == ""
    log = export_messages("s")
    assert [one["content"].strip() for one in log] == ["Count", "One two", "And now?", "Again."]
    assert log[1]["metadata"]["interrupted"] is True


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are of POSIX")
def test_terminal_shows_a_prompt_and_ctrl_d_ends_the_chat() -> None:
    terminal, end = os.openpty()
    with start_chat(stdin=end, stdout=end) as talk:
        os.close(end)
        seen = b""
        for awaited, answer in ((b"/help lists the commands.\r\n", b"Hello\n"), (b" tokens", b"\x04")):
            while awaited not in seen or not seen.endswith(b"you> "):
                seen += os.read(terminal, 1000)
            os.write(terminal, answer)
        _, said = talk.communicate(timeout=60)
    os.close(terminal)
    assert talk.returncode == 0
    assert said == ""
    assert b"You just said" in seen


# -- the configuration ---------------------------------------------------------------


@pytest.mark.parametrize("where", ["environment", "llms.default"])
def test_model_that_is_a_holdfast_server_is_reported(tmp_path: Path, where: str) -> None:
    """The server stores the conversation too, because the variable for its clients was set here."""
    with Process(f"sqlite:///{tmp_path}/server.db") as server:
        address = f"{server.url}/v1"
        if where == "environment":
            result = chat("--session", "s", say="Hi\n", env={"OPENAI_BASE_URL": address})
        else:
            Path("holdfast.yaml").write_text(f"llms: {{default: {{base_url: '{address}'}}}}")
            result = chat("--session", "s", say="Hi\n")
    assert result.exit_code == 0
    assert f"Warning: {address} is a Holdfast server: the conversation is stored there too" in result.stderr
    fix = (
        "unset OPENAI_BASE_URL, or set it to"
        if where == "environment"
        else "set base_url (llms.default), or OPENAI_BASE_URL, to"
    )
    assert f"To store it once, {fix} the address of the model." in result.stderr


def test_chat_uses_the_same_configuration_as_the_server() -> None:
    """Tools, artifact path and index path: a chat uses the same sessions as `holdfast serve`."""
    Path("holdfast.yaml").write_text(
        "artifacts: {tools: true}\n"
        "databases: {main: {driver: sqlite, path: folder/chat.db}}\n"
        "storage: {artifacts: {path: kept}, memory: {vector_provider: {type: chromem, chromem: {persist_path: found}}}}\n"
    )
    calls = Reply(tool_calls=[("save_artifact", {"name": "plan.txt", "content": "To Rome."})])
    with ScriptedUpstream([calls, "Saved."]).in_thread() as upstream:
        result = chat("--session", "s", say="Save the plan\n", env=upstream_environment(upstream))
    assert (result.exit_code, result.stderr) == (0, f"created the folder {Path('folder').absolute()}\n")
    assert "Saved." in result.stdout
    assert any(one.is_file() and one.read_bytes() == b"To Rome." for one in Path("kept").rglob("*"))
    assert [one.name for one in Path("folder").iterdir() if one.suffix == ".db"] == ["chat.db"], "no index beside it"
    assert Path("found/holdfast.index.db").exists()
