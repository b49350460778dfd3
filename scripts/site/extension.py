"""What Sphinx has to know of this project: how docstrings are written, what types are called, and that nothing public is missing."""

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

from scripts.site.python_api import CHECK, homes, plain

_GENERIC: Final = re.compile(r"[\[|].*", re.DOTALL)
_NO_CODE: Final = re.compile(r"<[^<>]*>")
_OF_A_TUPLE: Final = "Alias for field number"
"""What Python says of a named tuple's field of which nobody has said anything."""
_FIELDS: Final = ("attribute", "data", "property")
"""Of these the first words are words, also where a colon follows."""


class _Sections(GoogleDocstring):  # type: ignore[misc]  # Sphinx is not there where types are checked
    """The sections of a docstring; what it says of the value that is returned is no type, because the signature has that."""

    def _parse_returns_section(self, section: str) -> list[str]:
        told: list[str] = self._format_block(":returns: ", self._dedent(self._consume_to_next_section()))
        return [*told, ""]


def setup(app: Any) -> dict[str, Any]:
    """Join Sphinx."""
    app.connect("autodoc-process-docstring", _written_plainly)
    app.connect("autodoc-process-signature", _readable)
    app.connect("missing-reference", _known)
    app.connect("env-check-consistency", _complete)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _written_plainly(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:  # noqa: PLR0917  # Sphinx' own signature
    """Docstrings are prose with `code` in it, and sections as Google writes them."""
    if what == "data":
        lines[:] = _said_of(name, of)
    if lines and lines[0].startswith(_OF_A_TUPLE):
        lines.clear()
    lines[:] = plain("\n".join(lines)).split("\n")
    if what not in _FIELDS:
        lines[:] = _Sections(lines, Config(), app, what, name, of, options).lines()


def _said_of(name: str, value: Any) -> list[str]:
    """What stands below a constant where it is made: its value says nothing but what its type is."""
    short = name.rpartition(".")[2]
    for module in _mine():
        if vars(module).get(short) is value:
            told = ModuleAnalyzer.for_module(module.__name__).find_attr_docs().get(("", short))
            if told:
                return list(told)
    return []


def _mine() -> list[ModuleType]:
    return [module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] == "holdfast"]


def _readable(*told: Any) -> tuple[str | None, str | None]:
    """A signature that can be read as Python, so that its types are links: `<factory>` cannot."""
    signature, returned = told[-2:]
    return _NO_CODE.sub("...", signature) if signature else signature, returned


def _known(_app: Any, _env: Any, node: Any, content: Any) -> Any:
    """A type that is no public name is shown without a link, as long as there is such a thing."""
    if node.get("refdomain") == "py" and _is_there(_GENERIC.sub("", node["reftarget"]).strip()):
        return content
    return None


def _is_there(target: str) -> bool:
    parts = target.split(".")
    if len(parts) == 1:
        return any(hasattr(module, target) for module in [builtins, typing, *_mine()])
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


def _complete(_app: Any, env: Any) -> None:
    """Every public name is described."""
    described = env.get_domain("py").objects
    wanted = {full for full in homes().values() if not full.rpartition(".")[2].startswith(CHECK)}
    for full in sorted(wanted - described.keys()):
        getLogger(__name__).warning("%s is public, and not described", full)
