"""`holdfast chat`: turns, the budget display, commands, Ctrl-C, and failing models."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import IO, Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.testing import Gate, Reply, ScriptedUpstream

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


def test_stored_and_streamed_text_cannot_control_the_terminal() -> None:
    pieces = ["a\x1b[2J", "b\r", "\nc\u202e"]
    chunks = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in pieces]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    with ScriptedUpstream([Reply(chunks=[*chunks, end])]).in_thread() as upstream:
        result = chat(say="one\n/history\n/context\n", env=upstream_environment(upstream))
    assert "a\\x1b[2Jb\nc\\u202e\n" in result.stdout
    assert not {"\x1b", "\u202e", "\r"} & set(result.stdout)


# -- failures ----------------------------------------------------------------------


def test_interrupted_reply_is_kept() -> None:
    with ScriptedUpstream([Reply(text="One two three", cut_after=3), "Four."]).in_thread() as upstream:
        result = chat("--session", "s", say="Count\nGo on\n", env=upstream_environment(upstream))
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert [one["role"] for one in export_messages("s")] == ["user", "assistant", "user", "assistant"]
    assert export_messages("s")[1]["metadata"]["interrupted"] is True


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
