"""The pages where Sphinx reads them: those of docs/, those beside README.md, and those that are made from the code."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from scripts.site import commands, links, python_api, rest

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
ROOTS: Final[Mapping[str, str]] = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security-policy.md"}
"""Pages that lie beside README.md, because people look for them there, and where the site has them."""
MADE: Final[tuple[Callable[[], Mapping[str, str]], ...]] = (rest.pages, commands.pages, python_api.pages)
"""Whoever makes pages, each by its place in the site."""
FILES: Final = "files"
"""Where the site has what else its pages lead to."""
_ORPHAN: Final = "---\norphan: true\n---\n\n"


def stage(folder: Path) -> None:
    """Make the folder what Sphinx reads; files that are as they should be are left alone, so that it need not read them again."""
    wanted = {path: text.encode() for make in MADE for path, text in make().items()} | _collected()
    for there in folder.rglob("*") if folder.exists() else ():
        if there.is_file() and there.relative_to(folder).as_posix() not in wanted:
            there.unlink()
    for place, content in wanted.items():
        path = folder / place
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _collected() -> dict[str, bytes]:
    """The pages that people write, and every file that they lead to, by their place in the site."""
    waiting = [f"docs/{page.name}" for page in sorted(DOCS.glob("*.md"))] + list(ROOTS)
    found: dict[str, bytes] = {}
    while waiting:
        path = waiting.pop()
        place = place_of(path)
        if place in found or not (ROOT / path).is_file():  # one that is not there is told of by Sphinx
            continue
        if not path.endswith(".md"):
            found[place] = (ROOT / path).read_bytes()
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        waiting += [_file(links.aimed(path, link.target)[0]) for link in links.links(text)]
        written = links.replaced(text, partial(_moved, path))
        found[place] = (written if "/" not in place else _ORPHAN + written).encode()
    return found


def _file(path: str) -> str:
    """What a link to a folder shows."""
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def place_of(path: str) -> str:
    """Where the site has a file of the project."""
    folder, _, name = path.rpartition("/")
    return name if folder == "docs" else ROOTS.get(path, f"{FILES}/{path}")


def _moved(page: str, target: str) -> str:
    """A link of a page, from where the site has both."""
    path, anchor = links.aimed(page, target)
    if path == page:
        return target
    shown = posixpath.relpath(place_of(_file(path)), posixpath.dirname(place_of(page)) or ".")
    return f"{shown}#{anchor}" if anchor else shown
