"""Collect all pages in the folder that Sphinx reads: those of docs/, and those next to README.md."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from scripts.site import links

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
ROOTS: Final[Mapping[str, str]] = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security-policy.md"}
"""Pages next to README.md, where readers expect them, and their paths in the site."""
FILES: Final = "files"
"""Folder of the site for other files that pages link to."""
_ORPHAN: Final = "---\norphan: true\n---\n\n"


def stage(folder: Path) -> None:
    """Fill the folder that Sphinx reads; leave unchanged files alone, so that Sphinx does not read them again."""
    wanted = _collect_pages()
    for file in folder.rglob("*") if folder.exists() else ():
        if file.is_file() and file.relative_to(folder).as_posix() not in wanted:
            file.unlink()
    for place, content in wanted.items():
        path = folder / place
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _collect_pages() -> dict[str, bytes]:
    """Return the written pages and every file that they link to, by their paths in the site."""
    waiting = [f"docs/{page.name}" for page in sorted(DOCS.glob("*.md"))] + list(ROOTS)
    found: dict[str, bytes] = {}
    while waiting:
        path = waiting.pop()
        place = get_site_path(path)
        if place in found or not (ROOT / path).is_file():  # Sphinx reports missing files
            continue
        if not path.endswith(".md"):
            found[place] = (ROOT / path).read_bytes()
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        waiting += [_resolve_folder(links.resolve_target(path, link.target)[0]) for link in links.find_links(text)]
        written = links.replace_links(text, partial(_rewrite_link, path))
        found[place] = (written if "/" not in place else _ORPHAN + written).encode()
    return found


def _resolve_folder(path: str) -> str:
    """Return the page that a link to a folder shows: its README.md."""
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def get_site_path(path: str) -> str:
    """Return the path of a project file in the site."""
    folder, _, name = path.rpartition("/")
    return name if folder == "docs" else ROOTS.get(path, f"{FILES}/{path}")


def _rewrite_link(page: str, target: str) -> str:
    """Return the target of a page's link in the site."""
    path, anchor = links.resolve_target(page, target)
    if path == page:
        return target
    shown = posixpath.relpath(get_site_path(_resolve_folder(path)), posixpath.dirname(get_site_path(page)) or ".")
    return f"{shown}#{anchor}" if anchor else shown
