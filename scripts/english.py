"""`make english`: counts names and docstrings that are not plain English, and fails when there are more than before.

The counts may only fall. When one falls, lower its bound here, so that it stays there:

- functions named by a participle (`told`, `opened`) instead of a verb in the imperative;
- docstrings that begin with What, Who, How, Whether, Whose or Where instead of saying what is done;
- docstrings that only say "See X";
- mentions of documents that are not in the repository.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MOST: Final = {"participle": 655, "opening": 831, "see": 164, "document": 0}
"""The bounds: how many there were when this was written."""
ROOT: Final = Path(__file__).parent.parent / "src" / "holdfast"
_IRREGULAR: Final = frozenset(
    """
    told said asked found made held kept sent given taken written begun gone known seen shown laid left lost met paid spoken stood thought
    understood won worn drawn driven fallen forgotten got grown hidden born built brought bought caught dealt done felt fought heard led
    lent meant sold slept spent taught torn thrown
    """.split()  # noqa: SIM905 - words
)
_VERBS: Final = frozenset("need feed seed embed speed exceed proceed shed heed".split())  # noqa: SIM905 - words
"""Verbs in the imperative that end like a participle."""
_OPENING: Final = re.compile(r"(What|Who|How|Whether|Whose|Where)\b")
_SEE: Final = re.compile(r"See \S+\.?$")
_DOCUMENT: Final = re.compile(r"\bDESIGN\.md|\bseed 00\d")


def main() -> int:
    """Print the counts, and what is above its bound; 1 if anything is."""
    found: dict[str, list[str]] = {kind: [] for kind in MOST}
    for path in sorted(ROOT.rglob("*.py")):
        for kind, line, text in _find(path.read_text(encoding="utf-8")):
            found[kind].append(f"{path.relative_to(ROOT.parent.parent)}:{line}: {text}")
    above = {kind: places for kind, places in found.items() if len(places) > MOST[kind]}
    for kind, places in found.items():
        print(f"{kind}: {len(places)}, at most {MOST[kind]}")
    for kind, places in above.items():
        print(f"\n{kind}: name or say these in plain English, see CONTRIBUTING.md, or others of the kind instead:")
        print("\n".join(places))
    return 1 if above else 0


def _find(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield kind, line and text of each finding in a module."""
    for at, line in enumerate(source.splitlines(), 1):
        if _DOCUMENT.search(line):
            yield "document", at, line.strip()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        said = ast.get_docstring(node) or ""
        first = said.partition("\n")[0]
        if _OPENING.match(said):
            yield "opening", node.lineno, f"{node.name}: {first}"
        if _SEE.match(said):
            yield "see", node.lineno, f"{node.name}: {first}"
        if not isinstance(node, ast.ClassDef) and not _is_property(node) and _is_participle(node.name):
            yield "participle", node.lineno, node.name


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(one) or ast.unparse(one).endswith(".setter") for one in node.decorator_list)


def _is_participle(name: str) -> bool:
    word = name.strip("_").partition("_")[0]
    return word in _IRREGULAR or (word.endswith("ed") and word not in _VERBS)


if __name__ == "__main__":
    sys.exit(main())
