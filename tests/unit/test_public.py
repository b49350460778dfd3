"""The public names: one flat, sorted list that is what it says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parents[2]
HEAVY = ("apsw", "tiktoken", "aiohttp", "starlette", "uvicorn", "yaml", "rich", "click", "asyncio", "anyio", "numpy")


def test_the_list_is_sorted_and_complete() -> None:
    """`__all__` is sorted, names every lazy name, and nothing else."""
    assert list(holdfast.__all__) == sorted(holdfast.__all__)
    assert set(holdfast.__all__) == {*holdfast._HOMES, "__version__"}


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_name_is_there(name: str) -> None:
    """Each leads to what its home module has."""
    value = getattr(holdfast, name)
    if name != "__version__":
        module, _, attribute = holdfast._HOMES[name].partition(":")
        assert value is getattr(import_module(module), attribute or name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As for any module."""
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = holdfast.nope


def test_importing_it_imports_nothing_heavy() -> None:
    """`import holdfast` is quick because it waits with everything that is not."""
    code = f"import sys, holdfast; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def list_documented_imports() -> list[tuple[str, str, str]]:
    """What documentation and examples import from within Holdfast: where, from which module, which name."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.py"))]
    return [
        (str(page.relative_to(ROOT)), found[1], name.split(" as ")[0].strip())
        for page in pages
        for found in re.finditer(
            r"^\s*from (holdfast(?:\.[\w.]+)?) import (?:\(([^)]*)\)|(.+))$",
            page.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        for name in (found[2] or found[3]).split(",")
        if name.strip()
    ]


def list_public_names(module: str) -> tuple[str, ...]:
    """Return `__all__` of a module. Adapters are not imported, because their frameworks are not installed here."""
    if not module.startswith("holdfast.adapters."):
        return tuple(getattr(import_module(module), "__all__", ()))
    path = ROOT / "src" / module.replace(".", "/")
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    found = re.search(r"^__all__ = (\[.*?\])", source, re.MULTILINE | re.DOTALL)
    assert found, f"{module} has __all__"
    return tuple(ast.literal_eval(found[1]))


def test_what_documentation_imports_is_public() -> None:
    """Users are sent to names that stay: those of a package's `__all__`."""
    found = list_documented_imports()
    assert len(found) > 20
    for page, module, name in found:
        public = list_public_names(module)
        package = module == "holdfast" and name not in public
        assert name in public or (package and import_module(f"holdfast.{name}").__all__), (page, module, name)
