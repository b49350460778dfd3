"""The error tree: drawn as it is, every class raised, documented, and with a code of its own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError

SOURCE = Path(errors.__file__).parents[1]
PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
CLASSES = [getattr(errors, name) for name in errors.__all__]
BASES = {errors.HoldfastError, errors.UsageError, errors.NotFound, errors.ModelError}
"""Nobody raises them: they are there to be caught."""


def drawn() -> dict[str, str]:
    """Each class of the drawing, and the one it hangs from."""
    above, found = ["HoldfastError"], {}
    for line in (errors.__doc__ or "").splitlines():
        if place := re.match(r"((?:│   |    )*)[├└]── (\w+)", line):
            depth = len(place[1]) // 4
            above[depth + 1 :] = [place[2]]
            found[place[2]] = above[depth]
    return found


def named() -> set[str]:
    """Names that stand in the source outside of `errors`, but where they are imported, caught or asked for."""
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


def test_the_drawing_is_the_tree() -> None:
    """Every class, where it belongs, and no other."""
    assert drawn() == {one.__name__: one.__bases__[0].__name__ for one in CLASSES if one is not HoldfastError}


def test_every_class_is_public() -> None:
    """What is below the base anywhere in `errors` is in its list."""
    below, found = [HoldfastError], set[type[HoldfastError]]()
    while below:
        one = below.pop()
        if one.__module__.startswith("holdfast.errors"):
            found.add(one)
        below += one.__subclasses__()
    assert found == set(CLASSES)


def test_every_class_is_raised_somewhere() -> None:
    """But for those that are only caught."""
    assert {one.__name__ for one in CLASSES if one not in BASES} <= named()


def test_every_code_is_one_classes_alone() -> None:
    """A program that reads it knows what happened."""
    codes = [one.code for one in CLASSES]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)


@pytest.mark.parametrize("one", [one for one in CLASSES if one is not HoldfastError], ids=lambda one: one.__name__)
def test_every_class_is_documented(one: type[HoldfastError]) -> None:
    """With what it is, its code and its status."""
    status = f" {one.http_status} " if one.http_status else " "
    row = f"| `{one.__name__}` | `{one.__bases__[0].__name__}` | `{one.code}` |{status}| "
    assert row in PAGE.read_text(encoding="utf-8")
