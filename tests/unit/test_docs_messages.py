"""Troubleshooting quotes what Holdfast really says: each message of its two pages is in the code, and each code is an error's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("troubleshooting.md", "troubleshooting-errors.md")
PAGE = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in PAGES)
GAP = "\0"
"""Where a message has something of the case in it."""
SHORT = re.compile(r"^[a-z]+$")
"""Names of findings and the like, not messages."""


def said(node: ast.expr) -> str:
    """A text as it is written, with a gap where something is put in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(said(one) for one in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else GAP


@cache
def texts() -> tuple[str, ...]:
    """Every text of the product's code, but for its documentation."""
    found: list[str] = []
    for path in sorted((ROOT / "src" / "holdfast").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        found += [
            said(node)
            for node in nodes
            if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in documentation
        ]
    return tuple(text.replace("%s", GAP).replace("%r", GAP) for text in found)


def quotes() -> Iterator[str]:
    """What the page quotes: the code in the cells of its tables that say what one sees."""
    for row in re.findall(r"^\| (?!---)(.+) \|$", PAGE, re.MULTILINE):
        cells = row.split(" | ")
        seen = cells[1] if SHORT.match(cells[0].strip("`")) and cells[0].startswith("`") else cells[0]
        for quote in re.findall(r"`([^`]+)`", seen):
            if " " in quote or "_" in quote:
                yield quote


def stands(quote: str) -> bool:
    """Whether some text has the pieces of a quote, in their order, with gaps where the quote has them."""
    pieces = [re.escape(piece.strip()) for piece in quote.split("…") if piece.strip()]
    pattern = re.compile(r".*?".join(pieces), re.DOTALL)
    return any(pattern.search(text) for text in texts())


SHAPES = re.compile(r'^["{]|^(?:session_id|session_ttl)$')
"""Pieces of JSON and names of fields, which are no messages."""
QUOTES = sorted({quote for quote in quotes() if not SHAPES.match(quote)})


def test_there_are_messages_to_look_for() -> None:
    """The tables are found, all of them; what is made up is not."""
    assert len(QUOTES) > 70
    for known in ("store_unavailable", "the API key is not valid", "rejects the key", "a response was cut off: …"):
        assert known in QUOTES
    assert not stands("the API key is not quite valid")
    assert not stands("several users have … a session with nothing")


@pytest.mark.parametrize("quote", QUOTES)
def test_a_quoted_message_is_said(quote: str) -> None:
    """Word for word, but for what differs from case to case."""
    assert stands(quote)
