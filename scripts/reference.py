"""Generate the reference pages from the code: `python -m scripts.reference`.

One page each for commands, routes, configuration keys, strategy keys and Python names. With `--check` nothing is written, and the exit
code is 1 if a page is outdated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import griffe

from holdfast.cli import PROGRAM, commands
from holdfast.context.settings import DEFAULT_STRATEGY, STRATEGIES
from holdfast.server.app import ROUTES
from scripts.configuration_keys import format_table as format_keys

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
MODULES: Final[Mapping[str, str]] = {
    "holdfast": "What programs use.",
    "holdfast.settings": "Settings that `holdfast.open` and agents take.",
    "holdfast.errors": "[Errors](errors.md) says what each class and code means.",
    "holdfast.testing": "Scripted models for your own tests.",
}
"""The public modules. Adapters have their own pages."""
INTERFACES: Final = ("Holdfast", "SessionHandle", "OpenTurn", "Records", "MemoryFiles", "Portal")
"""Classes of `holdfast` whose methods are listed."""
INTERNAL: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(members.split())
    for name, members in {
        "Holdfast": "compactor engine ensure find_responder guard hooks life new_id queueing replace_roster scoring"
        " serve_tenant tool_registry",
        "Memories": "clock close forget_entry forget_user_sources handle_forgotten_owner index on_changed settings store",
        "MemoryFiles": "with_source",
        "OpenTurn": "save_view watch working_set",
        "Records": "fill_hits read_page",
        "SessionHandle": "responder write",
    }.items()
}
"""Members that other packages of Holdfast use. They may change at any time."""
SHARED_OPTIONS: Final = frozenset({"--store", "--config", "--json"})
"""Options that the page describes once."""
_KINDS: Final = {
    "integer": "integer",
    "share": "above 0, below 1",
    "text": "string",
    "texts": "list of strings",
    "flag": "true, false",
}


def main() -> int:
    """Write or check the pages; return the exit code."""
    stale = [name for name, new in make_pages().items() if new != (DOCS / name).read_text(encoding="utf-8")]
    if "--check" in sys.argv[1:]:
        print(
            *[f"docs/{name} is outdated: run python -m scripts.reference" for name in stale], sep="\n", file=sys.stderr
        )
        return int(bool(stale))
    for name, new in make_pages().items():
        (DOCS / name).write_text(new, encoding="utf-8")
    return 0


def make_pages() -> dict[str, str]:
    """Return each page by its name, with its generated part as the code has it."""
    found = {}
    for name, make in PAGES.items():
        before, _, rest = (DOCS / name).read_text(encoding="utf-8").partition(BEGIN)
        found[name] = f"{before}{BEGIN}\n{make()}\n{END}{rest.partition(END)[2]}"
    return found


# -- commands ----------------------------------------------------------------------


def list_contexts(command: click.Command = commands, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield a context for each command, outermost first, without hidden commands."""
    name = PROGRAM if parent is None else command.name
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield context
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        if not below.hidden:
            yield from list_contexts(below, context)


def format_commands() -> str:
    """Format a table of all commands that do something, with their arguments and options."""
    rows = []
    for context in list_contexts():
        if not isinstance(context.command, click.Group):
            shown = [one for one in context.command.params if not SHARED_OPTIONS & {*one.opts}]
            given = [_format_parameter(one, context) for one in shown]
            rows.append((f"`{' '.join([context.command_path, *given])}`", context.command.get_short_help_str(200)))
    return _format_table(("command", "what it does"), rows)


def _format_parameter(one: click.Parameter, context: click.Context) -> str:
    if isinstance(one, click.Argument):
        return one.make_metavar(context)
    assert isinstance(one, click.Option), "click has no other kind of parameter"
    names = "/".join([one.opts[0], *one.secondary_opts])
    text = names if one.is_flag or one.count else f"{names} {one.make_metavar(context)}"
    return text if one.required else f"[{text}]"


# -- routes ------------------------------------------------------------------------


def format_routes() -> str:
    """Format a table of all routes, without the inspector's pages."""
    rows = []
    for route in ROUTES:
        about = " ".join(route.summary.partition("\n\n")[0].split())
        rows.append((f"`{route.method} {route.path}`", route.need, about))
    return _format_table(("route", "permission", "what it does"), rows)


# -- strategies --------------------------------------------------------------------


def format_strategies() -> str:
    """Format a table of all strategies and their keys. The page describes the keys that all strategies share."""
    rows: list[tuple[str, ...]] = []
    for name, strategy in STRATEGIES.items():
        rows.append((f"`{name}`{' (default)' if name == DEFAULT_STRATEGY else ''}", "", "", "", strategy.about))
        for key, what in strategy.keys.items():
            if what.kind not in ("clearing", "switch") and key != "facts":
                kind = f"{_KINDS[what.kind]}, from {what.low}" if what.kind == "integer" else _KINDS[what.kind]
                rows.append(("", f"`{key}`", kind, _format_default(what.default), what.about))
    return _format_table(("strategy", "key", "type", "default", "meaning"), rows)


def _format_default(value: object) -> str:
    if value is None or value == ():
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- Python names ------------------------------------------------------------------


def format_names() -> str:
    """Format the names of the public modules, and the methods of the main classes."""
    package = griffe.load("holdfast", search_paths=[ROOT / "src"], allow_inspection=False)
    parts = []
    for module, about in MODULES.items():
        found = package if module == "holdfast" else package[module.partition(".")[2]]
        names = sorted(str(name) for name in found.exports or () if not str(name).startswith("_"))
        table = _format_table(("name", "what it is"), [(f"`{name}`", _summarize(found[name])) for name in names])
        parts += [f"## {module}", about, "\n".join(["```text", *names, "```"]) if "errors.md" in about else table]
    parts += [
        "## Methods and attributes",
        "A method of `holdfast.connect(…)` has the same parameters, unless [its page](connect.md) says otherwise.",
    ]
    for name in INTERFACES:
        one = _resolve(package[name])
        inner = INTERNAL.get(name, frozenset())
        members = [(key, one.all_members[key]) for key in sorted(one.all_members) if key[0] != "_" and key not in inner]
        lines = [
            f"{key}({_format_parameters(value)})" if value.is_function and not _is_like_another(value) else key
            for key, value in ((key, _resolve(value)) for key, value in members)
            if value.is_function or value.is_attribute
        ]
        parts += [f"### {name}", "\n".join(["```text", *lines, "```"])]
    return "\n\n".join(parts) + "\n"


def _resolve(found: griffe.Object | griffe.Alias) -> Any:
    """Return the object that a name refers to."""
    return found.final_target if isinstance(found, griffe.Alias) else found


def _summarize(found: griffe.Object | griffe.Alias) -> str:
    text = _resolve(found).docstring
    return "" if text is None else " ".join(text.value.partition("\n\n")[0].split())


def _is_like_another(method: griffe.Function) -> bool:
    """Return True if the method has the parameters of another one (`holdfast.signatures`), which is listed with them."""
    return any(str(one.value).startswith("like(") for one in method.decorators)


def _format_parameters(method: griffe.Function) -> str:
    shown, is_keyword = [], False
    for one in method.parameters:
        if one.name in ("self", "cls"):
            continue
        if one.kind is griffe.ParameterKind.keyword_only and not is_keyword:
            is_keyword = True
            shown.append("*")
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(one.kind, "")
        is_keyword = is_keyword or stars == "*"
        shown.append(f"{stars}{one.name}" + (f"={one.default}" if one.default is not None and not stars else ""))
    return ", ".join(shown)


# -- tables ------------------------------------------------------------------------


def _format_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


BEGIN: Final = "<!-- made by scripts/reference.py -->\n"
END: Final = "<!-- end -->\n"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "commands.md": format_commands,
    "routes.md": format_routes,
    "configuration-keys.md": format_keys,
    "strategy-keys.md": format_strategies,
    "names.md": format_names,
}
"""The pages, and what generates the part between the two marks."""

if __name__ == "__main__":
    sys.exit(main())
