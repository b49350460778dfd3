"""The public Python names: packages with `__all__`, the methods of the objects that users work with, and the adapters.

Annotations are left out, because moving an internal type is no change for users.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeGuard

import msgspec

import holdfast
from holdfast.hooks import Hook, Observer
from holdfast.models import Model
from holdfast.stores import Store
from scripts.site.python_api import find_homes, find_packages

ADAPTERS: Final = Path(holdfast.__file__).parent / "adapters"
INTERNAL: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(members.split())
    for name, members in {
        "ArtifactService": "blobs discard for_store list_all read settings with_store",
        "Consolidator": "get_last_time load_named on_swept",
        "Holdfast": "compactor engine ensure find_responder guard hooks life new_id queueing replace_roster scoring"
        " serve_tenant tool_registry",
        "IndexService": "close closed drop_if_gone embedder erase_entry erase_records failures forget_user index"
        " index_memories indexed last_error mark_change mode record_write records reranker reset schedule",
        "Memories": "clock close forget_entry forget_user_sources handle_forgotten_owner index on_changed settings store",
        "MemoryFiles": "with_source",
        "OpenTurn": "save_view watch working_set",
        "Records": "fill_hits read_page",
        "RemoteRecords": "fill_hits read_page",
        "SessionHandle": "responder write",
    }.items()
}
"""Members that the server, the command line and other packages of Holdfast use. They may change at any time."""
PROTOCOLS: Final = (Store, Model, Hook, Observer)
"""Interfaces that users implement."""
_ROOTS: Final = (
    "Holdfast",
    "SessionHandle",
    "OpenTurn",
    "Portal",
    "RemoteHoldfast",
    "RemoteSession",
    "MemoryFiles",
    "ToolContext",
)


def list_interfaces() -> dict[str, type]:
    """Return the classes with methods that users call, by name: those of `holdfast`, and those that their members return."""
    found: dict[str, type] = {}
    below: list[type] = [getattr(holdfast, name) for name in _ROOTS]
    while below:
        one = below.pop(0)
        if one.__name__ in found:
            continue
        found[one.__name__] = one
        for name in list_members(one):
            below += [other for other in _list_returned(one, name) if _has_methods(other)]
    return dict(sorted(found.items()))


def list_results() -> dict[str, type]:
    """Return the classes of results that methods of the interfaces return, by name."""
    found: dict[str, type] = {}
    below = list(list_interfaces().values())
    while below:
        one = below.pop(0)
        for name in list_members(one):
            for other in _list_returned(one, name):
                if other.__name__ not in found and _list_fields(other) and not _has_methods(other):
                    found[other.__name__] = other
                    below.append(other)
    return dict(sorted(found.items()))


def list_members(cls: type) -> list[str]:
    """Return the names of a class's public methods, properties and attributes, inherited ones included. `__call__` counts too."""
    internal = INTERNAL.get(cls.__name__, frozenset())
    found = {name for name in dir(cls) if _is_member(cls, name)} | set(list_attributes(cls))
    return sorted(found - internal)


def list_attributes(cls: type) -> Iterator[str]:
    """Yield the names of public attributes that methods of a class set."""
    for base in cls.__mro__:
        if base.__module__.startswith("holdfast") and not _list_fields(base):
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
                if _is_own_attribute(node):
                    yield node.attr


def _is_own_attribute(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Return True for the target of `self.name = …` with a public name."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and not node.attr.startswith("_")
    )


def _is_member(cls: type, name: str) -> bool:
    value = inspect.getattr_static(cls, name)
    home = next((base for base in cls.__mro__ if name in vars(base)), object)
    return (
        (name == "__call__" or not name.startswith("_")) and home.__module__.startswith("holdfast") and _is_code(value)
    )


def _is_code(value: object) -> bool:
    return isinstance(value, FunctionType | property | classmethod | staticmethod)


def _has_methods(cls: type) -> bool:
    """Return True if users call methods of a class, so it is more than a result."""
    return any(inspect.iscoroutinefunction(inspect.getattr_static(cls, name)) for name in dir(cls) if name[0] != "_")


def _list_returned(cls: type, name: str) -> Iterator[type]:
    value = inspect.getattr_static(cls, name, None)
    if not _is_code(value):
        return
    function: Any = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    yield from _list_classes(typing.get_type_hints(inspect.unwrap(function)).get("return"))


def _list_classes(hint: Any) -> Iterator[type]:
    if inspect.isclass(hint) and hint.__module__.startswith("holdfast"):
        yield hint
    for inner in typing.get_args(hint):
        yield from _list_classes(inner)


def _list_fields(cls: type) -> tuple[str, ...]:
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    fields: Iterable[str] = getattr(cls, "_fields", ()) or getattr(cls, "__dataclass_fields__", ())
    return tuple(name for name in fields if not name.startswith("_"))


# -- the pinned list ---------------------------------------------------------------


def pin_packages() -> Iterator[str]:
    """Yield a line for each name in the `__all__` of a package, with its parameters and defaults."""
    homes = find_homes()
    for package, module in find_packages().items():
        for name in module.__all__:
            full = f"{package}.{name}"
            value = getattr(module, name)
            if name == "__version__":
                yield full
            elif homes[full] != full:
                yield f"{full} is {homes[full]}"
            elif callable(value) and hasattr(value, "__module__") and str(value.__module__).startswith("holdfast"):
                yield f"{full}{_format_class(value) if inspect.isclass(value) else format_signature(value)}"
            else:
                yield full


def _format_class(cls: type) -> str:
    if issubclass(cls, BaseException):
        return f"({', '.join(base.__name__ for base in cls.__bases__)}), code {getattr(cls, 'code', None)}"
    if cls in PROTOCOLS or getattr(cls, "_is_protocol", False):
        return ""
    return format_signature(cls)


def pin_members() -> Iterator[str]:
    """Yield a line for each method, property and field of the objects that users work with, and that users implement."""
    for cls in dict.fromkeys((*list_interfaces().values(), *PROTOCOLS)):
        for member in list_members(cls):
            yield f"{cls.__name__}.{member}{_format_member(cls, member)}"
    for name, cls in list_results().items():
        for member in (*_list_fields(cls), *(one for one in list_members(cls) if _is_property(cls, one))):
            yield f"{name}.{member}"


def _is_property(cls: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(cls, name, None), property)


def _format_member(cls: type, name: str) -> str:
    value = inspect.getattr_static(cls, name, None)
    if value is None or isinstance(value, property):
        return ""
    return format_signature(getattr(cls, name), bound=isinstance(value, FunctionType))


def format_signature(function: Any, *, bound: bool = False) -> str:
    """Return the parameters of a function or class with their defaults.

    Args:
        function: the function or class.
        bound: True leaves out the first parameter, which is `self`.
    """
    signature = inspect.signature(function)
    plain = [
        one.replace(annotation=inspect.Parameter.empty, default=_Shown.of(one.default))
        for one in signature.parameters.values()
    ]
    return str(signature.replace(parameters=plain[1:] if bound else plain, return_annotation=inspect.Signature.empty))


class _Shown:
    """A default that is printed without addresses in memory."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    @classmethod
    def of(cls, value: Any) -> Any:
        if value is inspect.Parameter.empty:
            return value
        if isinstance(value, frozenset):
            return cls(f"{{{', '.join(sorted(map(repr, value)))}}}")
        if callable(value) and hasattr(value, "__qualname__"):
            return cls(value.__qualname__)
        is_settings = isinstance(value, msgspec.Struct)
        return cls(f"{type(value).__name__}()" if is_settings else repr(value))


# -- adapters ----------------------------------------------------------------------


def list_adapters() -> dict[str, list[str]]:
    """Return the public names of each adapter by its module. Nothing is imported, because the frameworks are not installed here."""
    modules = [one for one in sorted(ADAPTERS.iterdir()) if not one.name.startswith("_")]
    return {f"holdfast.adapters.{one.stem}": _read_all(_find_source(one)) for one in modules}


def _find_source(module: Path) -> Path:
    return module / "__init__.py" if module.is_dir() else module


def _read_all(path: Path) -> list[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError(f"{path} has no __all__")


def pin_adapters() -> Iterator[str]:
    """Yield a line for each public name of the adapters, with its parameters and defaults."""
    for module, names in list_adapters().items():
        place = ADAPTERS / module.rpartition(".")[2]
        files = sorted(place.glob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
        for name in names:
            found = next((node for tree in trees for node in tree.body if getattr(node, "name", None) == name), None)
            yield f"{module}.{name}{_format_node(found)}"


def _format_node(node: ast.AST | None) -> str:
    if isinstance(node, ast.ClassDef):
        node = next((one for one in node.body if getattr(one, "name", None) == "__init__"), None)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    for one in ast.walk(node.args):
        if isinstance(one, ast.arg):
            one.annotation = None
    return f"({ast.unparse(node.args)})".replace("(self, ", "(").replace("(self)", "()")


def get_summary(name: str) -> str:
    """Return the first sentence of a name's docstring."""
    value = getattr(import_module("holdfast"), name)
    first = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return first.partition(". ")[0].rstrip(".")
