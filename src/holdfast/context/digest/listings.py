"""Listings: views of source files and matches in them, told by path, lines and definitions, never by lines of source.

A line of a program says nothing once it stands alone, and the next call reads the file again anyway.
"""

from __future__ import annotations

import re
from itertools import islice, pairwise
from typing import Final, NamedTuple

LEAST = 4
"""Lines of source from which a text is a listing."""
MOST = 0.5
"""Part of the lines of a listing that are source or matches, at least."""
NAMES = 24
"""Definitions, and files with matches, that are told of one listing."""
READ = 2_000
"""Lines that are looked at."""
_MATCH: Final = re.compile(r"^([^\s:()'\"]*[/.\\][^\s:()'\"]*):(\d+)[:-]")
"""A line of what a search in files answers: path, number, source."""
_NUMBERED: Final = re.compile(r"^\s*(\d{1,6})(?:\t|[:|→│]|  )")
_DEFINITION: Final = re.compile(
    r"^\s*(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub(?:\([a-z]+\))?|unsafe|virtual"
    r"|override|extern)\s+)*(?:def|class|func|function|fn|struct|enum|interface|trait|module|namespace|sub)\s+"
    r"(?:\([^)]*\)\s*)?([^\W\d]\w*(?:(?:\.|::)\w+)*)"
)
_SOURCE: Final = re.compile(
    r"[;{}]\s*$|^\s*[})\]]+[,;:)]*\s*$"
    r"|^\s*(?:import\s+[\w.{*]|from\s+[\w.]+\s+import\b|(?:if|elif|while|for|with|except|switch|match)\b.*[:{]\s*$|(?:else|try|finally)\s*[:{]"
    r"|return\b|raise\s+\w|yield\b|@\w+[\w.]*(?:\(.*)?$|#include\b|//|/\*|\*/)"
    r"|^\s*(?:const|let|var|auto|int|self|this)\b.*=|^\s+[\w.\[\]'\"]+(?:\s*:\s*\w[\w\[\], .|]*)?\s[-+*/|&]?=\s"
    r"|^\s+[\w.]+\(.*\)?[,:]?\s*$"
)
_TRACEBACK: Final = "Traceback (most recent call last)"


class Listing(NamedTuple):
    """What a listing is told by."""

    places: list[str]
    """Where matches are: `path:line,line`."""
    lines: str
    """Which lines it shows, `1-56`, or how many; empty for matches."""
    names: list[str]
    """What is defined in it."""
    before: str
    """What is said above the first line of source."""


def listing_of(text: str) -> Listing | None:
    """Return what a view of a source file, or of matches in files, is told by; None for any other text."""
    lines = [line for line in islice(text.splitlines(), READ) if line.strip()]
    if len(lines) < LEAST or _TRACEBACK in text:
        return None
    least = max(LEAST, MOST * len(lines))
    matches = [found for line in lines if (found := _MATCH.match(line))]
    if len(matches) >= least:
        return Listing(_places(matches), "", [], "")
    numbered = [(at, found) for at, line in enumerate(lines) if (found := _NUMBERED.match(line))]
    ascending = len(numbered) >= least and _is_ascending([int(found[1]) for _, found in numbered])
    bare = [line[found.end() :] if (found := _NUMBERED.match(line)) else line for line in lines] if ascending else lines
    source = [at for at, line in enumerate(bare) if _SOURCE.search(line) or _DEFINITION.match(line)]
    if len(source) < (LEAST if ascending else least):
        return None
    names = dict.fromkeys(found[1] for line in bare if (found := _DEFINITION.match(line)))
    first = numbered[0][0] if ascending else source[0]
    shown = f"{numbered[0][1][1]}-{numbered[-1][1][1]}" if ascending else f"{len(text.splitlines())} in all"
    return Listing([], shown, list(names)[:NAMES], "\n".join(lines[:first]) if ascending else "")


def is_source(text: str) -> bool:
    """Return True for a piece of a program, as an edit has it in its arguments: all of its lines are source."""
    lines = [line for line in islice(text.splitlines(), READ) if line.strip()]
    return bool(lines) and all(_SOURCE.search(line) or _DEFINITION.match(line) for line in lines)


def _is_ascending(numbers: list[int]) -> bool:
    return all(before < after for before, after in pairwise(numbers))


def _places(matches: list[re.Match[str]]) -> list[str]:
    """Return each file once, with the numbers of its lines."""
    files: dict[str, list[str]] = {}
    for found in matches:
        files.setdefault(found[1], []).append(found[2])
    return [f"{path}:{','.join(numbers[:6])}" for path, numbers in islice(files.items(), NAMES)]
