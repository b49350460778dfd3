"""The reference of the command line: every command with all its arguments and options, as click has them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import click

from holdfast.cli import PROGRAM, commands
from scripts.site.markdown import code, table, words

PAGE: Final = "reference/commands.md"


def contexts(command: click.Command = commands, parent: click.Context | None = None) -> Iterator[click.Context]:
    """A context for each command, the outermost first; hidden ones are none."""
    name = PROGRAM if parent is None else command.name
    found = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield found
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        if not below.hidden:
            yield from contexts(below, found)


def pages() -> dict[str, str]:
    """The page, by its place."""
    return {PAGE: "\n".join(_page())}


def _page() -> Iterator[str]:
    yield from (
        "# All commands and options",
        "",
        "What `--help` says of each. [Command line](../command-line.md) says how they are used.",
        "",
    )
    for context in contexts():
        yield from _command(context)


def _command(context: click.Context) -> Iterator[str]:
    path, told = context.command_path, context.to_info_dict()["command"]
    depth = path.count(" ")
    yield from (f"({path.replace(' ', '-')})=", "", f"{'#' * min(2 + depth, 4)} {code(path)}", "")
    yield from ("```text", " ".join([path, *context.command.collect_usage_pieces(context)]), "```", "")
    for paragraph in inspect.cleandoc(told["help"] or "").replace("\b", "").split("\n\n"):
        yield from (words(paragraph), "")
    below = [
        (f"[{code(f'{path} {name}')}](#{f'{path} {name}'.replace(' ', '-')})", words(one["help"] or ""))
        for name, one in _below(told)
    ]
    yield from table(("command", ""), [(name, about.split(". ")[0].rstrip(".") + ".") for name, about in below])
    rows = [_row(one, context) for one in context.command.get_params(context) if not getattr(one, "hidden", False)]
    yield from table(("option", "default", ""), rows)


def _below(told: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, one) for name, one in told.get("commands", {}).items() if not one["hidden"]]


def _row(one: click.Parameter, context: click.Context) -> tuple[str, str, str]:
    metavar = one.make_metavar(context)
    if isinstance(one, click.Argument):
        return code(metavar), "", "required" if one.required else ""
    assert isinstance(one, click.Option), "there are no others"
    names = ", ".join([*one.opts, *one.secondary_opts])
    flag = one.is_flag or one.count
    about = [
        words(one.help or ""),
        *(["Required."] if one.required else []),
        *(["May be given several times."] if one.multiple else []),
    ]
    return code(names if flag else f"{names} {metavar}"), _default(one, context), " ".join(filter(None, about))


def _default(one: click.Option, context: click.Context) -> str:
    told = one.get_help_extra(context).get("default") if one.show_default else None
    if told is None and not one.is_flag and isinstance(one.default, str | int | float):
        told = str(one.default)
    return code(told) if told else ""
