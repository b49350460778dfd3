"""Examples 1 and 2: other people's clients, through a gateway that the reader started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.gallery import Example


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


def test_langchain(tmp_path: Path) -> None:
    """The tool runs in the client, its result alone goes back, and a new object goes on with the session."""
    pytest.importorskip("langchain_openai", reason="langchain_openai is not installed: group `clients`")
    example = Example("langchain_tools.py", tmp_path)
    output = example.run()
    example.check_output(output)
    assert "5 messages" in output
