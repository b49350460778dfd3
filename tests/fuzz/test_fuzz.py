"""The fuzz that fits into every test run: by grammar, led to new lines by Hypothesis, and some thousand guided mutations.

The longer run is `python -m tests.fuzz --seconds 600`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.wire.exports import parse_export, parse_own_fields, parse_system_messages
from holdfast.wire.openai import parse_message
from tests.amounts import examples
from tests.fuzz.guided import inputs, trace
from tests.fuzz.targets import TARGETS, check_import, check_message, check_recordings, check_sse, check_yaml

ROUNDS = 1500
"""Guided inputs of each target in every test run."""


@pytest.mark.parametrize("name", TARGETS)
def test_guided_mutations(name: str) -> None:
    """What reaches new lines is changed further; the same inputs each time."""
    for _, kept, _ in itertools.islice(inputs(TARGETS[name], seed=2024), ROUNDS):
        assert kept


# -- by grammar --------------------------------------------------------------

WORDS = st.sampled_from(
    ["", "x", "user", "assistant", "tool", "system", "text", "refusal", "custom", "function", "\ud800", "\x00é"]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.integers(2**63, 2**70)
FIELDS = st.sampled_from(
    [
        "role",
        "content",
        "name",
        "tool_calls",
        "tool_call_id",
        "id",
        "type",
        "function",
        "custom",
        "arguments",
        "input",
        "text",
        "refusal",
        "seq",
        "turn_id",
        "timestamp",
        "metadata",
        "pinned",
        "importance",
        "agent",
        "tokens",
        "x",
    ]
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4), max_leaves=8
)
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "input_text", "refusal", "image_url"])},
    optional={"text": WORDS, "refusal": WORDS, "x": ANYTHING},
)
FUNCTION = st.fixed_dictionaries({"name": WORDS}, optional={"arguments": ANYTHING, "input": ANYTHING, "x": ANYTHING})
CALL = st.fixed_dictionaries(
    {"id": WORDS},
    optional={
        "type": st.sampled_from(["function", "custom", "other", None]),
        "function": FUNCTION,
        "custom": FUNCTION,
        "x": ANYTHING,
    },
)
OWN = {
    "timestamp": st.integers(0, 2**53) | ANYTHING,
    "turn_id": st.integers(0, 3) | ANYTHING,
    "metadata": ANYTHING,
    "pinned": st.booleans() | ANYTHING,
    "importance": st.floats(0, 1) | ANYTHING,
    "agent": WORDS | ANYTHING,
}
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | ANYTHING},
    optional={
        "content": WORDS | st.lists(PART, max_size=3) | st.none() | ANYTHING,
        "tool_calls": st.lists(CALL, max_size=3) | ANYTHING,
        "tool_call_id": WORDS | ANYTHING,
        "name": WORDS | ANYTHING,
        "x": ANYTHING,
        **OWN,
    },
)
EXPORT = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=4) | ANYTHING},
    optional={
        "id": WORDS | ANYTHING,
        "user_id": WORDS | ANYTHING,
        "state": ANYTHING,
        "metadata": ANYTHING,
        "ttl": st.integers(-1, 5) | ANYTHING,
        "system_messages": st.lists(MESSAGE | WORDS, max_size=2) | ANYTHING,
    },
)


def check_and_guide(name: str, data: bytes) -> None:
    """Check, and lead Hypothesis to what goes further."""
    target(float(len(trace(TARGETS[name].check, data, TARGETS[name].modules))), label=name)


@given(MESSAGE | ANYTHING)
def test_messages(value: Any) -> None:
    """As JSON, and as a library's caller hands them in: floats that are none, huge numbers, halves of characters."""
    check_and_guide("message", json.dumps(value).encode())
    try:
        parse_message(value)
    except HoldfastError as exc:
        str(exc).encode()  # it can be told


@given(EXPORT | ANYTHING)
def test_imports(value: Any) -> None:
    """As JSON, and its parts by themselves."""
    check_and_guide("import", json.dumps(value).encode())
    for read in (parse_own_fields, parse_export, lambda data: parse_system_messages(data.get("system_messages"))):
        try:
            read(value if isinstance(value, dict) else {"messages": value})
        except HoldfastError as exc:
            str(exc).encode()


@given(st.lists(EXPORT | MESSAGE | ANYTHING | st.binary(max_size=20), max_size=5))
def test_recorded_lines(lines: list[Any]) -> None:
    """Good ones and bad ones in any order."""
    check_and_guide(
        "recordings", b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines)
    )


PIECES = st.sampled_from(
    [
        "data: x",
        "data:",
        "data",
        "event: e",
        ": c",
        "id: 1",
        "\n",
        "\r",
        "\r\n",
        "\n\n",
        "\ufeff",
        "error: e",
        "é",
        "x" * 60,
    ]
)


@given(st.lists(PIECES, max_size=20).map(lambda pieces: "".join(pieces).encode()) | st.binary(max_size=60))
def test_event_streams(data: bytes) -> None:
    """Cut anywhere."""
    check_and_guide("sse", data)


YAML = st.sampled_from(
    [
        "gateway",
        "llms",
        "agents",
        "context",
        "port",
        "model",
        "strategy",
        "digest",
        ": ",
        "\n",
        "\n  ",
        "- ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        "'",
        '"',
        "${A}",
        "${",
        "$${",
        "&a ",
        "*a",
        "<<",
        "!!int ",
        "? ",
        "1",
        "1e5",
        "5MiB",
        "true",
        "null",
        "\t",
        "#",
        "�",
        "\x00",
        ">\n",
    ]
)


@settings(max_examples=examples(60))
@given(st.lists(YAML, max_size=25).map("".join))
def test_configurations(text: str) -> None:
    """Nothing but a `ConfigError`, which says something."""
    check_and_guide("yaml", text.encode("utf-8", "replace"))


DEEP = [
    *('{"a":' * depth + "1" + "}" * depth for depth in (70, 900, 5000)),
    *('{"role":"user","content":' + "[" * depth + "]" * depth + "}" for depth in (70, 900, 5000)),
    *('{"messages":[{"role":"user","content":"x","e":' + "[" * depth + "]" * depth + "}]}" for depth in (70, 900)),
]


@pytest.mark.parametrize("text", DEEP, ids=lambda text: f"{text[:20]}{len(text)}")
def test_deep_values(text: str) -> None:
    """Taken or refused, and never the end of Python's stack."""
    for check in (check_message, check_import, check_recordings, check_sse, check_yaml):
        check(text.encode())


def test_the_longer_run_runs() -> None:
    """The program does what its help says."""
    command = [sys.executable, "-m", "tests.fuzz", "sse", "--seconds", "0", "--seed", "1"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env={**os.environ}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sse, seed 1" in done.stdout
