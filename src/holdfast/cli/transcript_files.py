"""Read and search transcript files. Files are read line by line, so memory use does not grow with their size."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.domain.messages import Message
from holdfast.errors import InvalidMessage
from holdfast.hooks.transcript_files import RETIRED, parse_line, read_lines, to_message
from holdfast.wire.openai import parse_log_message

CONTEXT_CHARACTERS: Final = 60
"""Maximum characters of text that are shown before a match, and after it."""


class TranscriptEntry(NamedTuple):
    """One entry of a transcript."""

    at: int
    """Position (`seq`) of the entry in the session's log. If the line contains no `seq`: the previous entry's position plus 1."""
    data: Mapping[str, Any]
    """The decoded line of the file."""
    retired: bool
    """True if the entry is no longer part of the conversation, for example because an edit replaced it."""

    @property
    def time(self) -> Any:
        """Timestamp of the entry, exactly as in the file; None if the line contains no timestamp."""
        return self.data.get("timestamp")

    @property
    def role(self) -> str:
        """Role of the message."""
        return str(self.data.get("role"))

    @property
    def content(self) -> str:
        """Text of the message."""
        content = self.data.get("content")
        return content if isinstance(content, str) else ""

    @property
    def message(self) -> Message | None:
        """The message of the entry, or None if it is not valid."""
        try:
            return parse_log_message(to_message(self.data))
        except InvalidMessage:
            return None


def read_entries(path: Path, *, retired: bool = False) -> Iterator[TranscriptEntry]:
    """Yield the entries of a transcript in order. Lines that are no entries are skipped.

    Args:
        path: the transcript file.
        retired: also yield entries that are no longer part of the conversation.
    """
    firsts, ends = _read_retired_ranges(path)
    with path.open("rb") as file:
        at = -1
        for line in read_lines(file):
            data = parse_line(line)
            if data is None or data["type"] != "entry":
                continue
            seq = data.get("seq")
            at = seq if isinstance(seq, int) else at + 1
            found = bisect_right(firsts, at) - 1
            is_retired = found >= 0 and at < ends[found]
            if retired or not is_retired:
                yield TranscriptEntry(at, data, is_retired)


def _read_retired_ranges(path: Path) -> tuple[list[int], list[int]]:
    """Return the ranges of entries that are no longer part of the conversation. Ranges that overlap or touch are merged.

    Returns:
        Two sorted lists: the first `seq` of each range, and for each range the `seq` after its last entry.
    """
    firsts: list[int] = []
    ends: list[int] = []
    with path.open("rb") as file:
        records = (parse_line(line) for line in read_lines(file) if line.startswith(RETIRED))
        for first, end in sorted((data["from"], data["by"]) for data in records if data is not None):
            if ends and first <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                firsts.append(first)
                ends.append(end)
    return firsts, ends


# -- search --------------------------------------------------------------------


class TextMatch(NamedTuple):
    """A match in a transcript."""

    at: int
    role: str
    timestamp: Any
    snippet: str
    """The match in brackets, with the text around it."""


class TextQuery:
    r"""A text to search for. Case, accents and the amount of white space are ignored.

    >>> TextQuery("CODIGO  fuente").find("El código\nfuente está aquí.")
    'El [código fuente] está aquí.'
    """

    def __init__(self, query: str) -> None:
        self.folded = fold_text(query).strip()

    def find(self, text: str) -> str | None:
        """Return the first match in brackets, with the text around it. Return None if there is no match."""
        if self.folded not in fold_text(text):
            return None
        begin, end = _locate(text, self.folded)
        before, after = text[max(0, begin - CONTEXT_CHARACTERS) : begin], text[end : end + CONTEXT_CHARACTERS]
        cut = "…" * (begin > CONTEXT_CHARACTERS), "…" * (len(text) > end + CONTEXT_CHARACTERS)
        return " ".join(f"{cut[0]}{before}[{text[begin:end]}]{after}{cut[1]}".split())


def find_text(path: Path, needle: TextQuery, *, retired: bool = False) -> Iterator[TextMatch]:
    """Yield the first match in each entry of a transcript, in order.

    Args:
        path: the transcript file.
        needle: the text to search for.
        retired: also search entries that are no longer part of the conversation.
    """
    for entry in read_entries(path, retired=retired):
        snippet = needle.find(entry.content)
        if snippet is not None:
            yield TextMatch(entry.at, entry.role, entry.time, snippet)


def fold_text(text: str) -> str:
    """Return `text` in a form for comparison: lower case, without accents, with single spaces.

    >>> fold_text("Ünïcode  Straße")
    'unicode strasse'
    """
    if not text.isascii():
        apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
        text = "".join(character for character in apart if not unicodedata.combining(character))
    return _collapse_spaces(text.lower())


def _collapse_spaces(text: str) -> str:
    # `split` alone would drop white space at the ends.
    begin, end = " " * text[:1].isspace(), " " * text[-1:].isspace()
    words = " ".join(text.split())
    return f"{begin}{words}{end}" if words else begin


def _locate(text: str, needle: str) -> tuple[int, int]:
    """Return the start and end of the first match of `needle` in `text`. `needle` must be the result of `fold_text`."""
    pieces: list[str] = []
    places: list[int] = []
    for at, character in enumerate(text):
        piece = fold_text(character)
        if piece == " " and pieces and pieces[-1] == " ":
            continue
        pieces.append(piece)
        places += [at] * len(piece)
    begin = "".join(pieces).find(needle)
    if begin < 0:  # characters that fold otherwise together: use the whole text
        return 0, len(text)
    last = places[begin + len(needle) - 1] + 1
    while last < len(text) and not fold_text(text[last]):  # combining accents
        last += 1
    return places[begin], last
