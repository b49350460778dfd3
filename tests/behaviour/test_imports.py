"""Tests of behaviour know only what a user sees: a rewrite of the inside changes none of them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
PUBLIC: Final = {"holdfast", "holdfast.errors", "holdfast.settings", "holdfast.testing"}
FILES: Final = sorted(path for path in HERE.rglob("*.py") if HERE / "kit" not in path.parents)
INSIDE: Final = {HERE / "kit" / "seams.py"}
"""Files of the kit that may know the inside."""


def list_inside(path: Path) -> list[str]:
    """Return what a file uses of the inside: imports, private attributes, and names of modules in texts."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if not is_public(name.name)]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or ""] if not is_public(node.module or "") else []
            found += [
                name.name
                for name in node.names
                if node.module == "holdfast"
                and name.name.islower()
                and f"holdfast.{name.name}" not in PUBLIC
                and (HERE.parents[1] / "src/holdfast" / name.name).is_dir()
            ]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not is_own(node):
            found.append(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_patched(node.value):
            found.append(node.value)
    return found


def is_own(node: ast.Attribute) -> bool:
    return node.attr.startswith("__") or (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})


def is_public(module: str) -> bool:
    if module.startswith("tests."):
        return module.startswith("tests.behaviour.kit")
    return module.partition(".")[0] != "holdfast" or module in PUBLIC or module.startswith("holdfast.adapters.")


def is_patched(text: str) -> bool:
    """Tell whether a text names something inside, as `monkeypatch.setattr` takes it."""
    parts = text.split(".")
    return (
        len(parts) > 2
        and parts[0] == "holdfast"
        and all(part.isidentifier() for part in parts)
        and (".".join(parts[:2]) not in PUBLIC and (HERE.parents[1] / "src" / "holdfast" / parts[1]).exists())
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HERE)))
def test_a_test_of_behaviour_uses_only_public_names(path: Path) -> None:
    assert list_inside(path) == []


@pytest.mark.parametrize("path", sorted({*(HERE / "kit").rglob("*.py")} - INSIDE), ids=lambda path: path.name)
def test_only_one_file_of_the_kit_knows_the_inside(path: Path) -> None:
    assert [name for name in list_inside(path) if not name.startswith("tests.")] == []


@pytest.mark.parametrize(
    "line",
    [
        "import holdfast.stores",
        "from holdfast.stores import open_store",
        "from tests.edges.server import gateway",
        "hf._engine",
        "patch('holdfast.turns.recall.LIMIT', 1)",
    ],
)
def test_what_is_inside_is_noticed(tmp_path: Path, line: str) -> None:
    path = tmp_path / "test_x.py"
    path.write_text(line + "\n", encoding="utf-8")
    assert list_inside(path)
