"""Open the store that the options of a command name, and find sessions in it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.errors import Failure
from holdfast.cli.terminal import show_busy
from holdfast.errors import AmbiguousSession, StoreUnavailable

if TYPE_CHECKING:
    from holdfast.config import ServerSettings
    from holdfast.domain.session import Session
    from holdfast.holdfast import Holdfast

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def store_options(command: F) -> F:
    """Add `--store` and `--config`. They override environment variables, which override the configuration file."""
    store = click.option("--store", metavar="URL", help="Database, like sqlite:///chat.db  [HOLDFAST_STORE]")
    return store(config_option(command))


config_option = click.option(
    "--config", metavar="FILE", help="Configuration file.  [default: holdfast.yaml, if it exists; HOLDFAST_CONFIG]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
user_option = click.option("--user", metavar="ID", help="Only sessions of this user.")
session_user_option = click.option("--user", metavar="ID", help="User of the session, if several users have this ID.")
ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)


def limit_option(plural: str, *, most: int, default: int) -> Callable[[F], F]:
    """Return the option `--limit`, for the maximum number of items that a command prints.

    Args:
        plural: name of the items in the help text, in the plural.
        most: highest value of the option; the lowest is 1.
        default: default of the option.
    """
    return click.option(
        "--limit",
        metavar="N",
        type=click.IntRange(1, most),
        default=default,
        show_default=True,
        help=f"Maximum number of {plural}.",
    )


def run_with_store(
    do: Callable[[Holdfast], Awaitable[T]],
    *,
    store: str | None,
    config: str | None,
    create: bool = False,
    writes: bool = False,
    keep_sessions: bool = False,
    index_read_only: bool = False,
    with_agents: bool = False,
) -> T:
    """Open the store, call `do` with it, close it, and return the result of `do`.

    Args:
        do: the function to call.
        store: value of `--store`; None: the store that environment or configuration file name.
        config: value of `--config`; None: the default file.
        create: True: create the database if it does not exist. False: raise an error if the database does not exist.
        writes: True: the command changes data, so hooks run and transcripts are updated.
        keep_sessions: True: no session expires or is evicted meanwhile.
        index_read_only: True: the index is not changed, and its file is not created.
        with_agents: True: load agents and models of the configuration, for commands that build prompts.
    """
    import anyio

    from holdfast.config import load_settings
    from holdfast.config.build import create_holdfast

    settings = load_settings({"store": store, "config": config}, os.environ)
    if create:
        create_folder(settings.store)
    else:
        require_database(settings.store)
    hf = create_holdfast(
        settings,
        **_build_overrides(
            settings,
            writes=writes,
            keep_sessions=keep_sessions,
            index_read_only=index_read_only,
            with_agents=with_agents,
        ),
    )

    async def run() -> T:
        async with hf:
            return await do(hf)

    with show_busy():
        return anyio.run(run)


def _build_overrides(
    settings: ServerSettings,
    *,
    writes: bool,
    keep_sessions: bool,
    index_read_only: bool,
    with_agents: bool,
) -> dict[str, Any]:
    """Return the settings that replace those of the configuration, because a command runs no turns and starts no tools."""
    import msgspec

    from holdfast.config.build import build_index_settings, build_life_settings
    from holdfast.indexes.settings import avoid_creating_file

    config = settings.config
    life = build_life_settings(config)
    if keep_sessions:
        life = msgspec.structs.replace(life, max_sessions=0, sweep=False, still=True)
    instead: dict[str, Any] = {"life": life, "python": None, "mcp_servers": ()}
    if not writes:
        instead |= {"hooks": (), "workspaces": None}
    if not with_agents:
        instead["roster"] = None
    if index_read_only and (index := build_index_settings(config)) is not None:
        instead["index"] = avoid_creating_file(index, settings.store)
    return instead


def create_folder(url: str) -> None:
    """Create the folder of an SQLite file if it does not exist, and report it on standard error. Raise `StoreUnavailable`."""
    from holdfast.config.build import create_store_folder

    if folder := create_store_folder(url):
        click.echo(f"created the folder {folder}", err=True)


def require_database(url: str) -> None:
    """Raise `StoreUnavailable` if the URL names an SQLite file that does not exist. Opening it would create it."""
    if not url.startswith("sqlite:"):
        return
    from holdfast.stores.sql.address import MEMORY, parse_path

    path = parse_path(url)
    if path != MEMORY and not Path(path).exists():
        raise StoreUnavailable(
            f"{path}: no such database; name another with --store, or create one with `holdfast serve` or `holdfast sessions import`"
        )


async def find_session(hf: Holdfast, session_id: str, user: str | None) -> Session:
    """Return the session of a user with an id. If no user is given, return the only session with the id.

    Raises:
        Failure: no user is given, and several users have a session with the id.
        SessionNotFound: there is no such session.
    """
    from holdfast.domain.session import SessionRef

    if user is not None:
        return await hf.store.get(SessionRef(user, session_id))
    try:
        return await hf.store.find(session_id)
    except AmbiguousSession as exc:
        raise Failure(f"several users have a session {session_id!r}: name one of them with --user") from exc


async def find_sessions(hf: Holdfast, ids: Sequence[str], user: str | None) -> list[Session]:
    """Return the sessions with these ids in order, without duplicates. Raise the errors of `find_session`."""
    sessions = [await find_session(hf, session_id, user) for session_id in ids]
    return list({session.ref: session for session in sessions}.values())
