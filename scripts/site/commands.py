"""Generate the reference of the command line: every command with all its arguments and options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import click

from holdfast.cli import PROGRAM, commands
from scripts.site.markdown import escape_prose, format_code, format_table

PAGE: Final = "reference/commands.md"


def list_contexts(command: click.Command = commands, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield a context for each command, outermost first, without hidden commands."""
    name = PROGRAM if parent is None else command.name
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield context
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        if not below.hidden:
            yield from list_contexts(below, context)


def make_pages() -> dict[str, str]:
    """Return the page by its path."""
    return {PAGE: "\n".join(_make_page())}


def _make_page() -> Iterator[str]:
    yield from (
        "# All commands and options",
        "",
        "The output of `--help` for each command. [Command line](../command-line.md) explains how to use them.",
        "",
    )
    for context in list_contexts():
        yield from _format_command(context)


def _format_command(context: click.Context) -> Iterator[str]:
    path, info = context.command_path, context.to_info_dict()["command"]
    depth = path.count(" ")
    yield from (f"({path.replace(' ', '-')})=", "", f"{'#' * min(2 + depth, 4)} {format_code(path)}", "")
    yield from ("```text", " ".join([path, *context.command.collect_usage_pieces(context)]), "```", "")
    for paragraph in inspect.cleandoc(info["help"] or "").replace("\b", "").split("\n\n"):
        yield from (escape_prose(paragraph), "")
    below = [
        (f"[{format_code(f'{path} {name}')}](#{f'{path} {name}'.replace(' ', '-')})", escape_prose(one["help"] or ""))
        for name, one in _list_subcommands(info)
    ]
    yield from format_table(("command", ""), [(name, about.split(". ")[0].rstrip(".") + ".") for name, about in below])
    rows = [
        _format_row(one, context) for one in context.command.get_params(context) if not getattr(one, "hidden", False)
    ]
    yield from format_table(("option", "default", ""), rows)


def _list_subcommands(info: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, one) for name, one in info.get("commands", {}).items() if not one["hidden"]]


def _format_row(one: click.Parameter, context: click.Context) -> tuple[str, str, str]:
    metavar = one.make_metavar(context)
    if isinstance(one, click.Argument):
        return format_code(metavar), "", "required" if one.required else ""
    assert isinstance(one, click.Option), "click has no other kind of parameter"
    names = ", ".join([*one.opts, *one.secondary_opts])
    flag = one.is_flag or one.count
    about = [
        escape_prose(one.help or ""),
        *(["Required."] if one.required else []),
        *(["May be given several times."] if one.multiple else []),
    ]
    return (
        format_code(names if flag else f"{names} {metavar}"),
        _format_default(one, context),
        " ".join(filter(None, about)),
    )


def _format_default(one: click.Option, context: click.Context) -> str:
    default = one.get_help_extra(context).get("default") if one.show_default else None
    if default is None and not one.is_flag and isinstance(one.default, str | int | float):
        default = str(one.default)
    return format_code(default) if default else ""
