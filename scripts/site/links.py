"""Links of Markdown pages, and whether they lead somewhere: files and anchors, as a code host has them. Needs no Sphinx."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

_FENCE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_LINK: Final = re.compile(r"\]\(([^()\s]+)\)")
_CODE: Final = re.compile(r"(`+).+?\1")
_HEADING: Final = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$")
_ELSEWHERE: Final = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


class Link(NamedTuple):
    """A link, and the line it stands in."""

    line: int
    target: str


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are no code block, by their number."""
    fence = ""
    for number, line in enumerate(text.split("\n"), start=1):
        found = _FENCE.match(line)
        if fence:
            fence = "" if found and line.strip().startswith(fence) and not line.strip().strip(fence[0]) else fence
        elif found:
            fence = found[1]
        else:
            yield number, line


def _found(line: str) -> Iterator[re.Match[str]]:
    """The links of a line that are within the project and in no code."""
    code = [one.span() for one in _CODE.finditer(line)]
    for one in _LINK.finditer(line):
        if not any(start < one.start() < end for start, end in code) and not _ELSEWHERE.match(one[1]):
            yield one


def links(text: str) -> Iterator[Link]:
    """Those within the project: of files, or of anchors of the page."""
    for number, line in _prose(text):
        yield from (Link(number, one[1]) for one in _found(line))


def replaced(text: str, by: Callable[[str], str]) -> str:
    """The text with the targets of these links as `by` has them."""
    lines = text.split("\n")
    for number, line in _prose(text):
        for one in reversed(list(_found(line))):
            lines[number - 1] = lines[number - 1][: one.start(1)] + by(one[1]) + lines[number - 1][one.end(1) :]
    return "\n".join(lines)


def anchors(text: str) -> set[str]:
    """Those of a page's headings; of two that are the same the second one has a number."""
    found: dict[str, int] = {}
    told = set()
    for _, line in _prose(text):
        heading = _HEADING.match(line)
        if heading:
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
            told.add(f"{slug}-{found[slug]}" if slug in found else slug)
            found[slug] = found.get(slug, 0) + 1
    return told


def aimed(page: str, target: str) -> tuple[str, str]:
    """The path within the project that a page's link leads to, and the anchor there.

    Args:
        page: the page's own path within the project.
        target: as it stands in the page.
    """
    path, _, anchor = target.partition("#")
    return (posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page), anchor


def problems(root: Path, page: str) -> Iterator[str]:
    """What is wrong with the links of a page, a line a link."""
    text = (root / page).read_text(encoding="utf-8")
    for line, target in links(text):
        path, anchor = aimed(page, target)
        there = root / path
        if path.startswith("..") or not there.exists():
            yield f"{page}:{line}: there is no {target}"
        elif anchor and (there.suffix != ".md" or anchor not in anchors(there.read_text(encoding="utf-8"))):
            yield f"{page}:{line}: {path} has no heading #{anchor}"
