"""`holdfast state`: get, set, unset, increment, append; of a session with all that it shares, of a user, of all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.stores import found, json_option, place_options, work
from holdfast.cli.terminal import Column, counted, line, plain, show_json, show_table
from holdfast.numbers import is_number

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.state import StateHandle

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_SHOWN = 100
"""Characters of a value in a table."""


class _Whose(NamedTuple):
    """Whose state is meant, and in which store."""

    session: str | None
    user: str | None
    app: bool
    store: str | None
    config: str | None

    def do(self, what: Callable[[StateHandle], Awaitable[T]], *, writes: bool = True) -> T:
        """Do something with it. Raises `Misuse` where it is not clear which is meant."""
        if self.app + (self.session is not None or self.user is not None) != 1:
            raise Misuse("say whose state: --session ID, --user ID, or --app")

        async def opened(hf: Holdfast) -> T:
            return await what(await self._state(hf))

        return work(opened, store=self.store, config=self.config, ends=writes)

    async def _state(self, hf: Holdfast) -> StateHandle:
        from holdfast.sessions.state import SessionState

        if self.app:
            return hf.app_state()
        if self.session is None:
            return hf.user_state(str(self.user))
        return SessionState(hf.engine, (await found(hf, self.session, self.user)).ref)


def _lasting(*keys: str) -> None:
    """Raises `Misuse` for a key under which nothing can stand outside of a turn: its write would be dropped without a word."""
    from holdfast.domain.state import scope_of

    for key in keys:
        if scope_of(key) == "temp":
            raise Misuse(f"{key!r} would be of one turn: outside of turns nothing stands under keys with temp:")


def _options(command: F) -> F:
    """What all of them take: whose state, in which store, and how it is told."""
    session = click.option("--session", metavar="ID", help="A session's, with what it shares.")
    user = click.option("--user", metavar="ID", help="What a user's sessions share; with --session, whose that is.")
    app = click.option("--app", is_flag=True, help="What all sessions share.")
    return session(user(app(place_options(json_option(command)))))


@click.group
def state() -> None:
    """Look at state and change it. A key has its scope before it: user:theme, app:version, or nothing for the session's own."""


@state.command
@click.argument("key", metavar="[KEY]", required=False)
@_options
def get(key: str | None, *, as_json: bool, **whose: Any) -> None:
    """Show what stands under a key, or all keys."""
    place = _Whose(**whose)
    if key is None:
        _show_all(place.do(lambda held: held.all(), writes=False), as_json=as_json)
        return
    wanted = key
    value = place.do(lambda held: held.get(wanted), writes=False)
    if value is None:
        raise Failure(f"there is nothing under {key!r}")
    if as_json:
        show_json(value)
    else:
        click.echo(plain(value if isinstance(value, str) else _json(value)))


def _show_all(held: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json(held)
    elif held:
        rows = [[key, _short(value)] for key, value in sorted(held.items())]
        show_table([Column("key"), Column("value")], rows)
    else:
        click.echo("There is nothing in it.", err=True)


@state.command(name="set")
@click.argument("key", metavar="KEY")
@click.argument("value", metavar="VALUE")
@click.option("--text", is_flag=True, help="Take VALUE as a text, even if it is JSON.")
@_options
def set_(key: str, value: str, *, text: bool, as_json: bool, **whose: Any) -> None:
    """Have VALUE stand under a key: JSON, or else a text. Before a VALUE that begins with - write --."""
    _lasting(key)
    taken = value if text else _value(value)
    if taken is None:
        raise Misuse("null is nothing: `holdfast state unset` deletes a key, and --text takes the word")
    _Whose(**whose).do(lambda held: held.set(key, taken))
    _told(f"Set {line(key)}.", {key: taken}, as_json=as_json)


@state.command
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@_options
def unset(keys: Sequence[str], *, as_json: bool, **whose: Any) -> None:
    """Have nothing stand under these keys."""
    _lasting(*keys)
    nothing = dict.fromkeys(keys)
    _Whose(**whose).do(lambda held: held.update(nothing))
    _told(f"Deleted {counted(len(nothing), 'key')}.", nothing, as_json=as_json)


@state.command
@click.argument("key", metavar="KEY")
@click.option("--by", metavar="NUMBER", default="1", show_default=True, help="How much; less than 0 takes away.")
@_options
def increment(key: str, by: str, *, as_json: bool, **whose: Any) -> None:
    """Add to the number under a key, to 0 where there is none, and show what it is then."""
    _lasting(key)
    amount = _value(by)
    if not is_number(amount):
        raise Misuse(f"--by: expected a number, got {by!r}")
    number = _Whose(**whose).do(lambda held: held.increment(key, amount))
    _told(_json(number), {key: number}, as_json=as_json)


@state.command
@click.argument("key", metavar="KEY")
@click.argument("values", metavar="VALUE...", nargs=-1, required=True)
@click.option("--text", is_flag=True, help="Take each VALUE as a text, even if it is JSON.")
@_options
def append(key: str, values: Sequence[str], *, text: bool, as_json: bool, **whose: Any) -> None:
    """Add values to the end of the list under a key, of an empty one where there is none. Before a VALUE with - write --."""
    _lasting(key)
    taken = [value if text else _value(value) for value in values]
    length = _Whose(**whose).do(lambda held: held.append(key, *taken))
    _told(f"{line(key)} has {counted(length, 'value')}.", {"key": key, "length": length}, as_json=as_json)


def _told(words: str, data: Any, *, as_json: bool) -> None:
    if as_json:
        show_json(data)
    else:
        click.echo(words)


def _value(text: str) -> Any:
    """The JSON that `text` is, or `text`."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _json(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _short(value: Any) -> str:
    text = _json(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
