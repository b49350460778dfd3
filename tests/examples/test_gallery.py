"""The ten examples together: each has a section in the README, is short, and uses public names only."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import holdfast
from holdfast import config
from tests.examples.gallery import FOLDER, README, sections

ROOT = FOLDER.parent
PROGRAMS = sorted(FOLDER.rglob("*.py"))
CONFIGURATIONS = sorted(FOLDER.rglob("*.yaml"))
MOST_LINES = 120


def name_of(path: Path) -> str:
    return str(path.relative_to(FOLDER))


def test_there_are_ten_and_each_has_its_section() -> None:
    """Every program has one section that runs it."""
    assert len(PROGRAMS) == len(sections()) == 10
    for section, number in zip(sections(), range(1, 11), strict=True):
        linked = [name_of(path) for path in PROGRAMS if f"]({name_of(path)})" in section]
        assert section.startswith(f"{number}. ")
        assert len(linked) == 1, section
        assert f"python examples/{linked[0]}" in section
        assert "```text\n" in section
        assert "\nLook at " in section


def test_the_table_leads_to_each_section() -> None:
    """The anchors equal those that a code host generates from the headings."""
    headings = [section.splitlines()[0] for section in sections()]
    anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert re.findall(r"^\| \d+ \| \[[^\]]+\]\(#([^)]+)\)", README, re.MULTILINE) == anchors


def test_every_link_leads_somewhere() -> None:
    """Linked files and headings exist."""
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", README)
    assert len(links) > 20
    for path, anchor in links:
        page = (FOLDER / path).resolve()
        assert page.exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            made = [re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings]
            assert anchor in made, (path, anchor)


def test_readme_and_documentation_lead_here() -> None:
    """README.md links to the examples, and the page of the documentation names each of them."""
    assert "](examples/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    for path in PROGRAMS:
        assert f"](../examples/{name_of(path)})" in page


@pytest.mark.parametrize("path", PROGRAMS, ids=name_of)
def test_a_program_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < MOST_LINES
    assert ast.get_docstring(ast.parse(text))


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
    report = config.check_config(str(path), env={})
    # A tool that the program gives is not known to a file alone; see examples/team/team.py.
    warnings = [line for line in report.text.splitlines() if line.startswith("warning:") and "'look_up'" not in line]
    assert (report.exit_code, warnings) == (0, [])
