"""The error tree: every class is public, is raised, and has a code of its own, which is documented."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from holdfast import errors
from holdfast.errors import HoldfastError

SOURCE = Path(errors.__file__).parents[1]
PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
CLASSES = [getattr(errors, name) for name in errors.__all__]
BASES = {errors.HoldfastError, errors.UsageError, errors.NotFound, errors.ModelError}
"""Base classes that are only caught, never raised."""


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


def test_every_code_is_an_anchor_of_the_page() -> None:
    """The codes of requests that are refused early, too."""
    assert list_codes() <= set(re.findall(r"^### (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
