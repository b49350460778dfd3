"""Vocabularies are loaded before a server answers: loading one holds the interpreter's lock for tenths of a second."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from holdfast import tokens
from holdfast.tokens import get_counter

tokens.load_vocabularies()
tokens.Vocabulary.ranks = None  # what loads one
print([get_counter(model).text("hello world") for model in ("gpt-4o", "gpt-4", "claude-x", "anything")])
"""


def test_no_counter_loads_anything_after_that() -> None:
    """Seen: the first count for a model with another tokenizer stopped all clients for 1 to 2 s."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "[2, 2, 3, 3]\n"
