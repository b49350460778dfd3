"""The pages on troubleshooting quote only messages that exist in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("troubleshooting.md", "troubleshooting-start.md", "doctor.md")
PAGE = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in PAGES)
GAP = "\0"
"""Placeholder for the variable parts of a message."""
SHORT = re.compile(r"^[a-z]+$")
"""Matches names of findings, which are not messages."""


def extract_string(node: ast.expr) -> str:
    """Return a string expression as text, with a gap for each inserted value."""
    if isinstance(node, ast.JoinedStr):
        return "".join(extract_string(one) for one in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else GAP


@cache
def list_texts() -> tuple[str, ...]:
    """Return every string of the package except docstrings."""
    found: list[str] = []
    for path in sorted((ROOT / "src" / "holdfast").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        found += [
            extract_string(node)
            for node in nodes
            if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in documentation
        ]
    return tuple(text.replace("%s", GAP).replace("%r", GAP) for text in found)


def list_quotes() -> Iterator[str]:
    """Yield the quoted messages: code in the table cells that describe symptoms."""
    for row in re.findall(r"^\| (?!---)(.+) \|$", PAGE, re.MULTILINE):
        cells = row.split(" | ")
        seen = cells[1] if SHORT.match(cells[0].strip("`")) and cells[0].startswith("`") else cells[0]
        for quote in re.findall(r"`([^`]+)`", seen):
            if " " in quote or "_" in quote:
                yield quote


def is_in_code(quote: str) -> bool:
    """Return True if a string of the code contains the pieces of the quote in order."""
    pieces = [re.escape(piece.strip()) for piece in quote.split("…") if piece.strip()]
    pattern = re.compile(r".*?".join(pieces), re.DOTALL)
    return any(pattern.search(text) for text in list_texts())


SHAPES = re.compile(r'^["{]|^(?:session_id|session_ttl)$')
"""Matches pieces of JSON and field names, which are not messages."""
QUOTES = sorted({quote for quote in list_quotes() if not SHAPES.match(quote)})


def test_quoted_messages_are_found() -> None:
    """All tables are read, and invented messages are not found in the code."""
    assert len(QUOTES) > 40
    for known in ("rejects the key", "a response was cut off: …"):
        assert known in QUOTES
    assert not is_in_code("the API key is not quite valid")
    assert not is_in_code("several users have … a session with nothing")


@pytest.mark.parametrize("quote", QUOTES)
def test_a_quoted_message_exists_in_the_code(quote: str) -> None:
    """Verbatim except for variable parts."""
    assert is_in_code(quote)
