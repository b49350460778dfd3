"""`holdfast watch`: what is printed while a session is written, in pipes and in a terminal."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli import commands
from holdfast.cli.terminal import sanitize
from holdfast.cli.watch import MAX_WAITING, EventPrinter
from holdfast.context.explain import BuildRecord, encode_record
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import Entry, ModelCall
from holdfast.sessions.session_events import MessageAppended, PromptSent, TurnEnded
from tests.edges.cli_kit import make_session, sessions, store
from tests.waits import block_until

pytestmark = pytest.mark.usefixtures("in_empty_folder")

EVIL = "\x1b[2J\u202eevil\x07 " + "x" * 1_000_000
CALL = {"id": "c1", "type": "function", "function": {"name": "find\x1b[2J", "arguments": '{"order":\n "A-1733"}'}}
TALK: dict[str, Any] = {
    "id": "talk",
    "user_id": "ada",
    "messages": [
        {"role": "user", "content": "Where is my order?\nIt is late.\nVery late.\nSo late.\nToo late."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"state":\n  "sent"}'},
        {"role": "assistant", "content": EVIL},
    ],
}


async def take_turn(text: str, reply: str, *, session_id: str = "talk", delete: bool = False) -> None:
    async with holdfast.open("sqlite:///holdfast.db") as hf:
        session = await hf.session(session_id, user_id="ada")
        async with session.turn(text) as turn:
            turn.add(reply)
        if delete:
            await hf.remove(session.ref)


@contextmanager
def run_watch(*args: str, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """Run `watch` in a process of its own, while the test writes to the session."""
    command = [sys.executable, "-m", "holdfast", "watch", *args, "--interval", "0.1"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80", "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def watch(*args: str) -> Result:
    """Run `watch` until the turn that it prints at the start; used for sessions that were deleted."""
    return CliRunner().invoke(commands, ["watch", *args], prog_name="holdfast")


def test_messages_calls_prompts_and_turns_are_printed_as_they_come() -> None:
    store(TALK)
    with run_watch("talk", "--turns", "1", "--last", "10") as process:
        head = read_line(process)
        assert head.startswith("session talk of user ada: active, 1 turn, 4 messages, ")
        lines = [read_line(process) for _ in range(9)]
        anyio.run(take_turn, "And now?", "Tomorrow.")
        rest, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    turn, first, second, third, call, reply, *_, ended = [line[10:].rstrip() for line in lines]
    assert (turn, ended) == ("turn 0", "turn 0 ended after 0 ms")
    assert first == "     0  user       Where is my order?"
    assert [second.strip(), third.strip()] == ["It is late.", "Very late. …"]
    assert call == r'   1-2  tool       find\x1b[2J {"order": "A-1733"} -> {"state": "sent"}'
    assert reply.startswith(r"     3  assistant  \x1b[2J\u202eevil\x07 ")
    new = [line[10:] for line in rest.splitlines()]
    assert [new[0], new[1], new[3]] == ["turn 1", "     4  user       And now?", "     5  assistant  Tomorrow."]
    assert new[2].startswith("        prompt     4 messages, digest, budget ")
    assert new[4].startswith("turn 1 ended after ")
    text = "".join([head, *lines, rest])
    assert sanitize(text) == text
    assert len(text) < 2_000


def test_json_is_one_event_per_line_until_the_session_is_deleted() -> None:
    store(make_session("Hi", name="talk") | {"user_id": "ada"})
    with run_watch("talk", "--json", "--user", "ada", "--last", "1") as process:
        started = [json.loads(read_line(process)) for _ in range(4)]
        anyio.run(lambda: take_turn("And now?", EVIL, delete=True))
        rest, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert [one["event"] for one in started] == ["session", "turn_started", "message", "turn_ended"]
    assert started[0]["session"]["id"] == "talk"
    assert started[2]["message"]["content"] == "Hi"
    events = [json.loads(line) for line in rest.splitlines()]
    assert events[-1] == {"event": "session_deleted"}
    assert "\x1b" not in rest
    assert "\u202e" not in rest


def test_prompts_in_json_have_the_figures_of_the_call() -> None:
    store(make_session("Hi", name="talk") | {"user_id": "ada"})
    anyio.run(take_turn, "And now?", "Later.")
    with run_watch("talk", "--json", "--last", "2") as process:
        events = [json.loads(read_line(process)) for _ in range(6)]
    (prompt,) = [one for one in events if one["event"] == "prompt"]
    assert prompt.keys() == {
        "event", "turn_id", "timestamp", "model", "through", "prompt_tokens", "cached_tokens", "completion_tokens",
        "strategy", "budget", "messages", "frontier",
    }  # fmt: skip
    assert (prompt["strategy"], prompt["messages"], prompt["through"]) == ("digest", 2, 1)


def test_call_without_result_is_printed_when_the_command_is_interrupted() -> None:
    store({**TALK, "messages": TALK["messages"][:2]})
    with run_watch("talk") as process:
        lines = [read_line(process) for _ in range(5)]
        assert not any("find" in line for line in lines)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")
    assert rest[10:].rstrip() == r'     1  tool       find\x1b[2J {"order": "A-1733"} -> (no result)'


def test_terminal_shows_a_status_line_and_cuts_long_lines() -> None:
    store(TALK)
    read_end, write_end = os.openpty()
    shown = b""
    with run_watch("talk", stdout=write_end) as process:
        os.close(write_end)

        def waits() -> bool:
            nonlocal shown
            shown += os.read(read_end, 65536)
            return b"waiting for turn 1" in shown

        block_until(waits)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    os.close(read_end)
    text = shown.decode()
    assert "\x1b[2Jevil" not in text
    assert "\u202e" not in text
    assert r"\x1b[2J\u202eevil\x07" in text
    assert "(Ctrl-C ends)" in text
    assert "Very late. …" in text


def print_events(*events: Any) -> list[str]:
    """Return the lines that are printed for events, without their times."""

    async def show() -> None:
        with EventPrinter() as printer:
            await printer.show(events)

    with redirect_stdout(io.StringIO()) as output:
        anyio.run(show)
    return [line[10:].rstrip() for line in output.getvalue().splitlines()]


def make_call(frontier: int, **usage: Any) -> PromptSent:
    record = BuildRecord(
        limit=8192, input_budget=9000, overhead=10, factor=1.0, dialect="openai", messages=9, common=3,
        frontier=frontier, strategy="digest", options={},
    )  # fmt: skip
    return PromptSent(ModelCall(model=f"gpt\x1b[2J{EVIL}", timestamp=0, build=encode_record(record), **usage))


def test_prompts_show_tokens_cache_share_and_a_moved_frontier() -> None:
    lines = print_events(
        make_call(0, prompt_tokens=1092, cached_tokens=906),
        make_call(66, prompt_tokens=1100),
        make_call(66),
        PromptSent(ModelCall(model="own", timestamp=0, prompt_tokens=5)),
    )
    assert [line.replace(r"gpt\x1b[2J", "gpt").split(", gpt")[0].strip() for line in lines[:3]] == [
        "prompt     1,092 tokens, 83% cached, 9 messages, digest, budget 8,192",
        "prompt     1,100 tokens, 0% cached, 9 messages, digest, budget 8,192",
        "prompt     9 messages, digest, budget 8,192",
    ]
    assert [line.endswith(", recent from message 66") for line in lines] == [False, True, False, False]
    assert lines[3].strip() == "prompt     5 tokens, 0% cached, own"


def test_calls_without_results_do_not_pile_up() -> None:
    def call(at: int) -> MessageAppended:
        message = Message(role="assistant", content=None, tool_calls=(ToolCall(id=f"c{at}", name="f", arguments="{}"),))
        return MessageAppended(
            Entry(seq=at, turn_id=0, unit=at, timestamp=0, tokens=1, total=1, digest=b"", message=message)
        )

    lines = print_events(*map(call, range(2 * MAX_WAITING + 1)), TurnEnded(0, 0, None))
    assert len(lines) == 2 * MAX_WAITING + 2
    assert all(line.endswith("f {} -> (no result)") for line in lines[:-1])


def test_reader_of_the_pipe_may_go_away() -> None:
    store(TALK)
    with run_watch("talk", "--last", "1") as process:
        read_line(process)
        assert process.stdout is not None
        process.stdout.close()
        anyio.run(take_turn, "And now?", "Later.")
        assert process.wait(timeout=30) == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.parametrize("args", [["nobody"], ["talk", "--turns", "0"], ["talk", "--interval", "0"]])
def test_wrong_use_is_reported(args: list[str]) -> None:
    store(TALK)
    result = watch(*args)
    assert result.exit_code in (1, 2)
    assert result.stderr.count("\n") <= 4


def test_missing_database_is_not_created() -> None:
    assert watch("talk").exit_code == 1
    assert not [*Path().iterdir()]


def test_watching_changes_nothing() -> None:
    store(TALK)
    before = json.loads(sessions("list", "--json").stdout)
    with run_watch("talk") as process:
        for _ in range(3):
            read_line(process)
    assert json.loads(sessions("list", "--json").stdout) == before


def test_terminal_without_unicode_gets_ascii_only() -> None:
    store(TALK | {"messages": [{"role": "user", "content": "word " * 1000}]})
    command = [sys.executable, "-m", "holdfast", "watch", "talk", "--turns", "1", "--interval", "0.1"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        lines = [read_line(process) for _ in range(5)]
        process.kill()
    assert lines[4].endswith(" ...\n")
    assert "\\u2026" not in "".join(lines)
