"""Which store a command works on, and which session of it is meant."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.errors import Failure
from holdfast.errors import AmbiguousSession, StoreUnavailable

if TYPE_CHECKING:
    from holdfast.config import ServerSettings
    from holdfast.domain.session import Session
    from holdfast.holdfast import Holdfast

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def place_options(command: F) -> F:
    """`--store` and `--config`; flags win over the environment, that over the file."""
    store = click.option("--store", metavar="URL", help="Where sessions live, like sqlite:///chat.db  [HOLDFAST_STORE]")
    return store(config_option(command))


config_option = click.option(
    "--config", metavar="FILE", help="Configuration.  [default: holdfast.yaml, if it is there; HOLDFAST_CONFIG]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
user_option = click.option("--user", metavar="ID", help="Whose sessions.")
ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)


def work(
    do: Callable[[Holdfast], Awaitable[T]],
    *,
    store: str | None,
    config: str | None,
    makes: bool = False,
    ends: bool = False,
    still: bool = False,
    models: bool = False,
    looks: bool = False,
    agents: bool = False,
) -> T:
    """Open the store that flags, environment and file name, do something with it, and close it.

    Args:
        do: what to do.
        store: the flag.
        config: the flag.
        makes: whether a database that is not there is made; a look at one that is not there is a mistake.
        ends: whether it writes: the hooks of the configuration are told of ends, and transcripts follow.
        still: no session ends meanwhile, however long it was idle or however many there are.
        models: a model may be asked for merges of memories, where the configuration names one.
        looks: it only looks at the index, and makes no file of one.
        agents: the agents and models of the configuration are there: whose prompts are looked at.
    """
    import anyio

    from holdfast.config import load_settings
    from holdfast.config.build import create_holdfast, create_store_folder

    settings = load_settings({"store": store, "config": config}, os.environ)
    if makes:
        create_store_folder(settings.store)
    else:
        require(settings.store)
    hf = create_holdfast(
        settings, **_without_turns(settings, ends=ends, still=still, models=models, looks=looks, agents=agents)
    )

    async def done() -> T:
        async with hf:
            return await do(hf)

    return anyio.run(done)


def _without_turns(
    settings: ServerSettings, *, ends: bool, still: bool, models: bool, looks: bool, agents: bool
) -> dict[str, Any]:
    """What a command has otherwise than the configuration: it runs no turns, starts no tools, and ends nothing behind its work."""
    import msgspec

    from holdfast.config.build import build_index_settings, build_life_settings
    from holdfast.indexes.settings import as_it_is

    config = settings.config
    life = build_life_settings(config)
    if still:
        life = msgspec.structs.replace(life, max_sessions=0, sweep=False, still=True)
    instead: dict[str, Any] = {"life": life, "python": None, "mcp_servers": ()}
    if not ends:
        instead |= {"hooks": (), "workspaces": None}
    if not (agents or (models and config.dreaming.model)):
        instead["roster"] = None
    if looks and (index := build_index_settings(config)) is not None:
        instead["index"] = as_it_is(index, settings.store)
    return instead


def require(url: str) -> None:
    """Refuse a SQLite file that is not there: opening it would make it."""
    if not url.startswith("sqlite:"):
        return
    from holdfast.stores.sql.address import MEMORY, path_of

    path = path_of(url)
    if path != MEMORY and not Path(path).exists():
        raise StoreUnavailable(
            f"{path}: there is no such database; --store names another, `holdfast serve` and `holdfast sessions import` make one"
        )


async def found(hf: Holdfast, session_id: str, user: str | None) -> Session:
    """The session of that id: the user's, else the only one."""
    from holdfast.domain.session import SessionRef

    if user is not None:
        return await hf.store.get(SessionRef(user, session_id))
    try:
        return await hf.store.find(session_id)
    except AmbiguousSession as exc:
        raise Failure(f"several users have a session {session_id!r}: say whose with --user") from exc


async def all_found(hf: Holdfast, ids: Sequence[str], user: str | None) -> list[Session]:
    """Each session once, in the order of `ids`; an error before anything is done with one when another is not there."""
    sessions = [await found(hf, session_id, user) for session_id in ids]
    return list({session.ref: session for session in sessions}.values())
