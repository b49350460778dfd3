"""Format text and tables as Markdown, with special characters escaped outside of `code`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_CODE: Final = re.compile(r"(``.+?``|`[^`]+`)")
_SPECIAL: Final = re.compile(r"([\\*_<>{}\[\]$#~])")


def escape_prose(text: str) -> str:
    """Return a text on one line, with its `code` unchanged and everything else escaped."""
    pieces = _CODE.split(" ".join(text.split()))
    return "".join(piece if at % 2 else _SPECIAL.sub(r"\\\1", piece) for at, piece in enumerate(pieces))


def format_code(text: str) -> str:
    """Format a name or a value as code."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table and an empty line, or nothing if there are no rows."""
    cells = [[_format_cell(one) for one in row] for row in rows]
    if not cells:
        return []
    return [_format_row(head), _format_row(["---"] * len(head)), *(_format_row(row) for row in cells), ""]


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
