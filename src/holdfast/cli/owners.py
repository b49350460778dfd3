"""Whose memories a command is about, and where they are: options that the commands of `holdfast memories` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from holdfast.cli.stores import json_option, place_options

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast
    from holdfast.memories import Owner

F = TypeVar("F", bound=Callable[..., Any])
_SETTLE_SECONDS: Final = 10.0
"""How long a command waits for vectors of what it wrote."""


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
    from holdfast.memory_checks import owner_of

    return owner_of(asked["user"], asked["agent"], app=asked["app"])


async def settled(hf: Holdfast) -> None:
    """Wait, for a while, until what waits for a vector has one: no server may be there to make it behind."""
    import anyio

    if hf.engine.index is not None and hf.engine.index.embedder is not None:
        with anyio.move_on_after(_SETTLE_SECONDS):
            await hf.engine.index.settled()
