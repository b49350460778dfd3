"""The fuzz that fits into every test run: by grammar, led to new lines by Hypothesis, and some thousand guided mutations.

The longer run is `python -m tests.fuzz --seconds 600`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st

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


def check_and_guide(name: str, data: bytes) -> None:
    """Check, and lead Hypothesis to what goes further."""
    target(float(len(trace(TARGETS[name].check, data, TARGETS[name].modules))), label=name)


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
