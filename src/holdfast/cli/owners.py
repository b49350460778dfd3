"""Whose memories a command is about, and where they are: options that the commands of `holdfast memories` share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from holdfast.cli.frame import Misuse
from holdfast.cli.stores import json_option, place_options
from holdfast.cli.terminal import line

if TYPE_CHECKING:
    from holdfast.domain.memory import Owner
    from holdfast.holdfast import Holdfast

F = TypeVar("F", bound=Callable[..., Any])
_SETTLE_SECONDS: Final = 10.0
"""How long a command waits for vectors of what it wrote."""
NAMED: Final = 100
"""Characters of a name that are shown."""
_KNOWN: Final = 10
"""Agents that are named where none is like the one that was asked for."""


def whose(command: F) -> F:
    """Options that say whose memories."""
    user = click.option("--user", metavar="ID", help="A user's.  [default: the user default's]")
    agent = click.option("--agent", metavar="NAME", help="An agent's; with --user, who remembers it for the user.")
    app = click.option("--app", is_flag=True, help="Everybody's.")
    return user(agent(app(command)))


def place(command: F) -> F:
    """Options that say in which store, and how it is told."""
    return place_options(json_option(command))


def owner_of_flags(asked: Mapping[str, Any]) -> Owner:
    """Whose memories the options of `whose` mean."""
    from holdfast.memory.checks import owner_of

    if asked["app"] and asked["user"] is not None:
        raise Misuse("--app is everybody's: leave out --user")
    return owner_of(asked["user"], asked["agent"], app=asked["app"])


def named(owner: Owner) -> str:
    """An owner as people are told of it."""
    return "the app" if owner.kind == "app" else f"{owner.kind} {line(owner.id, NAMED)}"


def doubt(agent: str | None, config: str | None) -> None:
    """Tell of an agent that the configuration does not have, where it has any: a program may have others, a typo has none.

    Args:
        agent: the flag.
        config: the flag.
    """
    if agent is None:
        return
    from holdfast.config import load_settings
    from holdfast.config.convert import find_nearest

    known = list(load_settings({"config": config}, os.environ).config.agents)
    if not known or agent in known:
        return
    near = find_nearest(agent, known)
    more = ", …" if len(known) > _KNOWN else ""
    hint = f"did you mean {near}?" if near else f"it has {line(', '.join(known[:_KNOWN]))}{more}"
    click.echo(f"The configuration has no agent {line(agent, NAMED)}; {hint}", err=True)


async def settled(hf: Holdfast) -> None:
    """Wait, for a while, until what waits for a vector has one: no server may be there to make it behind."""
    import anyio

    if hf.index is not None and hf.index.embedder is not None:
        with anyio.move_on_after(_SETTLE_SECONDS):
            await hf.index.settled()
