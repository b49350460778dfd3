"""Define commands: a decorator adds the options that commands share, opens the store, and prints the result as text or JSON."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from holdfast.cli.errors import Failure
from holdfast.cli.terminal import is_interactive, show_busy, show_json, show_rows
from holdfast.errors import AmbiguousSession, StoreUnavailable

if TYPE_CHECKING:
    from holdfast.config.model import Config
    from holdfast.domain.session import Session
    from holdfast.holdfast import Holdfast

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# -- options -----------------------------------------------------------------------

STORE: Final = click.Option(["--store"], metavar="URL", help="Database, like sqlite:///chat.db  [HOLDFAST_STORE]")
CONFIG: Final = click.Option(
    ["--config"], metavar="FILE", help="Configuration file.  [default: holdfast.yaml, if it exists; HOLDFAST_CONFIG]"
)
JSON: Final = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")

user_option = click.option("--user", metavar="ID", help="Only sessions of this user.")
session_user_option = click.option("--user", metavar="ID", help="User of the session, if several users have this ID.")
ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def limit_option(plural: str, *, most: int, default: int) -> Callable[[F], F]:
    """Return the option `--limit`, for the maximum number of items that a command prints.

    Args:
        plural: name of the items in the help text, in the plural.
        most: highest value of the option; the lowest is 1.
        default: default of the option.
    """
    count = click.IntRange(1, most)
    text = f"Maximum number of {plural}."
    return click.option("--limit", metavar="N", type=count, default=default, show_default=True, help=text)


# -- results -----------------------------------------------------------------------


class Note(str):
    """A line of text that is printed to stderr."""

    __slots__ = ()


Row = Mapping[str, object]
"""A row of a table: its cells by the heading of their column. Integers are aligned to the right."""


class Output(NamedTuple):
    """The result of a command. It is printed after the store is closed."""

    data: Any
    """Data that `--json` prints."""
    text: Iterable[str | Sequence[Row]] = ()
    """Lines and tables that are printed without `--json`. They are only read in this case."""
    notes: Iterable[str] = ()
    """Lines that are printed to stderr after both."""
    failure: str | None = None
    """The error with which the command ends after all output; None: it succeeds."""

    def show(self, *, as_json: bool) -> None:
        """Print the result, and raise `Failure` if the command has failed."""
        if as_json:
            show_json(self.data)
        else:
            for part in self.text:
                if isinstance(part, str):
                    click.echo(part, err=isinstance(part, Note))
                else:
                    show_rows(part)
        for note in self.notes:
            click.echo(note, err=True)
        if self.failure is not None:
            raise Failure(self.failure)


# -- commands ----------------------------------------------------------------------


class Call(NamedTuple):
    """The values of the options that commands share."""

    store: str | None = None
    """URL of the store. None: the store that environment or configuration file name."""
    config: str | None = None
    """The configuration file. None: the default file."""
    as_json: bool = False

    def load_settings(self, **flags: Any) -> Config:
        """Load the configuration that the options, the environment and the file give. `flags` are further options."""
        from holdfast.config.loader import load_settings

        return load_settings({"store": self.store, "config": self.config, **flags}, os.environ)

    def run(
        self,
        do: Callable[[Holdfast], Awaitable[T]],
        *,
        create: bool = False,
        writes: bool = False,
        keep_sessions: bool = False,
        index_read_only: bool = False,
        with_agents: bool = False,
    ) -> T:
        """Open the store, call `do` with it, close it, and return the result of `do`.

        Args:
            do: the function to call.
            create: True: create the database if it does not exist. False: raise an error if the database does not exist.
            writes: True: the command changes data, so hooks run and transcripts are updated.
            keep_sessions: True: no session expires or is evicted meanwhile.
            index_read_only: True: the index is not changed, and its file is not created.
            with_agents: True: load agents and models of the configuration, for commands that build prompts.
        """
        import anyio
        import msgspec

        from holdfast.config.build import build_index_settings, build_life_settings, create_holdfast
        from holdfast.indexes.settings import avoid_creating_file

        config = self.load_settings()
        if create:
            create_folder(config.store)
        else:
            _require_database(config.store)
        life = build_life_settings(config)
        if keep_sessions:
            life = msgspec.structs.replace(life, max_sessions=0, sweep=False, still=True)
        # A command runs no turns and starts no tools.
        instead: dict[str, Any] = {"life": life, "python": None, "mcp_servers": ()}
        if not writes:
            instead |= {"hooks": (), "workspaces": None}
        if not with_agents:
            instead["roster"] = None
        if index_read_only and (index := build_index_settings(config)) is not None:
            instead["index"] = avoid_creating_file(index, config.store)
        hf = create_holdfast(config, **instead)

        async def run() -> T:
            async with hf:
                return await do(hf)

        with show_busy():
            return anyio.run(run)


def command(
    group: click.Group | None = None, *, shared: Sequence[click.Option] = (STORE, CONFIG, JSON), **opening: bool
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function, named after the function without underscores at the end.

    The function gets the other options as named arguments, and returns an `Output`, or None if it prints its result itself. An async
    function gets the open store as first argument, any other function the `Call`.

    Args:
        group: the group to which the command belongs. None: the command is added to a group elsewhere.
        shared: the options that the command shares with others; its own options are above them in the help text.
        opening: for an async function: arguments of `Call.run`.
    """

    def make(function: Callable[..., Any]) -> click.Command:
        def run(**options: Any) -> None:
            call = Call(**{name: options.pop(name) for name in Call._fields if name in options})
            if inspect.iscoroutinefunction(function):
                output = call.run(lambda hf: function(hf, **options), **opening)
            else:
                output = function(call, **options)
            if output is not None:
                output.show(as_json=call.as_json)

        made = click.Command(
            function.__name__.rstrip("_"),
            callback=run,
            params=[*reversed(getattr(function, "__click_params__", ())), *shared],
            help=inspect.cleandoc(function.__doc__ or ""),
        )
        if group is not None:
            group.add_command(made)
        return made

    return make


def confirm(question: str, descriptions: Sequence[str] = ()) -> None:
    """Ask the user to confirm a deletion. The store is not open while the user decides.

    Raises:
        click.UsageError: standard input is not a terminal.
        Failure: the user did not confirm.
    """
    if not is_interactive():
        raise click.UsageError("Standard input is not a terminal: confirm with --yes.")
    for description in descriptions:
        click.echo(f"  {description}", err=True)
    if not click.confirm(question, err=True):
        raise Failure("nothing was deleted")


# -- the store ---------------------------------------------------------------------


def create_folder(url: str) -> None:
    """Create the folder of an SQLite file if it does not exist, and report it on standard error. Raise `StoreUnavailable`."""
    from holdfast.config.build import create_store_folder

    if folder := create_store_folder(url):
        click.echo(f"created the folder {folder}", err=True)


def _require_database(url: str) -> None:
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
