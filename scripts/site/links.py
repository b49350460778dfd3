"""Find and replace links in Markdown pages. Does not need Sphinx."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

_FENCE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_LINK: Final = re.compile(r"\]\(([^()\s]+)\)")
_CODE: Final = re.compile(r"(`+).+?\1")
_ELSEWHERE: Final = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


class Link(NamedTuple):
    """A link and its line number."""

    line: int
    target: str


def _list_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines outside of code blocks with their numbers."""
    fence = ""
    for number, line in enumerate(text.split("\n"), start=1):
        found = _FENCE.match(line)
        if fence:
            fence = "" if found and line.strip().startswith(fence) and not line.strip().strip(fence[0]) else fence
        elif found:
            fence = found[1]
        else:
            yield number, line


def _find_links(line: str) -> Iterator[re.Match[str]]:
    """Yield the links of a line to targets within the project, without those in code."""
    spans = [one.span() for one in _CODE.finditer(line)]
    for one in _LINK.finditer(line):
        if not any(start < one.start() < end for start, end in spans) and not _ELSEWHERE.match(one[1]):
            yield one


def find_links(text: str) -> Iterator[Link]:
    """Yield the links to files of the project and to anchors of the page."""
    for number, line in _list_prose(text):
        yield from (Link(number, one[1]) for one in _find_links(line))


def replace_links(text: str, replace: Callable[[str], str]) -> str:
    """Return the text with the targets of these links replaced by `replace`."""
    lines = text.split("\n")
    for number, line in _list_prose(text):
        for one in reversed(list(_find_links(line))):
            lines[number - 1] = lines[number - 1][: one.start(1)] + replace(one[1]) + lines[number - 1][one.end(1) :]
    return "\n".join(lines)


def resolve_target(page: str, target: str) -> tuple[str, str]:
    """Return the project path and the anchor that a link leads to.

    Args:
        page: the project path of the page.
        target: the target as written in the page.
    """
    path, _, anchor = target.partition("#")
    return (posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page), anchor
