"""The examples use public names only, and their configurations are valid."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import holdfast
from holdfast.config.check import check_config
from tests.examples.gallery import FOLDER

PROGRAMS = sorted(FOLDER.rglob("*.py"))
CONFIGURATIONS = sorted(FOLDER.rglob("*.yaml"))


def name_of(path: Path) -> str:
    return str(path.relative_to(FOLDER))


@pytest.mark.parametrize("path", PROGRAMS, ids=name_of)
def test_a_program_uses_public_names_alone(path: Path) -> None:
    """What it imports of Holdfast stands in a package's `__all__`, and it reaches into nothing."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(one.name == "holdfast" for one in node.names if one.name.partition(".")[0] == "holdfast")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "holdfast":
            package = import_module(str(node.module))
            assert hasattr(package, "__path__"), f"{node.module} is a module, and may move"
            assert {one.name for one in node.names} <= set(package.__all__), node.module
        elif isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_"), node.attr
            assert node.attr not in {"engine", "store"}, "what is inside of a Holdfast"
            if isinstance(node.value, ast.Name) and node.value.id == "holdfast":
                assert node.attr in holdfast.__all__


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=name_of)
def test_a_configuration_has_neither_mistakes_nor_warnings(path: Path) -> None:
    report = check_config(str(path), env={})
    # A tool that the program gives is not known to a file alone; see examples/team/team.py.
    warnings = [line for line in report.text.splitlines() if line.startswith("warning:") and "'look_up'" not in line]
    assert (report.exit_code, warnings) == (0, [])
