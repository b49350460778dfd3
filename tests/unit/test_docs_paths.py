"""Files that the pages for contributors name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("AGENTS.md", "CONTRIBUTING.md", "docs/architecture.md")
FOLDERS = (ROOT, ROOT / "src" / "holdfast", ROOT / "src", ROOT / "docs")
NAMES = {path.name for path in (ROOT / "src" / "holdfast").rglob("*") if path.is_file()}
"""Names of all files of the package. Within a row about one package, pages name its files without a folder."""
FILE = re.compile(r"(?<![\w./*-])(?:[\w*-]+/)*[\w-]+\.(?:py|sql|toml|js|css|lua)\b")
FOLDER = re.compile(r"`((?:[\w*-]+/)+)`")


def find_missing_paths(text: str) -> list[str]:
    """Return the names of files and folders in a page that do not exist. Names with NAME are patterns for the reader."""
    named = {name for name in (*FILE.findall(text), *FOLDER.findall(text)) if "NAME" not in name and "DATE" not in name}
    return sorted(
        name
        for name in named
        if not any(any(folder.glob(name.rstrip("/"))) for folder in FOLDERS) and name not in NAMES
    )


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    """Each file and folder that a page names is in the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert find_missing_paths(text) == []


def test_missing_files_are_found() -> None:
    """A wrong name is reported in a table, in a block and as a folder; existing files, patterns and examples are not."""
    text = (
        "`turns/turn.py`, `turns/gone.py` and `turns/`, `away/`, `adapters/NAME.py`\n```\nturns/lost.py  Class\n```\n"
    )
    assert find_missing_paths(text) == ["away/", "turns/gone.py", "turns/lost.py"]
