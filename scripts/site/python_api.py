"""The reference of the Python API: a page for each package that says by `__all__` what is public, made for autodoc.

Which packages these are is found by looking, so that a module may move without this being changed.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import holdfast

FOLDER: Final = "reference/python"
INDEX: Final = f"{FOLDER}/index.rst"
CHECK: Final = "test_"
"""What the names of a suite begin with: its checks are told in a table."""
_LAID_OUT: Final = re.compile(r"^ |\S {2,}\S|[├└│]", re.MULTILINE)


def packages() -> dict[str, ModuleType]:
    """Every package that has `__all__`, by name, `holdfast` itself first."""
    found: dict[str, ModuleType] = {holdfast.__name__: holdfast}
    for one in pkgutil.walk_packages(holdfast.__path__, f"{holdfast.__name__}."):
        if one.ispkg and not any(part.startswith("_") for part in one.name.split(".")):
            module = import_module(one.name)
            if hasattr(module, "__all__"):
                found[one.name] = module
    return dict(sorted(found.items()))


def homes() -> dict[str, str]:
    """The one place where each public name is described, by its public names: of several, that with the shortest path."""
    first: dict[int, str] = {}
    told: dict[str, str] = {}
    for package, module in sorted(packages().items(), key=lambda item: item[0].count(".")):
        for name in module.__all__:
            full, value = f"{package}.{name}", getattr(module, name)
            shared = inspect.isclass(value) or inspect.isroutine(value)
            told[full] = first.setdefault(id(value), full) if shared else full
    return told


def pages() -> dict[str, str]:
    """All pages, by their place."""
    found, where = packages(), homes()
    made = {f"{FOLDER}/{name}.rst": "\n".join(_package(name, module, where)) for name, module in found.items()}
    return {INDEX: "\n".join(_index(found)), **made}


def _index(found: Mapping[str, ModuleType]) -> Iterator[str]:
    yield from (
        *_heading("Python API", "="),
        "The public names. What stands in none of these packages' ``__all__`` may change at any time.",
        "",
    )
    yield from (":doc:`../../library` says how they are used.", "", ".. list-table::", "   :widths: 40 60", "")
    for name, module in found.items():
        yield from (f"   * - :doc:`{name} <{name}>`", f"     - {plain(_summary(module))}")
    yield from ("", ".. toctree::", "   :hidden:", "", *(f"   {name}" for name in found), "")


def _package(name: str, module: ModuleType, where: Mapping[str, str]) -> Iterator[str]:
    yield from (*_heading(name, "="), f".. module:: {name}", "", *_prose(inspect.getdoc(module) or ""))
    public = {one: getattr(module, one) for one in module.__all__}
    for one, value in public.items():
        full = f"{name}.{one}"
        if where[full] == full and not one.startswith(CHECK):
            yield from (f".. {_directive(value)}:: {full}", *_options(value), "")
    elsewhere = [where[f"{name}.{one}"] for one in public if where[f"{name}.{one}"] != f"{name}.{one}"]
    if elsewhere:
        yield from (f"Also here: {', '.join(f':py:obj:`{one}`' for one in elsewhere)}.", "")
    yield from _suite({one: value for one, value in public.items() if one.startswith(CHECK)})


def _prose(text: str) -> Iterator[str]:
    """Paragraphs; one that is laid out by spaces, or drawn, stands as it is."""
    for paragraph in text.split("\n\n"):
        if _LAID_OUT.search(paragraph):
            yield from (".. code-block:: text", "", *(f"   {line}".rstrip() for line in paragraph.splitlines()), "")
        else:
            yield from (plain(" ".join(paragraph.split())), "")


def _options(value: Any) -> tuple[str, ...]:
    return ("   :members:", "   :show-inheritance:") if inspect.isclass(value) else ()


def _directive(value: Any) -> str:
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"


def _suite(checks: Mapping[str, Any]) -> Iterator[str]:
    if not checks:
        return
    yield from (*_heading("Checks", "-"), ".. list-table::", "   :widths: 50 50", "")
    for one, check in checks.items():
        yield from (f"   * - ``{one}``", f"     - {plain(_summary(check))}")
    yield ""


def _heading(title: str, line: str) -> tuple[str, ...]:
    return plain(title), line * (len(title) + 8), ""


def _summary(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def plain(text: str) -> str:
    """A docstring's words as reStructuredText: `code` as code, everything else as it stands."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # one that is not closed
        return _escaped(text)
    told = _escaped(pieces[0])
    for code, behind in zip(pieces[1::2], pieces[2::2], strict=True):
        # An escaped space is nothing, and sets code apart from what it stands in one word with.
        before, after = (r"\ " if char.strip() else "" for char in (told[-1:], behind[:1]))
        told += (
            f"{before}``{code}``{after}{_escaped(behind)}"
            if code == code.strip() != ""
            else _escaped(f"`{code}`{behind}")
        )
    return told


def _escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in "\\*`|_" else char for char in text)
