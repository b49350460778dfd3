"""Each pinned text belongs to a test, and each test has one."""

from __future__ import annotations

import ast
from pathlib import Path

HERE = Path(__file__).parent


def test_each_text_belongs_to_an_exchange() -> None:
    named = {
        f"{path.stem.removeprefix('test_')}/{node.name.removeprefix('test_')}"
        for path in HERE.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    pinned = {f"{path.parent.name}/{path.stem}" for path in (HERE / "pinned").rglob("*.txt")}
    assert named == pinned, "write texts with HOLDFAST_TEST_PIN=1, and delete those of tests that are gone"
