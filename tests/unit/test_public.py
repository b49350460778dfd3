"""The public names: one flat, sorted list that is what it says."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import holdfast

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
