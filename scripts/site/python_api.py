"""Generate the reference of the Python API for autodoc: a page for each package that defines `__all__`.

The packages are found by importing them, so a moved module needs no change here.
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
"""Prefix of checks in a test suite, which the page lists in a table."""
_LAID_OUT: Final = re.compile(r"^ |\S {2,}\S|[├└│]", re.MULTILINE)


def find_packages() -> dict[str, ModuleType]:
    """Return every package that has `__all__`, by name, `holdfast` first.

    Adapters are left out, because their frameworks are not installed here. Each has a page of its own.
    """
    found: dict[str, ModuleType] = {holdfast.__name__: holdfast}
    for one in pkgutil.walk_packages(holdfast.__path__, f"{holdfast.__name__}."):
        parts = one.name.split(".")
        if one.ispkg and parts[1] != "adapters" and not any(part.startswith("_") for part in parts):
            module = import_module(one.name)
            if hasattr(module, "__all__"):
                found[one.name] = module
    return dict(sorted(found.items()))


def find_homes() -> dict[str, str]:
    """Return where each public name is documented: under the shortest path, if a thing has several names."""
    first: dict[int, str] = {}
    result: dict[str, str] = {}
    for package, module in sorted(find_packages().items(), key=lambda item: item[0].count(".")):
        for name in module.__all__:
            full, value = f"{package}.{name}", getattr(module, name)
            shared = inspect.isclass(value) or inspect.isroutine(value)
            result[full] = first.setdefault(id(value), full) if shared else full
    return result


def make_pages() -> dict[str, str]:
    """Return all pages by their paths."""
    found, where = find_packages(), find_homes()
    made = {
        f"{FOLDER}/{name}.rst": "\n".join(_make_package_page(name, module, where)) for name, module in found.items()
    }
    return {INDEX: "\n".join(_make_index(found)), **made}


def _make_index(found: Mapping[str, ModuleType]) -> Iterator[str]:
    yield from (
        *_format_heading("Python API", "="),
        "The public names. Anything that is not in the ``__all__`` of one of these packages may change at any time.",
        "",
    )
    yield from (":doc:`../../library` explains how to use them.", "", ".. list-table::", "   :widths: 40 60", "")
    for name, module in found.items():
        yield from (f"   * - :doc:`{name} <{name}>`", f"     - {to_rst(_get_summary(module))}")
    yield from ("", ".. toctree::", "   :hidden:", "", *(f"   {name}" for name in found), "")


def _make_package_page(name: str, module: ModuleType, where: Mapping[str, str]) -> Iterator[str]:
    yield from (*_format_heading(name, "="), f".. module:: {name}", "", *_format_prose(inspect.getdoc(module) or ""))
    public = {one: getattr(module, one) for one in module.__all__}
    for one, value in public.items():
        full = f"{name}.{one}"
        if where[full] == full and not one.startswith(CHECK):
            yield from (f".. {_choose_directive(value)}:: {full}", *_list_options(value), "")
    elsewhere = [where[f"{name}.{one}"] for one in public if where[f"{name}.{one}"] != f"{name}.{one}"]
    if elsewhere:
        yield from (f"Also here: {', '.join(f':py:obj:`{one}`' for one in elsewhere)}.", "")
    yield from _format_suite({one: value for one, value in public.items() if one.startswith(CHECK)})


def _format_prose(text: str) -> Iterator[str]:
    """Yield paragraphs; those laid out with spaces or box characters are copied unchanged."""
    for paragraph in text.split("\n\n"):
        if _LAID_OUT.search(paragraph):
            yield from (".. code-block:: text", "", *(f"   {line}".rstrip() for line in paragraph.splitlines()), "")
        else:
            yield from (to_rst(" ".join(paragraph.split())), "")


def _list_options(value: Any) -> tuple[str, ...]:
    return ("   :members:", "   :show-inheritance:") if inspect.isclass(value) else ()


def _choose_directive(value: Any) -> str:
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"


def _format_suite(checks: Mapping[str, Any]) -> Iterator[str]:
    if not checks:
        return
    yield from (*_format_heading("Checks", "-"), ".. list-table::", "   :widths: 50 50", "")
    for one, check in checks.items():
        yield from (f"   * - ``{one}``", f"     - {to_rst(_get_summary(check))}")
    yield ""


def _format_heading(title: str, line: str) -> tuple[str, ...]:
    return to_rst(title), line * (len(title) + 8), ""


def _get_summary(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def to_rst(text: str) -> str:
    """Convert a docstring to reStructuredText, with `code` as code and everything else escaped."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # a backtick is not closed
        return _escape(text)
    rst = _escape(pieces[0])
    for code, following in zip(pieces[1::2], pieces[2::2], strict=True):
        # An escaped space prints nothing, but separates code from a word that it is attached to.
        before, after = (r"\ " if char.strip() else "" for char in (rst[-1:], following[:1]))
        rst += (
            f"{before}``{code}``{after}{_escape(following)}"
            if code == code.strip() != ""
            else _escape(f"`{code}`{following}")
        )
    return rst


def _escape(text: str) -> str:
    return "".join(f"\\{char}" if char in "\\*`|_" else char for char in text)
