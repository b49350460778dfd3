"""The error tree: its diagram is correct, and every class is raised, documented and has a unique code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError
from scripts.site import links

SOURCE = Path(errors.__file__).parents[1]
PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
CLASSES = [getattr(errors, name) for name in errors.__all__]
BASES = {errors.HoldfastError, errors.UsageError, errors.NotFound, errors.ModelError}
"""Base classes that are only caught, never raised."""


def read_diagram() -> dict[str, str]:
    """Return each class of the diagram with its parent."""
    above, found = ["HoldfastError"], {}
    for line in (errors.__doc__ or "").splitlines():
        if place := re.match(r"((?:│   |    )*)[├└]── (\w+)", line):
            depth = len(place[1]) // 4
            above[depth + 1 :] = [place[2]]
            found[place[2]] = above[depth]
    return found


def find_used_names() -> set[str]:
    """Return names used in the source outside `errors`, except in imports, handlers and checks."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "errors":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and node.exc is not None:
                found |= {inner.id for inner in ast.walk(node.exc) if isinstance(inner, ast.Name)}
                found |= {inner.attr for inner in ast.walk(node.exc) if isinstance(inner, ast.Attribute)}
            elif isinstance(node, ast.Call):
                found |= {node.func.id} if isinstance(node.func, ast.Name) else set()
                found |= {node.func.attr} if isinstance(node.func, ast.Attribute) else set()
            elif isinstance(node, ast.Assign):  # the kind is chosen first
                found |= {inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name)}
    return found


def list_codes() -> set[str]:
    """Return the codes of all classes, and of requests that are refused early, which have no class."""
    found = {one.code for one in CLASSES}
    for path in (SOURCE / "server").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                given = [one.value for one in node.keywords if one.arg == "code"] if name == "make_error_body" else []
                given += node.args[1:2] if name == "Refused" else []
                found |= {one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return found


def test_the_diagram_matches_the_tree() -> None:
    assert read_diagram() == {one.__name__: one.__bases__[0].__name__ for one in CLASSES if one is not HoldfastError}


def test_every_class_is_public() -> None:
    """Every subclass of the base in `errors` is in `__all__`."""
    below, found = [HoldfastError], set[type[HoldfastError]]()
    while below:
        one = below.pop()
        if one.__module__.startswith("holdfast.errors"):
            found.add(one)
        below += one.__subclasses__()
    assert found == set(CLASSES)


def test_every_class_is_raised_somewhere() -> None:
    """Except for base classes."""
    assert {one.__name__ for one in CLASSES if one not in BASES} <= find_used_names()


def test_every_class_has_its_own_code() -> None:
    """A program can identify the error by its code."""
    codes = [one.code for one in CLASSES]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)


@pytest.mark.parametrize("one", [one for one in CLASSES if one is not HoldfastError], ids=lambda one: one.__name__)
def test_every_class_is_documented(one: type[HoldfastError]) -> None:
    """Under its code, with its base class and status."""
    status = f", {one.http_status}" if one.http_status else ""
    entry = f"### {one.code}\n\n`{one.__name__}` ({one.__bases__[0].__name__}{status}): "
    assert entry in PAGE.read_text(encoding="utf-8")


def test_every_code_is_an_anchor_of_the_page() -> None:
    """The codes of requests that are refused early, too."""
    assert list_codes() <= links.find_anchors(PAGE.read_text(encoding="utf-8"))
