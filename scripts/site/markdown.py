"""Markdown out of words and rows: what may mean something to Markdown is escaped, but for `code`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_CODE: Final = re.compile(r"(``.+?``|`[^`]+`)")
_SPECIAL: Final = re.compile(r"([\\*_<>{}\[\]$#~])")


def words(text: str) -> str:
    """Prose on one line, with its `code` as code and everything else as it stands."""
    pieces = _CODE.split(" ".join(text.split()))
    return "".join(piece if at % 2 else _SPECIAL.sub(r"\\\1", piece) for at, piece in enumerate(pieces))


def code(text: str) -> str:
    """A name or a value as code."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table of Markdown cells, and an empty one; none without rows."""
    cells = [[_cell(one) for one in row] for row in rows]
    if not cells:
        return []
    return [_row(head), _row(["---"] * len(head)), *(_row(row) for row in cells), ""]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
