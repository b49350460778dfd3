"""Read the docstrings of the fields of structs, which descriptions of the REST API and of the configuration show."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache


def list_field_docs(kind: type) -> dict[str, str]:
    """Return the docstrings of a class's fields, by the name of the field. Inherited fields are included."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        found |= _list_module_docs(one.__module__).get(one.__name__, {})
    return found


@cache
def _list_module_docs(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of fields in a module, by class and field. The result is empty if the source code is not available."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {node.name: dict(_list_docs(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _list_docs(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(node.body, node.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as about)):
                yield name, inspect.cleandoc(about)
