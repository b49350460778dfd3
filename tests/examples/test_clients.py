"""Examples 1 and 2: other people's clients, through a gateway that the reader started."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Reply, ScriptedUpstream
from tests.examples.gallery import Example

KEY = "sk-real-0123456789abcdef"


def test_the_openai_client(tmp_path: Path) -> None:
    """One new message is enough, and a resent history is recognised: the model sees all, and the log has all once."""
    example = Example("openai_client.py", tmp_path)
    output = example.run()
    example.check_output(output)
    assert '1. user "Book me a flight to Oslo on May 20."' in output
    assert '3. user "A window seat, please."' in output


def test_the_openai_client_a_second_time(tmp_path: Path) -> None:
    """The conversation of the first run is in the same database, word for word."""
    example = Example("openai_client.py", tmp_path)
    for _ in range(2):
        output = example.run()
        example.check_output(output)
        assert "recognised: True" in output
        assert "the log has 8 messages" in output


def test_the_openai_client_with_a_real_model(tmp_path: Path) -> None:
    """The server's key makes the model real; the program is unchanged. The model receives as many messages as the program reports."""
    with ScriptedUpstream(lambda body: f"I see {len(body['messages'])}.").in_thread() as upstream:
        example = Example("openai_client.py", tmp_path)
        output = example.run(OPENAI_BASE_URL=upstream.url, OPENAI_API_KEY=KEY)
    told = [int(number) for number in re.findall(r"the model received (\d+)", output)]
    assert told == [len(request.body["messages"]) for request in upstream.requests] == [1, 3, 5, 7]
    assert {request.headers["authorization"] for request in upstream.requests} == {f"Bearer {KEY}"}
    assert "I see 5." in output
    assert "recognised: True" in output


def test_langchain(tmp_path: Path) -> None:
    """The tool runs in the client, its result alone goes back, and a new object goes on with the session."""
    pytest.importorskip("langchain_openai", reason="langchain_openai is not installed: group `clients`")
    example = Example("langchain_tools.py", tmp_path)
    output = example.run()
    example.check_output(output)
    assert "5 messages" in output


def test_langchain_with_a_real_model(tmp_path: Path) -> None:
    """One that decides by itself to call the tool, and is asked in plain words."""
    pytest.importorskip("langchain_openai", reason="langchain_openai is not installed: group `clients`")

    def model(body: dict[str, Any]) -> Reply | str:
        last = body["messages"][-1]
        if last["content"] == "Where is my order 7461?":
            assert [tool["function"]["name"] for tool in body["tools"]] == ["order_status"]
            return Reply(tool_calls=[("order_status", {"number": 7461})])
        return f"On its way: {last['content']}" if last["role"] == "tool" else "Where your order is."

    with ScriptedUpstream(model).in_thread() as upstream:
        example = Example("langchain_tools.py", tmp_path)
        output = example.run(OPENAI_BASE_URL=upstream.url, OPENAI_API_KEY=KEY)
    assert "On its way: Order 7461 left the warehouse on Monday." in output
    assert "Where your order is." in output
    roles = [[message["role"] for message in request.body["messages"]] for request in upstream.requests]
    assert roles[-1] == ["user", "assistant", "tool", "assistant", "user"]
