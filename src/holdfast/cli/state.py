"""`holdfast state`: get, set and unset; for a session, a user, or all sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.stores import find_session, json_option, run_with_store, store_options
from holdfast.cli.terminal import Column, cut, format_line, sanitize, show_json, show_table
from holdfast.numbers import format_count, is_number

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.state import StateHandle

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_SHOWN = 100
"""Maximum characters of a value in a table."""


class _StateTarget(NamedTuple):
    """The options that name the owner of the state, and the store."""

    session: str | None
    user: str | None
    app: bool
    store: str | None
    config: str | None

    def do(self, what: Callable[[StateHandle], Awaitable[T]], *, writes: bool = True) -> T:
        """Open the store, call `what` with the state, and return the result of `what`.

        Raises:
            Misuse: the options do not name exactly one owner.
        """
        if self.app + (self.session is not None or self.user is not None) != 1:
            raise Misuse("name one owner: --session ID, --user ID or --app")

        async def run(hf: Holdfast) -> T:
            return await what(await self._get_state(hf))

        return run_with_store(run, store=self.store, config=self.config, writes=writes)

    async def _get_state(self, hf: Holdfast) -> StateHandle:
        from holdfast.sessions.state import SessionState

        if self.app:
            return hf.app_state()
        if self.session is None:
            return hf.user_state(str(self.user))
        return SessionState(hf.engine, (await find_session(hf, self.session, self.user)).ref)


def _refuse_temporary(*keys: str) -> None:
    """Raise `Misuse` if a key has the prefix `temp:`. Such keys exist only during a turn, so a change would be lost without notice."""
    from holdfast.domain.state import get_scope

    for key in keys:
        if get_scope(key) == "temp":
            raise Misuse(f"{key!r} exists only during a turn: keys that begin with temp: cannot be changed here")


def _add_options(command: F) -> F:
    session = click.option("--session", metavar="ID", help="State of this session, with the state it shares.")
    user = click.option(
        "--user",
        metavar="ID",
        help="State that all sessions of this user share; with --session, the user of that session.",
    )
    app = click.option("--app", is_flag=True, help="State that all sessions share.")
    return session(user(app(store_options(json_option(command)))))


@click.group
def state() -> None:
    """Read and change state. A prefix of the key is its scope: user:theme, app:version. A key without one belongs to the session."""


@state.command
@click.argument("key", metavar="[KEY]", required=False)
@_add_options
def get(key: str | None, *, as_json: bool, **target: Any) -> None:
    """Show the value of a key, or of all keys."""
    place = _StateTarget(**target)
    if key is None:
        _show_all(place.do(lambda handle: handle.all(), writes=False), as_json=as_json)
        return
    wanted = key
    value = place.do(lambda handle: handle.get(wanted), writes=False)
    if value is None:
        raise Failure(f"no value is stored under {key!r}")
    if as_json:
        show_json(value)
    else:
        click.echo(sanitize(value if isinstance(value, str) else _to_json(value)))


def _show_all(values: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json(values)
    elif values:
        rows = [[key, cut(_to_json(value), _SHOWN)] for key, value in sorted(values.items())]
        show_table([Column("key"), Column("value")], rows)
    else:
        click.echo("The state is empty.", err=True)


@state.command(name="set")
@click.argument("key", metavar="KEY")
@click.argument("values", metavar="VALUE...", nargs=-1)
@click.option("--text", is_flag=True, help="Treat VALUE as text even if it is valid JSON.")
@click.option(
    "--increment", metavar="NUMBER", help="Add to the number under KEY, 0 if there is none, and show the result."
)
@click.option("--append", is_flag=True, help="Append each VALUE to the list under KEY, empty if there is none.")
@_add_options
def set_(
    key: str, values: Sequence[str], *, text: bool, increment: str | None, append: bool, as_json: bool, **target: Any
) -> None:
    """Set a key to VALUE, read as JSON if it is valid JSON, otherwise as text. Put -- before a VALUE that begins with -."""
    _refuse_temporary(key)
    if increment is not None:
        _increment(key, increment, values or append or text, as_json=as_json, **target)
        return
    taken = [value if text else _parse_value(value) for value in values]
    place = _StateTarget(**target)
    if append and taken:
        length = place.do(lambda handle: handle.append(key, *taken))
        _report(
            f"{format_line(key)} has {format_count(length, 'value')}.", {"key": key, "length": length}, as_json=as_json
        )
        return
    if len(taken) != 1:
        raise Misuse("give one VALUE, quoted if it has spaces; only --append takes several")
    (value,) = taken
    if value is None:
        raise Misuse("null cannot be stored: use `holdfast state unset` to delete a key, or --text for the word null")
    place.do(lambda handle: handle.set(key, value))
    _report(f"Set {format_line(key)}.", {key: value}, as_json=as_json)


def _increment(key: str, by: str, more: object, *, as_json: bool, **target: Any) -> None:
    amount = _parse_value(by)
    if more or not is_number(amount):
        raise Misuse(f"--increment: expected a number and no VALUE, got {by!r}")
    number = _StateTarget(**target).do(lambda handle: handle.increment(key, amount))
    _report(_to_json(number), {key: number}, as_json=as_json)


@state.command
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@_add_options
def unset(keys: Sequence[str], *, as_json: bool, **target: Any) -> None:
    """Delete keys."""
    _refuse_temporary(*keys)
    nothing = dict.fromkeys(keys)
    _StateTarget(**target).do(lambda handle: handle.update(nothing))
    _report(f"Deleted {format_count(len(nothing), 'key')}.", nothing, as_json=as_json)


def _report(words: str, data: Any, *, as_json: bool) -> None:
    if as_json:
        show_json(data)
    else:
        click.echo(words)


def _parse_value(text: str) -> Any:
    """Return `text` decoded as JSON, or unchanged if it is not valid JSON."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _to_json(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
