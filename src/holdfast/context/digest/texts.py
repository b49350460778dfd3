"""Texts: what they are made of, sentences or the rows of a table, whatever script and language they are in."""

# ruff: noqa: RUF001 (punctuation of other scripts is what some patterns are about)

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from holdfast.context.values import MAX_KEY, MAX_VALUE, clean
from holdfast.recall.chunks import is_abbreviated

_SENTENCE_END = re.compile(r"[.!?؟।…。！？]+[\"')\]”’»]*")
_CLOSED = "。！？"
"""Ends of sentences that no white space has to follow."""
_ITEM = re.compile(r"(?:^|\s)[A-Z]?\d\d?\.\Z")
"""Ends in the number of an item of a list, which is no sentence."""
_BULLET = re.compile(r"(?:[-*#>•–]+|\d{1,3}[.)])(?=\s)")
_BULLETS = frozenset("-*#>•–0123456789")
_NUMBERS = re.compile(r"\d+")
LONGEST, SHORTEST = 240, 60
"""Characters from which a sentence is taken apart, and of the shortest part."""
_JOINTS = (
    re.compile(r"[;；:：][ ]|[ ][-–—][ ]|，"),
    re.compile(r",[ ](?=(?:and|but|so|because|which|then|und|aber|weil|et|mais|y|pero|e|mas)\b)", re.IGNORECASE),
    re.compile(r"(?<=[^\W\d_]{4})[ ](?=(?:and|but|so|because|oh|okay|then|anyway)\b)"),
    re.compile(r",[ ]"),
    re.compile(r"(?<=[^\W\d_]{4})[ ]|(?<=\d)[ ]"),
    re.compile(r"[ ]"),
)
"""Where a long sentence is taken apart, the best places first. After a short word hardly anything ends: "it's five now in the"."""
_RULE = re.compile(r"[ |:+=-]*[-=]{2}[ |:+=-]*")
"""The line below the heading of a table."""
_LABEL = re.compile(r"\W*(?:[A-Za-z]?\d{1,3})?\W*")
_LIKE = 4
"""Sentences of one form that are told at full worth."""


def sentences_of(text: str) -> list[str]:
    """The sentences and the items of `text`, none longer than `LONGEST` characters."""
    found: list[str] = []
    for line in text.splitlines():
        start = 0
        for end in _SENTENCE_END.finditer(line):
            until, mark = end.end(), end.group()
            if not (line[until : until + 1].isspace() or mark[-1] in _CLOSED):
                continue
            if mark != "." or not (_ITEM.search(line, max(0, until - 5), until) or is_abbreviated(line, until)):
                _add_pieces(line[start:until], found)
                start = until
        _add_pieces(line[start:], found)
    return found


def _add_pieces(raw: str, found: list[str]) -> None:
    """A sentence without the marks of lists and of emphasis, in pieces of at most `LONGEST` characters."""
    text = _plain(raw)
    if text[:1] in _BULLETS and (bullet := _BULLET.match(text)):
        text = text[bullet.end() :].strip()
    found += _pieces(text)


def _pieces(text: str) -> Iterator[str]:
    """Yield a text whole, or in parts of at most `LONGEST` characters that end where a clause does, the best places first."""
    while len(text) > LONGEST:
        ideal = len(text) / -(-len(text) // LONGEST)
        until = LONGEST
        for joint in _JOINTS:
            places = [found.end() for found in joint.finditer(text, SHORTEST, LONGEST)]
            if places:
                until = min(places, key=lambda place: abs(place - ideal))
                break
        yield text[:until].strip()
        text = text[until:].strip()
    if text:
        yield text


def _plain(raw: str) -> str:
    """Return a line without marks of emphasis."""
    return clean(raw).replace("**", "").replace("`", "")


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


def split_headings(text: str) -> tuple[str, dict[str, str]]:
    """Return a text without the headings of its tables, and the heading of each row: neither says anything without the other."""
    lines = text.splitlines()
    headings: dict[str, str] = {}
    kept: list[str] = []
    heading = ""
    for line in lines:
        if "|" in line and heading:
            kept.append(line)
            headings[_plain(line)] = heading
        elif kept and _RULE.fullmatch(line.strip()) and (heading := _heading_of(kept[-1])):
            kept.pop()
        else:
            kept.append(line)
            heading = ""
    return "\n".join(kept), headings


def _heading_of(line: str) -> str:
    """Return the names of columns in a line; nothing if it has one column, or prose in it."""
    cells = [cell.strip() for cell in _plain(line).strip("| ").split("|")]
    heading = " | ".join(cells)
    return heading if "|" in line and max(map(len, cells)) <= MAX_KEY and len(heading) <= MAX_VALUE else ""


def is_bare_label(sentence: str) -> bool:
    """Return True for a piece that is nothing but a number or a label: `[ 17%]` or `D11.`, say."""
    return _LABEL.fullmatch(sentence) is not None
