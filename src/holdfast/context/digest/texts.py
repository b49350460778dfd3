"""Texts: what they are made of, sentences or the rows of a table, whatever script and language they are in."""

# ruff: noqa: RUF001 (punctuation of other scripts is what some patterns are about)

from __future__ import annotations

import re
from collections import Counter

from holdfast.context.values import MAX_KEY, MAX_VALUE, clean

_SENTENCE_END = re.compile(r"[.!?؟।…。！？]")
_CLOSED = "。！？"
"""Ends of sentences that no white space has to follow."""
_ITEM = re.compile(r"(?:^|\s)\d\d?\.\Z")
"""Ends in the number of an item of a list, which is no sentence."""
_BULLET = re.compile(r"(?:[-*#>•–]+|\d{1,3}[.)])(?=\s)")
_BULLETS = frozenset("-*#>•–0123456789")
_NUMBERS = re.compile(r"\d+")
_LIKE = 4
"""Sentences of one form that are told at full worth."""


def sentences_of(text: str) -> list[str]:
    """The sentences and the items of `text`, none longer than `MAX_VALUE` characters."""
    found: list[str] = []
    for line in text.splitlines():
        start = 0
        for end in _SENTENCE_END.finditer(line):
            until = end.end()
            mark, following = line[until - 1], line[until : until + 1]
            if not (following.isspace() or mark in _CLOSED):
                continue
            if mark != "." or _ITEM.search(line, max(0, until - 4), until) is None:
                _add_pieces(line[start:until], found)
                start = until
        _add_pieces(line[start:], found)
    return found


def _add_pieces(raw: str, found: list[str]) -> None:
    """A sentence without the marks of lists and of emphasis, in pieces of at most `MAX_VALUE` characters."""
    text = clean(raw).replace("**", "").replace("`", "")
    if text[:1] in _BULLETS and (bullet := _BULLET.match(text)):
        text = text[bullet.end() :].strip()
    at = 0
    while len(text) - at > MAX_VALUE:
        # At white space, where there is some.
        space = text.rfind(" ", at + MAX_VALUE // 2, at + MAX_VALUE)
        until = space if space > 0 else at + MAX_VALUE
        found.append(text[at:until].strip())
        at = until
    if rest := text[at:].strip():
        found.append(rest)


def table_of(text: str) -> tuple[list[str], list[list[str]]] | None:
    """The header and the rows of a table (Markdown, CSV, TSV); None for any other text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < 3:
        return None
    for mark in ("|", "\t", ";", ","):
        columns = lines[0].count(mark)
        if columns and all(line.count(mark) == columns for line in lines[1:12]):
            if mark != "|" and not _is_header(lines[0].split(mark), 2 if mark == "\t" else 3):
                continue
            if any(len(cell.strip()) > MAX_KEY for cell in lines[0].split(mark)):
                continue
            cells = [line.strip(mark if mark == "|" else "").split(mark) for line in lines]
            names = [clean(name).strip("*\"' ")[:MAX_KEY] for name in cells[0]]
            rows = [[clean(cell).strip("\"'")[:MAX_VALUE] for cell in row] for row in cells[1:]]
            return names, [row for row in rows if mark != "|" or any(cell.strip(" :-") for cell in row)]
    return None


def _is_header(cells: list[str], least: int) -> bool:
    """Whether the first line of what looks like a table names columns: in logs and code, too, lines have equal commas."""
    names = [cell.strip("\"' ") for cell in cells]
    return len(names) >= least and not any(
        not name or len(name) > MAX_KEY or name[0].isdigit() or "/" in name or ": " in name or name[-1] in ".;{"
        for name in names
    )


def rarity_of(sentences: list[str]) -> list[float]:
    """What each sentence is worth beside the others: those of one form but for their numbers, as a log has them, say little.

    So the line of a log that is unlike the others comes first.
    """
    forms = [_NUMBERS.sub("0", sentence[:MAX_VALUE]) for sentence in sentences]
    like = Counter(forms)
    return [(_LIKE / max(_LIKE, like[form])) ** 0.5 for form in forms]
