"""What stands in a transcript, entry by entry, and where a text is in it. A line at a time: memory is flat."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.domain.messages import Message
from holdfast.errors import InvalidMessage
from holdfast.hooks.transcript_files import RETIRED, line_from, lines_of, message_of
from holdfast.wire.openai import message_from

AROUND: Final = 60
"""Characters on both sides of what was found."""


class Written(NamedTuple):
    """An entry of a transcript."""

    at: int
    """Its `seq`, or its place among the entries where it has none."""
    data: Mapping[str, Any]
    """Its line."""
    retired: bool

    @property
    def time(self) -> Any:
        """When it was written, as it stands there."""
        return self.data.get("timestamp")

    @property
    def role(self) -> str:
        """Whose it is."""
        return str(self.data.get("role"))

    @property
    def content(self) -> str:
        """Its words."""
        content = self.data.get("content")
        return content if isinstance(content, str) else ""

    @property
    def message(self) -> Message | None:
        """The message; None where it makes none."""
        try:
            return message_from(message_of(self.data))
        except InvalidMessage:
            return None


def entries_in(path: Path, *, retired: bool = False) -> Iterator[Written]:
    """The entries of a transcript in order; lines that are none are passed over.

    Args:
        path: the file.
        retired: with those that left the live path.
    """
    firsts, ends = _retired_in(path)
    with path.open("rb") as file:
        at = -1
        for line in lines_of(file):
            data = line_from(line)
            if data is None or data["type"] != "entry":
                continue
            seq = data.get("seq")
            at = seq if isinstance(seq, int) else at + 1
            found = bisect_right(firsts, at) - 1
            gone = found >= 0 and at < ends[found]
            if retired or not gone:
                yield Written(at, data, gone)


def _retired_in(path: Path) -> tuple[list[int], list[int]]:
    """What left the live path, as ranges of `seq` that do not meet: the first of each, and what comes behind its last."""
    firsts: list[int] = []
    ends: list[int] = []
    with path.open("rb") as file:
        told = (line_from(line) for line in lines_of(file) if line.startswith(RETIRED))
        for first, end in sorted((data["from"], data["by"]) for data in told if data is not None):
            if ends and first <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                firsts.append(first)
                ends.append(end)
    return firsts, ends


# -- finding -------------------------------------------------------------------


class Found(NamedTuple):
    """Where something was found."""

    at: int
    role: str
    timestamp: Any
    snippet: str
    """With what was found in brackets."""


class Needle:
    r"""What is looked for: a text in which case, accents and the amount of white space do not count.

    >>> Needle("CODIGO  fuente").found("El código\nfuente está aquí.")
    'El [código fuente] está aquí.'
    """

    def __init__(self, query: str) -> None:
        self.folded = folded(query).strip()

    def found(self, text: str) -> str | None:
        """The text around the first place where it stands; None where it does not."""
        if self.folded not in folded(text):
            return None
        begin, end = _place(text, self.folded)
        before, after = text[max(0, begin - AROUND) : begin], text[end : end + AROUND]
        cut = "…" * (begin > AROUND), "…" * (len(text) > end + AROUND)
        return " ".join(f"{cut[0]}{before}[{text[begin:end]}]{after}{cut[1]}".split())


def found_in(path: Path, needle: Needle, *, retired: bool = False) -> Iterator[Found]:
    """Where something stands in a transcript, in order."""
    for entry in entries_in(path, retired=retired):
        snippet = needle.found(entry.content)
        if snippet is not None:
            yield Found(entry.at, entry.role, entry.time, snippet)


def folded(text: str) -> str:
    """`text` as texts are compared: without case and accents, white space as single spaces.

    >>> folded("Ünïcode  Straße")
    'unicode strasse'
    """
    if not text.isascii():
        apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
        text = "".join(character for character in apart if not unicodedata.combining(character))
    return _spaced(text.lower())


def _spaced(text: str) -> str:
    # Not `split` alone: white space at an end is white space, too.
    begin, end = " " * text[:1].isspace(), " " * text[-1:].isspace()
    words = " ".join(text.split())
    return f"{begin}{words}{end}" if words else begin


def _place(text: str, needle: str) -> tuple[int, int]:
    """Where the needle, folded, stands in a text that holds it: the smallest part that folds to something with it."""
    told: list[str] = []
    places: list[int] = []
    for at, character in enumerate(text):
        piece = folded(character)
        if piece == " " and told and told[-1] == " ":
            continue
        told.append(piece)
        places += [at] * len(piece)
    begin = "".join(told).find(needle)
    if begin < 0:  # characters that fold otherwise together: the whole is told
        return 0, len(text)
    last = places[begin + len(needle) - 1] + 1
    while last < len(text) and not folded(text[last]):  # accents written apart
        last += 1
    return places[begin], last
