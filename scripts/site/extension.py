"""Sphinx extension of this project: formats docstrings, resolves types, and checks that all public names are documented."""

from __future__ import annotations

import builtins
import re
import sys
import typing
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.logging import getLogger

from scripts.site.python_api import CHECK, find_homes, to_rst

_GENERIC: Final = re.compile(r"[\[|].*", re.DOTALL)
_NO_CODE: Final = re.compile(r"<[^<>]*>")
_OF_A_TUPLE: Final = "Alias for field number"
"""Python's docstring for a field of a named tuple that has none."""
_FIELDS: Final = ("attribute", "data", "property")
"""Kinds of objects whose docstrings have no sections: a colon after the first words is part of the text."""


class _Sections(GoogleDocstring):  # type: ignore[misc]  # Sphinx is not installed where types are checked
    """Sections of a docstring. `Returns` describes the value only, because the signature has the type."""

    def _parse_returns_section(self, section: str) -> list[str]:
        lines: list[str] = self._format_block(":returns: ", self._dedent(self._consume_to_next_section()))
        return [*lines, ""]


def setup(app: Any) -> dict[str, Any]:
    """Register the extension with Sphinx."""
    app.connect("autodoc-process-docstring", _format_docstring)
    app.connect("autodoc-process-signature", _format_signature)
    app.connect("missing-reference", _resolve_reference)
    app.connect("env-check-consistency", _check_completeness)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _format_docstring(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:  # noqa: PLR0917  # Sphinx' own signature
    """Convert a docstring with `code` and sections in Google style to reStructuredText."""
    if what == "data":
        lines[:] = _find_attribute_docs(name, of)
    if lines and lines[0].startswith(_OF_A_TUPLE):
        lines.clear()
    lines[:] = to_rst("\n".join(lines)).split("\n")
    if what not in _FIELDS:
        lines[:] = _Sections(lines, Config(), app, what, name, of, options).lines()


def _find_attribute_docs(name: str, value: Any) -> list[str]:
    """Return the docstring below a constant's definition: the value itself only has the docstring of its type."""
    short = name.rpartition(".")[2]
    for module in _list_modules():
        if vars(module).get(short) is value:
            lines = ModuleAnalyzer.for_module(module.__name__).find_attr_docs().get(("", short))
            if lines:
                return list(lines)
    return []


def _list_modules() -> list[ModuleType]:
    return [module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] == "holdfast"]


def _format_signature(*arguments: Any) -> tuple[str | None, str | None]:
    """Replace parts of a signature that are not Python, such as `<factory>`, so that its types become links."""
    signature, returned = arguments[-2:]
    return _NO_CODE.sub("...", signature) if signature else signature, returned


def _resolve_reference(_app: Any, _env: Any, node: Any, content: Any) -> Any:
    """Show an existing type that is not public without a link."""
    if node.get("refdomain") == "py" and _exists(_GENERIC.sub("", node["reftarget"]).strip()):
        return content
    return None


def _exists(target: str) -> bool:
    parts = target.split(".")
    if len(parts) == 1:
        return any(hasattr(module, target) for module in [builtins, typing, *_list_modules()])
    for at in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:at]))
        except ImportError:
            continue
        for name in parts[at:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def _check_completeness(_app: Any, env: Any) -> None:
    """Warn about public names that are not documented."""
    documented = env.get_domain("py").objects
    wanted = {full for full in find_homes().values() if not full.rpartition(".")[2].startswith(CHECK)}
    for full in sorted(wanted - documented.keys()):
        getLogger(__name__).warning("%s is public but not documented", full)
